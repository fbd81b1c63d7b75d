"""Matrix operations of our own give what SciPy's and NumPy's give."""

import tracemalloc

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from random_examples import n_examples
from skfleet import _linalg

FORMATS = [
    np.asarray,
    sparse.csr_array,
    sparse.csr_matrix,
    sparse.csc_array,
    sparse.coo_matrix,
]


@settings(max_examples=n_examples(100, 1000), deadline=None)
@given(data=st.data(), n_rows=st.integers(0, 7), seed=st.integers(0, 2**32 - 1))
def test_parts_side_by_side(data, n_rows, seed):
    rng, parts = np.random.default_rng(seed), []
    for _ in range(data.draw(st.integers(2, 4))):
        shape = n_rows, data.draw(st.integers(0, 5))
        dtype = data.draw(st.sampled_from(["float64", "float32", "int64", "bool"]))
        values = rng.integers(0, data.draw(st.sampled_from([1, 2, 9])) + 1, shape)
        values = values + data.draw(st.integers(0, 1))  # with zeros, and without
        parts.append(data.draw(st.sampled_from(FORMATS))(values.astype(dtype)))
    if not any(map(sparse.issparse, parts)):
        parts[0] = sparse.csr_array(parts[0])
    found, expected = _linalg.hstack(parts), sparse.hstack(parts, format="csr")
    found.check_format()
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.indices.dtype == expected.indices.dtype
    assert found.has_canonical_format
    assert found.nnz == sum(np.count_nonzero(_linalg.to_dense(part)) for part in parts)
    np.testing.assert_array_equal(found.toarray(), expected.toarray())


def test_parts_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match="incompatible"):
        _linalg.hstack([sparse.csr_array(np.eye(2)), np.ones((3, 1))])


@settings(max_examples=n_examples(60, 600), deadline=None)
@given(
    n_dense=st.integers(0, 4),
    n_sparse=st.integers(0, 6),
    is_weighted=st.booleans(),
    dtype=st.sampled_from(["float64", "float32"]),
    container=st.sampled_from(FORMATS[1:]),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_of_columns(n_dense, n_sparse, is_weighted, dtype, container, seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(50, n_dense + n_sparse))
    density = np.r_[np.full(n_dense, 0.9), np.full(n_sparse, 0.05)]
    values *= rng.random(values.shape) < rng.permutation(density)
    weights = rng.random(50) if is_weighted else None
    found = _linalg.gram(container(values.astype(dtype)), weights)
    weighted = values if weights is None else values * weights[:, None]
    assert found.dtype == np.float64
    np.testing.assert_allclose(
        found, values.T @ weighted, atol=1e-9 if dtype == "float64" else 1e-3
    )


def test_outer_product_added_in_place():
    rng = np.random.default_rng(0)
    matrix, a, b = rng.normal(size=(150, 7)), rng.normal(size=150), rng.normal(size=7)
    expected = matrix - 2.0 * np.outer(a, b)
    found = _linalg.add_outer(matrix, -2.0, a, b)
    assert found is matrix
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("container", FORMATS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_of_columns(container, dtype):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(40, 7)) * (rng.random((40, 7)) < 0.3)).astype(dtype)
    X, weights = container(values), rng.normal(size=40)
    expected = values.astype(float)
    np.testing.assert_allclose(_linalg.column_sums(X), expected.sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(_linalg.column_sums(X, weights), weights @ expected, atol=1e-5)
    np.testing.assert_array_equal(_linalg.to_dense(_linalg.transposed(X)), values.T)
    if sparse.issparse(X):
        found = _linalg.square_sums(X)
        np.testing.assert_allclose(found, (expected**2).sum(axis=0), rtol=1e-6)


@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csr_matrix])
def test_a_few_rows_are_transposed_without_a_copy(container):
    X = container(np.eye(100))
    rows = _linalg.rows_between(X, 10, 20)
    columns = _linalg.transposed(rows)
    assert np.shares_memory(columns.data, X.data)
    assert type(columns) is type(X.T)
    np.testing.assert_array_equal(columns.toarray(), np.eye(100)[10:20].T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_few_rows_are_grouped_as_many_are(weighted, dtype, monkeypatch):
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(300, 5)).astype(dtype), rng.integers(0, 6, 300).astype(np.int32)
    weights = rng.uniform(size=300) if weighted else None
    got = _linalg.group_sums(X, labels, weights, 7)
    monkeypatch.setattr(_linalg, "SMALL_INDICATORS", 0)
    np.testing.assert_allclose(
        got, _linalg.group_sums(X, labels, weights, 7), rtol=10 * np.finfo(dtype).eps, atol=1e-5
    )
    assert got.dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
def test_rows_that_are_not_aligned_are_taken_without_a_copy_of_all(dtype):
    """So are the frames of arrays that came in a message; NumPy would copy them in each call."""
    n_bytes = 50_000 * 20 * np.dtype(dtype).itemsize
    values = np.random.default_rng(0).integers(0, 100, n_bytes + 1).astype(np.uint8)
    X = values[1:].view(dtype).reshape(50_000, 20)
    assert not X.flags.aligned
    index = np.array([3, 49_999, 3, 0])
    tracemalloc.start()
    try:
        got = _linalg.rows_at(X, index)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < n_bytes / 10
    assert got.flags.aligned
    np.testing.assert_array_equal(got, np.array(X)[index])


@pytest.mark.parametrize(
    "X",
    [
        np.asfortranarray(np.arange(12.0).reshape(4, 3)),
        np.arange(24.0).reshape(4, 6)[:, ::2],
        np.zeros((4, 0)),
        np.array([["a"], [1], [None], [2.0]], dtype=object),
        sparse.csr_matrix(np.arange(12.0).reshape(4, 3)),
        array_api_strict.asarray(np.arange(12.0).reshape(4, 3)),
    ],
    ids=["columns", "strides", "no columns", "objects", "sparse", "another library"],
)
def test_rows_of_any_layout_are_taken(X):
    index = np.array([2, 0])
    on_device = isinstance(X, array_api_strict.asarray(0).__class__)
    got = _linalg.rows_at(X, array_api_strict.asarray(index) if on_device else index)
    dense = (lambda A: A.toarray()) if sparse.issparse(X) else np.asarray
    np.testing.assert_array_equal(dense(got), dense(X)[index])
