"""Passes: the same statistic for any cut, container and engine, in as many tasks as promised."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skfleet import Fleet, _linalg, config_context
from skfleet._array import namespace
from skfleet.blocks import Block, BlockRef, row_blocks
from skfleet.engine import (
    LocalEngine,
    Reduction,
    _reduce,
    add,
    counting,
    engine_for,
    fold,
    map_reduce,
    with_row_offsets,
)
from skfleet.engine._reduce import reduce_group


class Sums(NamedTuple):
    gram: np.ndarray
    columns: np.ndarray
    y: float
    n_rows: int


def sums(block):
    xp = namespace(block.y)
    return Sums(
        _linalg.gram(block.X),
        _linalg.column_sums(block.X),
        float(xp.sum(block.y)),
        block.X.shape[0],
    )


def _rows(n=120):
    X = np.random.default_rng(0).normal(size=(n, 4))
    return X, X[:, 0] ** 2


def _check(got, X, y):
    np.testing.assert_allclose(got.gram, X.T @ X, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.columns, X.sum(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got.y, y.sum(), rtol=1e-12)
    assert got.n_rows == len(X)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_every_world_gives_the_same_sums(world, keep, deterministic):
    X, y = _rows()
    with config_context(keep_blocks=keep, deterministic=deterministic):
        rows = row_blocks(world.X(X), world.column(y))
        engine = engine_for(rows)
        with engine.persist(rows) as held:
            _check(map_reduce(engine, Reduction(sums), held), X, y)
            _check(map_reduce(engine, Reduction(sums), held), X, y)


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 120), max_size=16),
    y_cuts=st.lists(st.integers(0, 120), max_size=16),
    column=st.integers(1, 4),
)
def test_any_cut_gives_the_same_sums(cuts, y_cuts, column):
    X, y = _rows()
    edges, y_edges = ([0, *sorted(c), 120] for c in (cuts, y_cuts))
    rows = row_blocks(
        da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), column)),
        da.from_array(y, chunks=(tuple(np.diff(y_edges).tolist()),)),
    )
    _check(map_reduce(engine_for(rows), Reduction(sums), rows), X, y)


def test_fixed_order_gives_the_same_bits_on_any_number_of_workers():
    X, y = _rows(5000)
    X, y = da.from_array(X, chunks=(170, 4)), da.from_array(y, chunks=900)
    answers = []
    for n_workers in (1, 3):
        with (
            Fleet(n_workers=n_workers, threads_per_worker=1, processes=False),
            config_context(deterministic=True),
        ):
            rows = row_blocks(X, y)
            engine = engine_for(rows)
            with engine.persist(rows) as held:
                answers.append(map_reduce(engine, Reduction(sums), held))
                answers.append(map_reduce(engine, Reduction(sums), held))
    for answer in answers[1:]:
        for got, want in zip(answer, answers[0], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n_blocks", [6, 60])
def test_a_resident_pass_is_a_task_a_worker_and_one_to_merge(cluster_client, n_blocks):
    X, y = _rows()
    X = da.from_array(X, chunks=(120 // n_blocks, 4))
    with cluster_client.as_current():
        rows = row_blocks(X.persist(), da.from_array(y, chunks=120 // n_blocks).persist())
        engine = engine_for(rows)
        with engine.persist(rows) as held, counting() as counts:
            _check(map_reduce(engine, Reduction(sums), held), X.compute(), y)
        assert held.blocks == rows.blocks, "rows in memory were loaded again"
    assert counts.passes == 1
    assert counts.tasks <= 3


@pytest.mark.parametrize("n_blocks", [6, 60])
def test_a_streamed_pass_is_at_most_two_tasks_a_block(cluster_client, n_blocks):
    rng = da.random.default_rng(0)
    X = rng.normal(size=(120, 4), chunks=(120 // n_blocks, 4))
    with cluster_client.as_current(), counting() as counts:
        rows = row_blocks(X, X[:, 0] ** 2)
        map_reduce(engine_for(rows), Reduction(sums), rows)
    assert counts.passes == 1
    assert counts.tasks <= 2 * n_blocks


def test_counts_nest():
    X, y = _rows()
    rows = row_blocks(X, y)
    engine = engine_for(rows)
    with counting() as outer:
        map_reduce(engine, Reduction(sums), rows)
        with counting() as inner:
            map_reduce(engine, Reduction(sums), rows)
    assert (inner.passes, outer.passes) == (1, 2)
    map_reduce(engine, Reduction(sums), rows)
    assert outer.passes == 2


def test_no_rows_are_no_statistic():
    X = da.from_array(np.empty((0, 4)), chunks=(1, 4))
    rows = row_blocks(X[X[:, 0] > 0])
    with pytest.raises(ValueError, match="at least one row"):
        map_reduce(engine_for(rows), Reduction(sums), rows)


def _fail_at(block, start):
    if block.row_offset <= start < block.row_offset + block.n_rows:
        raise ZeroDivisionError("the third block is bad")
    return 1


@pytest.mark.parametrize("on_cluster", [False, True])
def test_a_failure_names_its_block_and_keeps_its_traceback(on_cluster, cluster_client):
    X, _ = _rows()
    with cluster_client.as_current():
        rows = row_blocks(da.from_array(X, chunks=(20, 4)))
        with config_context(engine="auto" if on_cluster else "local"):
            engine = engine_for(rows)
            with pytest.raises(ZeroDivisionError) as caught:
                map_reduce(engine, Reduction(_fail_at), rows, 45)
    assert any("block 2" in note for note in caught.value.__notes__)
    assert "_fail_at" in [entry.name for entry in caught.traceback]


def test_starts_are_found_where_lengths_are_unknown(cluster_client):
    X, _ = _rows()
    X = da.from_array(X, chunks=(50, 4))
    X = X[da.ones(120, chunks=50, dtype=bool)]
    for as_current in (False, True):
        with cluster_client.as_current(), config_context(engine="auto" if as_current else "local"):
            rows = row_blocks(X)
            rows = with_row_offsets(engine_for(rows), rows)
        assert rows.lengths == (50, 50, 20)
        assert [b.row_offset for b in rows.blocks] == [0, 50, 100]


def _append(state, block):
    return [*state, block.X[:, 0].sum()]


def test_fold_learns_the_blocks_in_their_order(world):
    if world.on_device or "csr" in world.name:
        pytest.skip("the step here is NumPy's")
    X, _ = _rows()
    rows = row_blocks(world.X(X))
    got = fold(engine_for(rows), _append, [], rows)
    assert len(got) <= len(rows.blocks)
    np.testing.assert_allclose(sum(got), X[:, 0].sum())
    if rows.lengths is not None:
        lengths = [n for n in rows.lengths if n]
        starts = np.cumsum([0, *lengths[:-1]])
        want = [X[a : a + n, 0].sum() for a, n in zip(starts, lengths, strict=True)]
        np.testing.assert_allclose(got, want)


@dataclass
class _Pair:
    a: float
    b: np.ndarray


def test_add_goes_into_what_holds_numbers():
    assert add((1, [2, {"x": 3}]), (10, [20, {"x": 30}])) == (11, [22, {"x": 33}])
    got = add(Sums(1, 2, 3, 4), Sums(1, 1, 1, 1))
    assert got == Sums(2, 3, 4, 5)
    assert isinstance(got, Sums)
    pair = add(_Pair(1.0, np.ones(2)), _Pair(2.0, np.ones(2)))
    assert pair.a == 3
    np.testing.assert_array_equal(pair.b, [2, 2])


def test_a_reduction_is_named_by_what_it_does():
    assert Reduction(partial(_fail_at, start=1)).name == "fail-at"


@pytest.mark.parametrize(
    ("result_bytes", "n_combined"), [(0, 2), (2**20, 2), (10 * 2**20, 5), (2**30, 10)]
)
def test_few_large_results_are_combined_in_a_task(cluster_client, result_bytes, n_combined):
    X = da.ones((12, 1), chunks=(1, 1))
    reduction = Reduction(_count, result_bytes=result_bytes)
    with cluster_client.as_current(), counting() as counts:
        rows = row_blocks(X)
        assert map_reduce(engine_for(rows), reduction, rows) == 12
    assert counts.tasks == 12 + n_combined


def _count(block):
    return block.n_rows


@pytest.mark.parametrize("dtype", [None, np.dtype(float)])
def test_a_block_is_freed_before_the_next_is_loaded(dtype):
    alive = []

    class Rows:
        def load(self):
            assert not any(reference() is not None for reference in alive)
            X = np.ones((3, 2)).view(_Weakable)
            alive.append(weakref.ref(X))
            return Block(X)

    refs = [BlockRef(Rows(), number=i) for i in range(4)]
    assert reduce_group(Reduction(_count), dtype, False, refs) == 12
    assert len(alive) == 4


class _Weakable(np.ndarray):
    """An array that weak references may refer to."""


@pytest.mark.parametrize(("n_rows", "n_pools"), [(1_000, 0), (100_000, 1)])
def test_threads_are_started_for_several_slices(n_rows, n_pools, monkeypatch):
    pools, pool = [], _reduce.ThreadPoolExecutor
    monkeypatch.setattr(_reduce, "ThreadPoolExecutor", lambda n: pools.append(n) or pool(n))
    X = np.ones((n_rows, 20))
    engine, reduction = LocalEngine(n_threads=2), Reduction(_column_sums)
    np.testing.assert_array_equal(map_reduce(engine, reduction, row_blocks(X)), n_rows)
    assert pools == [2] * n_pools
    # whole blocks: one, and two
    pools.clear()
    for n_blocks in (1, 2):
        sizes = [n_rows // n_blocks] * n_blocks
        rows = row_blocks(X, dtype=None, block_sizes=sizes)
        np.testing.assert_array_equal(map_reduce(engine, reduction, rows), n_rows)
    assert pools == [2]


def _column_sums(block):
    return block.X.sum(axis=0)
