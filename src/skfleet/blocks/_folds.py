"""Cross-validation over blocks: which rows each split trains and tests on, by global row number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.model_selection import KFold

from skfleet.blocks._block import Block, rows_between
from skfleet.blocks._sampling import take_block_rows


@dataclass(frozen=True)
class Folds:
    """Rows in parts, such that every split trains and tests on whole parts.

    Parts are runs of rows that start at `starts`, or `part_of` names each row's. `splits` holds the
    numbers of the parts to train on, and of those to test on, for each split.
    """

    starts: np.ndarray | None
    part_of: np.ndarray | None
    splits: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    def cut(self, block: Block) -> Iterator[tuple[int, Block]]:
        """Cut a block of the rows into its parts."""
        start, n_rows = block.start or 0, block.n_rows
        if self.starts is None:
            assert self.part_of is not None
            part_of = self.part_of[start : start + n_rows]
            order = np.argsort(part_of, kind="stable")
            lengths = np.bincount(part_of)
            ends = np.cumsum(lengths)
            for part in np.flatnonzero(lengths).tolist():
                chosen = order[ends[part] - lengths[part] : ends[part]]
                yield part, block if len(chosen) == n_rows else take_block_rows(block, chosen)
            return
        cuts = np.clip(self.starts - start, 0, n_rows).tolist()
        for part, (low, high) in enumerate(pairwise([*cuts, n_rows])):
            if low < high:
                yield part, rows_between(block, low, high)


def make_folds(splitter: Any, n_rows: int, X: Any = None, y: Any = None, **params: Any) -> Folds:
    """Return the splits of a splitter of scikit-learn's over rows.

    Without X, which rows on a cluster have no use for, the splitter gets a stand-in of n_rows rows.
    Rows that no split tells apart form a part, so any splitter will do; those that cut at random
    many times over make many.
    """
    if type(splitter) is KFold and not splitter.shuffle:
        n = splitter.get_n_splits()
        if n > n_rows:
            raise ValueError(
                f"cv must be at most the number of rows, n_samples={n_rows}. Got {n} folds instead."
            )
        lengths = np.full(n, n_rows // n)
        lengths[: n_rows % n] += 1
        return _leaving_out(n, np.cumsum(lengths) - lengths, None)
    X = np.empty((n_rows, 0)) if X is None else X
    pairs = list(splitter.split(X, y, **params))
    part_of = _tested_once(pairs, n_rows)
    if part_of is not None:
        in_order = (part_of[:-1] <= part_of[1:]).all()
        starts = np.searchsorted(part_of, np.arange(len(pairs))) if in_order else None
        return _leaving_out(len(pairs), starts, None if in_order else part_of)
    code = np.zeros(n_rows, dtype=np.int64)
    distinguished_pairs: list[
        tuple[int, int]
    ] = []  # the place in `pairs` of each column of `members`
    members = np.zeros((1, 0), dtype=bool)
    for i, pair in enumerate(pairs):
        for side, chosen in enumerate(pair):
            member = np.zeros(n_rows, dtype=bool)
            member[chosen] = True
            found, code = np.unique(2 * code + member, return_inverse=True)
            members = np.column_stack([members[found // 2], found % 2 == 1])
            distinguished_pairs.append((i, side))
    parts: dict[tuple[int, int], tuple[int, ...]] = {
        place: tuple(np.flatnonzero(column).tolist())
        for place, column in zip(distinguished_pairs, members.T, strict=True)
    }
    numbers = code.astype(np.min_scalar_type(len(members)))
    return Folds(None, numbers, tuple((parts[i, 0], parts[i, 1]) for i in range(len(pairs))))


def _leaving_out(n: int, starts: np.ndarray | None, part_of: np.ndarray | None) -> Folds:
    """Return n splits, each of which tests on a part and trains on all others."""
    every = set(range(n))
    splits = tuple((tuple(sorted(every - {i})), (i,)) for i in range(n))
    return Folds(starts, part_of, splits)


def _tested_once(pairs: Sequence[tuple[Any, Any]], n_rows: int) -> np.ndarray | None:
    """Return in which split each row is tested; None unless all are, once, and trained on else.

    Most splitters cut so, and it shows at once.
    """
    if sum(len(test) for _, test in pairs) != n_rows or len(pairs) < 2:
        return None
    if any(np.asarray(side).dtype.kind not in "iu" for pair in pairs for side in pair):
        return None
    part_of = np.full(n_rows, -1, dtype=np.min_scalar_type(-len(pairs)))
    for i, (_, test) in enumerate(pairs):
        part_of[test] = i
    if (part_of < 0).any():
        return None
    for i, (train, test) in enumerate(pairs):
        seen = np.zeros(n_rows, dtype=bool)
        seen[train] = True
        if len(train) + len(test) != n_rows or (seen == (part_of == i)).any():
            return None
    return part_of
