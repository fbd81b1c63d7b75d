"""Fitted pipelines of transformers as models for tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from skfleet.estimators._blockwise import BLOCKWISE_CLASSES, BlockwiseTransformer
from skfleet.estimators.preprocessing._target_encoder import FoldEncoder

Replacement = Callable[[Any], Any]


def is_estimator(part: Any) -> bool:
    """Return whether a part of a composition is one, and not "drop" or "passthrough"."""
    return part is not None and not isinstance(part, str)


class Example:
    """Stand-in for a fitted transformer, of rows whose values mean nothing.

    It transforms values that the transformer takes, in their container.
    """

    def __init__(self, model: BlockwiseTransformer) -> None:
        self._model = model

    def transform(self, X: Any) -> Any:
        """Return what the transformer makes of rows like X."""
        result = self._model._example_result("transform", X)
        return self._model.transform(X) if result is None else result

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_model"], name)


def as_task_model(model: Any) -> Any:
    """Return a fitted model as tasks call it; it changes no blocks in memory."""
    if isinstance(model, Pipeline):
        return _replace_steps(model, as_task_model)
    if not isinstance(model, BlockwiseTransformer):
        is_in_place = getattr(model, "copy", True) is False
        return copy.copy(model).set_params(copy=True) if is_in_place else model
    try:
        check_is_fitted(model)
    except NotFittedError:  # a part of no columns
        return model
    return model._task_model()


def as_example(model: Any) -> Any:
    """Return a fitted model, none of whose parts is given values that another one makes."""
    if isinstance(model, Pipeline):
        return _replace_steps(model, as_example)
    if isinstance(model, FrozenEstimator):
        return as_example(model.estimator)
    cls = BLOCKWISE_CLASSES.get(type(model))
    if cls is not None:  # of scikit-learn's, as fitted on rows in this process
        fitted, model = model, cls.__new__(cls)
        vars(model).update(vars(fitted))
    return Example(model) if isinstance(model, BlockwiseTransformer) else model


def fold_encoders(model: Any) -> list[FoldEncoder]:
    """Return the cross-fitted encoders in a model, in the order of its parts."""
    encoders: list[FoldEncoder] = []
    _replace_folds(model, lambda encoder: encoders.append(encoder) or encoder)
    return encoders


def bind_folds(model: Any, groups: list[np.ndarray]) -> Any:
    """Return a model whose cross-fitted encoders, in turn, are those of rows of these groups."""
    remaining = iter(groups)
    return _replace_folds(model, lambda encoder: encoder.of_rows(next(remaining)))


def _replace_folds(model: Any, replace: Replacement) -> Any:
    if isinstance(model, FoldEncoder):
        return replace(model)
    if isinstance(model, Pipeline):
        return _replace_steps(model, lambda part: _replace_folds(part, replace))
    if isinstance(model, BlockwiseTransformer):
        return model._replace_parts(lambda part: _replace_folds(part, replace))
    return model


def _replace_steps(pipeline: Pipeline, replace: Replacement) -> Pipeline:
    steps = [(name, replace(step) if is_estimator(step) else step) for name, step in pipeline.steps]
    return Pipeline(steps)
