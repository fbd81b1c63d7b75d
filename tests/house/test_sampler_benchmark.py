"""The benchmark of samplers: its simulation spends what it says, and regrets are what they mean."""

from dataclasses import dataclass

import numpy as np
import pytest
from regret import DRAWN, Chart, Key, Reference, Trace, curves, regrets, summaries
from sampler_quality import Repeated, Run
from scipy.stats import uniform
from surrogates import Answers

from skfleet.model_selection._adaptive._schedules import Hyperband, RoundRobin, hyperband_rungs
from skfleet.model_selection._samplers._candidate_source import CandidateSource

R = 9


@dataclass
class Line:
    """An imagined estimator whose scores and seconds follow from a number and the calls."""

    is_warm: bool
    n_calls: int = R

    def answers(self, candidates, levels):
        quality = np.array([[params["quality"]] for params in candidates])
        calls = np.array([levels], dtype=float)
        return Answers(quality * calls, (1 + quality) * calls)


class Recorder(CandidateSource):
    """A source that records what it is asked and told."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.n_pending, self.events = [], []

    def ask(self, order, pending):
        assert order.candidate not in pending
        self.n_pending.append(len(pending))
        return {"quality": uniform.rvs(random_state=self.rng.integers(2**31))}

    def tell(self, order, params, score):
        self.events.append((order, params["quality"], score))


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("n_workers", [1, 4])
def test_a_run_spends_the_budget_in_the_order_of_the_ends(is_warm, n_workers):
    source = Recorder()
    schedule = Repeated(lambda: Hyperband(hyperband_rungs(R, 3), 3), 3)
    trace = Run(Line(is_warm), source)(schedule, n_workers, budget=10)
    assert max(source.n_pending) == n_workers - 1
    before, seconds, spent = {}, 0.0, 0.0
    for i, (order, quality, score) in enumerate(source.events):
        n_before = before.get(order.candidate, 0) if is_warm else 0
        before[order.candidate] = order.n_calls
        seconds += (1 + quality) * (order.n_calls - n_before)
        spent += (order.n_calls - n_before) / R
        assert score == trace.scores[i] == quality * order.n_calls
        assert trace.trained[i] == quality * R
        assert trace.evaluations[i] == pytest.approx(spent)
        if n_workers == 1:
            assert trace.seconds[i] == pytest.approx(seconds)
    assert (np.diff(trace.seconds) >= 0).all()
    assert seconds / n_workers <= trace.seconds[-1] + 1e-9
    assert 10 <= spent + 1e-9 < 11 + n_workers


def test_a_run_that_has_no_more_candidates_raises():
    with pytest.raises(RuntimeError, match="before the candidates"):
        Run(Line(True), Recorder())(RoundRobin(5, R, step=R), 2, budget=10)


def traces():
    """Return two methods on a task, of which one has a lucky early score, and their reference."""
    evaluations = np.array([5.0, 15.0, 30.0])
    slow = Trace(evaluations, 2 * evaluations, np.array([6, 5, 8.0]), np.array([7, 9, 8.0]))
    fast = Trace(evaluations, evaluations, np.array([8, 9, 10.0]), np.array([8, 9, 10.0]))
    runs = {"slow": slow, "fast": fast}
    keys = {Key("lcbench", "a", 0, 2, method): trace for method, trace in runs.items()}
    return keys, {("lcbench", "a"): Reference(mean=5.0, best=9.5, seconds=2.0)}


def test_regret_is_0_for_the_best_and_1_for_the_mean():
    table = regrets(*traces())
    at = np.array([1, 5, 20, 50]) - 1
    seen = table[Chart("seen", "evaluations", "lcbench", 2)]
    np.testing.assert_allclose(seen["fast"][0, 0, at], [1, 0.4, 0.2, 0])
    np.testing.assert_allclose(seen["slow"][0, 0, at], [1, 0.8, 0.8, 0.4])
    trained = table[Chart("trained", "evaluations", "lcbench", 2)]
    np.testing.assert_allclose(trained["slow"][0, 0, at], [1, 0.6, 0.6, 0.4])
    # Two workers and two seconds a full evaluation: a second is one evaluation.
    seconds = table[Chart("seen", "seconds", "lcbench", 2)]
    np.testing.assert_allclose(seconds["fast"], seen["fast"])
    np.testing.assert_allclose(seconds["slow"][0, 0, [8, 9, 49]], [1, 0.8, 0.8])


def test_ratios_are_of_means():
    arrays = regrets(*traces())[Chart("seen", "evaluations", "lcbench", 2)]
    rows = summaries(arrays, [("fast", "slow")])
    assert [row["mean"] for row in rows.values() if "mean" in row] == [
        [0.8] * 2 + [0.4],
        [0.4, 0.2, 0],
    ]
    ratio = rows["fast / slow"]
    np.testing.assert_allclose(ratio["ratio"], [0.5, 0.25, 0], atol=1e-4)
    assert ratio["low"] == ratio["high"] == ratio["ratio"]  # one task and one seed
    assert curves(arrays)["fast"] == [round(arrays["fast"][0, 0, at - 1], 4) for at in DRAWN]
