"""Columns of predictions per class, where the models of some splits have not seen all classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from skfleet.inference import ClassColumns, class_names

_PER_CLASS = ("predict_proba", "predict_log_proba", "decision_function")


def class_columns(models: Sequence[Any], method: str, y: Any, X: Any) -> ClassColumns | None:
    """Return the columns of a result per class; None where all models have them.

    scikit-learn's function warns alike, and raises where a decision function has no value for the
    other classes.
    """
    if method not in _PER_CLASS or y is None or not all(hasattr(m, "classes_") for m in models):
        return None
    labels = [y] if len(y.shape) == 1 else [y[:, i] for i in range(y.shape[1])]
    classes = [np.unique(np.asarray(values)) for values in labels]
    by_model = [_per_output(model.classes_) for model in models]
    unlike = next((own for own in by_model if list(map(len, own)) != list(map(len, classes))), None)
    if unlike is None:
        return None
    if method == "decision_function" or len(classes) > 1:
        raise ValueError(
            f"All training parts must have all classes for {method} of this estimator. Got "
            f"{[len(values) for values in unlike]} instead of {[len(c) for c in classes]}. "
            "Use a stratified splitter."
        )
    (all_classes,) = classes
    warnings.warn(
        f"Number of classes in training fold ({len(unlike[0])}) does not match total number of "
        f"classes ({len(all_classes)}). Results may not be appropriate for your use case. To fix "
        "this, use a cross-validation technique resulting in properly stratified folds",
        RuntimeWarning,
        stacklevel=3,
    )
    positions = [
        None if len(own) == len(all_classes) else np.searchsorted(all_classes, own)
        for (own,) in by_model
    ]
    names = class_names(all_classes, X)
    return ClassColumns(names, positions, len(all_classes), method == "predict_log_proba")


def _per_output(classes: Any) -> list[Any]:
    return list(classes) if isinstance(classes, list) else [classes]
