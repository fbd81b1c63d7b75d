"""Cross-validation over blocks: which rows each split trains and tests on, by global row number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import KFold


@dataclass(frozen=True)
class Folds:
    """Rows in parts, such that every split trains and tests on whole parts.

    Parts are runs of rows that start at `starts`, or `part_of` names each row's. `splits` holds the
    numbers of the parts to train on, and of those to test on, for each split.
    """

    starts: np.ndarray | None
    part_of: np.ndarray | None
    splits: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    def of(self, start: int, n_rows: int) -> np.ndarray:
        """Return the parts of the rows start, start + 1, ..."""
        if self.starts is None:
            assert self.part_of is not None
            return self.part_of[start : start + n_rows]
        return np.searchsorted(self.starts, np.arange(start, start + n_rows), side="right") - 1


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
        every = set(range(n))
        splits = tuple((tuple(sorted(every - {i})), (i,)) for i in range(n))
        return Folds(np.cumsum(lengths) - lengths, None, splits)
    X = np.empty((n_rows, 0)) if X is None else X
    pairs = list(splitter.split(X, y, **params))
    code = np.zeros(n_rows, dtype=np.int64)
    told_apart: list[tuple[int, int]] = []  # the place in `pairs` of each column of `members`
    members = np.zeros((1, 0), dtype=bool)
    for i, pair in enumerate(pairs):
        for side, chosen in enumerate(pair):
            member = np.zeros(n_rows, dtype=bool)
            member[chosen] = True
            found, code = np.unique(2 * code + member, return_inverse=True)
            members = np.column_stack([members[found // 2], found % 2 == 1])
            told_apart.append((i, side))
    parts: dict[tuple[int, int], tuple[int, ...]] = {
        place: tuple(np.flatnonzero(column).tolist())
        for place, column in zip(told_apart, members.T, strict=True)
    }
    numbers = code.astype(np.min_scalar_type(len(members)))
    return Folds(None, numbers, tuple((parts[i, 0], parts[i, 1]) for i in range(len(pairs))))


def rows_by_part(parts: np.ndarray) -> Sequence[tuple[int, np.ndarray | None]]:
    """Return each part of a run of rows with a mask of its rows, None where that is all."""
    found = np.unique(parts)
    if len(found) == 1:
        return [(int(found[0]), None)]
    return [(int(part), parts == part) for part in found]
