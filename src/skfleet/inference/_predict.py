"""Methods of a fitted model (predict, transform, ...) called on rows of any container."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing import current_process
from typing import Any

from joblib import parallel_config

from skfleet._array import is_not_numpy, to_device_of, to_host
from skfleet._fall_back import fall_back
from skfleet._linalg import is_sparse
from skfleet._validation import warn_of_names, without_name_warnings
from skfleet._warnings import without_warnings
from skfleet.blocks import Block, as_collection, check_rows, is_frame, is_lazy, with_pandas_text
from skfleet.engine import as_portable, call_response_method
from skfleet.inference._map import map_rows
from skfleet.inference._output import OutputSpec, class_names, with_index

# Parts of scikit-learn's errors about columns.
_COLUMN_ERRORS = ("feature names should match", "columns are missing", "features as input")


def map_model(
    owner: Any,
    func: Callable[[Any, Any], Any],
    model: Any,
    X: Any,
    output: OutputSpec | Sequence[OutputSpec],
    *,
    method: str,
    kind: str = "",
    check: Callable[[Block], None] | None = None,
    convert: bool = True,
    takes_parts: bool = False,
) -> Any:
    """Return func(model, rows) for all rows of X, as `map_rows` does, in the container of X.

    A large model is scattered to a cluster once in the lifetime of its owner. Tasks are named after
    the method and the kind of model, by default the class of the owner. The other parameters are
    those of `map_rows`.
    """
    kind = kind or type(owner).__name__
    if is_lazy(X):
        n_tasks = as_collection(X).npartitions
        model = cached_scatter(owner, model, name=f"model-of-{kind}", n_tasks=n_tasks)
    settings: dict[str, Any] = {"check": check, "convert": convert, "takes_parts": takes_parts}
    result = map_rows(func, model, X, output, **settings, name=f"{method}-{kind}")
    if not (is_lazy(result) and is_sparse(getattr(result, "_meta", None))):
        return result
    from skfleet.inference._sparse_rows import SparseRows

    return SparseRows.of(result)


def map_partitions(
    owner: Any,
    func: Callable[..., Any],
    model: Any,
    X: Any,
    values: Sequence[Any],
    result: Any,
    rows_of: Any = None,
) -> Any:
    """Return func(model, rows, values) of the partitions of Dask rows with values per row, lazily.

    `values` has an array for each partition of a frame, or for each chunk of rows of an array.
    `result` is what `func` returns for no rows. `rows_of` is the frame that X are the rows of, if
    there is one: Dask can then pair the result with it row by row.
    """
    from skfleet.inference._map_dask import map_dask_partitions

    kind = type(owner).__name__
    model = cached_scatter(owner, model, name=f"model-of-{kind}")
    name = f"fit-transform-{kind}"
    return map_dask_partitions(func, model, X, values, result, rows_of=rows_of, name=name)


def join_delayed(parts: Sequence[Any], lengths: Sequence[float], output: OutputSpec, X: Any) -> Any:
    """Return Delayed results of consecutive rows as one collection, a frame where X is one.

    `lengths` are the numbers of rows, NaN where unknown. The parts of a frame have its index, as
    `in_container` gives it to them.
    """
    from skfleet.inference._map_dask import join_delayed

    return join_delayed(parts, lengths, output, X)


def in_container(result: Any, rows: Any, output: OutputSpec) -> Any:
    """Return the result for a block in its container: with its index, or on its device."""
    if is_frame(rows):
        return with_index(result, rows.index, output)
    return to_device_of(result, rows)


def cached_scatter(owner: Any, value: Any, name: str, n_tasks: float = math.inf) -> Any:
    """Return the argument by which tasks of a lazy result refer to a value.

    Without a cluster, and for small values, that is the value; for tiny ones that so many tasks may
    have copies of, a box with it. A large one is scattered to the
    cluster of the current client, once in the lifetime of its owner, and again if its content
    changed. The result then belongs to that cluster, like one of persisted rows.
    """
    if "distributed" not in sys.modules:
        return value
    from skfleet.inference._model_cache import scatter_cached

    return scatter_cached(owner, value, name, n_tasks)


def call_method(
    owner: Any,
    model: Any,
    method: str,
    X: Any,
    meta: Any = None,
    task_model: Any = None,
    /,
    **params: Any,
) -> Any:
    """Return the result of a method of a fitted model, in the container of X.

    Rows in this process go to the method itself; for Dask rows the result is lazy. A large model is
    scattered to a cluster once in the lifetime of its owner. `meta` is an example of the result,
    where it cannot be inferred; `task_model` takes the place of the model in tasks. `params` go to
    the method.
    """
    check_rows(X=X)
    if not is_lazy(X):
        return getattr(model, method)(with_pandas_text(X), **params)
    if method != "inverse_transform":  # takes other columns
        warn_of_names(model, X)
    call = partial(apply_method, method=method, params=params)
    portable = as_portable(model if task_model is None else task_model)
    output = infer_output(partial(call, portable), model, method, X, meta)
    kind = type(model).__name__
    result = map_model(owner, call, portable, X, output, method=method, kind=kind, convert=False)
    return tuple(result) if isinstance(output, tuple) else result


def call_transform(
    owner: Any,
    model: Any,
    method: str,
    X: Any,
    example_of: Callable[[Any], Any] | None = None,
    meta: Any = None,
    /,
    **params: Any,
) -> Any:
    """Return the result of a transformer's method on Dask rows, lazily.

    It is a frame where the transformer returns one, else an array. `example_of` gets artificial
    rows, and returns a result for rows like them, or None where it cannot: then no rows are loaded
    to infer the type of the result. `meta` is an example of the result, where it is known.
    """
    if method != "inverse_transform":  # takes other columns
        warn_of_names(model, X)
    call, portable = partial(apply_method, method=method, params=params), as_portable(model)
    if meta is None:
        meta = _example_result(partial(call, portable), model, method, X, example_of)
    output = replace(OutputSpec.infer(meta), is_array=True)  # a frame has names of its own
    kind = type(model).__name__
    return map_model(owner, call, portable, X, output, method=method, kind=kind, convert=False)


def first_rows(X: Any) -> Any:
    """Return the first two rows of a Dask collection; only they are fetched."""
    from skfleet.inference._map_dask import first_rows

    return first_rows(X)


def rows_with_index(X: Any) -> Any:
    """Return a dense Dask array that a transformer made of a frame as a frame with its index.

    Other rows are returned as they are.
    """
    from skfleet.inference._map_dask import rows_with_index

    return rows_with_index(X)


def infer_output(call: Any, model: Any, method: str, X: Any, meta: Any) -> Any:
    """Return the description of a result: from meta, or from a call on arbitrary or first rows.

    A call on a row is more reliable than the fitted attributes: a classifier of several labels
    predicts as many columns as it has classes, and some results have the dtype of the rows.
    """
    if meta is None:
        meta = _example_result(call, model, method, X)
    names = _column_names(model, method, X)
    # A list has a result per output where these have classes, and else a result per row.
    if isinstance(meta, tuple) or (isinstance(meta, list) and isinstance(names, list)):
        names_of_outputs = names if isinstance(names, list) else [None] * len(meta)
        return type(meta)(map(OutputSpec.infer, meta, names_of_outputs))
    output = OutputSpec.infer(meta, None if isinstance(names, list) else names)
    # objects that are not known to be classes may be text in the example alone
    is_label = method == "predict" and hasattr(model, "classes_")
    text_dtype = output.text_dtype if is_label else None
    is_rows = method in ("transform", "inverse_transform")
    return replace(output, is_rows=is_rows, text_dtype=text_dtype)


def _example_result(
    call: Any, model: Any, method: str, X: Any, example_of: Callable[[Any], Any] | None = None
) -> Any:
    """Return the result of a call on arbitrary rows like those of X, or on its first rows.

    `example_of` makes one, or None, of arbitrary rows.
    """
    from skfleet.inference._map_dask import meta_nonempty

    rows = with_pandas_text(meta_nonempty(X))
    try:
        with without_warnings():  # of rows that are not the user's
            example = None if example_of is None else example_of(rows)
            return call(rows) if example is None else example
    except Exception as error:
        if method != "inverse_transform" and _has_wrong_columns(X, model):
            raise
        # too many, too few, or in another order
        if any(text in str(error) for text in _COLUMN_ERRORS):
            raise
        # Arbitrary values need not be valid for the estimator (categories, ranges).
        return call(with_pandas_text(first_rows(X)))


def apply_method(model: Any, rows: Any, *, method: str, params: dict[str, Any]) -> Any:
    """Return the result of a method of a model on a block of rows.

    In a daemon, as workers are, joblib starts nothing for a model with `n_jobs`, and warns of that.
    """
    is_daemon = current_process().daemon
    jobs = parallel_config(backend="sequential") if is_daemon else nullcontext()
    with without_name_warnings(), jobs:
        return call_response_method(model, method, rows, params)


def _has_wrong_columns(X: Any, model: Any) -> bool:
    """Return whether X differs in columns from what the model was fitted on."""
    if hasattr(X, "columns"):
        first = model
        while hasattr(first, "steps"):
            first = first.steps[0][1]
        if hasattr(first, "transformers_"):  # those in use count alone
            return False
        return not set(getattr(model, "feature_names_in_", ())) <= set(X.columns)
    width = X.shape[1] if len(getattr(X, "shape", ())) == 2 else None  # a bag has none
    return getattr(model, "n_features_in_", width) != width


def _column_names(model: Any, method: str, X: Any) -> Any:
    """Return the column names of a method's result by the fitted attributes, or None.

    A list of names, or None, for each output where a classifier has several.
    """
    if method in ("predict_proba", "predict_log_proba"):
        classes = None
        with fall_back("the columns of probabilities have no names"):
            classes = getattr(model, "classes_", None)
        if classes is None:
            return None
        if isinstance(classes, list):
            return [class_names(labels, X) for labels in classes]
        return class_names(to_host(classes) if is_not_numpy(classes) else classes, X)
    with fall_back("the columns of transformed rows have no names"):  # it may want what is unknown
        if method == "transform" and hasattr(model, "get_feature_names_out"):
            return model.get_feature_names_out()
        if method == "inverse_transform":
            return getattr(model, "feature_names_in_", None)
    return None
