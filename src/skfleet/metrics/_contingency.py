"""Metrics of labels: all are functions of how often each pair (true, predicted) occurs.

The rows are reduced to their distinct pairs, with weights; scikit-learn does the rest on those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.multiclass import type_of_target

from skfleet.metrics._reductions import Statistic


class Pairs(NamedTuple):
    """Distinct pairs of labels, or of rows of indicators, and their counts or total weights."""

    true: np.ndarray
    predicted: np.ndarray
    weight: np.ndarray


def pairs_statistic(
    reference: Callable[..., Any], options: dict[str, Any], weighted: bool
) -> Statistic:
    """Return the statistic of a metric that scikit-learn computes from labels and weights."""
    finish = partial(_evaluate, reference, options, weighted)
    return Statistic(count_pairs, merge_pairs, finish)


def count_pairs(true: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None) -> Pairs:
    """Count the distinct pairs among some rows."""
    for name, labels in (("y_true", true), ("y_pred", predicted)):
        kind = type_of_target(labels, input_name=name)
        if kind.startswith("continuous"):
            raise ValueError(
                f"{name} must hold labels for this metric. Got {kind} values instead. "
                "Take a metric of regression or of probabilities."
            )
    counts = np.ones(len(true), dtype=np.int64) if weight is None else weight
    return _group(true, predicted, counts)


def merge_pairs(a: Pairs, b: Pairs) -> Pairs:
    """Merge the counts of two runs of rows."""
    if a.true.ndim != b.true.ndim or a.predicted.ndim != b.predicted.ndim:
        raise ValueError("Labels must have as many columns in every block.")
    return _group(*(np.concatenate([x, y]) for x, y in zip(a, b, strict=True)))


def _group(true: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> Pairs:
    """Bring equal pairs together and add their weights."""
    codes = [np.unique(v, axis=0, return_inverse=True)[1].reshape(-1) for v in (true, predicted)]
    code = codes[0] * (codes[1].max(initial=0) + 1) + codes[1]
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    total = np.zeros(len(first), dtype=weight.dtype)
    np.add.at(total, which, weight)
    return Pairs(true[first], predicted[first], total)


def _evaluate(
    reference: Callable[..., Any], options: dict[str, Any], weighted: bool, pairs: Pairs
) -> Any:
    """Have scikit-learn compute the metric on the distinct pairs."""
    value = reference(pairs.true, pairs.predicted, sample_weight=pairs.weight, **options)
    return value if weighted else _as_counts(value, options)


def _as_counts(value: Any, options: dict[str, Any]) -> Any:
    """Give counts of rows without weights the type that scikit-learn gives them."""
    if options.get("normalize") is None and getattr(value, "ndim", 0) > 1:
        return value.astype(np.int64)  # a matrix, or several, of counts
    if isinstance(value, tuple) and len(value) == 4 and value[3] is not None:
        return (*value[:3], value[3].astype(np.int64))  # the support of each label
    return value
