"""Rows of Incremental: checks, partition into blocks, validation rows where they are scored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sklearn.base import clone, is_regressor
from sklearn.utils import get_tags

from skfleet._linalg import is_sparse
from skfleet._validation import check_target_type
from skfleet.blocks import (
    RowBlocks,
    as_sized,
    check_rows,
    is_lazy,
    meta_of,
    n_rows_of,
    row_blocks,
    separate_per_sample,
    warn_of_trip,
)
from skfleet.engine import Engine, block_sizes_before, training_engine
from skfleet.estimators._early_stopping import validation_rows
from skfleet.estimators._fleet_estimator import check_columns
from skfleet.estimators._metadata_routing import route_params


def training_blocks(
    owner: Any, method: str, X: Any, y: Any, params: dict[str, Any]
) -> tuple[RowBlocks, dict[str, Any]]:
    """Check and partition the rows of ``fit`` or ``partial_fit``; also return other parameters."""
    check_rows(X=X, y=y, sample_weight=params.get("sample_weight"))
    if y is None and owner.early_stopping:
        raise ValueError("y must be given to stop early by a score. Got None instead.")
    if y is None and get_tags(owner.estimator).target_tags.required:
        raise ValueError(
            f"This {type(owner.estimator).__name__} estimator requires y to be passed, but the "
            "target y is None. Pass y."
        )
    if y is not None:
        check_target_type(y, numeric=is_regressor(owner.estimator))
    params = route_params(owner, method, "partial_fit", params)
    weight = params.pop("sample_weight", None)
    return _partition("X", X, y, weight, params, owner.batch_size)


def validation_blocks(
    owner: Any, X: Any, X_val: Any, y_val: Any, sample_weight_val: Any
) -> RowBlocks | None:
    """Partition the validation rows of ``fit``, whose columns are those of X."""
    if X_val is None:
        return None
    check_rows(X_val=X_val, y_val=y_val, sample_weight_val=sample_weight_val)
    check_target_type(y_val, numeric=is_regressor(owner.estimator))
    columns = clone(owner)
    for rows, reset in ((X, True), (X_val, False)):
        check_columns(columns, meta_of(rows) if is_lazy(rows) else rows, reset=reset)
    return _partition("X_val", X_val, y_val, sample_weight_val, {}, owner.batch_size)[0]


def _partition(
    name: str, X: Any, y: Any, weight: Any, params: Mapping[str, Any], batch_size: int | None
) -> tuple[RowBlocks, dict[str, Any]]:
    """Partition rows, of a name in errors, with per-sample parameters; return the other ones too.

    Dataframes, text and lists are not converted.
    """
    if is_lazy(X):
        per_row, fit_params = separate_per_sample(params, X)
        return row_blocks(X, y, weight, per_sample=per_row, dtype=None), fit_params
    X = X.tocsr() if is_sparse(X) else as_sized(name, X)
    warn_of_trip(X, y, weight)
    n_rows = n_rows_of(X)
    if n_rows == 0:
        raise ValueError(
            f"{name} must have at least one row. Got 0 sample(s) while a minimum of 1 is required."
        )
    size = batch_size or 10_000
    default_sizes = [min(size, n_rows - low) for low in range(0, n_rows, size)]
    block_sizes = block_sizes_before(n_rows) or default_sizes
    per_row, fit_params = separate_per_sample(params, X)
    options = {"per_sample": per_row, "dtype": None, "block_sizes": block_sizes}
    return row_blocks(X, y, weight, **options), fit_params


@contextmanager
def loaded_validation_rows(
    rows: RowBlocks | None, model: Any
) -> Iterator[tuple[Engine, RowBlocks] | None]:
    """Yield validation rows in memory, where a model scores them, with their engine."""
    if rows is None:
        yield None
        return
    with training_engine(rows, model) as (engine, placed_rows):
        yield engine, validation_rows(engine, placed_rows)
