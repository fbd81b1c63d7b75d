"""Neighbours that are found by multiplying rows are those that a tree finds."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from skfleet.model_selection._paths import _neighbors
from skfleet.model_selection._paths._neighbors import KNeighborsPath

SIZES = [1, 2, 5, 20]


def tree_is_slower(search, X, n):
    """Stand in for the seconds of a search."""
    return int(isinstance(search.__self__, ClassifierMixin | RegressorMixin))


@pytest.fixture
def _multiplies(monkeypatch):
    """Let the tree be the slower one, however few rows there are."""
    monkeypatch.setattr(_neighbors, "_MIN_TIMING_RATIO", 0)
    monkeypatch.setattr(_neighbors, "_time_search", tree_is_slower)


def compare(model, X, y, queries, *, by_products=None):
    """Compare neighbours and answers for each size with those of a model of its own."""
    candidates = [{"n_neighbors": k, "weights": w} for k in SIZES for w in ("uniform", "distance")]
    found = KNeighborsPath().fit(model, candidates, X, y)
    for one, candidate in zip(found, candidates, strict=True):
        alone = type(model)(**{**model.get_params(), **candidate}).fit(X, y)
        distances, places = one.kneighbors(queries)
        expected, expected_places = alone.kneighbors(queries)
        np.testing.assert_array_equal(distances, expected)
        np.testing.assert_array_equal(np.sort(places), np.sort(expected_places))
        np.testing.assert_allclose(one.predict(queries), alone.predict(queries), 1e-9, 1e-9)
    (neighbors,) = found[0].kneighbors._cache._neighbors.values()
    if by_products is not None:
        assert (neighbors.tolerance.ndim > 0) == by_products


@pytest.mark.usefixtures("_multiplies")
@pytest.mark.parametrize("algorithm", ["auto", "kd_tree", "ball_tree", "brute"])
@pytest.mark.parametrize("kind", [KNeighborsClassifier, KNeighborsRegressor])
def test_products_find_the_same(kind, algorithm):
    rng = np.random.RandomState(0)
    X, queries = rng.randn(400, 6), rng.randn(150, 6)
    y = rng.randint(0, 3, 400)
    by_products = algorithm != "brute"  # whose own distances lack digits
    compare(kind(algorithm=algorithm), X, y, queries, by_products=by_products)
    compare(kind(algorithm=algorithm), X, y, np.r_[X[:100], queries], by_products=by_products)


# hypothesis has no function-scoped fixtures
@settings(max_examples=40, deadline=None)
@given(
    n_columns=st.integers(1, 20),
    shift=st.sampled_from([0.0, 10.0, 1e4, 1e8]),
    scale=st.sampled_from([1.0, 1e-8, 1e8]),
    ties=st.booleans(),
    twins=st.booleans(),
    seed=st.integers(0, 1000),
)
@example(n_columns=19, shift=0.0, scale=1e-8, ties=True, twins=False, seed=0)
@example(n_columns=16, shift=0.0, scale=1e-8, ties=True, twins=False, seed=1)
def test_products_at_random(n_columns, shift, scale, ties, twins, seed):
    rng = np.random.RandomState(seed)
    X, queries = rng.randn(120, n_columns), rng.randn(60, n_columns)
    if ties:
        X, queries = np.round(X), np.round(queries)
    if twins:
        X[::3] = X[1::3]
    X, queries = scale * (X + shift), scale * (queries + shift)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_neighbors, "_MIN_TIMING_RATIO", 0)
        patch.setattr(_neighbors, "_TIMING_ROWS", 16)
        patch.setattr(_neighbors, "_time_search", tree_is_slower)
        targets = rng.randn(120)
        candidates = [{"n_neighbors": k, "weights": "uniform"} for k in SIZES]
        found = KNeighborsPath().fit(KNeighborsRegressor(), candidates, X, targets)
        for one, candidate in zip(found, candidates, strict=True):
            alone = KNeighborsRegressor(**candidate).fit(X, targets)
            np.testing.assert_array_equal(
                np.sort(one.kneighbors(queries)[1]), np.sort(alone.kneighbors(queries)[1])
            )


@pytest.mark.usefixtures("_multiplies")
@pytest.mark.parametrize(
    "change",
    [lambda X: X.astype(np.float32), lambda X: np.round(X), lambda X: X + 1e8],
    ids=["single", "ties", "far"],
)
def test_rows_that_rounding_decides_on_are_searched_for_in_a_tree(change):
    rng = np.random.RandomState(0)
    X, queries = change(rng.randn(400, 3)), change(rng.randn(150, 3))
    compare(KNeighborsRegressor(), X, rng.randn(400), queries, by_products=False)


@pytest.mark.usefixtures("_multiplies")
@pytest.mark.parametrize("params", [{"p": 1}, {"metric": "cosine"}, {"p": 3}])
def test_other_distances_are_left_to_the_estimator(params):
    rng = np.random.RandomState(0)
    X, queries = rng.randn(400, 3), rng.randn(150, 3)
    compare(KNeighborsRegressor(**params), X, rng.randn(400), queries, by_products=False)


def test_the_quicker_way_is_taken(monkeypatch):
    monkeypatch.setattr(_neighbors, "_MIN_TIMING_RATIO", 0)
    monkeypatch.setattr(_neighbors, "_time_search", lambda *search: -tree_is_slower(*search))
    rng = np.random.RandomState(0)
    compare(
        KNeighborsRegressor(),
        rng.randn(200, 9),
        rng.randn(200),
        rng.randn(90, 9),
        by_products=False,
    )
