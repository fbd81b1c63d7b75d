"""Fits of several transformers on the same rows, in shared passes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from skfleet._sklearn_private import take_columns, validate_transformers
from skfleet._validation import without_name_warnings
from skfleet._warnings import without_warnings
from skfleet.blocks import Block, artificial_rows, is_frame, meta_of, slice_rows
from skfleet.engine import Passes, share_passes
from skfleet.estimators._base import FleetEstimator
from skfleet.estimators._blockwise import BLOCKWISE_CLASSES, BlockwiseTransformer
from skfleet.estimators._passes import EstimatorFit, head_of_rows, on_prepared_rows
from skfleet.estimators.compose._alike_fit import fit_alike
from skfleet.estimators.compose._cross_fit import (
    Composition,
    as_example,
    as_task_model,
    bind_folds,
    fold_encoders,
)
from skfleet.estimators.compose._metadata import is_estimator
from skfleet.estimators.preprocessing import StandardScaler, TargetEncoder
from skfleet.inference import call_transform

# State of an estimator beside its parameters that its clones have too.
_CONFIGURATION = ("_sklearn_output_config", "_metadata_request")


class Part(NamedTuple):
    """A transformer of a composition, and the rows that it is fitted on.

    `columns` are those of its rows, all for None; `meta` is their empty container.
    """

    transformer: Any
    meta: Any
    columns: Any = None
    with_weight: bool = False

    def begin_fit(self, cross_fit: bool) -> Passes:
        """Return the fit of a clone of the transformer on the rows of all columns."""
        chosen = ChosenColumns(self.columns, self.with_weight)
        return on_prepared_rows(begin_fit(self.transformer, self.meta, cross_fit), chosen)


class FittedPart(NamedTuple):
    """A fitted transformer, and what transforms the rows that it was fitted on.

    These differ where a TargetEncoder is cross-fitted.
    """

    model: Any
    training_model: Any


def fit_parts(
    composition: Any, parts: Mapping[str, Part], names: Sequence[str], cross_fit: bool
) -> Passes:
    """Fit the parts of a composition in shared passes.

    Return fitted parts by name, and the first rows, None where no part took a pass. `names` are
    of the parts and of what is passed through.
    """
    validate_transformers(composition)
    kind, start = type(composition).__name__, time.perf_counter()
    try:
        fits = [part.begin_fit(cross_fit) for part in parts.values()]
        results, head = yield from share_passes(fits, f"fit-{kind}", head_of_rows())
    except ValueError as error:
        if "Expected 2D array, got 1D array instead" in str(error):
            raise ValueError(
                "1D data passed to a transformer that expects 2D data. Try to specify the column "
                "selection as a list of one item instead of a scalar."
            ) from error
        raise
    seconds = time.perf_counter() - start  # of the passes that all parts shared
    if composition.verbose:
        _print_times(kind, names, seconds)
    return dict(zip(parts, results, strict=True)), head


def finish_fit(composition: Any, fitted: Mapping[str, FittedPart], head: Any, meta: Any) -> Passes:
    """Set the attributes of a composition by its first rows, or by artificial ones for None.

    `meta` has none of the rows. Return what transforms the rows that the composition was fitted on,
    None where it does itself.
    """
    models = {name: part.model for name, part in fitted.items()}
    try:
        if head is None:
            output = composition._set_parts(models, artificial_rows(meta), as_example)
        else:
            output = composition._set_parts(models, head)
    except Exception:  # functions may refuse artificial values
        if head is not None:
            raise
        output = composition._set_parts(models, (yield head_of_rows()))
    composition._record_output(meta, output)
    parts = {id(part.model): part for part in fitted.values()}
    changed = {k: p.training_model for k, p in parts.items() if p.model is not p.training_model}
    return composition._replace_parts(lambda p: changed.get(id(p), p)) if changed else None


def _print_times(kind: str, names: Sequence[str], seconds: float) -> None:
    """Print a line for each part, as scikit-learn does."""
    step = "step " if kind == "FeatureUnion" else ""
    for number, name in enumerate(names, 1):
        begin = f"[{kind}] "
        end = f" ({step}{number} of {len(names)}) Processing {name}, total= {seconds:5.1f}s"
        print(begin + "." * (70 - len(begin) - len(end)) + end)


class ChosenColumns(NamedTuple):
    """Preparation of rows by a choice of columns, all for None, with or without their weights."""

    columns: Any
    with_weight: bool

    def __call__(self, block: Block) -> Block:
        """Return the columns of a block."""
        X = block.X if self.columns is None else take_columns(block.X, self.columns)
        return block._replace(X=X, sample_weight=block.sample_weight if self.with_weight else None)

    def prepare_all(self, X: Any) -> Any:
        """Return the columns of a Dask collection."""
        if self.columns is None:
            return X
        meta = meta_of(X)
        if is_frame(meta):
            chosen = take_columns(meta, self.columns)
            return X[chosen.name if chosen.ndim == 1 else list(chosen.columns)]
        return X[:, take_columns(np.arange(X.shape[1])[None], self.columns)[0]]


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
    if isinstance(fitted, TargetEncoder) and cross_fit:
        return _fit_one(fitted, fitted._begin_cross_fit(meta))
    if isinstance(fitted, Composition):
        return _fit_one(fitted, fitted._begin_fit(meta, cross_fit=cross_fit))
    if isinstance(fitted, StandardScaler) and known is not None:
        return _fit_one(fitted, fitted._begin_fit(meta, known=known))
    if isinstance(fitted, BlockwiseTransformer):
        return _fit_one(fitted, fitted._begin_fit(meta))
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


def copy_state(fitted: Any, transformer: Any) -> Any:
    """Copy the state of a fitted clone to its original, and return the original.

    A clone of another class than the original's is returned as it is.
    """
    is_same = transformer is fitted or not is_estimator(transformer)
    if is_same or type(transformer) is not type(fitted):
        return fitted
    params = transformer.get_params(deep=False)
    for parts in {"steps", "transformer_list"} & params.keys():  # parameters that are fitted
        pairs = zip(getattr(fitted, parts), params[parts], strict=True)
        params[parts] = [(name, copy_state(part, before)) for (name, part), (_, before) in pairs]
    state = vars(fitted) | params
    vars(transformer).clear()
    vars(transformer).update(state)
    return transformer


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
    try:
        rows = transform_quietly(as_example(pipeline), artificial_rows(meta))
    except Exception:
        rows = transform_quietly(pipeline, (yield head_of_rows()))
    return slice_rows(rows, 0, 0)


def transform_quietly(transformer: Any, rows: Any) -> Any:
    """Return transformed rows, without the warnings that their transform in tasks raises again."""
    with without_warnings():
        return transformer.transform(rows)
