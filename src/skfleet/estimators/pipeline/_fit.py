"""Fits of a transformer, or of the steps of a pipeline of them, on Dask rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from skfleet._fall_back import fall_back
from skfleet._validation import without_name_warnings
from skfleet._warnings import without_warnings
from skfleet.blocks import Block, artificial_rows, slice_rows
from skfleet.engine import Passes
from skfleet.estimators._blockwise import BLOCKWISE_CLASSES, BlockwiseTransformer
from skfleet.estimators._fleet_estimator import FleetEstimator
from skfleet.estimators._passes import EstimatorFit, head_of_rows, on_prepared_rows
from skfleet.estimators.pipeline._alike import fit_alike
from skfleet.estimators.pipeline._task_models import (
    as_example,
    as_task_model,
    bind_folds,
    fold_encoders,
    is_estimator,
)
from skfleet.inference import call_transform

# State of an estimator beside its parameters that its clones have too.
_CONFIGURATION = ("_sklearn_output_config", "_metadata_request")


class FittedPart(NamedTuple):
    """A fitted transformer, and what transforms the rows that it was fitted on.

    These differ where a TargetEncoder is cross-fitted.
    """

    model: Any
    training_model: Any


class FittedSteps(NamedTuple):
    """Preparation of rows by the fitted steps of a pipeline."""

    pipeline: Pipeline

    def __call__(self, block: Block) -> Block:
        """Return a transformed block."""
        groups = [encoder.groups[block.number] for encoder in fold_encoders(self.pipeline)]
        model = bind_folds(self.pipeline, groups)
        with without_name_warnings():
            return block._replace(X=model.transform(block.X))

    def prepare_all(self, X: Any) -> Any:
        """Return a transformed Dask collection."""
        if fold_encoders(self.pipeline):
            raise TypeError(
                "Behind a TargetEncoder, within a composition, a step must be of skfleet.estimators"
                ".preprocessing for Dask rows. Put the estimator behind the composition."
            )
        for _, step in self.pipeline.steps:
            if is_estimator(step):
                lazily = isinstance(step, BlockwiseTransformer | FleetEstimator)
                X = step.transform(X) if lazily else call_transform(step, step, "transform", X)
        return X


def begin_fit(transformer: Any, meta: Any, cross_fit: bool, known: Any = None) -> Passes:
    """Return the fit of a clone of a transformer, on rows like the empty `meta`.

    It returns a `FittedPart`. With `cross_fit`, that transforms its rows as ``fit_transform`` does.
    `known` are the moments of the rows, where they are known.
    """
    fitted = as_blockwise(transformer)
    if isinstance(fitted, Pipeline):
        return _fit_pipeline(fitted, meta, cross_fit)
    if isinstance(fitted, BlockwiseTransformer):
        return _fit_one(fitted, fitted._begin_part_fit(meta, cross_fit, known))
    if isinstance(fitted, FleetEstimator):
        return _fit_one(fitted, _one_request(EstimatorFit(fitted)))
    if not _is_ready(fitted):
        return _fit_one(fitted, fit_alike(fitted, meta))
    return _fit_one(fitted, iter(()))


def as_blockwise(transformer: Any) -> Any:
    """Return a clone of a transformer, of this library's class where it is of scikit-learn's."""
    copy = clone(transformer)
    cls = BLOCKWISE_CLASSES.get(type(copy))
    if cls is None:
        return copy
    converted = cls(**copy.get_params(deep=False))
    copy_configuration(copy, converted)
    return converted


def copy_configuration(source: Any, target: Any) -> None:
    """Set on an estimator the output container and the metadata requests of another one."""
    state = vars(source)
    vars(target).update({name: state[name] for name in _CONFIGURATION if name in state})


def _is_ready(transformer: Any) -> bool:
    """Return whether a transformer needs no fit: it is frozen, or says that it learns nothing."""
    if isinstance(transformer, FrozenEstimator):
        check_is_fitted(transformer)
        return True
    return not get_tags(transformer).requires_fit


def _one_request(request: EstimatorFit) -> Passes:
    yield request


def _fit_one(fitted: Any, passes: Any) -> Passes:
    training_model = yield from passes
    return FittedPart(fitted, fitted if training_model is None else training_model)


def _fit_pipeline(pipeline: Pipeline, meta: Any, cross_fit: bool) -> Passes:
    """Fit the steps of a pipeline one after the other, each on what those before make of rows."""
    steps: list[tuple[str, FittedPart]] = []
    for number, (name, step) in enumerate(pipeline.steps, 1):
        with_folds = cross_fit or number < len(pipeline.steps)
        if not is_estimator(step):
            fitted = FittedPart(step, step)
        elif not any(is_estimator(before.model) for _, before in steps):
            fitted = yield from begin_fit(step, meta, with_folds)
        else:
            inputs = yield from _transformed_meta(_pipeline_of(steps, "model"), meta)
            known = steps[-1][1].model if len(steps) == 1 else None
            fit = begin_fit(step, inputs, with_folds, _training_moments(known))
            prepare = FittedSteps(_pipeline_of(steps, "training_model"))
            fitted = yield from on_prepared_rows(fit, prepare)
        steps.append((name, fitted))
    pipeline.steps = [(name, part.model) for name, part in steps]
    if all(part.model is part.training_model for _, part in steps):
        return FittedPart(pipeline, pipeline)
    return FittedPart(pipeline, _pipeline_of(steps, "training_model"))


def _training_moments(model: Any) -> Any:
    return model._training_moments() if isinstance(model, BlockwiseTransformer) else None


def _pipeline_of(steps: Sequence[tuple[str, FittedPart]], kind: str) -> Pipeline:
    """Return the models, or the training models, of fitted steps, as a pipeline for tasks."""
    return Pipeline([(name, as_task_model(getattr(part, kind))) for name, part in steps])


def _transformed_meta(pipeline: Pipeline, meta: Any) -> Passes:
    """Return what fitted steps make of rows like `meta`, without any rows.

    It takes a pass for the first rows where the steps refuse artificial ones.
    """
    rows = None
    with fall_back("the output of steps is known by the first rows, not by artificial ones"):
        rows = transform_quietly(as_example(pipeline), artificial_rows(meta))
    if rows is None:
        rows = transform_quietly(pipeline, (yield head_of_rows()))
    return slice_rows(rows, 0, 0)


def transform_quietly(transformer: Any, rows: Any) -> Any:
    """Return transformed rows, without the warnings that their transform in tasks raises again."""
    with without_warnings():
        return transformer.transform(rows)
