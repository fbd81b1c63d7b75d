"""What a fitted model answers for rows of any container, block by block where they are."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from skfleet._array import is_not_numpy, to_host
from skfleet._validation import warn_of_names, without_name_warnings
from skfleet.blocks import (
    OutputSpec,
    check_rows,
    class_names,
    first_rows,
    is_lazy,
    map_rows,
)
from skfleet.engine._gpu._cuml_model import as_portable, call_response_method

__all__ = ["cached_scatter", "call_method"]


def cached_scatter(owner: Any, value: Any, *, name: str = "lend") -> Any:
    """Return what stands for a value in the tasks of a lazy answer.

    Without a cluster, and for small values, that is the value. A large one is sent to the cluster
    of the current client, once for as long as its owner lives, and again if its content changed.
    The answer then belongs to that cluster, like one of persisted rows.
    """
    if "distributed" not in sys.modules:
        return value
    from skfleet.engine._lend import scatter_cached

    return scatter_cached(owner, value, name)


def call_method(
    owner: Any,
    model: Any,
    method: str,
    X: Any,
    meta: Any = None,
    in_tasks: Any = None,
    /,
    **params: Any,
) -> Any:
    """Answer with a method of a fitted model, in the container X came in.

    A large model is sent to a cluster once, for as long as its owner lives. `meta` says what the
    answers look like, where that cannot be found out; `in_tasks`, what answers in place of
    the model in tasks.
    """
    check_rows(X=X)
    if not is_lazy(X):
        return getattr(model, method)(X, **params)
    if method != "inverse_transform":  # takes other columns
        warn_of_names(model, X)
    call = partial(_call, method=method, params=params)
    there = as_portable(model if in_tasks is None else in_tasks)
    output = _describe(partial(call, there), model, method, X, meta)
    name = f"{method}-{type(model).__name__}"
    shared = cached_scatter(owner, there, name=f"model-of-{type(model).__name__}")
    answer = map_rows(call, shared, X, output, raw=True, name=name)
    return tuple(answer) if isinstance(output, tuple) else answer


def _describe(call: Any, model: Any, method: str, X: Any, meta: Any) -> Any:
    """Find out what the answers look like: told, or from a made-up row, or from real ones.

    A run on a row knows more than the fitted attributes: a classifier of several labels
    predicts as many columns as it has classes, and some answer in the type of the rows.
    """
    if meta is None:
        try:
            meta = call(first_rows(X, real=False))
        except Exception as error:
            if method != "inverse_transform" and _lacks_columns(X, model):
                raise
            if "feature names should match" in str(error):  # too many, or in another order
                raise
            # Made-up values need not be ones that the estimator takes (categories, ranges).
            meta = call(first_rows(X, real=True))
    names = _names_of_columns(model, method, X)
    # A list is an answer per output where these have classes, and else an answer per row.
    if isinstance(meta, tuple) or (isinstance(meta, list) and isinstance(names, list)):
        several = names if isinstance(names, list) else [None] * len(meta)
        return type(meta)(map(OutputSpec.of, meta, several))
    return OutputSpec.of(meta, None if isinstance(names, list) else names)


def _call(model: Any, rows: Any, *, method: str, params: dict[str, Any]) -> Any:
    """Run a method of the model on a run of rows."""
    with without_name_warnings():
        return call_response_method(model, method, rows, params)


def _lacks_columns(X: Any, model: Any) -> bool:
    """Say whether X cannot be what the model was fitted on, whatever its values are."""
    if hasattr(X, "columns"):
        return not set(getattr(model, "feature_names_in_", ())) <= set(X.columns)
    width = X.shape[1] if len(getattr(X, "shape", ())) == 2 else None  # a bag has none
    return getattr(model, "n_features_in_", width) != width


def _names_of_columns(model: Any, method: str, X: Any) -> Any:
    """Return how a method's columns are called, as the fitted attributes have it, or None.

    A list of these, where there is one for each output.
    """
    if method in ("predict_proba", "predict_log_proba"):
        try:
            classes = model.classes_
        except Exception:
            return None
        if isinstance(classes, list):
            return [class_names(each, X) for each in classes]
        return class_names(to_host(classes) if is_not_numpy(classes) else classes, X)
    try:
        if method == "transform":
            return model.get_feature_names_out()
        if method == "inverse_transform":
            return model.feature_names_in_
    except Exception:  # there is no such attribute, or it wants what is not known
        pass
    return None
