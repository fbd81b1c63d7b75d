"""Metrics of labels, and curves over scores, from the counts of distinct pairs (true, predicted).

The rows are reduced to their distinct pairs, with weights; scikit-learn does the rest on those.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.multiclass import type_of_target

from skfleet._validation import unique_values
from skfleet.metrics._reductions import MetricReduction


class Pairs(NamedTuple):
    """Distinct pairs of labels, or of rows of indicators, and their counts or total weights.

    Predictions may be scores.
    """

    true: np.ndarray
    predicted: np.ndarray
    weight: np.ndarray


def pairs_reduction(
    reference: Callable[..., Any],
    options: dict[str, Any],
    weighted: bool,
    *,
    of_scores: bool = False,
) -> MetricReduction:
    """Return the reduction of a metric that scikit-learn computes from pairs and their weights."""
    finalize = partial(_evaluate, reference, options, weighted)
    return MetricReduction(partial(count_pairs, of_scores), combine_pairs, finalize)


def count_pairs(
    of_scores: bool, true: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None
) -> Pairs:
    """Count the distinct pairs of a block."""
    check_labels("y_true", true)
    if not of_scores:
        check_labels("y_pred", predicted)
    counts = np.ones(len(true), dtype=np.int64) if weight is None else weight
    return _group(true, predicted, counts)


def check_labels(name: str, labels: np.ndarray) -> None:
    """Raise for continuous values, which would make about as many pairs as rows."""
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return
    kind = type_of_target(labels, input_name=name)
    if kind.startswith("continuous"):
        raise ValueError(
            f"{name} must hold labels for this metric. Got {kind} values instead. "
            "Take a metric of regression or of probabilities."
        )


def combine_pairs(a: Pairs, b: Pairs) -> Pairs:
    if a.true.ndim != b.true.ndim or a.predicted.ndim != b.predicted.ndim:
        raise ValueError("Labels must have as many columns in every block.")
    return _group(*(np.concatenate([x, y]) for x, y in zip(a, b, strict=True)))


def _group(true: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> Pairs:
    """Return distinct pairs with the sums of their weights."""
    (classes, codes), (guesses, codes_of_guesses) = map(_numbered, (true, predicted))
    n_guesses = max(1, len(guesses))
    # One number for each pair: labels may be strings, or rows of indicators.
    code = codes * n_guesses + codes_of_guesses
    pairs, which = unique_values(code, return_inverse=True)
    total = np.zeros(len(pairs), dtype=weight.dtype)
    np.add.at(total, which, weight)
    return Pairs(classes[pairs // n_guesses], guesses[pairs % n_guesses], total)


def _numbered(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct labels, or rows of labels, and the number of each."""
    if labels.ndim == 1:  # NumPy before 2.4 takes no axis of objects (strings)
        return unique_values(labels, return_inverse=True)
    distinct, numbers = np.unique(labels, axis=0, return_inverse=True)
    return distinct, numbers.reshape(-1)


def _evaluate(
    reference: Callable[..., Any], options: dict[str, Any], weighted: bool, pairs: Pairs
) -> Any:
    """Compute the metric by scikit-learn on the distinct pairs."""
    value = reference(pairs.true, pairs.predicted, sample_weight=pairs.weight, **options)
    return value if weighted else _as_counts(value, options)


def _as_counts(value: Any, options: dict[str, Any]) -> Any:
    """Convert counts of unweighted rows to integers, as scikit-learn returns them."""
    if options.get("normalize") is None and getattr(value, "ndim", 0) > 1:
        return value.astype(np.int64)  # a matrix, or several, of counts
    if isinstance(value, tuple) and len(value) == 4 and value[3] is not None:
        return (*value[:3], value[3].astype(np.int64))  # the support of each label
    if isinstance(value, str):  # a report, whose lines end with the support
        return re.sub(r" +(\d+)\.0$", lambda match: f" {match[1]:>9}", value, flags=re.MULTILINE)
    return value
