"""Naive Bayes from counts of each class."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn import naive_bayes

from skfleet._validation import check_total_weight
from skfleet.blocks import Block
from skfleet.engine import Passes
from skfleet.estimators._blockwise import blockwise, learned_attributes, stock_estimator
from skfleet.estimators.naive_bayes._blockwise_classifier import (
    NO_WARNINGS,
    BlockwiseClassifier,
    spread,
    unite_labels,
)


class ClassCounts(NamedTuple):
    """Weight of each class, with a matrix of its counts, or one for each column."""

    labels: np.ndarray
    weight: np.ndarray
    counts: list[np.ndarray]
    n_categories: np.ndarray | None = None


class CountingClassifier(BlockwiseClassifier):
    """Base of naive Bayes classifiers of counts."""

    # The attribute of the counts, and whether it is a list of a matrix for each column.
    _counts_name = "feature_count_"
    _block_params = {"alpha": 1.0, "class_prior": None}

    def _fit_passes(self, meta: Any) -> Passes:
        with NO_WARNINGS:  # raises for parameters that do not fit the columns
            stock_estimator(self, class_prior=None).fit(np.ones((1, meta.shape[1])), [0])
        yield from super()._fit_passes(meta)

    def _reduce_block(self, block: Block, classes: Any = None) -> ClassCounts:
        part, factor = self._fit_block(block, classes, block.sample_weight)
        statistics = self._counts_of(part)
        counts = [matrix * factor for matrix in statistics.counts]
        return statistics._replace(weight=statistics.weight * factor, counts=counts)

    def _counts_of(self, fitted: Any) -> ClassCounts:
        """Return the counts of a fitted estimator."""
        counts = getattr(fitted, self._counts_name)
        counts = counts if isinstance(counts, list) else [counts]
        n_categories = getattr(fitted, "n_categories_", None)
        return ClassCounts(fitted.classes_, fitted.class_count_, counts, n_categories)

    def _combine(self, a: ClassCounts, b: ClassCounts) -> ClassCounts:
        labels, in_a, in_b = unite_labels(a.labels, b.labels)
        n_classes, counts = len(labels), []
        for x, y in zip(a.counts, b.counts, strict=True):
            shape = (n_classes, max(x.shape[1], y.shape[1]))
            counts.append(spread(x, in_a, shape) + spread(y, in_b, shape))
        weight = spread(a.weight, in_a, (n_classes,)) + spread(b.weight, in_b, (n_classes,))
        n_categories = None
        if a.n_categories is not None:
            n_categories = np.maximum(a.n_categories, b.n_categories)
        return ClassCounts(labels, weight, counts, n_categories)

    def _statistics_before(self, statistics: ClassCounts) -> ClassCounts:
        # scikit-learn's number of categories is that of the last rows
        return self._counts_of(self)._replace(n_categories=statistics.n_categories)

    def _set_statistics(self, statistics: ClassCounts) -> None:
        check_total_weight(float(statistics.weight.sum()))
        # scikit-learn's own update of these counts by two rows whose weights cancel
        fitted = stock_estimator(self)
        fitted.n_features_in_ = n_features = self.n_features_in_
        fitted.classes_, fitted.class_count_ = statistics.labels, statistics.weight
        is_list, row = statistics.n_categories is not None, np.zeros(n_features)
        if is_list:
            row = statistics.n_categories - 1
        counts = statistics.counts if is_list else statistics.counts[0]
        setattr(fitted, self._counts_name, counts)
        label = statistics.labels[:1]
        fitted.partial_fit([row, row], np.repeat(label, 2), sample_weight=[1.0, -1.0])
        vars(self).update(learned_attributes(fitted))


@blockwise
class MultinomialNB(CountingClassifier, naive_bayes.MultinomialNB):
    """On Dask rows ``fit`` is one pass that counts."""


@blockwise
class ComplementNB(CountingClassifier, naive_bayes.ComplementNB):
    """On Dask rows ``fit`` is one pass that counts."""


@blockwise
class BernoulliNB(CountingClassifier, naive_bayes.BernoulliNB):
    """On Dask rows ``fit`` is one pass that counts."""


@blockwise
class CategoricalNB(CountingClassifier, naive_bayes.CategoricalNB):
    """On Dask rows ``fit`` is one pass that counts."""

    _counts_name = "category_count_"

    def _example_answer(self, method: str) -> Any:
        return getattr(self, method)(np.zeros((1, self.n_features_in_), dtype=int))
