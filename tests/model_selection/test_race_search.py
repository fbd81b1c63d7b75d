"""Searches that race: their results, the fits that they make, and what they refuse."""

import logging
import warnings
from inspect import signature

import dask.array as da
import joblib
import numpy as np
import pytest
from race_cases import (
    N_SPLITS,
    SPLITS,
    Scored,
    X,
    below_worst,
    raced,
    significantly_worse,
)
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import ParameterGrid
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfleet import estimators
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._search_html import search_html

RULES = {"wilcoxon": (significantly_worse, 4), "mean": (below_worst, 3)}
GRID = {"p": list(range(12))}

pytestmark = pytest.mark.usefixtures("on_cluster")


@pytest.fixture(autouse=True)
def made():
    """Return the fits that are made, but for the refit."""
    Scored.made.clear()
    return Scored.made


def race(grid=GRID, estimator=None, rows=X, **options):
    options = {"cv": SPLITS, "racing": "mean", **options}
    return GridSearchCV(Scored() if estimator is None else estimator, grid, **options).fit(rows)


def splits_of(search, name="test_score"):
    return np.column_stack([search.cv_results_[f"split{n}_{name}"] for n in range(N_SPLITS)])


def expected_splits(racing, table=None):
    return raced(Scored.table if table is None else table, *RULES[racing])


def without_times(results):
    return {k: v for k, v in results.items() if "time" not in k and k != "params"}


@pytest.mark.parametrize("racing", RULES)
def test_results_are_those_of_the_splits_before_a_candidate_was_dropped(racing, made):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search = race(racing=racing)
        n_made = len(made)
        full = race(racing=None).cv_results_
    results, n_splits = search.cv_results_, expected_splits(racing)
    np.testing.assert_array_equal(results["n_folds"], n_splits)
    assert results["n_folds"].dtype == int
    assert results["rank_test_score"].dtype == np.int32
    counts = np.arange(N_SPLITS) < n_splits[:, None]
    np.testing.assert_array_equal(splits_of(search), np.where(counts, Scored.table, np.nan))
    for column, of in (("mean", np.mean), ("std", np.std)):
        values = [of(row[:n]) for row, n in zip(Scored.table, n_splits, strict=True)]
        np.testing.assert_allclose(results[f"{column}_test_score"], values, rtol=1e-14)
    is_complete = n_splits == N_SPLITS
    for name, values in full.items():
        if "time" not in name and "rank" not in name and name != "params":
            np.testing.assert_array_equal(results[name][is_complete], np.array(values)[is_complete])
    assert np.isfinite(results["mean_fit_time"]).all()
    # the complete ones by their means, then the others
    order = np.lexsort([-results["mean_test_score"], ~is_complete])
    assert (np.diff(results["rank_test_score"][order]) >= 0).all()
    assert results["rank_test_score"][is_complete].max() <= is_complete.sum()
    assert is_complete[search.best_index_]
    assert is_complete.sum() < 12
    # each fit is made once, and some are not
    assert len(set(made[:n_made])) == n_made
    assert set(zip(*map(list, np.nonzero(counts)), strict=True)) <= set(made[:n_made])
    assert search.n_dropped_candidates_ == (~is_complete).sum()
    assert search.n_dropped_fits_ == 120 - n_made > 0


def test_without_racing_nothing_is_new():
    search = race(racing=None)
    assert "n_folds" not in search.cv_results_
    assert not hasattr(search, "n_dropped_fits_")
    again = race().set_params(racing=None).fit(X)
    assert not hasattr(again, "n_dropped_fits_")
    assert not hasattr(again, "n_dropped_candidates_")


def test_one_slot_makes_no_fit_too_many_and_goes_split_by_split(one_thread, made):
    with one_thread.as_current():
        race()
    splits = [split for _, split in made]
    assert splits == sorted(splits)
    np.testing.assert_array_equal(
        np.bincount([p for p, _ in made], minlength=12), expected_splits("mean")
    )


def test_random_candidates_race_and_a_candidate_in_two_places_has_one_fate(made):
    search = RandomizedSearchCV(
        Scored(), {"p": [*range(12)] * 2}, n_iter=24, cv=SPLITS, racing="mean", random_state=0
    ).fit(X)
    candidates = np.array([params["p"] for params in search.cv_results_["params"]])
    np.testing.assert_array_equal(
        search.cv_results_["n_folds"], expected_splits("mean")[candidates]
    )
    assert len(made) == len(set(made))


# -- metrics ---------------------------------------------------------------------------------------


def score(estimator, X, y=None):
    return estimator.score(X)


def opposite(estimator, X, y=None):
    return -estimator.score(X)


def both(estimator, X, y=None):
    return {"score": score(estimator, X), "opposite": opposite(estimator, X)}


@pytest.mark.parametrize("scoring", [{"score": score, "opposite": opposite}, both])
@pytest.mark.parametrize("refit", ["score", "opposite"])
def test_the_metric_of_refit_decides(scoring, refit):
    table = Scored.table if refit == "score" else -Scored.table
    search = race(scoring=scoring, refit=refit)
    results, n_splits = search.cv_results_, expected_splits("mean", table)
    np.testing.assert_array_equal(results["n_folds"], n_splits)
    for name, sign in (("score", 1), ("opposite", -1)):
        is_nan = np.isnan(splits_of(search, f"test_{name}"))
        np.testing.assert_array_equal(is_nan, np.arange(N_SPLITS) >= n_splits[:, None])
        means = [sign * row[:n].mean() for row, n in zip(Scored.table, n_splits, strict=True)]
        np.testing.assert_allclose(results[f"mean_test_{name}"], means, rtol=1e-13)
        best = np.flatnonzero(results[f"rank_test_{name}"] == 1)
        assert (n_splits[best] == N_SPLITS).all()


def test_a_metric_that_is_not_named_is_refused_before_work_or_with_the_first_score(made):
    for refit in (False, len):
        with pytest.raises(ValueError, match=r"refit must name the metric.*one of 'a', 'b'"):
            race(scoring={"a": score, "b": opposite}, refit=refit)
        assert made == []
        race(scoring={"a": score}, refit=False)
        made.clear()
    with pytest.raises(ValueError, match=r"refit must name the metric.*one of 'score', 'opposite'"):
        race(scoring=both, refit=False)


def last_rank(results):
    return int(np.argmax(results["rank_test_score"]))


def test_a_callable_refit_has_all_candidates_to_choose_from():
    search = race(refit=last_rank)
    assert search.cv_results_["n_folds"][search.best_index_] < N_SPLITS
    full = race(refit=False)
    assert not hasattr(full, "best_estimator_")
    assert full.best_index_ == race().best_index_


def test_train_scores_are_those_of_the_same_splits():
    search = race(return_train_score=True)
    np.testing.assert_array_equal(
        np.isnan(splits_of(search)), np.isnan(splits_of(search, "train_score"))
    )
    assert np.isfinite(search.cv_results_["mean_train_score"]).all()


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scoring", [None, both])
def test_candidates_that_fail_are_dropped_and_only_their_fits_are_told_of(scoring):
    best = int(np.argmax(Scored.table.mean(axis=1)))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        search = race(estimator=Scored(fails=(best,)), scoring=scoring, refit="score")
    table = Scored.table.copy()
    table[best] = np.nan
    results = search.cv_results_
    np.testing.assert_array_equal(results["n_folds"], expected_splits("mean", table))
    assert results["n_folds"][best] == 3
    assert np.isnan(results["mean_test_score"][best])
    assert results["rank_test_score"][best] == 12
    failed = [str(w.message) for w in seen if w.category is FitFailedWarning]
    # fits that began before the decision failed as well
    assert len(failed) == 1
    assert int(failed[0].split()[0]) in range(3, 8)


def test_where_all_fail_scikit_learn_says_so():
    with pytest.raises(ValueError, match="All the 120 fits failed"):
        race(estimator=Scored(fails=range(12)))


def test_a_number_as_error_score_is_a_score():
    with pytest.warns(FitFailedWarning):
        search = race(estimator=Scored(fails=(0,)), error_score=100.0, refit=False)
    assert (search.best_index_, search.best_score_) == (0, 100.0)


# -- with the other parameters ---------------------------------------------------------------------


def test_a_checkpoint_has_all_that_a_race_has_made(tmp_path, made):
    search = race(checkpoint=tmp_path)
    n_made = len(made)
    again = race(checkpoint=tmp_path)
    assert len(made) == n_made
    assert again.n_dropped_fits_ == 120 - n_made == 120 - again.n_checkpoint_fits_
    expected = without_times(search.cv_results_)
    for name, values in without_times(again.cv_results_).items():
        np.testing.assert_array_equal(values, expected[name])
    # without racing the others are made, and then no more than the race needs are counted
    race(checkpoint=tmp_path, racing=None)
    assert len(made) == len(set(made)) == 120
    after = race(checkpoint=tmp_path)
    np.testing.assert_array_equal(after.cv_results_["n_folds"], search.cv_results_["n_folds"])
    assert len(made) == 120
    assert after.n_dropped_fits_ == 0


@pytest.mark.parametrize("n_fits", [30, 64])
def test_a_time_budget_ends_a_race_on_the_last_splits_that_were_compared(
    n_fits, monkeypatch, made, tmp_path
):
    left = property(lambda self: 1.0 if len(made) < n_fits else -1.0)
    monkeypatch.setattr(SearchContext, "seconds_left", left)
    monkeypatch.setattr(Scored, "table", np.linspace(1, 0.9, 12)[:, None] + np.zeros(N_SPLITS))
    monkeypatch.setattr(Scored, "table", Scored.table + np.arange(N_SPLITS) % 2)
    with pytest.warns(FitFailedWarning, match="time_budget"):
        search = race(time_budget=100.0, checkpoint=tmp_path)
    results = search.cv_results_
    n_splits = np.bincount([p for p, _ in made], minlength=12).min()
    assert n_splits < N_SPLITS
    assert (results["n_folds"] == n_splits).all()
    assert search.best_index_ == 0
    np.testing.assert_allclose(results["mean_test_score"], Scored.table[:, :n_splits].mean(axis=1))
    assert f"ended the race after {n_splits} splits" in search_html(search)
    monkeypatch.undo()
    race(checkpoint=tmp_path)
    assert len(made) == len(set(made))


def test_a_budget_that_ends_before_all_have_a_split_is_an_error(monkeypatch, made):
    left = property(lambda self: 1.0 if len(made) < 3 else -1.0)
    monkeypatch.setattr(SearchContext, "seconds_left", left)
    with (
        pytest.warns(match=r"non-finite|failed"),
        pytest.raises(ValueError, match=r"time_budget=.* was over before any candidate"),
    ):
        race(time_budget=100.0)


class OnBlocks(Scored):
    """Fitted in this process, as it seems to be of this library."""

    __module__ = "skfleet.of_this_test"


def test_on_dask_rows_each_split_is_compared_before_the_next(made):
    rows = da.from_array(X, chunks=(5, 2))
    search = race(estimator=OnBlocks(), rows=rows)
    n_splits = expected_splits("mean")
    np.testing.assert_array_equal(search.cv_results_["n_folds"], n_splits)
    np.testing.assert_array_equal(np.bincount([p for p, _ in made], minlength=12), n_splits)
    splits = [split for _, split in made]
    assert splits == sorted(splits)


def test_ctrl_c_leaves_what_the_race_has_compared(made, monkeypatch):
    fit = OnBlocks.fit

    def interrupted(self, X, y=None):
        if len(made) >= 45:
            raise KeyboardInterrupt
        return fit(self, X, y)

    monkeypatch.setattr(OnBlocks, "fit", interrupted)
    search = GridSearchCV(OnBlocks(), GRID, cv=SPLITS, racing="mean")
    with pytest.raises(KeyboardInterrupt):
        search.fit(da.from_array(X, chunks=(20, 2)))
    results, n_left = search.cv_results_, expected_splits("mean")
    assert len(results["params"]) == 12
    n_compared = results["n_folds"].max()
    assert 4 <= n_compared < N_SPLITS
    np.testing.assert_array_equal(results["n_folds"], np.minimum(n_left, n_compared))
    means = np.where(n_left > n_compared, Scored.table[:, :n_compared].mean(axis=1), -np.inf)
    assert search.best_index_ == np.argmax(means)
    assert search.n_dropped_candidates_ > 0


def test_shared_fits_race_with_the_same_outcome(digits):
    X, y = digits[0][:300], digits[1][:300]
    grid = {"n_neighbors": [1, 5, 10, 20, 40, 80], "weights": ["uniform", "distance"]}
    shared, separate = (
        GridSearchCV(KNeighborsClassifier(), grid, cv=6, racing="mean", share_fits=share_fits).fit(
            X, y
        )
        for share_fits in (True, False)
    )
    assert shared.shared_fits_[0].n_saved > 0
    n_splits = shared.cv_results_["n_folds"]
    np.testing.assert_array_equal(n_splits, separate.cv_results_["n_folds"])
    assert 0 < (n_splits < 6).sum() < 12
    assert shared.shared_fits_[0].n_fits <= 72


def test_candidates_that_are_scored_without_fits_are_all_complete(digits):
    search = GridSearchCV(
        estimators.Ridge(), {"alpha": [1e-3, 1.0, 1e6, 1e9]}, cv=5, racing="mean"
    ).fit(*digits)
    assert search.shared_fits_[0].n_saved == 15
    assert search.cv_results_["n_folds"].tolist() == [5] * 4
    assert search.n_dropped_fits_ == 0


def test_equal_first_steps_of_a_split_are_fitted_together(made):
    steps = make_pipeline(FunctionTransformer(), Scored())
    search = race({"scored__p": list(range(12))}, steps, racing="wilcoxon")
    np.testing.assert_array_equal(search.cv_results_["n_folds"], expected_splits("wilcoxon"))
    assert len(made) < 120


def test_best_iterations_are_those_of_the_splits_that_count(digits):
    X, y = digits[0][:300], digits[1][:300]
    model = HistGradientBoostingClassifier(max_iter=4, max_leaf_nodes=4, random_state=0)
    search = GridSearchCV(
        model,
        {"learning_rate": [1e-5, 0.1, 0.3]},
        cv=4,
        racing="mean",
        early_stopping=0.2,
    ).fit(X, y)
    n_splits = search.cv_results_["n_folds"]
    assert n_splits[0] == 3
    is_nan = np.isnan(splits_columns(search, "best_iteration", 4))
    np.testing.assert_array_equal(is_nan, np.arange(4) >= n_splits[:, None])


def splits_columns(search, name, n):
    columns = [search.cv_results_[f"split{k}_{name}"] for k in range(n)]
    return np.column_stack(columns).astype(float)


# -- what is said ----------------------------------------------------------------------------------


def test_what_was_saved_is_logged_printed_and_shown(caplog, capsys):
    with caplog.at_level(logging.INFO, "skfleet.model_selection"):
        search = race(verbose=1)
    n_dropped, n_saved = search.n_dropped_candidates_, search.n_dropped_fits_
    text = f"racing dropped {n_dropped} of 12 candidates, {n_saved} fits of 120 were not made"
    assert text in caplog.text
    printed = capsys.readouterr().out
    assert text in printed
    assert f"{120 - n_saved} of {120 - n_saved} fits" in printed  # the bar's last line
    assert f"{n_dropped} candidates dropped" in printed
    html = search_html(search)
    assert f"{n_dropped} of 12 candidates dropped, {n_saved} of 120 fits not made" in html
    assert "standard deviation of 10 splits" in html


def test_what_cannot_race_is_refused(made):
    with pytest.raises(
        ValueError, match=r"racing must be None, 'wilcoxon' or 'mean'\. Got 'median'"
    ):
        race(racing="median")
    for racing, n in (("wilcoxon", 4), ("mean", 3)):
        with pytest.raises(ValueError, match=f"cv must have more than {n} splits .* Got {n}"):
            race(racing=racing, cv=n)
    with pytest.raises(ValueError, match="racing must be used with fits that a fleet makes"):
        race(n_jobs=1)
    with (
        joblib.parallel_config("threading", n_jobs=2),
        pytest.raises(ValueError, match="racing must be used with fits that a fleet makes"),
    ):
        race()
    assert made == []
    assert "racing" not in signature(HalvingGridSearchCV).parameters
    assert len(ParameterGrid(GRID)) == 12
