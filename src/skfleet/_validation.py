"""What input must be: checks of parameters and rows, and the sentences that say what is wrong."""

from __future__ import annotations

from typing import Any

from skfleet import _linalg
from skfleet._array import namespace


def check_block(block: Any) -> None:
    """Raise if the rows of a block that the driver has not seen hold NaN, infinity or bad weights."""
    for name, part in (("X", block.X), ("y", block.y), ("sample_weight", block.sample_weight)):
        if part is not None and not _linalg.all_finite(part):
            values = part.data if _linalg.is_sparse(part) else part
            xp = namespace(values)
            kind = "NaN" if bool(xp.any(xp.isnan(values))) else "infinity"
            raise ValueError(
                f"Input {name} contains {kind}. {name} must be finite. Impute or drop those rows."
            )
    check_weight(block.sample_weight)


def check_weight(sample_weight: Any) -> None:
    """Raise if a weight is negative."""
    if sample_weight is None:
        return
    lowest = float(namespace(sample_weight).min(sample_weight)) if len(sample_weight) else 0.0
    if lowest < 0:
        raise ValueError(
            f"sample_weight must be non-negative. Got {lowest:g} instead. Drop those rows or set 0."
        )
