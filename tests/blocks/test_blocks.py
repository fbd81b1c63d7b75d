"""Rows of every container cut into aligned blocks, without changing what the caller has."""

import math
import sys

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from skfleet import config_context
from skfleet._linalg import row_bytes
from skfleet.blocks import Block, as_numeric, open_block, row_blocks, row_slices, slice_rows
from skfleet.blocks._containers import hstack_lazily


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 4)), rng.normal(size=60), rng.uniform(size=60)


def _opened(blocks):
    """The blocks of rows, joined again."""
    opened = [as_numeric(open_block(b), blocks.dtype) for b in blocks.blocks]
    X = np.concatenate([b.X.toarray() if sparse.issparse(b.X) else np.asarray(b.X) for b in opened])
    rest = []
    for name in ("y", "sample_weight"):
        parts = [getattr(b, name) for b in opened]
        rest.append(None if parts[0] is None else np.concatenate(parts))
    return X, *rest


def _frame(X):
    return pd.DataFrame(X, columns=list("abcd"))


def _lazily(X):
    """The same rows with chunk lengths that nobody knows."""
    return X[da.ones(X.shape[0], chunks=X.chunks[0], dtype=bool)]


CUTS = (10, 0, 25, 25)

CONTAINERS = {
    "numpy": lambda X: X,
    "fortran": np.asfortranarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
    "pandas": _frame,
    "list": lambda X: X.tolist(),
    "rows": lambda X: da.from_array(X, chunks=(CUTS, 4)),
    "rows and columns": lambda X: da.from_array(X, chunks=(CUTS, 3)),
    "unknown": lambda X: _lazily(da.from_array(X, chunks=(CUTS, 4))),
    "sparse chunks": lambda X: da.from_array(X, chunks=(20, 4)).map_blocks(sparse.csr_array),
    "shared tasks": lambda X: da.from_array(X, chunks=(30, 4)).rechunk((7, 4)),
    "frame": lambda X: dd.from_pandas(_frame(X), npartitions=4),
    "delayed": lambda X: da.concatenate(
        [da.from_delayed(dask.delayed(X[a : a + 20]), (20, 4), dtype=float) for a in (0, 20, 40)]
    ),
}

COLUMNS = {
    "numpy": lambda v: v,
    "series": pd.Series,
    "same cuts": lambda v: da.from_array(v, chunks=(CUTS,)),
    "other cuts": lambda v: da.from_array(v, chunks=13),
    "unknown": lambda v: _lazily(da.from_array(v, chunks=13)),
    "dask series": lambda v: dd.from_pandas(pd.Series(v), npartitions=3),
}


@pytest.mark.parametrize("to_y", COLUMNS)
@pytest.mark.parametrize("to_X", CONTAINERS)
def test_targets_and_weights_stay_with_their_rows(to_X, to_y, rows):
    X, y, weight = rows
    cut = row_blocks(CONTAINERS[to_X](X), COLUMNS[to_y](y), COLUMNS[to_y](weight))
    for got, want in zip(_opened(cut), rows, strict=True):
        np.testing.assert_array_equal(got, want)
    if cut.lengths is not None:
        assert cut.n_rows == 60
        starts = [b.row_offset for b in cut.blocks]
        assert starts == np.concatenate([[0], np.cumsum(cut.lengths)])[:-1].tolist()
    assert cut.n_features == 4


def test_targets_of_several_columns(rows):
    X, _, _ = rows
    cut = row_blocks(da.from_array(X, chunks=(CUTS, 4)), da.from_array(X, chunks=(13, 2)))
    np.testing.assert_array_equal(_opened(cut)[1], X)


def test_lengths_are_measured_only_where_nothing_else_helps(rows):
    X, y, _ = rows
    unknown = _lazily(da.from_array(X, chunks=(CUTS, 4)))
    alike = _lazily(da.from_array(y, chunks=(CUTS,)))
    assert row_blocks(unknown).lengths is None
    assert row_blocks(unknown, alike).lengths is None
    assert row_blocks(unknown, y).lengths == CUTS
    assert row_blocks(unknown, da.from_array(y, chunks=13)).lengths == CUTS
    assert all(math.isnan(n) for n in unknown.chunks[0]), "the caller's array was changed"


@pytest.mark.parametrize("to_X", CONTAINERS)
@pytest.mark.parametrize("to_y", [c for c in COLUMNS if c != "same cuts"])
def test_other_numbers_of_targets_are_refused(to_X, to_y, rows):
    X, y, _ = rows
    with pytest.raises(ValueError, match="y must have as many rows as X"):
        _opened(row_blocks(CONTAINERS[to_X](X), COLUMNS[to_y](y[:59])))


def test_misaligned_blocks_of_unknown_length_are_refused(rows):
    X, y, _ = rows
    cut = row_blocks(
        _lazily(da.from_array(X, chunks=(20, 4))), _lazily(da.from_array(y, chunks=((30, 20, 10),)))
    )
    with pytest.raises(ValueError, match=r"in every block\. Got 30 instead of 20 in block 0"):
        open_block(cut.blocks[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "int64", "float16", "float64"])
def test_other_types_are_worked_on_in_double_precision(dtype):
    X = np.arange(12).reshape(6, 2).astype(dtype)
    for container in (X, da.from_array(X, chunks=(4, 2)), pd.DataFrame(X)):
        cut = row_blocks(container)
        assert cut.dtype == np.float64
        # the block stays as small as it was; pieces of it are converted
        piece = next(iter(row_slices(open_block(cut.blocks[0]), cut.dtype)))
        assert as_numeric(piece, cut.dtype).X.dtype == np.float64
        np.testing.assert_array_equal(_opened(cut)[0], X.astype(float))


def test_single_precision_stays():
    X = np.ones((6, 2), dtype=np.float32)
    for container in (X, da.from_array(X), pd.DataFrame(X), sparse.csr_array(X)):
        assert row_blocks(container).dtype == np.float32


def test_frames_of_mixed_types_become_numbers():
    frame = pd.DataFrame(
        {"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "c": [True, False, True], "d": pd.array([1, 2, 3])}
    )
    for container in (frame, dd.from_pandas(frame, npartitions=2)):
        np.testing.assert_array_equal(
            _opened(row_blocks(container))[0], frame.to_numpy(dtype=float)
        )


def test_untouched_rows_stay_what_they_are():
    frame = pd.DataFrame({"a": [1, 2, 3], "text": ["x", "y", "z"]})
    for container in (frame, dd.from_pandas(frame, npartitions=2)):
        cut = row_blocks(container, dtype=None)
        assert cut.dtype is None
        pd.testing.assert_frame_equal(
            pd.concat([open_block(b).X for b in cut.blocks]), frame, check_dtype=False
        )
    text = ["one", "two", "three"]
    assert open_block(row_blocks(text, dtype=None, block_sizes=[2, 1]).blocks[1]).X == ["three"]


@settings(max_examples=30, deadline=None)
@given(n_rows=st.integers(0, 300), bytes_=st.integers(1, 5000), start=st.integers(0, 10**12))
def test_pieces_are_the_block_again(n_rows, bytes_, start):
    from skfleet.blocks import _block

    X = np.arange(n_rows * 3.0).reshape(n_rows, 3)
    before, _block.PIECE_BYTES = _block.PIECE_BYTES, bytes_
    try:
        parts = list(row_slices(Block(X, X[:, 0], None, 7, start), np.dtype(float)))
    finally:
        _block.PIECE_BYTES = before
    assert sum(p.n_rows for p in parts) == n_rows
    assert all(p.n_rows > 0 and p.number == 7 for p in parts)
    for p in parts:
        low = p.row_offset - start
        np.testing.assert_array_equal(p.X, X[low : low + p.n_rows])
        np.testing.assert_array_equal(p.y, p.X[:, 0])


def test_sparse_rows_have_fewer_pieces_but_enough_for_all_threads():
    n_rows = 100_000
    X = sparse.csr_array(
        (np.ones(30 * n_rows), np.tile(np.arange(30), n_rows), 30 * np.arange(n_rows + 1))
    )
    block, float64 = Block(X), np.dtype(float)
    for n_pieces, slices in [(1, 3), (8, 8), (1000, 23)]:
        parts = [part.X for part in row_slices(block, float64, n_pieces=n_pieces)]
        assert len(parts) == slices
        assert (sparse.vstack(parts) != X).nnz == 0
    assert len(list(row_slices(block, float64, piece_bytes=2**23))) == 12


def test_a_block_alone_is_loaded_by_one_small_graph(rows):
    X = da.random.default_rng(0).normal(size=(60, 4), chunks=(20, 4))
    cut = row_blocks(X + 1, (X[:, 0] > 0).astype(int))
    for i, block in enumerate(cut.blocks):
        assert block.X.shared == ()
        opened = open_block(block)
        np.testing.assert_array_equal(opened.X, (X + 1)[20 * i : 20 * i + 20].compute())
        np.testing.assert_array_equal(opened.y, opened.X[:, 0] > 1)


def test_what_blocks_share_is_made_once():
    calls = []

    def load():
        calls.append(1)
        return np.arange(40.0).reshape(20, 2)

    X = da.from_delayed(dask.delayed(load)(), (20, 2), dtype=float).rechunk((3, 2))
    np.testing.assert_array_equal(_opened(row_blocks(X))[0], np.arange(40.0).reshape(20, 2))
    assert len(calls) == 1


def test_rows_in_this_process_are_spread_on_request(rows):
    X, y, weight = rows
    with config_context(engine="dask"):
        for container in (X, sparse.csr_array(X), _frame(X)):
            cut = row_blocks(container, y, weight)
            assert cut.on_dask
            assert len(cut.blocks) > 1
            for got, want in zip(_opened(cut), rows, strict=True):
                np.testing.assert_array_equal(got, want)


def test_a_target_on_dask_comes_home_to_rows_in_this_process(rows):
    X, y, _ = rows
    np.testing.assert_array_equal(_opened(row_blocks(X, da.from_array(y, chunks=7)))[1], y)


@pytest.mark.parametrize("dtype", ["str", "category", "Int64", "string", "float32"])
def test_rows_of_any_type_have_a_size(dtype):
    values = pd.Series(["1", "2"]).astype(dtype)
    assert row_bytes(values) == (4 if dtype == "float32" else 8)
    assert row_bytes(values.to_frame()) == 8


def test_sparse_rows_are_cut_without_a_copy():
    X = sparse.csr_array(
        (np.arange(1.0, 7), np.array([3, 0, 2, 1, 0, 3]), np.array([0, 2, 4, 6])), shape=(3, 4)
    )
    for low, high in ((0, 2), (1, 3), (1, 1)):
        part = slice_rows(X, low, high)
        np.testing.assert_array_equal(part.toarray(), X.toarray()[low:high])
        assert part.data.size == 0 or np.shares_memory(part.data, X.data)
    # what scipy knows of all rows is not taken to hold for some
    assert not slice_rows(X, 1, 3).has_sorted_indices


def test_columns_side_by_side():
    parts = [np.arange(6).reshape(3, 2).astype(np.uint8), np.ones((3, 1), np.uint8)]
    X, whole = hstack_lazily(parts), np.hstack(parts)
    assert X.shape == (3, 3)
    assert X.dtype == np.uint8
    np.testing.assert_array_equal(X[1:], whole[1:])
    np.testing.assert_array_equal(np.asarray(X), whole)
    assert sys.getsizeof(X) >= whole.nbytes
