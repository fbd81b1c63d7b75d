"""The calibration curve of probabilities, from sums over bins."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn import calibration

from skfleet._validation import unique_values
from skfleet.blocks import Block
from skfleet.engine import Passes
from skfleet.metrics._contingency import check_labels
from skfleet.metrics._reductions import Metric, MetricReduction
from skfleet.quantiles import column_quantiles


class Bins(NamedTuple):
    """Rows of each label and sums of the probabilities, by bin; the range of the probabilities."""

    labels: np.ndarray
    counts: np.ndarray  # of shape (n_labels, n_bins)
    total: np.ndarray
    low: float
    high: float


def calibration_metric(pos_label: Any, n_bins: int, strategy: str) -> Metric:
    """Return the metric of bins of equal width, or of equally many rows."""
    if strategy == "quantile":
        return QuantileBins(pos_label, n_bins)
    return _curve_of_bins(pos_label, np.linspace(0.0, 1.0, n_bins + 1))


@dataclass(frozen=True)
class QuantileBins:
    """The calibration curve of bins of equally many rows."""

    pos_label: Any
    n_bins: int
    is_one_pass: ClassVar[bool] = False

    def passes(self) -> Passes:
        """Return the passes of the metric."""
        levels = np.linspace(0, 1, self.n_bins + 1) * 100
        _, edges = yield from column_quantiles("measure", _probabilities, levels)
        return (yield _curve_of_bins(self.pos_label, edges[:, 0]).on_blocks())


def _probabilities(block: Block) -> tuple[np.ndarray, None]:
    return np.asarray(block.y, dtype=np.float64).reshape(-1, 1), None


def _curve_of_bins(pos_label: Any, edges: np.ndarray) -> MetricReduction:
    return MetricReduction(partial(_count, edges), _add_counts, partial(_curve, pos_label))


def _count(edges: np.ndarray, true: np.ndarray, probability: np.ndarray, _: None) -> Bins:
    """Return the sums of a block."""
    check_labels("y_true", true)
    labels, codes = unique_values(true, return_inverse=True)
    n_bins = len(edges) - 1
    bins = np.searchsorted(edges[1:-1], probability)
    counts = np.bincount(codes * n_bins + bins, minlength=len(labels) * n_bins)
    total = np.bincount(bins, weights=probability, minlength=n_bins)
    low, high = probability.min(initial=np.inf), probability.max(initial=-np.inf)
    return Bins(labels, counts.reshape(len(labels), n_bins), total, low, high)


def _add_counts(a: Bins, b: Bins) -> Bins:
    labels = np.union1d(a.labels, b.labels)
    counts = np.zeros((len(labels), len(a.total)), dtype=np.int64)
    for part in (a, b):
        counts[np.searchsorted(labels, part.labels)] += part.counts
    return Bins(labels, counts, a.total + b.total, min(a.low, b.low), max(a.high, b.high))


def _curve(pos_label: Any, bins: Bins) -> tuple[np.ndarray, np.ndarray]:
    """Return the fractions of positives and the mean probabilities of the bins that have rows."""
    # Has scikit-learn raise for the labels and the range, on rows that cost nothing.
    labels = np.resize(bins.labels, max(2, len(bins.labels)))
    ends = np.resize([bins.low, bins.high], len(labels))
    calibration.calibration_curve(labels, ends, pos_label=pos_label)
    n_rows = bins.counts.sum(axis=0)
    is_positive = bins.labels == (1 if pos_label is None else pos_label)
    n_positive = bins.counts[is_positive].sum(axis=0)
    has_rows = n_rows > 0
    return n_positive[has_rows] / n_rows[has_rows], bins.total[has_rows] / n_rows[has_rows]
