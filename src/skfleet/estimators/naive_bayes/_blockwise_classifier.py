"""Base of classifiers that count classes in one pass, and answer block by block."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from skfleet._sklearn_private import validate_params
from skfleet._validation import (
    check_target_type,
    unique_values,
    without_name_warnings,
)
from skfleet._warnings import IgnoredWarnings
from skfleet.blocks import Block, as_collection, check_rows, meta_of, target_column
from skfleet.estimators._array_api_blocks import check_takes_device
from skfleet.estimators._blockwise import BlockwiseEstimator, stock_estimator
from skfleet.estimators._fleet_estimator import check_columns
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.inference import call_method
from skfleet.metrics import accuracy_score

NO_WARNINGS = IgnoredWarnings(Warning)


class BlockwiseClassifier(BlockwiseEstimator):
    """Base of classifiers that are scikit-learn's own for rows in this process."""

    # Parameters of the fit of a single block, which may lack classes.
    _block_params: dict[str, Any] = {}

    def _statistics_before(self, statistics: Any) -> Any:
        """Return the statistics of the fitted attributes, to add those of more rows."""
        raise NotImplementedError

    def _example_answer(self, method: str) -> Any:
        """Return the answer for valid rows, where these cannot be arbitrary."""
        return None

    def _fit_block(self, block: Block, classes: Any, sample_weight: Any) -> tuple[Any, float]:
        """Return scikit-learn's fit of a block, and 0 if no row of it has weight, else 1.

        Its rows are of some of the classes, where these are known.
        """
        model = stock_estimator(self, **self._block_params)
        factor = 1.0
        if sample_weight is not None and not np.any(sample_weight):
            sample_weight, factor = None, 0.0
        if classes is None:
            model.fit(block.X, block.y, sample_weight=sample_weight)
        else:
            model.partial_fit(block.X, block.y, classes, sample_weight=sample_weight)
        return model, factor

    def _fit_on_blocks(
        self, X: Any, y: Any = None, sample_weight: Any = None, **options: Any
    ) -> Any:
        y = self._checked_labels(X, y)
        return super()._fit_on_blocks(X, y, sample_weight, **options)

    def _partial_fit_on_blocks(
        self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None
    ) -> Any:
        """Add Dask rows, as scikit-learn does the rows of one call."""
        y = self._checked_labels(X, y)
        with unchanged_on_failure(self):
            validate_params(self)
            X, is_first = as_collection(X), getattr(self, "classes_", None) is None
            self._check_meta(meta_of(X), reset=is_first)
            classes = self._known_classes(classes)
            passes = self._one_pass(classes)
            statistics = self._run(passes, X, y, sample_weight)
            if not is_first:
                statistics = self._combine(self._statistics_before(statistics), statistics)
            self._set_statistics(statistics)
        return self

    def _one_pass(self, classes: Any) -> Any:
        return (yield self._reduction("_reduce_block", classes))

    def _known_classes(self, classes: Any) -> np.ndarray:
        """Return all classes, or raise what scikit-learn raises for the parameter."""
        labels = getattr(self, "classes_", None) if classes is None else np.asarray(classes)
        row = np.ones((1, self.n_features_in_))
        with NO_WARNINGS:
            model: Any = copy.deepcopy(self)
            model.partial_fit(row, [0] if labels is None else np.ravel(labels)[:1], classes)
        return model.classes_

    def _checked_labels(self, X: Any, y: Any) -> Any:
        """Return the labels as a vector, or raise."""
        check_rows(X=X, y=y)
        if y is None:
            check_columns(clone(self), meta_of(as_collection(X)), y, reset=True)
        y = target_column(y)
        check_target_type(y, numeric=False)
        return y

    def _answer(self, X: Any, method: str) -> Any:
        """Return the answer of a method to Dask rows, lazily."""
        check_rows(X=X)
        check_is_fitted(self)
        X = as_collection(X)
        check_takes_device(self, X, method)
        self._check_meta(meta_of(X), reset=False)
        with without_name_warnings():
            example = self._example_answer(method)
        return call_method(self, self, method, X, example)

    def _predict_on_blocks(self, X: Any) -> Any:
        return self._answer(X, "predict")

    def _predict_proba_on_blocks(self, X: Any) -> Any:
        return self._answer(X, "predict_proba")

    def _predict_log_proba_on_blocks(self, X: Any) -> Any:
        return self._answer(X, "predict_log_proba")

    def _predict_joint_log_proba_on_blocks(self, X: Any) -> Any:
        return self._answer(X, "predict_joint_log_proba")

    def _score_on_blocks(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return accuracy_score(y, self._answer(X, "predict"), sample_weight=sample_weight)


def unite_labels(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the labels of two parts of the rows, and the numbers of the labels of each."""
    labels = unique_values(np.concatenate([a, b]))
    return labels, np.searchsorted(labels, a), np.searchsorted(labels, b)


def spread(values: np.ndarray, indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros with values at the first indices, and of the columns that they have."""
    result = np.zeros(shape)
    result[(indices, *map(slice, values.shape[1:]))] = values
    return result
