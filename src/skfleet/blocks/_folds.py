"""Cross-validation splits over blocks, by global row number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, check_cv

from skfleet._sklearn_private import take_rows
from skfleet._typing import Rows, Splitter, Values
from skfleet.blocks._block import Block, slice_block
from skfleet.blocks._row_set import count_rows
from skfleet.blocks._sampling import take_block_rows


@dataclass(frozen=True)
class Folds:
    """Groups of rows, such that every split trains and tests on whole groups.

    Parameters
    ----------
    starts : ndarray of int or None
        First row of each group, where groups are consecutive rows.
    group_of_row : ndarray of int or None
        Group of each row, where groups are not consecutive rows.
    splits : tuple of (tuple of int, tuple of int)
        Numbers of the groups to train on, and of the groups to test on, for each split. A number
        stands there as often as its rows are drawn.
    counts : tuple of ndarray, default=()
        How often each row is in each group, where groups are not disjoint. There is one group for
        each part of a split, and a last one of all rows.
    """

    starts: np.ndarray | None
    group_of_row: np.ndarray | None
    splits: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    counts: tuple[np.ndarray, ...] = ()

    def __len__(self) -> int:
        return len(self.splits)

    def is_of_all_rows(self, group: int) -> bool:
        """Return whether a group is one of those that have each row once."""
        return not self.counts or group == len(self.counts)

    def sizes(self, n_rows: int) -> np.ndarray:
        """Return the number of rows of each group, of so many rows in all."""
        if self.counts:
            return np.array([*(counts.sum(dtype=np.int64) for counts in self.counts), n_rows])
        if self.starts is not None:
            return np.diff(self.starts, append=n_rows)
        assert self.group_of_row is not None
        return np.bincount(self.group_of_row)

    def cut(self, block: Block) -> Iterator[tuple[int, Block]]:
        """Yield the groups in a block of the rows, each with its rows."""
        start, n_rows = block.row_offset or 0, block.n_rows
        if self.counts:
            for group, counts in enumerate(self.counts):
                rows = np.repeat(np.arange(n_rows), counts[start : start + n_rows])
                if len(rows):
                    yield group, take_block_rows(block, rows)
            yield len(self.counts), block
            return
        if self.starts is None:
            assert self.group_of_row is not None
            group_of_row = self.group_of_row[start : start + n_rows]
            order = np.argsort(group_of_row, kind="stable")
            lengths = np.bincount(group_of_row)
            ends = np.cumsum(lengths)
            for group in np.flatnonzero(lengths).tolist():
                rows = order[ends[group] - lengths[group] : ends[group]]
                yield group, block if len(rows) == n_rows else take_block_rows(block, rows)
            return
        bounds = np.clip(self.starts - start, 0, n_rows).tolist()
        for group, (low, high) in enumerate(pairwise([*bounds, n_rows])):
            if low < high:
                yield group, slice_block(block, low, high)


def class_in_scikit_learn(splitter: object) -> type:
    """Return the class of scikit-learn that makes the splits of a splitter, or its own class."""
    # not inherited: a subclass may split otherwise
    return vars(type(splitter)).get("class_in_scikit_learn", type(splitter))


def row_numbers(part: object, n_rows: int) -> np.ndarray:
    """Return the numbers of the rows of a part of a split, in its order and as often as it has.

    A part may be whatever scikit-learn indexes rows by: numbers, also from the end, or a mask.
    """
    chosen: np.ndarray = take_rows(np.arange(n_rows), np.asarray(part))
    if chosen.ndim != 1:
        raise ValueError(
            f"Rows of a split must have one dimension. Got {chosen.ndim} instead. Give their "
            "numbers in a list."
        )
    return chosen


def make_folds(
    splitter: Any,
    n_rows: int,
    X: Rows | None = None,
    y: Values | None = None,
    *,
    is_disjoint: bool = True,
    **params: object,
) -> Folds:
    """Return the splits of a scikit-learn splitter over rows.

    Without X, as for rows on a cluster, the splitter gets an empty matrix of n_rows rows. Rows that
    no split distinguishes form a group, so that any splitter will do; repeated random splits have
    many groups.

    1. KFold without a shuffle has one group of consecutive rows for each fold.
    2. Where each row is tested once, a group has the test rows of a split.
    3. Where a part draws rows more than once, each part is a group, unless `is_disjoint`.
    4. Else the groups are refined by the train and the test rows of each split in turn.
    """
    # The most common splitter needs no array of a number per row.
    if class_in_scikit_learn(splitter) is KFold and not splitter.shuffle:
        n = splitter.get_n_splits()
        if n > n_rows:
            raise ValueError(
                f"cv must be at most the number of rows, n_samples={n_rows}. Got {n} folds instead."
            )
        lengths = np.full(n, n_rows // n)
        lengths[: n_rows % n] += 1
        return _leave_group_out(n, np.cumsum(lengths) - lengths, None)
    # Any other splitter is asked, whatever its rule is.
    X = np.empty((n_rows, 0)) if X is None else X
    pairs = [
        tuple(row_numbers(part, n_rows) for part in pair) for pair in splitter.split(X, y, **params)
    ]
    if not pairs:
        raise ValueError(
            "cv must have splits. Got none instead: no fits were performed. Give a list in place "
            "of an iterator, which is spent after one fit."
        )
    # Each row is tested once: as many groups as splits.
    group_of_row = _as_partition(pairs, n_rows)
    if group_of_row is not None:
        in_order = (group_of_row[:-1] <= group_of_row[1:]).all()
        # Consecutive rows are sliced as views; others are copied group by group.
        starts = np.searchsorted(group_of_row, np.arange(len(pairs))) if in_order else None
        return _leave_group_out(len(pairs), starts, None if in_order else group_of_row)
    # Parts may draw rows more than once (a bootstrap), so they are counts, not masks.
    counts = [count_rows(part, n_rows) for pair in pairs for part in pair]
    if not is_disjoint and max(part.max(initial=0) for part in counts) > 1:
        splits = tuple(((2 * i,), (2 * i + 1,)) for i in range(len(pairs)))
        return Folds(None, None, splits, tuple(counts))
    # Rows with the same counts in all parts are a group. Numbered anew after each part, codes stay
    # below the number of groups times that of counts.
    code = np.zeros(n_rows, dtype=np.int64)
    members = np.zeros((1, 0), dtype=np.int64)  # how often the parts of splits have each group
    for part in counts:
        base = int(part.max(initial=0)) + 1
        refined, code = np.unique(base * code + part, return_inverse=True)
        members = np.column_stack([members[refined // base], refined % base])
    # A part has each of its groups as often as it draws it.
    every = np.arange(len(members))
    groups = [tuple(np.repeat(every, column).tolist()) for column in members.T]
    numbers = code.astype(np.min_scalar_type(len(members)))
    return Folds(None, numbers, tuple(zip(groups[::2], groups[1::2], strict=True)))


def as_folds(
    cv: Folds | Splitter,
    n_rows: int,
    X: Rows | None = None,
    y: Values | None = None,
    **params: object,
) -> Folds:
    """Return folds as they are, or those of a splitter, a number of splits or pairs of indices.

    Groups of the latter need not be disjoint.
    """
    if isinstance(cv, Folds):
        return cv
    return make_folds(check_cv(cv), n_rows, X, y, is_disjoint=False, **params)


def _leave_group_out(n: int, starts: np.ndarray | None, group_of_row: np.ndarray | None) -> Folds:
    """Return n splits, each of which tests on one group and trains on all other groups."""
    splits = tuple(((*range(i), *range(i + 1, n)), (i,)) for i in range(n))
    return Folds(starts, group_of_row, splits)


def _as_partition(pairs: Sequence[tuple[np.ndarray, ...]], n_rows: int) -> np.ndarray | None:
    """Return the split that tests each row; None unless each is tested once and trained on else."""
    if sum(len(test) for _, test in pairs) != n_rows or len(pairs) < 2:
        return None
    group_of_row = np.full(n_rows, -1, dtype=np.min_scalar_type(-len(pairs)))
    for i, (_, test) in enumerate(pairs):
        group_of_row[test] = i
    if (group_of_row < 0).any():
        return None
    for i, (train, test) in enumerate(pairs):
        member = np.zeros(n_rows, dtype=bool)
        member[train] = True
        if len(train) + len(test) != n_rows or (member == (group_of_row == i)).any():
            return None
    return group_of_row
