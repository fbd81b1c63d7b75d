"""Survey of stored rows before training, and their deal to ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skfleet._array import dtype_of, namespace, to_host
from skfleet._linalg import is_sparse, row_bytes
from skfleet._validation import unique_values
from skfleet.blocks import (
    BlockRef,
    categories_of,
    is_frame,
    open_block,
    slice_rows,
    unite_categories,
)

# A cut between ranks is moved to the border of a block within this fraction of a rank's rows.
SNAP_FRACTION = 0.1
# Rows at each end of a block by which a checkpoint tells it from others, beside all of y.
N_CHECKED = 10


class BlockSurvey(NamedTuple):
    """Counts and labels of a block.

    `n_values` are the values that are not missing, or the stored ones of sparse rows.
    `query_starts` are the first rows of runs of one query, `query_ids` their queries.
    """

    n_rows: int
    n_bytes: int
    checksum: int
    n_values: int
    labels: np.ndarray | None = None
    has_missing_y: bool = False
    categories: dict[Any, Any] | None = None
    query_starts: np.ndarray | None = None
    query_ids: np.ndarray | None = None


def survey_block(block_ref: BlockRef, has_labels: bool) -> BlockSurvey:
    """Return what the driver needs to know of a block; of its y the labels with `has_labels`."""
    block = open_block(block_ref)
    X, y = block.X, None if block.y is None else to_host(block.y)
    is_missing = False
    if y is not None:
        is_missing = bool((~np.isfinite(y)).any() if y.dtype.kind == "f" else pd.isna(y).any())
    labels = unique_values(y) if has_labels and y is not None and not is_missing else None
    starts = ids = None
    if block.per_sample and "qid" in block.per_sample:
        qid = to_host(block.per_sample["qid"])
        starts = np.flatnonzero(
            np.concatenate([np.ones(min(1, len(qid)), bool), np.diff(qid) != 0])
        )
        ids = qid[starts]
    n = min(N_CHECKED, block.n_rows)
    ends = slice_rows(X, 0, n), slice_rows(X, block.n_rows - n, block.n_rows)
    checksum = zlib.crc32(b"".join(map(_as_bytes, (y, *ends))))
    n_bytes = block.n_rows * row_bytes(X)
    return BlockSurvey(
        block.n_rows,
        n_bytes,
        checksum,
        _count_values(X),
        labels,
        is_missing,
        categories_of(X),
        starts,
        ids,
    )


def _count_values(X: Any) -> int:
    """Return how many values of rows are not missing, or stored."""
    if is_sparse(X):
        return int(X.nnz)
    if is_frame(X):
        return int(X.count().sum())
    n_values = int(np.prod(X.shape))
    if dtype_of(X).kind != "f":
        return n_values
    return n_values - int(namespace(X).count_nonzero(namespace(X).isnan(X)))


def _as_bytes(values: Any) -> bytes:
    """Return the content of values, whoever owns the memory."""
    values = to_host(values.toarray() if is_sparse(values) else values)
    return values.tobytes() if values.dtype != object else repr(values.tolist()).encode()


@dataclass
class StoredRows:
    """Blocks that tasks have stored, and what is known of them."""

    blocks: list[BlockRef]
    surveys: list[BlockSurvey]
    query_weights: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        return sum(survey.n_rows for survey in self.surveys)

    @property
    def n_bytes(self) -> int:
        return sum(survey.n_bytes for survey in self.surveys)

    @property
    def n_values(self) -> int:
        return sum(survey.n_values for survey in self.surveys)

    @cached_property
    def labels(self) -> np.ndarray:
        """All labels, sorted."""
        known = [s.labels for s in self.surveys if s.labels is not None and s.n_rows]
        return unique_values(np.concatenate(known)) if known else np.empty(0)

    @cached_property
    def categories(self) -> dict[Any, Any]:
        """The categories of each categorical column in any block."""
        return unite_categories([survey.categories or {} for survey in self.surveys])

    @cached_property
    def query_starts(self) -> np.ndarray | None:
        """The number of the first row of each query; None without queries."""
        starts, last, offset = [], None, 0
        for survey in self.surveys:
            if survey.query_starts is None or survey.query_ids is None:
                return None
            for start, query in zip(survey.query_starts, survey.query_ids, strict=True):
                if last is not None and query < last:
                    raise ValueError(
                        "qid must be sorted in ascending order. Got a query that comes before one "
                        f"of a smaller number at row {offset + start} instead. Sort the rows by "
                        "their query, with X.sort_values('qid') say."
                    )
                # A query that goes on in the next block begins once.
                if query != last:
                    starts.append(offset + int(start))
                last = query
            offset += survey.n_rows
        return np.array(starts, dtype=np.int64)

    @property
    def fingerprint(self) -> list[tuple[int, int]]:
        """Numbers that tell these rows from others."""
        return [(survey.n_rows, survey.checksum) for survey in self.surveys]


class RankPart(NamedTuple):
    """Consecutive rows of a block, by the block's position."""

    block: int
    low: int
    high: int


def deal_rows(
    lengths: Sequence[int], threads: Sequence[int], starts: np.ndarray | None = None
) -> list[list[RankPart]]:
    """Return the parts of blocks of each rank: consecutive rows, about as many for each thread.

    Cuts are at the borders of blocks where these are near, or at the `starts` of queries. They
    depend on the lengths of the blocks and on the ranks' threads alone.
    """
    n_rows, n_ranks = sum(lengths), len(threads)
    targets = np.cumsum(threads) * (n_rows / sum(threads))
    borders = np.array(list(accumulate(lengths, initial=0)))
    cuts = [0]
    for rank in range(1, n_ranks):
        target = targets[rank - 1]
        # A row at least for each rank, before this cut and after it.
        low, high = cuts[-1] + 1, n_rows - (n_ranks - rank)
        if starts is not None:  # each of the ranks after this one has a query, too
            first, last = np.searchsorted(starts, low), len(starts) - (n_ranks - rank)
            allowed = starts[first : last + 1]
            cuts.append(int(allowed[np.argmin(np.abs(allowed - target))]))
            continue
        cut = int(borders[np.argmin(np.abs(borders - target))])
        if abs(cut - target) > SNAP_FRACTION * n_rows / n_ranks:
            cut = round(target)
        cuts.append(min(max(cut, low), high))
    cuts.append(n_rows)
    return [_parts_between(borders, low, high) for low, high in pairwise(cuts)]


def _parts_between(borders: np.ndarray, low: int, high: int) -> list[RankPart]:
    parts = []
    for number, (first, last) in enumerate(pairwise(borders.tolist())):
        begin, end = max(low, first), min(high, last)
        if begin < end:
            parts.append(RankPart(number, begin - first, end - first))
    return parts


def count_ranks(max_ranks: int, rows: StoredRows) -> int:
    """Return the number of ranks: each has a row at least, or a query."""
    starts = rows.query_starts
    return max(1, min(max_ranks, rows.n_rows if starts is None else len(starts)))
