"""Rows and parameters of ``fit`` as model selection uses them: on Dask, or in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import Any

from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data

from skfleet._array import to_host_if_array
from skfleet._pipeline_steps import n_blockwise_steps, with_parameters
from skfleet.blocks import (
    Block,
    as_sized,
    block_bytes,
    check_rows,
    compute_chunk_sizes,
    compute_together,
    is_lazy,
    meta_of,
    n_rows_if_known,
    row_blocks,
    with_pandas_text,
)
from skfleet.engine import (
    are_small,
    check_fits_in_memory,
    device_of,
    persisted_collections,
    with_known_lengths,
)
from skfleet.model_selection._backends import joblib_backend


def check_input_rows(estimator: Any, X: Any, y: Any, name: str) -> None:
    """Raise for invalid rows and targets, before any work, in the name of the caller's class."""
    check_rows(X=X, y=y)
    if is_lazy(X) and hasattr(X, "columns"):  # the splits have no column names
        validate_data(BaseEstimator(), meta_of(X), skip_check_array=True)
    for part, values in {"X": X, "y": y}.items():
        if not is_lazy(values) and (values is not None or part == "X"):
            as_sized(part, values)
    if y is None and _requires_target(estimator):
        raise ValueError(
            f"This {name} estimator requires y to be passed, but the target y is None. Pass y."
        )


def _requires_target(estimator: Any) -> bool:
    """Return whether an estimator has no ``fit`` without a target.

    Its tags do not tell: a classifier of the user may have one. In a pipeline, or a search, that is
    a matter of what is fitted last.
    """
    # estimators of other libraries may have no tags
    if not hasattr(estimator, "__sklearn_tags__") or not get_tags(estimator).target_tags.required:
        return False
    last = estimator
    while (inner := _fitted_last(last)) is not None:
        last = inner
    parameters = list(signature(last.fit).parameters.values())
    return len(parameters) > 1 and parameters[1].default is Parameter.empty


def _fitted_last(estimator: Any) -> Any:
    """Return the last step of a pipeline, or the estimator of a meta-estimator; else None."""
    steps = getattr(estimator, "steps", None)
    inner = steps[-1][1] if steps else getattr(estimator, "estimator", None)
    return inner if hasattr(inner, "fit") else None


def place_rows(
    estimator: Any,
    X: Any,
    y: Any,
    params: dict[str, Any],
    *,
    labels: tuple[str, ...] = ("groups",),
    scoring: Any = None,
) -> tuple[Any, Any, dict[str, Any]]:
    """Compute Dask collections, unless the estimator is fitted on them blockwise.

    Of few rows it is not, but where it learns from blocks, or a callable scores them. Targets of
    classifiers, and the parameters named as labels, are computed in any case, for the splitter.
    Arrays on a device come to the host.
    """
    is_blockwise = is_lazy(X) and n_blockwise_steps(estimator) > 0
    if is_blockwise and not getattr(joblib_backend(), "supports_fit_planning", False):
        raise ValueError(
            "X must be in this process under another backend of joblib. Got a Dask collection "
            'instead. Use parallel_config("skfleet").'
        )
    is_small = is_blockwise and may_gather(estimator, scoring) and are_small(X)
    if is_small or not is_blockwise:
        if is_lazy(X) and not is_small:
            check_fits_in_memory(row_blocks(X, dtype=None), type(estimator).__name__)
        X, y, *values = compute_together(X, y, *params.values())
        # arrays on a device too: splits are made here, and workers may have another device
        X, y, *values = map(to_host_if_array, (X, y, *values))
        return with_pandas_text(X), y, dict(zip(params, values, strict=True))
    arrays = {"X": X, "y": y, **params}
    lazy = [name for name, value in arrays.items() if is_lazy(value)]
    # of a frame the columns keep their names and types
    with_lengths = with_known_lengths if hasattr(X, "columns") else compute_chunk_sizes
    arrays |= zip(lazy, with_lengths(*(arrays[name] for name in lazy)), strict=True)
    if is_classifier(estimator):
        labels = "y", *labels
    computed = [name for name in labels if name in lazy]
    arrays |= zip(computed, compute_together(*(arrays[name] for name in computed)), strict=True)
    return arrays.pop("X"), arrays.pop("y"), arrays


@contextmanager
def rows_in_memory(
    X: Any, y: Any, params: Mapping[str, Any]
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield Dask rows in the memory of workers, which many fits read; y and parameters likewise.

    All come from one shuffle, if from any. They stay as they are where they do not fit, or come
    from this process, or have other rows.
    """
    arrays = {"X": X, "y": y, **params}
    n_rows = n_rows_if_known(X) if is_lazy(X) else None
    lazy = {
        name: values
        for name, values in arrays.items()
        if n_rows is not None and is_lazy(values) and n_rows_if_known(values) == n_rows
    }
    if not lazy:
        yield X, y, dict(params)
        return
    with persisted_collections(*lazy.values()) as persisted:
        if any(a is not b for a, b in zip(lazy.values(), persisted, strict=True)):
            arrays |= zip(lazy, with_known_lengths(*persisted), strict=True)
        yield arrays.pop("X"), arrays.pop("y"), arrays


def may_gather(estimator: Any, scoring: Any) -> bool:
    """Return whether few Dask rows may come to this process for the fits of an estimator.

    They may not where it learns from blocks, nor where a callable scores it, which gets its rows in
    their own container.
    """
    scorers = scoring.values() if isinstance(scoring, Mapping) else [scoring]
    return not (any(map(callable, scorers)) or _needs_blocks(estimator))


def _needs_blocks(estimator: Any) -> bool:
    """Return whether a model, or one inside, learns from blocks as they are, or on a GPU."""
    return any(
        getattr(value, "_learns_from_blocks", False) or device_of(value) == "cuda"
        for value in with_parameters(estimator)
    )


def gathered_bytes(original: Any, X: Any) -> int:
    """Return the bytes of rows that were on Dask and are in this process."""
    return block_bytes(Block(X)) if is_lazy(original) and not is_lazy(X) else 0
