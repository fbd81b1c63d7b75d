"""What input must be: checks of parameters and rows, and the sentences that say what is wrong."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_clusterer

from skfleet import _linalg
from skfleet._array import astype, device_library, is_array, is_floating, namespace


def check_block(block: Any) -> None:
    """Raise if rows that the driver has not seen hold NaN, infinity or bad weights."""
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
    if sample_weight is None or sample_weight.shape[0] == 0:
        return
    lowest = float(namespace(sample_weight).min(sample_weight))
    if lowest < 0:
        raise ValueError(
            f"sample_weight must be non-negative. Got {lowest:g} instead. Drop those rows or set 0."
        )


def check_numeric(stand_in: Any) -> None:
    """Raise if rows of which only kind and types are known cannot be numbers.

    `stand_in` is an array or a frame of the same types as the rows, with no rows in it.
    """
    named = getattr(stand_in, "dtypes", None)
    dtypes = {"X": stand_in.dtype} if named is None else dict(named.items())
    for name, dtype in dtypes.items():
        kind = getattr(dtype, "kind", "O")
        subject = name if name == "X" else f"Column {name!r} of X"
        if kind == "c":
            raise ValueError(
                f"{subject} must be real. Got {dtype} instead. Complex data not supported: take "
                "the real and imaginary parts as columns of their own."
            )
        if kind not in "biuf":
            raise ValueError(
                f"{subject} must be numeric. Got dtype {dtype} instead. Encode it as numbers "
                "first, with a OneHotEncoder or an OrdinalEncoder, say."
            )


def check_learns_in_parts(subject: str, learner: Any, otherwise: str) -> None:
    """Raise unless an estimator has partial_fit, and what it learns can come to this process."""
    name, library = type(learner).__name__, type(learner).__module__.partition(".")[0]
    incremental = "one that learns incrementally (SGDClassifier, MiniBatchKMeans, ...)"
    if library == "cuml":
        ours = "SGDClassifier" if is_classifier(learner) else "SGDRegressor"
        ours = "MiniBatchKMeans" if is_clusterer(learner) else ours
        name, incremental = f"cuml.{name}", f"skfleet.estimators.{ours}(device='cuda')"
    if not hasattr(learner, "partial_fit"):
        raise TypeError(
            f"{subject} must have partial_fit. Got {name} instead. Take {incremental}, or "
            f"{otherwise}."
        )
    if library == "cuml" and device_library() is None:
        raise TypeError(
            f"{subject} must be one that this process can open, for what was learned comes home. "
            f"Got {name} and no GPU here instead. Take {incremental}, or a process with a GPU."
        )


def check_sample_weight(sample_weight: Any, n_rows: int) -> Any:
    """Return one weight per row of rows in this process, or raise."""
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Real):
        sample_weight = np.full(n_rows, float(sample_weight))
    if not is_array(sample_weight):
        sample_weight = np.asarray(sample_weight)
    if len(sample_weight.shape) != 1:
        raise ValueError(
            "sample_weight must be 1D array or scalar. "
            f"Got {len(sample_weight.shape)} dimensions instead. Give one weight per row."
        )
    if sample_weight.shape[0] != n_rows:
        raise ValueError(
            f"sample_weight must have as many rows as X. Got {sample_weight.shape[0]} instead of "
            f"{n_rows}."
        )
    if not is_floating(sample_weight):
        sample_weight = astype(sample_weight, np.dtype(np.float64))
    if not _linalg.all_finite(sample_weight):
        raise ValueError(
            "Input sample_weight contains NaN or infinity. Every weight must be finite."
        )
    check_weight(sample_weight)
    check_total_weight(float(namespace(sample_weight).sum(sample_weight)))
    return sample_weight


def check_total_weight(total: float) -> None:
    """Raise if no row has a weight."""
    if total == 0:
        raise ValueError(
            "sample_weight must hold a weight above 0. Got zero for every row instead."
        )


def check_real(name: str, value: Any, low: float, high: float = np.inf, *, open: str = "") -> None:
    """Raise unless a parameter is a number from low to high, without the ends in `open`."""
    fits = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    fits = fits and (value > low if "l" in open else value >= low)
    if not (fits and (value < high if "r" in open else value <= high)):
        least = f"above {low:g}" if "l" in open else f"at least {low:g}"
        most = "" if high == np.inf else f" and {'below' if 'r' in open else 'at most'} {high:g}"
        finite = "finite and " if high == np.inf and "r" in open else ""
        raise ValueError(f"{name} must be a number {finite}{least}{most}. Got {value!r} instead.")


def check_count(name: str, value: Any, low: int = 1) -> None:
    """Raise unless a parameter is a whole number of at least low."""
    if not isinstance(value, Integral) or isinstance(value, bool | np.bool_) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}. Got {value!r} instead.")


def check_flag(name: str, value: Any) -> None:
    """Raise unless a parameter is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False. Got {value!r} instead.")


def check_choice(name: str, value: Any, choices: Any) -> None:
    """Raise unless a parameter is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {known}. Got {value!r} instead.")


def check_unused(name: str, value: Any, only: Any, instead: str) -> None:
    """Raise unless a parameter without meaning here has the one value that it may have."""
    if value is None or value != only:
        raise ValueError(f"{name} must be {only!r}. Got {value!r} instead. {instead}")
