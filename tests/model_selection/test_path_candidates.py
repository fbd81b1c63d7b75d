"""Paths of a BayesSearchCV: candidates whose fits are shared with those of the chosen one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import loguniform, randint, uniform
from sklearn import model_selection as sk
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor

from skfleet.model_selection import BayesSearchCV, CandidateSource
from skfleet.model_selection._samplers._optuna_source import OptunaSource
from skfleet.model_selection._samplers._parameter_space import ParameterSpace

X, Y = load_diabetes(return_X_y=True)
X, Y = X[:150, :4], Y[:150]
MODEL = make_pipeline(StandardScaler(), PolynomialFeatures(include_bias=False), Ridge())
SPACE = {"ridge__alpha": loguniform(1e-3, 1e3), "polynomialfeatures__degree": [1, 2]}
NEIGHBORS = {"n_neighbors": [1, 3, 5, 7, 9], "weights": ["uniform", "distance"], "p": [1, 2]}


def bayes(estimator=MODEL, space=SPACE, **params):
    params = {"n_iter": 4, "random_state": 0, "cv": 3, "batch_size": 1, "path_size": 4} | params
    return BayesSearchCV(estimator, space, **params)


def keys(search):
    return [tuple(sorted(params.items())) for params in search.cv_results_["params"]]


def scores_by_scikit_learn(search):
    return [
        sk.cross_val_score(clone(search.estimator).set_params(**params), X, Y, cv=3).mean()
        for params in search.cv_results_["params"]
    ]


def test_each_candidate_is_followed_by_its_path(on_cluster):
    search = bayes().fit(X, Y)
    results = search.cv_results_
    assert len(results["params"]) == 16
    np.testing.assert_allclose(results["mean_test_score"], scores_by_scikit_learn(search))
    assert search.best_score_ == results["mean_test_score"].max()
    for begin in range(0, 16, 4):
        path = results["params"][begin : begin + 4]
        assert len({params["polynomialfeatures__degree"] for params in path}) == 1
        places = np.sort([SPACE["ridge__alpha"].cdf(params["ridge__alpha"]) for params in path])
        np.testing.assert_allclose(np.diff(places), 0.25)


def test_without_paths_nothing_else_is_chosen(on_cluster):
    with_paths = bayes().fit(X, Y)
    without = bayes(path_size=1, n_iter=1).fit(X, Y)
    assert keys(with_paths)[0] == keys(without)[0]


def test_a_path_is_fitted_as_one(on_cluster):
    search = bayes(KNeighborsRegressor(), NEIGHBORS, n_iter=2, path_size=10).fit(X, Y)
    (use,) = search.shared_fits_
    assert use.n_fits == 60
    # one fit on each split for each of the two candidates, or two
    assert use.n_saved >= 48
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], scores_by_scikit_learn(search)
    )


def test_no_candidate_of_lists_is_chosen_twice_and_the_search_ends_with_the_last(on_cluster):
    search = bayes(KNeighborsRegressor(), NEIGHBORS, n_iter=15, path_size=10).fit(X, Y)
    assert len(keys(search)) == len(set(keys(search))) == 20


@pytest.mark.parametrize("racing", [None, "wilcoxon"])
def test_model_learns_of_the_best_of_a_path(racing, on_cluster, monkeypatch):
    studies = []
    tell_path = OptunaSource.tell_path

    def spy(self, *args):
        tell_path(self, *args)
        studies.append(self._rung(0).study)

    monkeypatch.setattr(OptunaSource, "tell_path", spy)
    search = bayes(racing=racing, cv=6).fit(X, Y)
    trials = studies[-1].trials
    scores = search.cv_results_["mean_test_score"]
    n_folds = search.cv_results_.get("n_folds", np.full(16, 6))
    whole = np.where(n_folds == 6, scores, -np.inf).reshape(4, 4)
    expected = []
    for path in whole:
        expected += [path[0]] if np.isfinite(path[0]) else []
        expected += [path[1:].max()] if path[1:].max() > path[0] else []
    states = [trial.state.name for trial in trials]
    assert states.count("COMPLETE") == len(expected)
    assert states.count("PRUNED") == np.isinf(whole[:, 0]).sum()
    np.testing.assert_allclose([t.value for t in trials if t.state.name == "COMPLETE"], expected)


def test_distributions_without_cdf_and_several_dicts(on_cluster):
    class Quantiles:
        def ppf(self, u):
            return 10.0 ** (6 * np.asarray(u) - 3)

        def rvs(self, random_state=None):
            return float(self.ppf(np.random.default_rng(random_state).random()))

    model = make_pipeline(StandardScaler(), PolynomialFeatures(), Ridge())
    space = [
        {"ridge__alpha": Quantiles(), "polynomialfeatures__degree": [1]},
        {"ridge": [SVR()], "ridge__C": Quantiles()},
    ]
    search = bayes(model, space, n_iter=8).fit(X, Y)
    # those of the step itself have no path, as the pipeline is another one
    is_ridge = ["ridge" not in params for params in search.cv_results_["params"]]
    n_ridge, n_svm = sum(is_ridge) // 4, is_ridge.count(False)
    assert n_ridge + n_svm == 8
    assert min(n_ridge, n_svm) > 0


def test_a_batch_has_no_candidate_twice(on_cluster):
    search = bayes(KNeighborsRegressor(), NEIGHBORS, n_iter=4, batch_size=2, path_size=6).fit(X, Y)
    chosen_later = keys(search)
    assert len(set(chosen_later)) >= len(chosen_later) - 2  # chosen before a path was known


@pytest.mark.parametrize("sampler", ["random", "sobol"])
def test_paths_of_drawn_candidates(sampler, on_cluster):
    search = bayes(sampler=sampler).fit(X, Y)
    assert len(search.cv_results_["params"]) == 16
    assert len(set(keys(search))) == 16
    assert max(use.n_saved for use in search.shared_fits_) >= 36


def test_a_sampler_of_the_users_own_hears_of_what_it_chose(on_cluster):
    class Mine(CandidateSource):
        told = ()

        def ask(self, order, pending):
            return {"ridge__alpha": 10.0**order.candidate, "polynomialfeatures__degree": 1}

        def tell(self, order, params, score):
            self.told = (*self.told, (order.candidate, params["ridge__alpha"]))

    sampler = Mine()
    search = bayes(sampler=sampler, n_iter=3).fit(X, Y)
    assert len(search.cv_results_["params"]) == 12
    assert sampler.told == ((0, 1.0), (1, 10.0), (2, 100.0))


def test_a_search_goes_on_with_more_paths(tmp_path, on_cluster):
    whole = bayes(n_iter=4).fit(X, Y)
    first = bayes(n_iter=2, checkpoint=tmp_path).fit(X, Y)
    second = bayes(n_iter=4, checkpoint=tmp_path).fit(X, Y)
    assert first.n_checkpoint_fits_ == 0
    assert second.n_checkpoint_fits_ == 2 * 4 * 3
    assert keys(second) == keys(whole)


def test_without_a_fleet_the_candidates_are_the_same():
    apart = bayes(n_jobs=1).fit(X, Y)
    assert len(keys(apart)) == 16
    assert apart.shared_fits_ == ()
    np.testing.assert_allclose(apart.cv_results_["mean_test_score"], scores_by_scikit_learn(apart))


@pytest.mark.parametrize(
    ("estimator", "space", "params", "message"),
    [
        (MODEL, SPACE, {"path_size": 0}, "path_size must be a whole number"),
        (MODEL, SPACE, {"share_fits": False}, "path_size must be 1 with share_fits=False"),
        (
            GaussianNB(),
            {"var_smoothing": loguniform(1e-9, 1)},
            {},
            "further candidates would cost a fit each. Got 4 for GaussianNB",
        ),
        # one matrix of the kernel serves all of them, but each needs a solution
        (SVR(), {"C": loguniform(1e-3, 1e3)}, {}, "Got 4 for SVR"),
        (DecisionTreeRegressor(), {"ccp_alpha": uniform(0, 1)}, {}, "random_state must be"),
    ],
)
def test_bad_parameters(estimator, space, params, message, on_cluster):
    with pytest.raises(ValueError, match=message):
        bayes(estimator, space, **params).fit(X, Y > 100)


def test_values_that_share_no_fit_leave_a_gap_in_the_path(on_cluster):
    """The lattice goes on for more, and begins again: nothing of it is there twice."""
    search = bayes(space={"ridge__alpha": uniform(-1, 2)}, n_iter=3, path_size=8).fit(X, Y)
    alphas = np.sort([params["ridge__alpha"] for params in search.cv_results_["params"]])
    assert len(alphas) > 8
    assert np.diff(alphas).min() > 1e-6


@settings(max_examples=60, deadline=None)
@given(
    u=st.floats(0, 1, exclude_min=True, exclude_max=True),
    index=st.integers(0, 4),
    share=st.floats(0, 3),
)
def test_moved_parameters_are_of_the_space(u, index, share):
    values = list("abcde")
    space = ParameterSpace({"a": uniform(2, 3), "b": randint(1, 60), "c": values, "d": [1]})
    at = {"a": u, "b": u, "c": index, "d": 0}
    moved = space.moved(at, {"a": share, "b": share, "c": share})
    candidate = space.candidate_of(moved)
    assert 2 <= candidate["a"] <= 5
    assert candidate["b"] in range(1, 60)
    assert candidate["c"] in values
    assert candidate["d"] == 1
    assert space.candidate_of(space.moved(at, {"a": 0, "b": 0, "c": 0})) == space.candidate_of(at)
    whole = {space.moved(at, {"c": i / 5})["c"] for i in range(5)}
    assert whole == set(range(5))
