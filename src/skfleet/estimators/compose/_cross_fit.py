"""Compositions as models for tasks, and the transform of the rows that they were fitted on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import config_context, preprocessing
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from skfleet.blocks import (
    artificial_rows,
    as_collection,
    is_frame,
    meta_of,
    slice_rows,
    with_pandas_text,
)
from skfleet.estimators._blockwise import BlockwiseTransformer, output_container_of
from skfleet.estimators._device_dispatch import unchanged_on_failure
from skfleet.estimators.compose._metadata import is_estimator, refuse_metadata, weighted_parts
from skfleet.estimators.preprocessing._target_encoder import FoldEncoder, with_final_partitions
from skfleet.inference import map_partitions, name_columns

Replacement = Callable[[Any], Any]


class Composition(BlockwiseTransformer):
    """Base of transformers that are made of several, fitted in shared passes."""

    _takes_numbers = False
    # Whether ``fit`` takes parameters with metadata routing only.
    _routed_only = False

    def _replace_parts(self, replace: Replacement) -> Any:
        """Return a copy with a replacement for each fitted part that is an estimator."""
        raise NotImplementedError

    def _task_model(self) -> Any:
        model = self._replace_parts(as_task_model)
        model.n_jobs = 1  # a task has its thread; the fleet has the other blocks
        return model

    def _example_result(self, method: str, rows: Any) -> Any:
        return BlockwiseTransformer._example_result(self._task_model(), method, rows)

    def _fit_on_blocks(self, X: Any, y: Any = None, **params: Any) -> Any:
        weighted = weighted_parts(self, params, self._routed_only)
        return super()._fit_on_blocks(X, y, params.get("sample_weight"), weighted=weighted)

    def _transform_on_blocks(self, X: Any, **params: Any) -> Any:
        refuse_metadata(self, params)
        return super()._transform_on_blocks(X)

    def _fit_transform_on_blocks(self, X: Any, y: Any = None, **params: Any) -> Any:
        parts = self.get_params().values()
        if not any(isinstance(part, preprocessing.TargetEncoder) for part in parts):
            return super()._fit_transform_on_blocks(X, y, **params)
        container = output_container_of(self)
        options = {"weighted": weighted_parts(self, params, self._routed_only), "cross_fit": True}
        with unchanged_on_failure(self):
            X, y = with_final_partitions(as_collection(X), y)
            meta = with_pandas_text(meta_of(X))
            passes = self._begin_fit(meta, **options)
            model = self._run(passes, X, y, params.get("sample_weight")) or self
        encoders = fold_encoders(model)
        if not encoders:
            return self.transform(X)
        with config_context(transform_output=container):
            result = slice_rows(self._example_result("transform", artificial_rows(meta)), 0, 0)
        n_partitions = X.npartitions if is_frame(meta) else X.numblocks[0]
        none = np.zeros(0, dtype=np.int8)
        groups = [
            np.column_stack([encoder.groups.get(i, none) for encoder in encoders])
            for i in range(n_partitions)
        ]
        model = bind_folds(as_task_model(model), [none] * len(encoders))
        output = map_partitions(self, _transform, (model, container, result), X, groups, result)
        if container == "default" or is_frame(result):
            return output
        return name_columns(output, self.get_feature_names_out())


def _transform(model: tuple[Any, str, Any], rows: Any, groups: np.ndarray) -> Any:
    """Return rows that a composition was fitted on, with targets encoded by fold."""
    composition, container, result = model
    if not len(groups):
        return result
    with config_context(transform_output=container):
        return bind_folds(composition, list(groups.T)).transform(rows)


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
    if isinstance(model, Composition):
        return model._replace_parts(lambda part: _replace_folds(part, replace))
    return model


def _replace_steps(pipeline: Pipeline, replace: Replacement) -> Pipeline:
    steps = [(name, replace(step) if is_estimator(step) else step) for name, step in pipeline.steps]
    return Pipeline(steps)
