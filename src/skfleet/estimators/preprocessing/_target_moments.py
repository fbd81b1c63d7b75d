"""Moments of targets in each category, and the encodings that follow from them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skfleet.estimators.preprocessing._categories import SortedValues, union


class TargetMoments(NamedTuple):
    """Number of rows of each category, mean of their targets, and squares about it.

    The means and squares of several targets are columns.
    """

    n: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of_rows(cls, codes: np.ndarray, y: np.ndarray, n_categories: int) -> TargetMoments:
        """Return the moments of rows with codes of categories."""
        n = np.bincount(codes, minlength=n_categories)
        sums = np.bincount(codes, weights=y, minlength=n_categories)
        mean = sums / np.maximum(n, 1)
        squares = np.bincount(codes, weights=(y - mean[codes]) ** 2, minlength=n_categories)
        return cls(n, mean, squares)

    @classmethod
    def of_labels(cls, counts: np.ndarray) -> TargetMoments:
        """Return the moments of the numbers of labels, of which the counts are columns."""
        n, numbers = counts.sum(axis=1), np.arange(counts.shape[1])
        mean = counts @ numbers / np.maximum(n, 1)
        squares = (counts * (numbers - mean[:, None]) ** 2).sum(axis=1)
        return cls(n, mean, squares)

    @classmethod
    def of_classes(cls, counts: np.ndarray) -> TargetMoments:
        """Return the moments of an indicator of each class, of which the counts are columns."""
        n = counts.sum(axis=1)
        counts = counts if counts.shape[1] > 1 else 0 * counts  # as of scikit-learn's binarizer
        mean = counts / np.maximum(n, 1)[:, None]
        return cls(n, mean, counts * (1 - mean) ** 2 + (n[:, None] - counts) * mean**2)

    @classmethod
    def of_shifted_sums(cls, shift: np.ndarray, sums: np.ndarray) -> TargetMoments:
        """Return the moments of columns of counts, sums, and sums of squares, about `shift`."""
        n, total, squares = sums.T
        mean = total / np.maximum(n, 1)
        return cls(n.astype(np.int64), shift + mean, np.maximum(squares - total * mean, 0.0))

    def encode(self, y: TargetMoments, smooth: float | str) -> np.ndarray:
        """Return the encoding of each category, where `y` has the moments of all rows."""
        n = self.n.reshape(-1, *[1] * (self.mean.ndim - 1))
        y_mean, n_rows = y.mean[0], y.n[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            if smooth != "auto":
                encoding = (smooth * y_mean + n * self.mean) / (smooth + n)
                return np.where(smooth + n > 0, encoding, y_mean)
            between = y.squares[0] / n_rows * n
            weight = between / (between + self.squares / n)
            encoding = weight * self.mean + (1 - weight) * y_mean
        return np.where(np.isnan(weight), y_mean, encoding)


class CategoryTargets(NamedTuple):
    """Labels with their counts in each category, and moments of numbers; None if not both."""

    labels: np.ndarray | None
    counts: np.ndarray | None
    moments: TargetMoments | None


def merge_targets(
    a: CategoryTargets,
    b: CategoryTargets,
    a_positions: np.ndarray,
    b_positions: np.ndarray,
    n_categories: int,
) -> CategoryTargets:
    """Return the statistics of two parts of the rows together."""
    labels = counts = moments = None
    if a.labels is not None and b.labels is not None:
        labels, a_labels, b_labels = union(a.labels, b.labels)
        counts = np.zeros((n_categories, len(labels)), dtype=np.int64)
        counts[np.ix_(a_positions, a_labels)] = a.counts
        counts[np.ix_(b_positions, b_labels)] += b.counts
    if a.moments is not None and b.moments is not None:
        x = _spread(a.moments, a_positions, n_categories)
        z = _spread(b.moments, b_positions, n_categories)
        n = x.n + z.n
        fraction = z.n / np.maximum(n, 1)
        shift = z.mean - x.mean
        squares = x.squares + z.squares + x.n * fraction * shift**2
        moments = TargetMoments(n, x.mean + fraction * shift, squares)
    return CategoryTargets(labels, counts, moments)


def _spread(moments: TargetMoments, positions: np.ndarray, n: int) -> TargetMoments:
    """Return moments with a row for each of n categories."""
    spread = TargetMoments(np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n))
    for part, values in zip(spread, moments, strict=True):
        part[positions] = values
    return spread


def targets_of(
    codes: np.ndarray,
    categories: np.ndarray,
    y: np.ndarray | None,
    labels: np.ndarray | None,
    label_codes: np.ndarray | None,
) -> SortedValues:
    """Return the statistics of rows with codes of categories."""
    k, counts, moments = len(categories), None, None
    if labels is not None and label_codes is not None:
        pairs = codes * len(labels) + label_codes
        counts = np.bincount(pairs, minlength=k * len(labels)).reshape(k, len(labels))
    if y is not None:
        moments = TargetMoments.of_rows(codes, y, k)
    return SortedValues(categories, CategoryTargets(labels, counts, moments))
