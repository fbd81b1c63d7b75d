"""Gaussian naive Bayes from the means and variances of each class."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn import naive_bayes

from skfleet.blocks import Block
from skfleet.estimators._blockwise import blockwise, stock_estimator
from skfleet.estimators.naive_bayes._blockwise_classifier import (
    BlockwiseClassifier,
    spread,
    unite_labels,
)


class ClassMoments(NamedTuple):
    """Weights, means and variances by class; in the last row, those of all rows unweighted."""

    labels: np.ndarray
    weight: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    dtype: np.dtype


@blockwise
class GaussianNB(BlockwiseClassifier, naive_bayes.GaussianNB):
    """On Dask rows ``fit`` is one pass, in which moments of blocks are merged (Chan et al.)."""

    _block_params = {"priors": None, "var_smoothing": 0}

    def _reduce_block(self, block: Block, classes: Any = None) -> ClassMoments:
        weight, unit = block.sample_weight, 1.0
        if weight is not None:
            # scikit-learn leaves out classes of a tiny weight, which may be that of few rows
            weight = np.asarray(weight, dtype=np.float64)
            unit = max(weight[weight > 0].min(initial=1.0), 1e-100)
            weight = weight / unit
        part, factor = self._fit_block(block, classes, weight)
        whole, _ = self._fit_block(block._replace(y=np.zeros(block.n_rows)), None, None)
        n = np.concatenate([part.class_count_ * (factor * unit), whole.class_count_])
        mean = np.concatenate([part.theta_ * factor, whole.theta_], dtype=np.float64)
        variance = np.concatenate([part.var_ * factor, whole.var_], dtype=np.float64)
        return ClassMoments(part.classes_, n, mean, variance, part.theta_.dtype)

    def _combine(self, a: ClassMoments, b: ClassMoments) -> ClassMoments:
        labels, in_a, in_b = unite_labels(a.labels, b.labels)
        n_classes = len(labels)
        a_weight, a_mean, a_variance = _spread_moments(a, in_a, n_classes)
        b_weight, b_mean, b_variance = _spread_moments(b, in_b, n_classes)
        weight, is_empty = a_weight + b_weight, a_weight + b_weight == 0
        a_fraction, b_fraction = (
            np.divide(part, weight, out=np.zeros_like(weight), where=~is_empty)
            for part in (a_weight, b_weight)
        )
        shift = b_mean - a_mean
        variance = a_fraction * a_variance + b_fraction * (b_variance + a_fraction * shift**2)
        variance = np.where(is_empty, a_variance + b_variance, variance)
        dtype = np.result_type(a.dtype, b.dtype)
        return ClassMoments(labels, weight[:, 0], a_mean + b_fraction * shift, variance, dtype)

    def _statistics_before(self, statistics: ClassMoments) -> ClassMoments:
        # scikit-learn takes off the smoothing of the new rows, not that of the old ones
        zeros = np.zeros((1, self.n_features_in_))
        return ClassMoments(
            self.classes_,
            np.append(self.class_count_, 0.0),
            np.concatenate([self.theta_, zeros]),
            np.concatenate([self.var_ - self._smoothing(statistics), zeros]),
            self.theta_.dtype,
        )

    def _smoothing(self, statistics: ClassMoments) -> Any:
        return self.var_smoothing * statistics.variance[-1].max().astype(statistics.dtype)

    def _set_statistics(self, statistics: ClassMoments) -> None:
        labels, weight, mean, variance, dtype = statistics
        theta = mean[:-1].astype(dtype)
        # scikit-learn's own fit on a row of each class
        fitted = stock_estimator(self, var_smoothing=0)
        fitted.fit(theta, labels, sample_weight=weight[:-1])
        self.classes_, self.class_prior_ = fitted.classes_, fitted.class_prior_
        self.class_count_, self.theta_ = fitted.class_count_, theta
        self.epsilon_ = self._smoothing(statistics)
        self.var_ = (variance[:-1] + self.epsilon_).astype(dtype)


def _spread_moments(part: ClassMoments, indices: np.ndarray, n_classes: int) -> list[np.ndarray]:
    """Return weights, means and variances of all classes and the last row, as matrices."""
    rows = np.append(indices, n_classes)
    matrices = (part.weight[:, None], part.mean, part.variance)
    return [spread(values, rows, (n_classes + 1, values.shape[1])) for values in matrices]
