"""Candidates that Optuna's samplers choose: spaces, rungs, open trials, earlier results."""

import copy
import pickle
import sys

import numpy as np
import optuna
import pytest
from adaptive_cases import SPACE, halving
from optuna.trial import TrialState
from scipy.stats import loguniform, norm, randint, uniform
from sklearn.linear_model import SGDClassifier

from skfleet.model_selection import ASHASearchCV, HyperbandSearchCV, IncrementalSearchCV
from skfleet.model_selection._adaptive._schedules import TrainInstruction
from skfleet.model_selection._samplers._optuna_source import OptunaSource, PastScore
from skfleet.model_selection._samplers._parameter_space import ParameterSpace

MIXED = {"a": loguniform(1e-4, 1), "k": ["x", "y", None], "n": randint(1, 10), "b": uniform(0, 1)}
TWO = [{"kernel": ["linear"], "C": loguniform(1e-3, 1e3)}, {"kernel": ["rbf"], "gamma": norm()}]


class Odd:
    """A distribution without quantiles."""

    def rvs(self, random_state=None):
        return 0.5


@pytest.fixture(autouse=True)
def quiet():
    """Optuna's own loop, which the tests compare with, reports each trial."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(verbosity)


def value_of(params):
    return -abs(np.log10(params["a"]) + 2) - (params["k"] == "x") - abs(params["n"] - 4) / 3


def search_with(source, n, value=value_of, n_calls=1):
    """Ask for candidates one by one, and tell the value of each."""
    candidates = []
    for number in range(n):
        order = TrainInstruction(number, n_calls)
        candidates.append(source.ask(order, {}))
        source.tell(order, candidates[-1], value(candidates[-1]))
    return candidates


@pytest.mark.parametrize("sampler", ["tpe", optuna.samplers.TPESampler(seed=3, n_startup_trials=5)])
def test_one_by_one_candidates_are_those_of_optunas_loop(sampler):
    ours = search_with(OptunaSource(MIXED, sampler, 3), 40)
    theirs = []

    def objective(trial):
        params = {
            "a": float(MIXED["a"].ppf(trial.suggest_float("a", 0, 1))),
            "k": MIXED["k"][trial.suggest_categorical("k", range(3))],
            "n": int(MIXED["n"].ppf(trial.suggest_float("n", 0, 1))),
            "b": float(MIXED["b"].ppf(trial.suggest_float("b", 0, 1))),
        }
        theirs.append(params)
        return value_of(params)

    own = optuna.samplers.TPESampler(seed=3) if sampler == "tpe" else copy.deepcopy(sampler)
    optuna.create_study(direction="maximize", sampler=own).optimize(objective, n_trials=40)
    assert ours == theirs


def test_candidates_are_of_one_dict():
    candidates = search_with(OptunaSource(TWO, "tpe", 0), 40, lambda p: float("C" in p))
    assert {tuple(params) for params in candidates} == {("kernel", "C"), ("kernel", "gamma")}
    assert all(np.isfinite(params.get("gamma", 0)) for params in candidates)
    later = candidates[20:]
    assert sum(params["kernel"] == "linear" for params in later) > len(later) / 2


@pytest.mark.parametrize("space", [MIXED, TWO])
def test_parameters_of_trials_and_candidates_are_inverse(space):
    both = ParameterSpace(space)
    rng = np.random.default_rng(0)
    for _ in range(20):
        candidate = both.candidate_of(both.draw(rng))
        assert both.candidate_of(both.trial_params_of(candidate)) == pytest.approx(candidate)
    with pytest.raises(ValueError, match="not among the parameters"):
        both.trial_params_of({"unknown": 1})
    with pytest.raises(ValueError, match="not among the parameters"):
        both.trial_params_of({"kernel": "poly"} if space is TWO else {"n": 99})


def test_ends_of_distributions_are_finite():
    space = ParameterSpace({"x": norm(), "n": randint(3, 5)})
    low, high = (space.candidate_of({"x": u, "n": u}) for u in (0.0, 1.0))
    assert np.isfinite([low["x"], high["x"]]).all()
    assert (low["n"], high["n"]) == (3, 4)
    assert type(low["n"]) is int  # of which SciPy returns a float


def states(source, n_calls):
    trials = source._rungs[n_calls].study.get_trials(deepcopy=False)
    return [trial.state for trial in trials]


@pytest.mark.parametrize(("n_highest", "best"), [(12, 0.9), (3, 0.3)])
def test_rung_with_most_calls_and_enough_scores_is_asked(n_highest, best):
    """Each rung has its best value elsewhere; with one parameter, four scores are enough."""
    n_scores = {1: 20, 3: 12, 9: n_highest}
    past = [
        PastScore({"x": x}, -abs(x - n_calls / 10), n_calls)
        for n_calls, n in n_scores.items()
        for x in np.linspace(0.05, 0.95, n)
    ]
    source = OptunaSource({"x": uniform(0, 1)}, "tpe", 0, past=past, has_rungs=True)
    x = np.array([source.ask(TrainInstruction(number, 1), {})["x"] for number in range(60)])
    is_near = np.abs(x - best) < 0.2
    assert 0.5 < is_near.mean() < 0.95  # a third is random


def test_candidates_that_run_are_open_trials():
    source = OptunaSource({"x": uniform(0, 1)}, "tpe", 0)
    pending = {}
    for number in range(3):
        pending[number] = source.ask(TrainInstruction(number, 1), pending)
    assert states(source, 0) == [TrialState.RUNNING] * 3
    source.tell(TrainInstruction(1, 1), pending.pop(1), 0.5)
    source.tell(TrainInstruction(2, 1), pending.pop(2), float("nan"))
    assert states(source, 0) == [TrialState.RUNNING, TrialState.COMPLETE, TrialState.FAIL]
    source.ask(TrainInstruction(3, 1), {})  # the first one does not run any more
    assert states(source, 0)[0] == TrialState.FAIL


def test_a_higher_rung_sees_what_runs_below():
    source = OptunaSource({"x": uniform(0, 1)}, "tpe", 0, has_rungs=True)
    search_with(source, 8, lambda p: p["x"], n_calls=3)
    pending = {}
    for number in range(20, 26):
        pending[number] = source.ask(TrainInstruction(number, 1), pending)
    running = states(source, 3).count(TrialState.RUNNING)
    assert running >= 5  # all but perhaps the last, which may be random
    source.tell(TrainInstruction(20, 1), pending[20], 0.1)
    assert states(source, 1) == [TrialState.COMPLETE]


def test_pruned_candidates_are_heard_of():
    source = OptunaSource({"x": uniform(0, 1)}, "tpe", 0, n_splits=5)
    params = source.ask(TrainInstruction(0, 5), {})
    source.tell(TrainInstruction(0, 2), params, 0.5)
    (trial,) = source._rungs[0].study.get_trials()
    assert (trial.state, trial.intermediate_values) == (TrialState.PRUNED, {2: 0.5})


def test_points_come_first_and_are_learned_from():
    points = [{"a": 1e-2, "k": "y", "n": 4, "b": 0.5}, {"n": 5}, {"n": 77}]
    source = OptunaSource(MIXED, "tpe", 0, points=points)
    first, second, third, _ = search_with(source, 4, lambda p: 0.0)
    assert first == pytest.approx(points[0])
    assert (second["n"], third["n"]) == (5, 77)
    done = [TrialState.COMPLETE] * 2 + [TrialState.FAIL] + [TrialState.COMPLETE]
    assert states(source, 0) == done  # 77 is no value that the model knows


def test_points_that_are_equal_are_asked_for_as_they_are():
    """In a space of lists too, where other candidates are not repeated."""
    points = [{"a": 1, "b": "x"}] * 2
    source = OptunaSource({"a": [1, 2, 3], "b": ["x", "y"]}, "tpe", 0, points=points)
    assert search_with(source, 2, lambda p: 0.0) == points
    assert [trial.params for trial in source._rungs[0].study.trials] == [{"a": 0, "b": 0}] * 2


def test_past_scores_start_the_model(caplog):
    space = {"x": uniform(0, 1)}
    past = [PastScore({"x": x}, -abs(x - 0.7), 1) for x in np.linspace(0.01, 0.99, 30)]
    source = OptunaSource(space, "tpe", 0, past=[*past, PastScore({"z": 1}, 0, 1)])
    assert "1 past results have other parameters" in caplog.text
    first = [source.ask(TrainInstruction(n, 1), {})["x"] for n in range(10)]
    assert np.median(np.abs(np.array(first) - 0.7)) < 0.1


def test_a_source_can_be_sent():
    source = OptunaSource(MIXED, "tpe", 0)
    search_with(source, 15)
    again = pickle.loads(pickle.dumps(source))
    order = TrainInstruction(15, 1)
    assert again.ask(order, {}) == source.ask(order, {})


@pytest.mark.parametrize("kind", [HyperbandSearchCV, ASHASearchCV, IncrementalSearchCV])
@pytest.mark.parametrize("n_jobs", [None, 1])
def test_adaptive_searches_take_samplers(kind, n_jobs, digits, on_cluster):
    params = {"max_iter": 9, "random_state": 0, "n_jobs": n_jobs}
    searches = [
        kind(SGDClassifier(random_state=0), SPACE, sampler=sampler, **params).fit(*digits)
        for sampler in ("tpe", optuna.samplers.RandomSampler(seed=0))
    ]
    for search in searches:
        alphas = [params["alpha"] for params in search.cv_results_["params"]]
        assert len(set(alphas)) == len(alphas)
        assert 1e-6 <= min(alphas) <= max(alphas) <= 1e-1


def test_one_slot_waits_for_the_score(digits):
    asked = []

    class Source(OptunaSource):
        def ask(self, order, pending):
            asked.append(len(pending))
            return super().ask(order, pending)

    halving(sampler=Source(SPACE, "tpe", 0), n_initial_parameters=6, n_jobs=1).fit(*digits)
    assert asked == [0] * 6


def test_auto_says_which_it_is(digits, on_cluster, monkeypatch, caplog):
    caplog.set_level("INFO", logger="skfleet.model_selection")
    by_name = halving(sampler="tpe").fit(*digits).cv_results_["params"]
    assert halving(sampler="auto").fit(*digits).cv_results_["params"] == by_name
    assert caplog.text.count('sampler="auto" is "tpe", as Optuna is installed') == 1
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were missing
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for module in ("_samplers._choice", "skfleet._optional_dependencies"):
        module = module if module.startswith("skfleet") else f"skfleet.model_selection.{module}"
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    drawn = halving(sampler="auto").fit(*digits).cv_results_["params"]
    assert drawn == halving(sampler="random").fit(*digits).cv_results_["params"]
    assert 'is "random", as Optuna is not installed' in caplog.text
    message = r"sampler='tpe' needs optuna: pip install 'scikit-fleet\[optuna\]'"
    with pytest.raises(ImportError, match=message):
        halving(sampler="tpe").fit(*digits)


def test_past_results_start_an_adaptive_search(digits, on_cluster):
    earlier = halving(n_initial_parameters=8).fit(*digits)
    search = halving(sampler="tpe", past_results=earlier.cv_results_).fit(*digits)
    assert len(search.cv_results_["params"]) == 4
    with pytest.raises(ValueError, match=r'past_results must be used with sampler="tpe"'):
        halving(past_results=earlier.cv_results_).fit(*digits)
    with pytest.raises(ValueError, match="past_results must be cv_results_ with params and mean"):
        halving(sampler="tpe", past_results={"params": []}).fit(*digits)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sampler": "bayes"}, "sampler must be"),
        ({"sampler": "tpe", "parameters": {"alpha": (1, 2, "log-uniform")}}, "alpha must be a"),
        ({"sampler": optuna.samplers.GridSampler({"alpha": [1]})}, "sampler must choose among"),
        ({"sampler": "tpe", "n_initial_parameters": "grid"}, "n_initial_parameters must be a"),
        ({"sampler": "tpe", "parameters": {"alpha": Odd()}}, "alpha must be a list or a"),
    ],
)
def test_bad_samplers(params, message, digits):
    with pytest.raises((ValueError, TypeError), match=message):
        halving(**params).fit(*digits)


def test_sampler_without_a_seed_has_no_checkpoint(digits, tmp_path):
    for sampler in (optuna.samplers.TPESampler(), optuna.samplers.RandomSampler()):
        with pytest.raises(ValueError, match="sampler must have a seed with a checkpoint"):
            halving(sampler=sampler, checkpoint=tmp_path / "search").fit(*digits)
    seeded = optuna.samplers.TPESampler(seed=0)
    halving(sampler=seeded, checkpoint=tmp_path / "search", n_jobs=1).fit(*digits)


@pytest.mark.parametrize("has_rungs", [False, True])
def test_lists_alone_are_tried_once_each(has_rungs):
    space = {"a": [1, 2, 3], "b": ["x", "y"]}
    source = OptunaSource(space, "tpe", 0, has_rungs=has_rungs)
    candidates = search_with(source, 7, lambda p: float(p["a"]))
    tried = [tuple(params.items()) for params in candidates]
    assert len(set(tried[:6])) == len(set(tried)) == source.space.size == 6
