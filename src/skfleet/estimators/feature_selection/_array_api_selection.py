"""Selection of columns of blocks on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import get_tags

from skfleet._linalg import take_columns
from skfleet.estimators._array_api_blocks import valid_floats


def select_on_device(selector: Any, X: Any) -> Any:
    """Return the columns of a block that a fitted selector selects, on the device of the block."""
    valid_floats(selector, X, allow_nan=get_tags(selector).input_tags.allow_nan)
    return take_columns(X, np.flatnonzero(selector.get_support()))
