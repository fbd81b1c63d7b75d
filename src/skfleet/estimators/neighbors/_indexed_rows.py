"""Training rows that stay where they are, searched in one pass for each batch of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from sklearn.utils import check_array

from skfleet._array import to_host_if_array
from skfleet._linalg import vstack
from skfleet._validation import check_block, check_finite, unique_values
from skfleet.blocks import (
    Block,
    BlockRef,
    RowBlocks,
    as_numeric,
    is_frame,
    open_block,
    slice_rows,
)
from skfleet.engine import Engine, Reduction, engine_for, map_reduce
from skfleet.estimators.neighbors._neighbors import Neighbors, join, without_self
from skfleet.inference import OutputSpec, in_container

# Bytes of the queries of a pass over the training rows, and of their neighbours, at most: where
# rows are loaded for it, a pass takes long, and elsewhere a task may have the queries as argument.
BATCH_BYTES, BATCH_BYTES_OUT_OF_CORE = 2**23, 2**28
# Blocks of queries of unknown size that one pass over training rows that are loaded for it serves.
N_BATCH_BLOCKS = 16


class IndexedRows:
    """Rows of a fit: in the workers' memory as long as this object lives, if they fit there.

    `labels` are those of each output, where there are any. Copies share the rows.
    """

    def __init__(self, X: Any, rows: RowBlocks, survey: Reduction) -> None:
        self.X = X
        engine = engine_for(rows)
        self._client = engine.client
        with ExitStack() as stack:
            persisted = stack.enter_context(engine.persist(rows, to_disk=False))
            counts, self.labels, self._target = map_reduce(engine, survey, persisted)
            self._source = _with_lengths(rows, counts)
            self._persisted = _with_lengths(persisted, counts)
            finalize(self, stack.pop_all().close).atexit = False

    def example(self, n_neighbors: int) -> Neighbors:
        """Return a query's neighbours, with the type and width of targets."""
        numbers = np.arange(n_neighbors)[None, :]
        targets = self._target
        if targets is not None:
            targets = np.zeros_like(targets, dtype=int) if self.labels else targets
            targets = np.repeat(targets[None, :], n_neighbors, axis=1)
        return Neighbors(numbers + 1.0, numbers, targets)

    @property
    def n_rows(self) -> int:
        return int(self._source.n_rows or 0)

    def __deepcopy__(self, memo: Any) -> IndexedRows:
        return self

    def __getstate__(self) -> dict[str, Any]:
        if self._source.on_dask:
            raise TypeError(
                "A model must have its training rows in this process to be pickled. Got one of "
                "neighbours that was fitted on a Dask collection instead. Fit it on computed "
                "rows, or fit it again where it is needed."
            )
        return vars(self).copy()

    def engine_and_rows(self) -> tuple[Engine, RowBlocks]:
        """Return the current engine, and the rows in its memory, or to be loaded again."""
        engine = engine_for(self._source)
        is_same = engine.client is self._client
        return engine, self._persisted if is_same else self._source

    def search(self, reduction: Reduction, queries: Any, query_bytes: int) -> Neighbors:
        """Return the neighbours of queries in this process, of which each takes some bytes."""
        engine, rows = self.engine_and_rows()
        step = max(1, _batch_bytes(engine, rows) // query_bytes)
        parts = []
        for low in range(0, queries.shape[0], step):
            batch = slice_rows(queries, low, min(low + step, queries.shape[0]))
            scattered = engine.scatter(QueryBatch(batch))
            try:
                parts.append(map_reduce(engine, reduction, rows, scattered))
            finally:
                engine.release(scattered)
        return join(parts)

    def delay_search(
        self,
        reduction: Reduction,
        queries: RowBlocks | None,
        answers: Sequence[Answer],
        query_bytes: int,
    ) -> tuple[list[list[Any]], Sequence[float]]:
        """Return Delayed results of each answer for every block of the queries, and their lengths.

        The queries are the training rows where they are None. Training rows in memory are searched
        for one block after the other. Those that are loaded for it are searched for as many blocks
        at a time as memory holds.
        """
        from skfleet.engine import delay_reductions

        engine, rows = self.engine_and_rows()
        is_self, queries = queries is None, queries or rows
        blocks, n_blocks = queries.blocks, 1
        if engine.is_out_of_core(rows):
            n_blocks = N_BATCH_BLOCKS
            if queries.lengths is not None:
                largest = max(queries.lengths) * query_bytes
                n_blocks = max(1, _batch_bytes(engine, rows) // max(largest, 1))
        batches = [blocks[low : low + n_blocks] for low in range(0, len(blocks), n_blocks)]
        check = not queries.checked
        opened = partial(open_queries, dtype=queries.dtype, is_self=is_self, check=check)
        delayed = delay_reductions(engine, reduction, rows, batches, opened, answers)
        return delayed, queries.lengths or [np.nan] * len(blocks)


def _batch_bytes(engine: Engine, rows: RowBlocks) -> int:
    n_bytes = BATCH_BYTES_OUT_OF_CORE if engine.is_out_of_core(rows) else BATCH_BYTES
    return min(n_bytes, engine.memory_limit // 8)


class QueryBatch(NamedTuple):
    """Queries of several blocks, and what their answers need of each block.

    `containers` are the blocks without columns, or rows, and `offsets` the numbers of the first
    rows where the queries are training rows.
    """

    rows: Any
    lengths: tuple[int, ...] = ()
    containers: tuple[Any, ...] = ()
    offsets: tuple[int, ...] | None = None


def open_queries(
    refs: Sequence[BlockRef], dtype: np.dtype, *, is_self: bool, check: bool
) -> QueryBatch:
    """Return the queries of blocks in their own containers."""
    blocks = [open_block(ref) for ref in refs]
    numeric = [as_numeric(block, dtype) for block in blocks]
    if check:
        for block in numeric:
            check_block(block)
    containers = (
        block.X.iloc[:, :0] if is_frame(block.X) else slice_rows(block.X, 0, 0) for block in blocks
    )
    return QueryBatch(
        vstack([block.X for block in numeric]),
        tuple(block.n_rows for block in blocks),
        tuple(containers),
        tuple(int(ref.row_offset or 0) for ref in refs) if is_self else None,
    )


class Answer(NamedTuple):
    """A result for the blocks of a batch: what a function says of neighbours, or a part of it."""

    func: Callable[[Neighbors], Any]
    output: OutputSpec
    part: int | None = None

    def __call__(self, batch: QueryBatch, neighbors: Neighbors, i: int) -> Any:
        start, n_rows = sum(batch.lengths[:i]), batch.lengths[i]
        if n_rows == 0:
            return in_container(self.output.empty(), batch.containers[i], self.output)
        of_block = neighbors.rows_between(start, start + n_rows)
        if batch.offsets is not None:
            of_block = without_self(of_block, batch.offsets[i] + np.arange(n_rows))
        result = self.func(of_block)
        result = result if self.part is None else result[self.part]
        return in_container(self.output.cast(result), batch.containers[i], self.output)


class Rowcount(NamedTuple):
    """The numbers of rows of blocks, labels of each output of a classifier, and a row of y."""

    counts: Counter[int]
    labels: list[np.ndarray]
    target: np.ndarray | None


def survey(has_labels: bool, allows_nan: bool) -> Reduction:
    """Return the reduction to what a fit learns of the rows."""
    per_block = partial(_survey_block, has_labels=has_labels, allows_nan=allows_nan)
    return Reduction(per_block, _combine_surveys)


def _survey_block(block: Block, has_labels: bool, allows_nan: bool) -> Rowcount:
    if allows_nan:
        check_array(block.X, ensure_all_finite="allow-nan", input_name="X")
        check_finite("y", block.y)
    labels, y = [], to_host_if_array(block.y)
    if y is not None and y.ndim == 2 and y.shape[1] == 1 and has_labels:
        y = y[:, 0]
    if has_labels:
        labels = [unique_values(column) for column in ([y] if y.ndim == 1 else y.T)]
    return Rowcount(Counter({block.number: block.n_rows}), labels, None if y is None else y[:1])


def _combine_surveys(a: Rowcount, b: Rowcount) -> Rowcount:
    labels = [unique_values(np.concatenate(x)) for x in zip(a.labels, b.labels, strict=True)]
    return Rowcount(a.counts + b.counts, labels, a.target)


def _with_lengths(rows: RowBlocks, counts: Counter[int]) -> RowBlocks:
    """Return checked rows with the numbers of their blocks' rows."""
    return replace(rows.with_lengths([counts[b.number] for b in rows.blocks]), checked=True)
