"""Samplers of adaptive searches: quasi-random, known points, grids, and ask and tell."""

import warnings

import numpy as np
import pandas as pd
import pytest
from adaptive_cases import SPACE, Counter, halving, numbered, sgd
from scipy.stats import loguniform, randint, uniform

from skfleet.model_selection import HyperbandSearchCV

pytestmark = pytest.mark.usefixtures("on_cluster")


@pytest.mark.parametrize("sampler", ["sobol", "halton"])
def test_even_samples(sampler, digits):
    space = {
        "alpha": loguniform(1e-6, 1e-1),
        "l1_ratio": uniform(0, 1),
        "loss": ["hinge", "log_loss"],
        "n_iter_no_change": randint(3, 9),
    }
    search = halving(parameters=space, sampler=sampler, n_initial_parameters=16).fit(*digits)
    drawn = pd.DataFrame(search.cv_results_["params"])
    assert min(drawn["loss"].value_counts()) >= 7
    counts = np.histogram(np.log10(drawn["alpha"].astype(float)), bins=5, range=(-6, -1))[0]
    assert counts.min() >= 2
    assert {type(params["n_iter_no_change"]) for params in search.cv_results_["params"]} == {int}
    again = halving(parameters=space, sampler=sampler, n_initial_parameters=16).fit(*digits)
    assert again.cv_results_["params"] == search.cv_results_["params"]

    class Odd:
        def rvs(self, random_state=None):
            return 0.5

    with pytest.raises(ValueError, match="alpha must be a list or a distribution with ppf"):
        halving(parameters={"alpha": Odd()}, sampler=sampler).fit(*digits)


def test_known_points_come_first(digits):
    points = [{"alpha": 1e-3}, {"penalty": "l1"}]
    space = SPACE | {"penalty": ["l2"]}
    search = halving(parameters=space, points_to_evaluate=points).fit(*digits)
    first, second, *others = search.cv_results_["params"]
    assert first == {"alpha": 1e-3, "penalty": "l2"}
    assert second["penalty"] == "l1"
    assert len(others) == 2


class Ascending:
    """Asks for qualities one after the other, and remembers what it hears."""

    def __init__(self):
        self.asked, self.told, self.pending = [], [], []

    def ask(self, order, pending):
        self.asked.append(order)
        self.pending.append(dict(pending))
        return {"quality": 0.1 * order.candidate}

    def tell(self, order, params, score):
        self.told.append((order, dict(params), score))


def test_sampler_of_ones_own_is_asked_and_told():
    X, y = numbered()
    sampler = Ascending()
    search = HyperbandSearchCV(Counter(), {}, max_iter=9, sampler=sampler, random_state=0)
    search.fit(X, y)
    assert sorted(order.candidate for order in sampler.asked) == list(range(17))
    assert len(sampler.told) == len(search.history_)
    for order, params, score in sampler.told:
        assert params == {"quality": 0.1 * order.candidate}
        row = search.history_.query(f"candidate == {order.candidate} and rung == {order.rung}")
        assert row.test_score.item() == score
    assert max(map(len, sampler.pending)) >= 1  # those under way are visible
    assert search.best_params_["quality"] == pytest.approx(0.1 * 16)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_initial_parameters": "grid"}, "n_initial_parameters must be a number"),
        ({"points_to_evaluate": [{"quality": 1.0}]}, "points_to_evaluate must not be given"),
    ],
)
def test_sampler_of_ones_own_decides_alone(params, message):
    with pytest.raises(ValueError, match=message):
        halving(Counter(), {}, sampler=Ascending(), **params).fit(*numbered())


def test_small_grid_is_taken_whole(digits):
    grid = {"alpha": [1e-4, 1e-3]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        search = halving(parameters=grid, n_initial_parameters=10)
        assert search.metadata["n_models"] == 2
        assert len(search.fit(*digits).cv_results_["params"]) == 2
    many = HyperbandSearchCV(sgd(), grid, max_iter=4, aggressiveness=2, random_state=0).fit(*digits)
    assert len(many.cv_results_["params"]) == many.metadata["n_models"] > 2
