"""An adaptive search goes on with more calls, or more candidates, from the checkpoint of fewer."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import loguniform, randint, uniform
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import KFold, ParameterGrid
from test_adaptive_resume import Writer, X, Y, calls, search

from skfleet.model_selection import (
    ASHASearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
    InverseDecaySearchCV,
    SuccessiveHalvingSearchCV,
)
from skfleet.model_selection._adaptive._schedules import hyperband_candidates, hyperband_rungs
from skfleet.model_selection._samplers import _draws

MORE = [
    (HyperbandSearchCV, {"max_iter": 9}, {"max_iter": 27}),
    (SuccessiveHalvingSearchCV, {}, {"n_initial_parameters": 27, "max_iter": 27}),
    (SuccessiveHalvingSearchCV, {"patience": 3}, {"patience": 3, "max_iter": 27}),
    (ASHASearchCV, {}, {"n_initial_parameters": 30, "max_iter": 27}),
    (InverseDecaySearchCV, {}, {"max_iter": 12}),
    (IncrementalSearchCV, {"max_iter": 5}, {"n_initial_parameters": 12, "max_iter": 8}),
]
COLUMNS = ["candidate", "bracket", "rung", "test_score"]


@pytest.mark.parametrize(("kind", "few", "many"), MORE)
def test_search_goes_on_with_more(kind, few, many, tmp_path):
    """The result is that of a search which was not divided; no score is computed again."""
    log, plain_log = tmp_path / "log", tmp_path / "plain"
    plain = search(kind, tmp_path, plain_log, checkpoint=None, n_jobs=1).set_params(**many)
    plain.fit(X, Y)
    first = search(kind, tmp_path, log, n_jobs=1).set_params(**few).fit(X, Y)
    n_before = len(calls(log)[0])
    second = search(kind, tmp_path, log, n_jobs=1).set_params(**many).fit(X, Y)
    assert second.metadata_ == plain.metadata_
    assert second.history_[COLUMNS].equals(plain.history_[COLUMNS])
    for name in ("mean_test_score", "budget", "params", "bracket", "rung"):
        assert list(second.cv_results_[name]) == list(plain.cv_results_[name])
    assert second.best_estimator_.n_calls_ == plain.best_estimator_.n_calls_
    # Models of candidates that were stopped are trained again, those whose scores suffice are not.
    assert len(calls(log)[0]) - n_before < len(calls(plain_log)[0])
    n_known = second.n_checkpoint_calls_
    assert 0 < n_known <= first.metadata_["partial_fit_calls"]
    # nothing is left to do
    again = search(kind, tmp_path, log, n_jobs=1).set_params(**many)
    n_before = len(calls(log)[0])
    assert again.fit(X, Y).n_checkpoint_calls_ == plain.metadata_["partial_fit_calls"]
    assert len(calls(log)[0]) == n_before


class Counted(RandomForestClassifier):
    """Writes down the trees that it fits."""

    def __init__(self, max_depth=None, log=None, n_estimators=10, warm_start=False):
        super().__init__(
            n_estimators, max_depth=max_depth, random_state=0, warm_start=warm_start, n_jobs=1
        )
        self.log = log

    def fit(self, X, y):
        with Path(self.log).open("a") as log:
            log.write(f"{self.max_depth} {self.n_estimators}\n")
        return super().fit(X, y)


@pytest.mark.parametrize("params", [{}, {"cv": KFold(2)}])
def test_forests_grow_on_from_the_checkpoint(params, tmp_path, digits):
    rows = digits[0][:90], digits[1][:90]

    def made(log, max_iter, **how):
        forest = Counted(log=str(tmp_path / log))
        how = {"resource": "n_estimators", "random_state": 0, "n_jobs": 1} | params | how
        space = {"max_depth": randint(1, 9)}
        return HyperbandSearchCV(forest, space, max_iter=max_iter, **how).fit(*rows)

    plain = made("plain", 9)
    checkpoint = {"checkpoint": tmp_path / "search"}
    made("log", 3, **checkpoint)
    n_before = len((tmp_path / "log").read_text().splitlines())
    second = made("log", 9, **checkpoint)
    assert second.history_[COLUMNS].equals(plain.history_[COLUMNS])
    fits = (tmp_path / "log").read_text().splitlines()[n_before:]
    assert len(fits) < len((tmp_path / "plain").read_text().splitlines())
    np.testing.assert_array_equal(
        second.best_estimator_.predict_proba(rows[0]), plain.best_estimator_.predict_proba(rows[0])
    )


@pytest.mark.parametrize("resource", ["n_samples", "folds"])
def test_fits_that_are_recorded_are_not_made_again(resource, tmp_path, digits):
    log = tmp_path / "log"
    rows = digits[0][:200], digits[1][:200]
    how = {"checkpoint": tmp_path / "search", "random_state": 0, "n_jobs": 1, "resource": resource}
    made = (
        SuccessiveHalvingSearchCV(
            Counted(log=str(log)), {"max_depth": range(1, 99)}, max_iter=3, **how
        )
        .set_params(n_initial_parameters=3)
        .fit(*rows)
    )
    n_before = len(log.read_text().splitlines())
    assert n_before == (4 if resource == "n_samples" else 6)
    again = made.set_params(n_initial_parameters=4).fit(*rows)
    fits = log.read_text().splitlines()[n_before:]
    is_new = again.cv_results_["candidate"][again.best_index_] == 3
    # the new candidate, its further levels where it is best, and the model of all rows
    assert len(fits) == (1 + is_new if resource == "n_samples" else 2 + 2 * is_new)
    if resource == "n_samples":  # a level is a fraction of the highest one
        with pytest.raises(ValueError, match="another max_iter"):
            made.set_params(max_iter=9).fit(*rows)


def test_other_splits_are_another_search(tmp_path, digits):
    rows = digits[0][:100], digits[1][:100]
    how = {"checkpoint": tmp_path / "search", "random_state": 0, "n_jobs": 1, "max_iter": 1}
    made = IncrementalSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-3]}, **how)
    made.set_params(n_initial_parameters=1, cv=KFold(3, shuffle=True)).fit(*rows)
    with pytest.raises(ValueError, match="another cv"):  # drawn again
        made.fit(*rows)


SPACES = [
    {"a": uniform(0, 1), "b": [1, 2, 3]},
    [{"a": uniform(0, 1)}, {"b": loguniform(1, 9), "c": ["x", "y"]}],
    {"a": list(range(40)), "b": ["x", "y", "z"]},
    [{"a": [1, 2, 3]}, {"b": list(range(20))}],
    {"a": list(range(1000)), "b": list(range(1000))},
]


@pytest.mark.filterwarnings("ignore:The total space of parameters")
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("sampler", _draws.DRAWS)
def test_candidates_do_not_depend_on_their_number(space, sampler):
    points = [{"a": 7}]
    for is_fixed in (False, True):
        most = _draws.candidates_of(
            space, 100, sampler, points, 0, may_be_fewer=is_fixed
        ).candidates
        for n in (1, 5, 16, 17, 23):
            fewer = _draws.candidates_of(space, n, sampler, points, 0, may_be_fewer=is_fixed)
            assert fewer.candidates == most[: len(fewer.candidates)]


def test_lists_are_drawn_without_replacement():
    for n_values in (12, 120_000):
        space = {"a": list(range(n_values)), "b": [1, 2]}
        n = min(2 * n_values, 2000)
        drawn = _draws.candidates_of(space, n, "random", None, 0).candidates
        assert len({tuple(sorted(params.items())) for params in drawn}) == n
    every = _draws.candidates_of(SPACES[3], 46, "random", None, 0, may_be_fewer=False).candidates
    for half in (every[:23], every[23:]):
        assert sorted(map(str, half)) == sorted(map(str, ParameterGrid(SPACES[3])))
    assert every[:23] != every[23:]


@given(st.integers(0, 6), st.sampled_from([2, 3, 4, 2.5]))
def test_deeper_brackets_begin_with_the_candidates_of_shallower_ones(s_max, eta):
    shallow, deep = (hyperband_candidates(s, eta) for s in (s_max, s_max + 1))
    rungs = hyperband_rungs(int(np.ceil(eta**s_max)), eta)
    assert [len(numbers) for numbers in shallow] == [bracket[0].n_candidates for bracket in rungs]
    numbers = sorted(n for bracket in shallow for n in bracket)
    assert numbers == list(range(len(numbers)))
    for first, second in zip(shallow, deep, strict=False):
        assert second[: len(first)] == first


@pytest.mark.parametrize("eta", [1.1, 1.5, 1.9])
def test_brackets_of_small_divisors_have_candidates_of_their_own(eta):
    for R in (1, 5, 20):
        rungs = hyperband_rungs(R, eta)
        brackets = hyperband_candidates(len(rungs) - 1, eta)
        assert [len(numbers) for numbers in brackets] == [b[0].n_candidates for b in rungs]
        numbers = [n for bracket in brackets for n in bracket]
        assert len(set(numbers)) == len(numbers)
    made = HyperbandSearchCV(
        Writer(), {"quality": uniform(0, 1)}, max_iter=3, aggressiveness=eta, random_state=0
    )
    assert made.metadata["n_models"] == sum(len(numbers) for numbers in hyperband_candidates(
        len(hyperband_rungs(3, eta)) - 1, eta))  # fmt: skip
