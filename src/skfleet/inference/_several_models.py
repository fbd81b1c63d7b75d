"""Results of several fitted models on Dask rows, of which each model has rows of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import to_device_of
from skfleet.blocks import is_frame, meta_of, n_rows_of, stack_rows, take_rows
from skfleet.engine import as_portable
from skfleet.inference._output import OutputSpec, with_index
from skfleet.inference._predict import (
    apply_method,
    cached_scatter,
    in_container,
    infer_output,
)


class ClassColumns(NamedTuple):
    """Columns of a result for all classes, of which a model may know some only.

    `positions` has an array for each model, the columns of its classes, or None where it knows all
    of them. The other columns are 0, or the least number where the values are logarithms
    (`is_log`). `names` are those of the `width` columns in a frame.
    """

    names: Sequence[Any] | None
    positions: Sequence[np.ndarray | None]
    width: int
    is_log: bool

    def expand(self, values: Any, number: int) -> Any:
        """Return the values of a model with the columns of all classes."""
        positions = self.positions[number]
        if positions is None:
            return values
        fill = np.finfo(values.dtype).min if self.is_log else 0
        expanded = np.full((n_rows_of(values), self.width), fill, dtype=values.dtype)
        expanded = to_device_of(expanded, values)
        for i, position in enumerate(positions):
            expanded[:, int(position)] = values[:, i]
        return expanded


def call_models(
    models: Sequence[Any],
    method: str,
    X: Any,
    numbers: Sequence[np.ndarray],
    columns: ClassColumns | None = None,
    rows_of: Any = None,
) -> Any:
    """Return the result of a method on Dask rows, where each row has a model of its own, lazily.

    `numbers` has an array for each partition: the number of each row's model. `columns` says where
    the classes of each model belong, for values per class. The result is in the container of X: a
    list of them where the models have several outputs. `rows_of` is the frame that X are the rows
    of, if there is one: Dask can then pair the result with it row by row.
    """
    call = partial(apply_method, method=method, params={})
    portable = [as_portable(model) for model in models]
    kind = type(models[0]).__name__
    outputs = [
        infer_output(partial(call, task_model), model, method, X, None)
        for task_model, model in zip(portable, models, strict=True)
    ]
    models_in_tasks = cached_scatter(models[0], portable, f"models-of-{kind}")
    args = models_in_tasks, X, rows_of, numbers, method, kind
    if isinstance(outputs[0], OutputSpec):
        return _map(*args, _common(outputs, columns), columns, None)
    parts = [_common(specs, None) for specs in zip(*outputs, strict=True)]
    return type(outputs[0])(_map(*args, spec, None, i) for i, spec in enumerate(parts))


def _common(outputs: Sequence[OutputSpec], columns: ClassColumns | None) -> OutputSpec:
    """Return the description of results of which each row is that of one of several models."""
    first = outputs[0]
    dtypes = [output.dtype for output in outputs]
    if all(isinstance(dtype, np.dtype) for dtype in dtypes):
        first = replace(first, dtype=np.result_type(*dtypes))
    if columns is None or first.width is None:
        return first
    return replace(first, width=columns.width, columns=columns.names)


def _map(
    models: Any,
    X: Any,
    rows_of: Any,
    numbers: Sequence[np.ndarray],
    method: str,
    kind: str,
    output: OutputSpec,
    columns: ClassColumns | None,
    part: int | None,
) -> Any:
    from skfleet.inference._map_dask import map_dask_partitions

    func = partial(_call_models, method=method, output=output, columns=columns, part=part)
    rows = meta_of(X)
    result = with_index(output.empty(), rows.index, output) if is_frame(rows) else output.empty()
    name = f"{method}-{kind}"
    return map_dask_partitions(func, models, X, numbers, result, rows_of=rows_of, name=name)


def _call_models(
    models: Sequence[Any],
    rows: Any,
    numbers: np.ndarray,
    *,
    method: str,
    output: OutputSpec,
    columns: ClassColumns | None,
    part: int | None,
) -> Any:
    """Return the results of the rows of a partition, in their order."""
    if not len(numbers):
        return in_container(output.empty(), rows, output)
    results, order = [], []
    for number in np.unique(numbers):
        chosen = np.flatnonzero(numbers == number)
        own = rows if len(chosen) == len(numbers) else take_rows(rows, chosen)
        values = apply_method(models[number], own, method=method, params={})
        values = output.cast(values if part is None else values[part])
        results.append(values if columns is None else columns.expand(values, number))
        order.append(chosen)
    values = take_rows(stack_rows(results), np.argsort(np.concatenate(order)))
    return in_container(values, rows, output)
