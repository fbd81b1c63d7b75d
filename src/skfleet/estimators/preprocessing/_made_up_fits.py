"""Fitted attributes from scikit-learn's own fits on a few rows with the statistics of all."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array

from skfleet._validation import check_weight
from skfleet.blocks import Block


def copy_fitted(transformer: BaseEstimator, fitted: BaseEstimator) -> None:
    """Copy what a fit sets, except for the columns, which are not those of made-up rows."""
    not_copied = {*fitted.get_params(deep=False), "n_features_in_", "feature_names_in_"}
    state = {name: value for name, value in vars(fitted).items() if name not in not_copied}
    vars(transformer).update(state)


def weights_of_rows(block: Block, X: Any) -> np.ndarray | None:
    """Return the weights of a block in the float type of X, or None; raise for invalid ones."""
    if block.sample_weight is None:
        return None
    dtype = X.dtype if X.dtype in (np.float32, np.float64) else np.float64
    weight = check_array(
        block.sample_weight, ensure_2d=False, dtype=dtype, input_name="sample_weight"
    )
    check_weight(weight)
    return weight
