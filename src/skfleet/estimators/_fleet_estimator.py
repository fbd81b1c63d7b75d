"""Base class of the estimators: input validation and blockwise prediction."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from skfleet._array import is_not_numpy, to_device_of, to_host_if_array
from skfleet._doc_link import DocumentationLink
from skfleet._validation import (
    check_block,
    check_convertible,
    check_numeric,
    check_sample_weight,
    check_target_shape,
    check_target_type,
    warn_of_names,
    without_name_warnings,
)
from skfleet.blocks import (
    Block,
    RowBlocks,
    check_rows,
    is_lazy,
    meta_of,
    row_blocks,
    target_column,
    warn_of_trip,
    with_pandas_text,
)
from skfleet.engine import SmallFitMixin
from skfleet.inference import OutputSpec, constant_per_row, map_model

# scikit-learn's marker of a method without a target, which differs from y=None.
_NO_TARGET = "no_validation"


def check_lazy_rows(rows: Any) -> None:
    """Raise unless the metadata of lazy rows describes a numeric matrix."""
    check_two_dims(rows)
    check_numeric(rows, on_dask=True)


def check_two_dims(rows: Any) -> None:
    """Raise unless the metadata of lazy rows describes a matrix."""
    if len(rows.shape) != 2:
        column = "X.to_frame()" if hasattr(rows, "iloc") else "X[:, None]"
        if rows.dtype == object:  # as the items of a bag are
            column += ", or X.to_dataframe(columns=['x']) of a bag,"
        raise ValueError(
            f"Expected 2D array, got {len(rows.shape)}D array instead. Reshape your data with "
            f"{column} if it has a single feature."
        )


def check_columns(estimator: Any, rows: Any, y: Any = _NO_TARGET, *, reset: bool = False) -> None:
    """Record or check the number and names of columns, as scikit-learn does.

    `rows` may be empty.
    """
    if not reset:
        warn_of_names(estimator, rows)
    with without_name_warnings():
        validate_data(estimator, rows, y, reset=reset, skip_check_array=True)


class FleetEstimator(SmallFitMixin, DocumentationLink, BaseEstimator):
    """Base class for estimators on data in any container, with scikit-learn's input validation."""

    def _validate_rows(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, reset: bool = True, **check: Any
    ) -> RowBlocks:
        """Validate X, y and sample_weight of ``fit`` and partition them into blocks.

        `check` goes to scikit-learn's ``check_X_y`` (``y_numeric``, ``multi_output``) for rows in
        this process. Of Dask collections the driver checks kind, width and lengths; their values
        are checked in the first pass.
        """
        check_rows(X=X, y=y, sample_weight=sample_weight)
        numeric = check.get("y_numeric", False)
        if is_lazy(X):
            self._check_n_columns(meta_of(X), y, reset=reset)
            if check.get("multi_output", False):
                check_target_shape(y, several=True)
            else:
                y = target_column(y)
            check_target_type(y, numeric=numeric)
            if isinstance(sample_weight, Real):
                sample_weight = constant_per_row(float(sample_weight), X)
            rows = row_blocks(X, y, sample_weight)
            for number, what in ((rows.n_rows, "row"), (rows.n_features, "column")):
                if number == 0:
                    raise ValueError(f"X must have at least one {what}. Got none instead.")
            return rows
        if numeric:
            check_target_type(y, numeric=True)
        X, checked_y = self._validate_local(X, y, reset=reset, **check)
        warn_of_trip(X, y, sample_weight)
        y = checked_y
        if not is_not_numpy(X):
            sample_weight = to_host_if_array(sample_weight)
        sample_weight = check_sample_weight(sample_weight, X.shape[0])
        return row_blocks(X, to_device_of(y, X), to_device_of(sample_weight, X))

    def _predict_blockwise(
        self,
        func: Callable[[Any, Any], Any],
        X: Any,
        output: OutputSpec,
        *,
        model: Any = None,
        takes_parts: bool = False,
    ):
        """Return ``func(model, rows)`` of all blocks of X, in the container of X."""
        check_is_fitted(self)
        check_rows(X=X)
        check = None
        if is_lazy(X):
            self._check_n_columns(meta_of(X), reset=False)
            check = check_block
        else:
            X, _ = self._validate_local(X, reset=False)
            warn_of_trip(X)
        model, method = self if model is None else model, func.__name__.strip("_")
        settings: dict[str, Any] = {"check": check, "takes_parts": takes_parts}
        return map_model(self, func, model, X, output, method=method, **settings)

    def _check_n_columns(self, rows: Any, y: Any = _NO_TARGET, *, reset: bool) -> None:
        check_lazy_rows(rows)
        check_columns(self, rows, y, reset=reset)

    def _validate_local(
        self, X: Any, y: Any = _NO_TARGET, *, reset: bool, **check: Any
    ) -> tuple[Any, Any]:
        """Validate rows in this process as scikit-learn does."""
        # scikit-learn would copy device rows to the host, so it checks an empty array of their
        # width.
        if is_not_numpy(X):
            self._check_n_columns(np.empty((0, *X.shape[1:])), y, reset=reset)
            check_block(Block(X))
            return X, None if y is _NO_TARGET else y
        y = to_host_if_array(y)
        check_numeric(X, on_dask=False)
        X = with_pandas_text(X)
        settings = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "reset": reset}
        if not reset:
            warn_of_names(self, X)
        try:
            with without_name_warnings():
                checked = validate_data(self, X, y, **settings, **check)
        except ValueError as error:
            if "could not convert string" in str(error):
                check_convertible(X, error)
            raise
        return checked if isinstance(checked, tuple) else (checked, None)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether any attribute was fitted; a failed fit may have set the columns only."""
        learned = {name for name in vars(self) if name.endswith("_") and not name.startswith("_")}
        return bool(learned - {"n_features_in_", "feature_names_in_"})

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
