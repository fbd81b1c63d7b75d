"""Compositions as models for tasks, and the transform of the rows that they were fitted on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn import config_context, preprocessing
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from skfleet._sklearn_private import output_container
from skfleet._validation import has_types_of
from skfleet.blocks import (
    as_collection,
    is_frame,
    meta_of,
    slice_rows,
    with_pandas_text,
)
from skfleet.estimators._blockwise import (
    BLOCKWISE_CLASSES,
    BlockwiseTransformer,
    output_container_of,
)
from skfleet.estimators._device_dispatch import unchanged_on_failure
from skfleet.estimators.compose._metadata import is_estimator, refuse_metadata, weighted_parts
from skfleet.estimators.preprocessing._target_encoder import FoldEncoder, with_final_partitions
from skfleet.inference import map_partitions, name_columns

Replacement = Callable[[Any], Any]


class RecordedOutput(NamedTuple):
    """Transformed rows, none, of a composition for rows like `meta`, in a container of its own."""

    meta: Any
    container: str
    output: Any


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


class Composition(BlockwiseTransformer):
    """Base of transformers that are made of several, fitted in shared passes."""

    _takes_numbers = False
    _state_of_blocks = ("_recorded_output",)
    # Whether ``fit`` takes parameters with metadata routing only.
    _routed_only = False

    def _replace_parts(self, replace: Replacement) -> Any:
        """Return a copy with a replacement for each fitted part that is an estimator."""
        raise NotImplementedError

    def _task_model(self) -> Any:
        return self._with_parts(as_task_model)

    def _with_parts(self, replace: Replacement) -> Any:
        model = self._replace_parts(replace)
        model.n_jobs = 1  # a task has its thread; the fleet has the other blocks
        return model

    def _example_result(self, method: str, rows: Any) -> Any:
        return getattr(self._with_parts(as_example), method)(rows)

    def _record_output(self, meta: Any, output: Any) -> None:
        """Record the kind of the output of rows like the empty `meta`."""
        empty = copy.copy(slice_rows(output, 0, 0))  # a view would keep all rows
        self._recorded_output = RecordedOutput(meta, output_container(self), empty)

    def _known_result(self, meta: Any) -> Any:
        recorded = getattr(self, "_recorded_output", None)
        is_known = recorded is not None and recorded.container == output_container(self)
        if not is_known or not has_types_of(meta, recorded.meta):
            return None
        output = recorded.output
        return output.set_axis(meta.index) if is_frame(output) and is_frame(meta) else output

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
            rows_of = as_collection(X)
            X, y = with_final_partitions(rows_of, y, container)
            meta = with_pandas_text(meta_of(X))
            passes = self._begin_fit(meta, **options)
            model = self._run(passes, X, y, params.get("sample_weight")) or self
        encoders = fold_encoders(model)
        if not encoders:
            return self.transform(X)
        result = self._known_result(meta)
        n_partitions = X.npartitions if is_frame(meta) else X.numblocks[0]
        none = np.zeros(0, dtype=np.int8)
        groups = [
            np.column_stack([encoder.groups.get(i, none) for encoder in encoders])
            for i in range(n_partitions)
        ]
        model = bind_folds(as_task_model(model), [none] * len(encoders))
        model = model, container, result
        output = map_partitions(self, _transform, model, X, groups, result, rows_of)
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
    if isinstance(model, Composition):
        return model._replace_parts(lambda part: _replace_folds(part, replace))
    return model


def _replace_steps(pipeline: Pipeline, replace: Replacement) -> Pipeline:
    steps = [(name, replace(step) if is_estimator(step) else step) for name, step in pipeline.steps]
    return Pipeline(steps)
