"""The nearest rows of a block, to the last bit and in order, where many are equally far."""

import array_api_strict as xp
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from random_examples import n_examples
from skfleet._device import DEVICE_MEMORY_VARIABLE
from skfleet.estimators import NearestNeighbors
from skfleet.estimators.neighbors import _nearest
from skfleet.estimators.neighbors._nearest import PairwiseMetric, nearest

EUCLIDEAN = PairwiseMetric("euclidean", "minkowski", 2, None)
DEVICE = xp.Device("device1")
KINDS = {
    "dense": np.asarray,
    "single": lambda X: X.astype(np.float32),
    "csr-array": sparse.csr_array,
    "csr-matrix": sparse.csr_matrix,
    "device": lambda X: xp.asarray(X, device=DEVICE),
    "single on a device": lambda X: xp.asarray(X.astype(np.float32), device=DEVICE),
}


def by_hand(rows, queries, k):
    """Distances, and numbers in the order of distances and rows."""
    squared = ((queries[:, None] - rows) ** 2).sum(axis=2)
    order = np.argsort(squared, axis=1, kind="stable")[:, :k]
    return np.sqrt(np.take_along_axis(squared, order, axis=1)), order


def on_grid(seed, n_rows, n_queries=12, n_columns=3, size=3):
    rng = np.random.default_rng(seed)
    rows, queries = (rng.integers(size, size=(n, n_columns)) for n in (n_rows, n_queries))
    return rows.astype(float), queries + rng.integers(2) / 2


@settings(max_examples=n_examples(25, 200), deadline=None)
@given(
    seed=st.integers(0, 1000),
    n_rows=st.integers(1, 80),
    k=st.integers(1, 12),
    kind=st.sampled_from(list(KINDS)),
    of_queries=st.sampled_from(["dense", "csr-array", "single"]),
)
def test_ties_are_in_the_order_of_the_rows(seed, n_rows, k, kind, of_queries):
    rows, queries = on_grid(seed, n_rows)
    k = min(k, n_rows)
    distances, numbers = nearest(KINDS[kind](rows), KINDS[of_queries](queries), k, EUCLIDEAN)
    want, order = by_hand(rows, queries, k)
    np.testing.assert_array_equal(numbers, order)
    np.testing.assert_array_equal(distances, want)


@settings(max_examples=n_examples(15, 100), deadline=None)
@given(
    seed=st.integers(0, 1000),
    n_rows=st.integers(1, 200),
    k=st.integers(1, 9),
    size=st.integers(1, 4),
    metric=st.sampled_from(["euclidean", "sqeuclidean", "manhattan"]),
)
def test_copies_are_in_the_order_of_the_rows(seed, n_rows, k, size, metric):
    rows, queries = on_grid(seed, n_rows, n_columns=2, size=size)
    k = min(k, n_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_nearest, "MAX_TIED", 1)
        distances, numbers = nearest(rows, queries, k, PairwiseMetric(metric, metric, 2, None))
    if metric == "manhattan":
        all_pairs = np.abs(queries[:, None] - rows).sum(axis=2)
    else:
        all_pairs = ((queries[:, None] - rows) ** 2).sum(axis=2)
    order = np.argsort(all_pairs, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(numbers, order)
    want = np.take_along_axis(all_pairs, order, axis=1)
    np.testing.assert_array_equal(distances, np.sqrt(want) if metric == "euclidean" else want)


@pytest.mark.parametrize("kind", ["dense", "csr-array", "device"])
def test_all_rows_at_one_place(kind, monkeypatch):
    monkeypatch.setattr(_nearest, "CHUNK_ELEMENTS", 300)
    rows = KINDS[kind](np.ones((100, 2)))
    distances, numbers = nearest(rows, np.zeros((5, 2)), 7, EUCLIDEAN)
    np.testing.assert_array_equal(numbers, np.tile(np.arange(7), (5, 1)))
    np.testing.assert_allclose(distances, np.sqrt(2))


@pytest.mark.parametrize("kind", ["dense", "device"])
def test_rows_far_from_the_origin(kind):
    rng = np.random.default_rng(0)
    rows, queries = rng.normal(size=(500, 4)) + 1e7, rng.normal(size=(20, 4)) + 1e7
    distances, numbers = nearest(KINDS[kind](rows), queries, 5, EUCLIDEAN)
    want, order = by_hand(rows, queries, 5)
    np.testing.assert_array_equal(numbers, order)
    np.testing.assert_allclose(distances, want, rtol=1e-12)


def test_groups_of_columns_hold_the_least_values(monkeypatch):
    rng = np.random.default_rng(0)
    values = rng.integers(50, size=(40, 1000)).astype(float)
    for n in (1, 3, 7, 30):
        want = np.argsort(values, axis=1, kind="stable")[:, :n]
        columns = _nearest._smallest(xp.asarray(values, device=DEVICE), n)
        got = np.asarray(columns.to_device(xp.Device("CPU_DEVICE")))
        np.testing.assert_array_equal(got, want)


@pytest.fixture
def operations(monkeypatch):
    """Names of the operations that a device has been given."""
    names = []

    def counted(name, function):
        def call(*args, **kwargs):
            names.append(name)
            return function(*args, **kwargs)

        return call

    kind, operators = type(xp.asarray(1.0)), ("mul", "matmul", "iadd", "isub", "imul", "getitem")
    functions = [(xp, name) for name in ("take", "sum", "reshape", "astype", "concat")]
    for owner, name in [*functions, *((kind, f"__{name}__") for name in operators)]:
        monkeypatch.setattr(owner, name, counted(name, getattr(owner, name)))
    return names


def test_a_device_is_given_as_many_operations_for_many_columns(operations):
    rng, n_operations = np.random.default_rng(0), []
    for n_columns in (3, 40):
        rows, queries = rng.normal(size=(300, n_columns)), rng.normal(size=(20, n_columns))
        there = KINDS["device"](rows)
        operations.clear()
        distances, numbers = nearest(there, queries, 5, EUCLIDEAN)
        n_operations.append(len(operations))
        want, order = by_hand(rows, queries, 5)
        np.testing.assert_array_equal(numbers, order)
        np.testing.assert_allclose(distances, want, rtol=1e-12)
    assert n_operations[0] == n_operations[1]
    assert operations.count("take") == 1


@pytest.mark.parametrize(("n_bytes", "n_elements"), [(2**42, 2**29), (2**33, 2**26), (1, 600)])
def test_chunks_are_as_large_as_free_memory_allows(n_bytes, n_elements, operations, monkeypatch):
    monkeypatch.setattr(_nearest, "CHUNK_ELEMENTS", 600)
    monkeypatch.setenv(DEVICE_MEMORY_VARIABLE, str(n_bytes))
    rows, queries = np.random.default_rng(0).normal(size=(2, 50, 30))
    search = _nearest._DeviceSearch(KINDS["device"](rows), 4, EUCLIDEAN)
    assert search.n_elements == n_elements
    operations.clear()
    distances, numbers = search.run(KINDS["device"](queries))
    # 600 distances are those of 12 queries, 600 numbers those of 4 queries' candidates
    assert operations.count("take") == (13 if n_bytes == 1 else 1)
    want, order = by_hand(rows, queries, 4)
    np.testing.assert_array_equal(numbers, order)
    np.testing.assert_allclose(distances, want, rtol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n_rows", "n_columns"), [(1, 1), (700, 3), (2_500, 3), (5_000, 40)])
def test_neighbors_on_a_device_are_those_of_the_host(n_rows, n_columns, dtype):
    import cupy

    rng, k = np.random.default_rng(0), min(7, n_rows)
    rows = rng.integers(3 if n_columns == 3 else 99, size=(n_rows, n_columns)).astype(dtype)
    queries = rows[rng.integers(n_rows, size=30)] + np.asarray(0.5, dtype)
    distances, numbers = nearest(cupy.asarray(rows), queries, k, EUCLIDEAN)
    want, order = by_hand(rows.astype(float), queries.astype(float), k)
    np.testing.assert_array_equal(numbers, order)
    np.testing.assert_allclose(distances, want, rtol=1e-12)


@pytest.mark.gpu
def test_groups_of_columns_hold_the_least_values_on_a_device():
    import cupy

    values = np.random.default_rng(0).integers(50, size=(40, 2_077)).astype(float)
    for n in (1, 7, 30):
        want = np.argsort(values, axis=1, kind="stable")[:, :n]
        np.testing.assert_array_equal(_nearest._smallest(cupy.asarray(values), n).get(), want)


@settings(max_examples=n_examples(15, 100), deadline=None)
@given(
    seed=st.integers(0, 1000),
    cuts=st.lists(st.integers(0, 90), max_size=6),
    k=st.integers(1, 9),
    is_sparse=st.booleans(),
)
def test_any_cut_gives_the_same_neighbors(seed, cuts, k, is_sparse):
    rows, queries = on_grid(seed, 90)
    blocks = tuple(np.diff([0, *sorted(cuts), 90]).tolist())
    X = da.from_array(rows, chunks=(blocks, 3))
    model = NearestNeighbors(n_neighbors=k).fit(X.map_blocks(sparse.csr_array) if is_sparse else X)
    distances, numbers = model.kneighbors(queries)
    want, order = by_hand(rows, queries, k)
    np.testing.assert_array_equal(numbers, order)
    np.testing.assert_array_equal(distances, want)
