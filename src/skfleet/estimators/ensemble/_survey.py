"""Survey of the training rows of a forest, in one pass, before any tree is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils import check_array

from skfleet._array import to_host, to_host_if_array
from skfleet._linalg import is_sparse, row_bytes
from skfleet._validation import check_block, unique_values
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Reduction


@dataclass(frozen=True)
class ForestSurvey:
    """Lengths of blocks, labels and sums of targets, and values per row where they are needed.

    The values are by the blocks' numbers, as parts in the order of the rows.
    """

    counts: Counter[int]
    n_bytes: int  # of X in float32
    target_dims: int
    labels: list[np.ndarray]  # of each output of a classifier
    y_min: float
    y_sum: float
    n_outputs: int
    y_parts: dict[int, list[np.ndarray]]
    weight_parts: dict[int, list[np.ndarray]]
    total_weight: float

    @property
    def n_rows(self) -> int:
        return sum(self.counts.values())

    def y(self) -> np.ndarray:
        """Return the labels of all rows, of shape (n_samples, n_outputs)."""
        return _in_order(self.y_parts)

    def sample_weight(self) -> np.ndarray | None:
        """Return the weights of all rows; None without."""
        return _in_order(self.weight_parts) if self.weight_parts else None

    def with_lengths(self, rows: RowBlocks) -> RowBlocks:
        """Return the rows with the lengths of their blocks."""
        return rows.with_lengths([self.counts[block.number] for block in rows.blocks])


def survey(*, has_labels: bool, with_y: bool, allows_nan: bool, weight_signs: bool) -> Reduction:
    """Return the reduction of rows to a `ForestSurvey`.

    Negative weights are refused unless `weight_signs`.
    """
    per_block = partial(
        _survey_block,
        has_labels=has_labels,
        with_y=with_y,
        allows_nan=allows_nan,
        weight_signs=weight_signs,
    )
    return Reduction(per_block, _combine)


def as_tree_rows(X: Any) -> Any:
    """Return rows on the host as scikit-learn's trees take them: float32, sparse ones in CSR."""
    X = to_host_if_array(X)
    return X.tocsr().astype(np.float32) if is_sparse(X) else np.asarray(X, dtype=np.float32)


def as_outputs(y: Any) -> np.ndarray:
    """Return labels or targets on the host, of shape (n_samples, n_outputs)."""
    y = to_host(y)
    return y[:, None] if y.ndim == 1 else y


def _survey_block(
    block: Block, has_labels: bool, with_y: bool, allows_nan: bool, weight_signs: bool
) -> ForestSurvey:
    with np.errstate(over="ignore"):  # infinity is refused below
        X = as_tree_rows(block.X)
    finite: Any = "allow-nan" if allows_nan and not is_sparse(X) else True
    check_array(X, accept_sparse="csr", dtype=None, ensure_all_finite=finite, input_name="X")
    weight = None if block.sample_weight is None else to_host(block.sample_weight)
    check_block(block._replace(X=np.empty((0, 1)), sample_weight=None if weight_signs else weight))
    y, labels, y_min, y_sum = as_outputs(block.y), [], 0.0, 0.0
    if has_labels:
        labels = [unique_values(column) for column in y.T]
    else:
        y_min, y_sum = float(y.min()), float(y.sum(dtype=np.float64))
    number = block.number
    return ForestSurvey(
        Counter({number: block.n_rows}),
        block.n_rows * row_bytes(X),
        block.y.ndim,
        labels,
        y_min,
        y_sum,
        y.shape[1],
        {number: [y]} if with_y else {},
        {} if weight is None else {number: [np.asarray(weight, dtype=np.float64)]},
        1.0 if weight is None else float(np.sum(weight)),
    )


def _combine(a: ForestSurvey, b: ForestSurvey) -> ForestSurvey:
    labels = [unique_values(np.concatenate(x)) for x in zip(a.labels, b.labels, strict=True)]
    return replace(
        a,
        counts=a.counts + b.counts,
        n_bytes=a.n_bytes + b.n_bytes,
        labels=labels,
        y_min=min(a.y_min, b.y_min),
        y_sum=a.y_sum + b.y_sum,
        y_parts=_merge(a.y_parts, b.y_parts),
        weight_parts=_merge(a.weight_parts, b.weight_parts),
        total_weight=a.total_weight + b.total_weight,
    )


def _merge(a: dict[int, list[Any]], b: dict[int, list[Any]]) -> dict[int, list[Any]]:
    return {n: [*a.get(n, ()), *b.get(n, ())] for n in {**a, **b}}


def _in_order(parts: Mapping[int, Sequence[np.ndarray]]) -> np.ndarray:
    return np.concatenate([part for number in sorted(parts) for part in parts[number]])
