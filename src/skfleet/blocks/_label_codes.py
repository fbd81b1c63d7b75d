"""Labels or groups of rows, encoded for their way to the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from skfleet._validation import unique_values


class LabelCodes(NamedTuple):
    """Values per row: as they are, or as the numbers of sorted labels where they are text."""

    codes: np.ndarray
    labels: np.ndarray | None = None

    @classmethod
    def encode(cls, values: np.ndarray) -> LabelCodes:
        """Return the codes of text and other objects; numbers are small already."""
        if values.dtype.kind in "biufc" or values.ndim != 1:
            return cls(values)
        labels, codes = unique_values(values, return_inverse=True)
        return cls(codes.astype(np.min_scalar_type(len(labels))), labels)

    @staticmethod
    def concatenate(parts: Sequence[LabelCodes]) -> np.ndarray:
        """Return the values of consecutive rows: text as codes of the same order."""
        if any(part.labels is None for part in parts):
            return np.concatenate([part.codes for part in parts])
        known = [part.labels for part in parts if part.labels is not None]
        labels = unique_values(np.concatenate(known))
        dtype = np.min_scalar_type(-max(len(labels), 1))
        codes = [
            np.searchsorted(labels, part_labels).astype(dtype)[part.codes]
            for part, part_labels in zip(parts, known, strict=True)
        ]
        return np.concatenate(codes)
