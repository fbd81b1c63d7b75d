"""What every estimator on rows does first and last: check its input, and answer in kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from skfleet._array import beside, is_foreign
from skfleet._validation import check_block, check_numeric, check_sample_weight
from skfleet.blocks import Block, Output, RowBlocks, is_lazy, map_rows, row_blocks, stand_in
from skfleet.engine import lend

# scikit-learn's word for "this method takes no target", which is not the same as None.
_NO_TARGET = "no_validation"


class FleetEstimator(BaseEstimator):
    """An estimator on rows of any container: scikit-learn's checks, wherever the rows are."""

    def _fit_rows(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, reset: bool = True, **check: Any
    ) -> RowBlocks:
        """Check what is given to ``fit`` and cut it into blocks.

        `check` goes to scikit-learn's ``check_X_y`` (``y_numeric``, ``multi_output``) for rows in
        this process. Of Dask collections the driver checks kind, width and lengths; their values
        are checked in the first pass.
        """
        if is_lazy(X):
            self._check_width(stand_in(X), y, reset=reset)
            n_dims = len(getattr(y, "shape", ()))
            if n_dims > 1 and not check.get("multi_output"):
                raise ValueError(
                    f"y should be a 1d array, got one of {n_dims} dimensions instead. "
                    "Take its column, y[:, 0] say."
                )
            rows = row_blocks(X, y, sample_weight)
            if 0 in (rows.n_rows, rows.n_features):
                raise ValueError(
                    f"X must have at least one row and one column. Got {rows.n_rows} and "
                    f"{rows.n_features} instead."
                )
            return rows
        X, y = self._checked(X, y, reset=reset, **check)
        sample_weight = check_sample_weight(sample_weight, X.shape[0])
        return row_blocks(X, beside(y, X), beside(sample_weight, X))

    def _answer(
        self, func: Callable[[Any, Any], Any], X: Any, output: Output, *, model: Any = None
    ):
        """Return func(model, rows) for all rows of X, in the container X came in."""
        check_is_fitted(self)
        model = self if model is None else model
        if is_lazy(X):
            self._check_width(stand_in(X), reset=False)
            name = f"{func.__name__.strip('_')}-{type(self).__name__}"
            model = lend(self, model, name=f"model-of-{type(self).__name__}")
            return map_rows(func, model, X, output, check=check_block, name=name)
        X, _ = self._checked(X, reset=False)
        return map_rows(func, model, X, output)

    def _check_width(self, rows: Any, y: Any = _NO_TARGET, *, reset: bool) -> None:
        """Record, or compare, the number and the names of the columns."""
        if len(rows.shape) != 2:
            raise ValueError(
                f"Expected 2D array, got {len(rows.shape)}D array instead. Reshape your data with "
                "X.reshape(-1, 1) if it has a single feature."
            )
        check_numeric(rows)
        validate_data(self, rows, y, reset=reset, skip_check_array=True)

    def _checked(
        self, X: Any, y: Any = _NO_TARGET, *, reset: bool, **check: Any
    ) -> tuple[Any, Any]:
        """Check rows in this process as scikit-learn does."""
        if is_foreign(X):
            self._check_width(np.empty((0, *X.shape[1:])), y, reset=reset)
            check_block(Block(X))
            return X, None if y is _NO_TARGET else y
        settings = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "reset": reset}
        checked = validate_data(self, X, y, **settings, **check)
        return checked if isinstance(checked, tuple) else (checked, None)

    def __sklearn_is_fitted__(self) -> bool:
        """Say whether anything was learned; a fit that failed may have noted the columns only."""
        noted = {"n_features_in_", "feature_names_in_"}
        return any(k.endswith("_") and not k.startswith("_") and k not in noted for k in vars(self))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
