"""Splits that draw rows more than once, leave rows out, overlap or are masks, as scikit-learn's."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import linear_model, model_selection, neighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from random_examples import n_examples
from skfleet import estimators as ours
from skfleet.blocks import RowSet
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    cross_val_score,
    cross_validate,
    learning_curve,
    split_rows,
)

pytestmark = pytest.mark.usefixtures("on_cluster")

N = 60
_rng = np.random.default_rng(0)
ROWS = _rng.normal(size=(N, 3))
FRAME = pd.DataFrame(ROWS, columns=list("abc"))
TARGETS = 2 * ROWS[:, 0] + _rng.normal(size=N)
LABELS = (TARGETS > 0).astype(int)

MODELS = {
    "ridge": (linear_model.Ridge(), ours.Ridge(), {"alpha": [0.1, 10.0]}, TARGETS),
    "least squares": (
        linear_model.LinearRegression(),
        ours.LinearRegression(),
        {"fit_intercept": [True, False]},
        TARGETS,
    ),
    "classifier": (
        linear_model.RidgeClassifier(),
        ours.RidgeClassifier(),
        {"alpha": [0.1, 10.0]},
        LABELS,
    ),
    "pipeline": (
        make_pipeline(StandardScaler(), linear_model.Ridge()),
        make_pipeline(ours.StandardScaler(), ours.Ridge()),
        {"ridge__alpha": [0.1, 10.0]},
        TARGETS,
    ),
    "neighbors": (
        neighbors.KNeighborsRegressor(),
        ours.KNeighborsRegressor(),
        {"n_neighbors": [1, 5]},
        TARGETS,
    ),
}
CONTAINERS = {
    "array": (lambda X: X, lambda y: y),
    "frame": (lambda X: pd.DataFrame(X, columns=list("abc")), pd.Series),
    "dask array": (
        lambda X: da.from_array(X, chunks=(25, 3)),
        lambda y: da.from_array(y, chunks=25),
    ),
    "dask frame": (
        lambda X: dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3),
        lambda y: dd.from_pandas(pd.Series(y), npartitions=3),
    ),
}


def drawn_splits(kind, seed, n_splits=3):
    """Return splits of a kind, as pairs of lists, arrays or masks."""
    rng, splits = np.random.default_rng(seed), []
    for _ in range(n_splits):
        order = rng.permutation(N)
        train, test = rng.integers(0, N, N), order[:20]
        if kind == "bootstrap":
            test = np.setdiff1d(np.arange(N), train)
        elif kind == "lists":
            train, test = train.tolist(), rng.integers(0, N, 15).tolist()
        elif kind == "some":
            train = order[25:]
        elif kind == "from the end":
            train, test = train - N, test - N
        elif kind == "masks":
            train = rng.random(N) < 0.6
            test = ~train
        splits.append((train, test))
    return splits


KINDS = ("bootstrap", "overlapping", "lists", "some", "from the end", "masks")


@settings(
    max_examples=n_examples(5, 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    kind=st.sampled_from(KINDS),
    model=st.sampled_from(list(MODELS)),
    container=st.sampled_from(list(CONTAINERS)),
    is_ours=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_scores_of_drawn_splits_are_those_of_scikit_learn(kind, model, container, is_ours, seed):
    stock, own, grid, targets = MODELS[model]
    cv, (of_rows, of_targets) = drawn_splits(kind, seed), CONTAINERS[container]
    options = {"cv": cv, "return_train_score": True, "error_score": "raise"}
    want = model_selection.GridSearchCV(stock, grid, **options).fit(ROWS, targets)
    got = GridSearchCV(own if is_ours else stock, grid, **options)
    got.fit(of_rows(ROWS), of_targets(targets))
    for name in [name for name in want.cv_results_ if name.startswith("split")]:
        np.testing.assert_allclose(got.cv_results_[name], want.cv_results_[name], 1e-7, 1e-9)


def test_scores_of_bootstrap_splits_still_follow_from_sums():
    search = GridSearchCV(linear_model.Ridge(), {"alpha": [0.1, 10.0]}, cv=drawn_splits("lists", 0))
    (use,) = search.fit(ROWS, TARGETS).shared_fits_
    assert (use.n_saved, use.refused) == (3, None)


def test_neighbors_of_frames_that_are_equally_far_are_searched_again():
    cv = drawn_splits("bootstrap", 1)
    model = neighbors.KNeighborsClassifier()
    grid = {"n_neighbors": [1, 5]}
    want = model_selection.GridSearchCV(model, grid, cv=cv).fit(FRAME, LABELS)
    got = GridSearchCV(model, grid, cv=cv, error_score="raise").fit(FRAME, LABELS)
    np.testing.assert_allclose(
        got.cv_results_["mean_test_score"], want.cv_results_["mean_test_score"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("container", ["array", "dask frame"])
def test_functions_and_halving_on_bootstrap_splits(container):
    cv, (of_rows, of_targets) = drawn_splits("bootstrap", 2), CONTAINERS[container]
    X, y = of_rows(ROWS), of_targets(TARGETS)
    stock, own = linear_model.Ridge(), ours.Ridge()
    np.testing.assert_allclose(
        cross_val_score(own, X, y, cv=cv, n_jobs=1),
        model_selection.cross_val_score(stock, ROWS, TARGETS, cv=cv),
    )
    weights = {"sample_weight": np.linspace(1, 2, N)}
    np.testing.assert_allclose(
        cross_validate(own, X, y, cv=cv, params=weights)["test_score"],
        model_selection.cross_validate(stock, ROWS, TARGETS, cv=cv, params=weights)["test_score"],
    )
    for got, want in zip(
        learning_curve(own, X, y, cv=cv, train_sizes=[0.5, 1.0]),
        model_selection.learning_curve(stock, ROWS, TARGETS, cv=cv, train_sizes=[0.5, 1.0]),
        strict=True,
    ):
        np.testing.assert_allclose(got, want)
    options = {"cv": cv, "random_state": 0, "min_resources": 20}
    grid = {"alpha": [0.1, 1.0, 10.0]}
    want = model_selection.HalvingGridSearchCV(stock, grid, **options).fit(ROWS, TARGETS)
    got = HalvingGridSearchCV(own, grid, **options).fit(X, y)
    np.testing.assert_allclose(
        got.cv_results_["mean_test_score"], want.cv_results_["mean_test_score"]
    )


def test_parts_have_rows_as_often_as_they_are_drawn():
    X = da.from_array(ROWS, chunks=(25, 3))
    for (train, test), parts in zip(
        drawn_splits("overlapping", 3),
        split_rows(X, cv=drawn_splits("overlapping", 3)),
        strict=True,
    ):
        for part, numbers in zip(parts, (train, test), strict=True):
            np.testing.assert_array_equal(part.compute(), ROWS[np.sort(numbers)])


def test_row_set_counts_rows():
    rows = RowSet.from_indices([5, 2, 5, -1], 9)
    np.testing.assert_array_equal(rows, [2, 5, 5, 8])
    np.testing.assert_array_equal(~rows, [0, 1, 3, 4, 6, 7])
    assert (len(rows), rows.count_before(6)) == (4, 3)
    cut = rows.cut(4, 9)
    assert cut.n_taken == 3
    np.testing.assert_array_equal(cut.take(np.arange(4, 9)), [5, 5, 8])


def test_short_masks_are_refused_as_in_scikit_learn():
    cv = [(np.ones(10, dtype=bool), np.arange(10))]
    with pytest.raises(IndexError):
        cross_val_score(linear_model.Ridge(), ROWS, TARGETS, cv=cv)
