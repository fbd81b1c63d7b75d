"""Least squares whose scores follow from sums over the rows, with nothing sent to a worker."""

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_search import compare
from scipy import sparse
from sklearn.datasets import make_regression
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import make_scorer, mean_squared_error, r2_score
from sklearn.model_selection import KFold, RepeatedKFold, ShuffleSplit

from random_examples import n_examples
from skfleet._joblib._parallel_call import ParallelCall
from skfleet.engine import counting
from skfleet.model_selection import GridSearchCV, SharedFit, register_shared_fit
from skfleet.model_selection._closed_form._ridge import RidgePath
from skfleet.model_selection._paths import _registry

X, y = make_regression(300, 10, noise=5, bias=30, random_state=0)
Y = np.c_[y, X[:, 0] + y / 50]
GRID = {"alpha": [1e-3, 1.0, 100.0]}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def n_sent(monkeypatch):
    """Counts the batches that are sent."""
    sent = []
    submit = ParallelCall.submit

    def count(self, batches):
        sent.extend(batches)
        submit(self, batches)

    monkeypatch.setattr(ParallelCall, "submit", count)
    return lambda: len(sent)


@pytest.mark.parametrize(
    "scoring",
    [
        None,
        "r2",
        "neg_mean_squared_error",
        "neg_root_mean_squared_error",
        ["r2", "neg_mean_squared_error"],
        {"one": "neg_root_mean_squared_error", "two": "r2"},
        "neg_mean_absolute_error",
        ["neg_mean_absolute_error", "r2"],
    ],
)
@pytest.mark.parametrize("targets", [y, Y, y[:, None]], ids=["one", "two", "column"])
def test_no_fit_is_sent_where_sums_tell_its_score(n_sent, scoring, targets):
    search = compare(Ridge(), GRID, X, targets, rtol=1e-9, scoring=scoring)
    assert n_sent() == 0
    assert [(use.n_fits, use.n_saved) for use in search.shared_fits_] == [(9, 6)]


@pytest.mark.parametrize(
    "cv",
    [
        KFold(4, shuffle=True, random_state=0),
        RepeatedKFold(n_splits=3, n_repeats=2, random_state=0),
        ShuffleSplit(3, test_size=0.2, train_size=0.5, random_state=0),
        [(np.arange(200), np.arange(200, 300)), (np.arange(0, 300, 2), np.arange(1, 300, 2))],
        [(list(range(200)), list(range(200, 300)))],
        [(np.arange(300) < 150, np.arange(300) >= 150)],
    ],
    ids=["shuffled", "repeated", "drawn", "overlapping", "lists", "masks"],
)
def test_any_splits(n_sent, cv):
    compare(Ridge(), GRID, X, y, rtol=1e-9, cv=cv)
    assert n_sent() == 0


@pytest.mark.parametrize(
    ("model", "grid", "rows"),
    [
        (LinearRegression(), {"fit_intercept": [True, False]}, X + 10),
        (Ridge(), [{"alpha": [1.0], "fit_intercept": [True, False]}, {"alpha": [5.0]}], X + 10),
        (Ridge(alpha=3.0), {"alpha": [2.0]}, X),
        (Ridge(), GRID, pd.DataFrame(X)),
        (Ridge(), GRID, np.rint(X * 10).astype(int)),
        (Ridge(), GRID, X.tolist()),
        (Ridge(), GRID, X * np.logspace(-3, 0, 10) + 1e3),
    ],
    ids=["ols", "with and without", "one candidate", "frame", "integers", "list", "far off"],
)
def test_any_rows(n_sent, model, grid, rows):
    compare(model, grid, rows, y, rtol=1e-9)
    assert n_sent() == 0


@pytest.mark.parametrize(
    ("scoring", "passes"),
    [("r2", 1), ("neg_max_error", 2), (["r2", "neg_max_error", "neg_mean_absolute_error"], 2)],
)
def test_rows_are_read_once_or_twice(scoring, passes):
    with counting() as counts:
        search = compare(Ridge(), GRID, X, y, rtol=1e-9, scoring=scoring, cv=5)
    assert counts.passes == passes
    assert search.timeline_.empty


def test_largest_errors_of_several_targets_are_refused_as_by_scikit_learn():
    with pytest.raises(ValueError, match="Multioutput not supported in max_error"):
        GridSearchCV(Ridge(), GRID, scoring="neg_max_error", error_score="raise").fit(X, Y)


@settings(max_examples=n_examples(20, 60), deadline=None)
@given(
    alphas=st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=4, unique=True),
    n_columns=st.integers(1, 25),
    n_targets=st.integers(0, 2),
    intercept=st.booleans(),
    scoring=st.sampled_from([None, "neg_mean_squared_error", "neg_root_mean_squared_error"]),
    noise=st.sampled_from([0.0, 1e-6, 1.0]),
    shift=st.sampled_from([0.0, 1e4]),
    scale=st.sampled_from([1.0, 1e-4, 1e4]),
    doubled=st.sampled_from([None, 0.0, 1e-7, 1e-3]),
    seed=st.integers(0, 1000),
)
def test_scores_are_those_of_separate_fits(
    alphas, n_columns, n_targets, intercept, scoring, noise, shift, scale, doubled, seed
):
    rng = np.random.RandomState(seed)
    rows = rng.randn(60, n_columns)
    if doubled is not None:
        rows = np.c_[rows, rows[:, 0] + doubled * rng.randn(60)]
    targets = rows @ rng.randn(rows.shape[1], max(1, n_targets))
    targets += noise * rng.randn(*targets.shape)
    rows = (rows + shift) * np.logspace(0, np.log10(scale), rows.shape[1])
    if not n_targets:
        targets = targets[:, 0]
    params = {"cv": 3, "refit": False, "scoring": scoring}
    model = Ridge(fit_intercept=intercept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of systems that are as good as singular
        ours = GridSearchCV(model, {"alpha": alphas}, **params).fit(rows, targets)
        theirs = reference.GridSearchCV(model, {"alpha": alphas}, **params).fit(rows, targets)
    for key, expected in theirs.cv_results_.items():
        if key.startswith("split"):
            np.testing.assert_allclose(ours.cv_results_[key], expected, 1e-9, 1e-9)


def _r2_score(y_true, y_pred):
    return -mean_squared_error(y_true, y_pred)


_r2_score.__name__ = _r2_score.__qualname__ = "r2_score"

_wide = np.random.RandomState(0).randn(60, 50)
_missing = np.where(np.arange(300)[:, None] == 7, np.nan, X)


@pytest.mark.parametrize(
    ("rows", "targets", "params"),
    [
        (X, y, {"scoring": "neg_median_absolute_error"}),
        (X, y, {"scoring": ["r2", "neg_median_absolute_error"]}),
        (X, y, {"scoring": make_scorer(_r2_score)}),
        (X, y, {"scoring": make_scorer(r2_score, multioutput="variance_weighted")}),
        (X, y, {"fit_params": {"sample_weight": np.arange(300) % 7 + 1.0}}),
        (X.astype(np.float32), y, {}),
        (sparse.csr_array(X), y, {}),
        (_wide, _wide[:, 0], {}),
        (np.c_[X, X[:, 0] + 1e-9], y, {}),
        (_missing, y, {}),
        (X, np.zeros(300), {}),
        (X, X @ np.arange(10.0), {"scoring": "neg_mean_squared_error"}),
    ],
    ids=[
        "median", "one of two unknown", "a name alike", "other averages", "weights",
        "float32", "sparse", "wide", "collinear", "missing values", "constant", "no noise",
    ],
)  # fmt: skip
def test_fits_are_sent_where_sums_do_not_tell_enough(n_sent, rows, targets, params):
    params = {"scoring": None, **params}
    if rows is not _missing:
        compare(Ridge(), {"alpha": [1e-7, 1.0]}, rows, targets, rtol=1e-9, **params)
    else:
        with pytest.raises(ValueError, match="Input X contains NaN"):
            GridSearchCV(Ridge(), GRID, cv=3, refit=False, error_score="raise").fit(rows, targets)
    assert n_sent() > 0


def test_least_squares_whose_solver_drops_small_columns(n_sent):
    rows = X * np.logspace(-4, 3, 10)
    compare(LinearRegression(), {"fit_intercept": [True, False]}, rows, y, rtol=1e-9)
    assert n_sent() > 0


def test_fits_are_sent_to_a_large_fleet():
    shared_fit = RidgePath("score")
    rows, splits = np.zeros((3000, 600)), [(np.arange(1500), np.arange(1500, 3000))] * 2
    with pytest.raises(NotImplementedError, match="sooner"):
        shared_fit.summarize(rows, np.zeros(3000), splits, n_slots=100)
    with pytest.raises(NotImplementedError, match="at most 2000"):
        shared_fit.summarize(np.zeros((9, 2001)), np.zeros(9), splits, n_slots=2)


def test_fits_are_printed(n_sent, capsys):
    GridSearchCV(Ridge(), {"alpha": [1.0, 2.0]}, cv=2, verbose=2, refit=False).fit(X, y)
    assert n_sent() > 0
    assert capsys.readouterr().out.count("END") == 4


def test_a_shared_fit_of_ones_own_may_score(n_sent, monkeypatch):
    class Never(Ridge):
        def fit(self, X, y):
            raise AssertionError

    class Known(SharedFit):
        parameters = ("alpha",)
        known = frozenset(Ridge().get_params())
        scorings = frozenset({"score"})

        def summarize(self, X, y, splits, n_slots):
            return len(splits)

        def score(self, summary, params, scorings, *, train_scores):
            scores = np.empty((2, 1, summary, len(params)))
            scores[:] = [one["alpha"] for one in params]
            return scores

        def fit(self, estimator, candidates, X, y, **fit_params):
            raise NotImplementedError

    monkeypatch.setattr(_registry, "_by_type", {})
    register_shared_fit(Never, Known())
    search = GridSearchCV(Never(), GRID, cv=2, refit=False).fit(X, y)
    assert n_sent() == 0
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], GRID["alpha"])
