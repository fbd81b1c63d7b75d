"""Compositions of transformers, which are fitted in shared passes."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn import config_context, preprocessing

from skfleet._fall_back import fall_back
from skfleet._sklearn_private import output_container, take_columns, validate_transformers
from skfleet._validation import has_types_of
from skfleet.blocks import (
    Block,
    artificial_rows,
    as_collection,
    is_frame,
    meta_of,
    slice_rows,
    with_pandas_text,
)
from skfleet.engine import Passes, share_passes
from skfleet.estimators._blockwise import BlockwiseTransformer, output_container_of
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.estimators._passes import head_of_rows, on_prepared_rows
from skfleet.estimators.compose._metadata import refuse_metadata, weighted_parts
from skfleet.estimators.pipeline._fit import FittedPart, begin_fit
from skfleet.estimators.pipeline._task_models import (
    Replacement,
    as_example,
    as_task_model,
    bind_folds,
    fold_encoders,
)
from skfleet.estimators.preprocessing._target_encoder import with_final_partitions
from skfleet.inference import map_partitions, name_columns


class RecordedOutput(NamedTuple):
    """Transformed rows, none, of a composition for rows like `meta`, in a container of its own."""

    meta: Any
    container: str
    output: Any


class Composition(BlockwiseTransformer):
    """Base of transformers that are made of several, fitted in shared passes."""

    _takes_numbers = False
    _state_of_blocks = ("_recorded_output",)
    # Whether ``fit`` takes parameters with metadata routing only.
    _routed_only = False

    def _begin_part_fit(self, meta: Any, cross_fit: bool, known: Any) -> Passes:
        return self._begin_fit(meta, cross_fit=cross_fit)

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
    output = None
    if head is None:
        with fall_back("a composition is set up by the first rows, not by artificial ones"):
            output = composition._set_parts(models, artificial_rows(meta), as_example)
        if output is None:  # functions may refuse artificial values
            head = yield head_of_rows()
    if head is not None:
        output = composition._set_parts(models, head)
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
