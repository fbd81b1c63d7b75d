"""Weights of the rows of a block, as scikit-learn takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from skfleet._validation import check_weight
from skfleet.blocks import Block


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
