"""Checks of parameters and input, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_clusterer
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import check_random_state

from skfleet import _linalg
from skfleet._array import astype, dtype_of, is_array, is_floating, is_not_numpy, namespace
from skfleet._device import device_library
from skfleet._warnings import IgnoredWarnings, warn

# The category that Dask gives a column whose categories only its partitions know.
_UNKNOWN_CATEGORIES = "__UNKNOWN_CATEGORIES__"
# Whole numbers that are no farther apart are counted, instead of sorted; so are those of a range of
# a few times their number.
_COUNTED_RANGE, _COUNTED_RANGE_PER_ROW = 2**16, 4


def check_block(block: Any) -> None:
    """Raise for a block of rows from workers with NaN, infinity or negative weights."""
    weight = block.sample_weight
    if weight is not None and not is_floating(weight):
        weight = weights_as_numbers(weight)
    for name, part in (("X", block.X), ("y", block.y), ("sample_weight", weight)):
        check_finite(name, part)
    check_weight(weight)


def check_finite(name: str, values: Any) -> None:
    """Raise for values from workers with NaN or infinity."""
    if values is None or _linalg.all_finite(values):
        return
    values = next(part for part in _linalg.column_parts(values) if not _linalg.all_finite(part))
    values = values.data if _linalg.is_sparse(values) else values
    xp = namespace(values)
    kind = "NaN" if bool(xp.any(xp.isnan(values))) else "infinity"
    raise ValueError(
        f"Input {name} contains {kind}. {name} must be finite. Impute or drop those rows."
    )


def check_weight(sample_weight: Any) -> None:
    """Raise if a weight is negative."""
    if sample_weight is None or sample_weight.shape[0] == 0:
        return
    lowest = float(namespace(sample_weight).min(sample_weight))
    if lowest < 0:
        raise ValueError(
            f"sample_weight must be non-negative. Got {lowest:g} instead. Drop those rows or set 0."
        )


def check_numeric(rows: Any, *, on_dask: bool) -> None:
    """Raise for an array or a frame with dtypes that are not numeric.

    For rows in this process scikit-learn converts text and objects if it can, so only dates and
    categories are refused here.
    """
    for name, dtype in dtypes_of(rows):
        kind = getattr(dtype, "kind", "O")
        subject = "X" if name is None else f"Column {name!r} of X"
        if on_dask and kind == "c":
            raise ValueError(
                f"{subject} must be real. Got {dtype} instead. Complex data not supported: take "
                "the real and imaginary parts as columns of their own."
            )
        # Of rows in this process scikit-learn's own validation says the rest, by their values: an
        # object column may hold numbers. Values on Dask are not known before a task.
        is_refused = on_dask or _is_date(dtype) or getattr(dtype, "categories", None) is not None
        if is_refused and not is_numeric(dtype):
            raise not_numeric(subject, dtype, on_dask=on_dask)


def check_convertible(X: Any, error: ValueError) -> None:
    """Raise, from a conversion error, for the first column of X that is not numeric."""
    is_named = hasattr(X, "columns")
    columns: Any = [(None, np.asarray(X))]
    if is_named:  # a frame of polars has no items
        columns = X.items() if hasattr(X, "items") else [(name, X[name]) for name in X.columns]
    for name, values in columns:
        try:
            np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            subject = f"Column {name!r} of X" if is_named else "X"
            raise not_numeric(subject, values.dtype, on_dask=False) from error


def not_numeric(subject: str, dtype: Any, *, on_dask: bool) -> ValueError:
    """Return the error for a dtype that is not numeric, with advice how to encode it."""
    one_column = subject.startswith("Column")
    if _is_date(dtype):
        column = f"X[{subject.split(' of ')[0].removeprefix('Column ')}]" if one_column else "X"
        advice = f"Take numbers of it, {column}.astype('int64') say."
    elif on_dask:
        advice = "Encode it as numbers first, with a OneHotEncoder of skfleet.estimators, say."
    else:
        advice = "Encode it as numbers first, with a OneHotEncoder or an OrdinalEncoder, say."
    return ValueError(f"{subject} must be numeric. Got dtype {dtype} instead. {advice}")


def dtypes_of(rows: Any) -> list[tuple[Any, Any]]:
    """Return (name, dtype) of each column of a frame, (None, dtype) of an array."""
    dtypes = rows.dtypes if hasattr(type(rows), "dtypes") else None
    # Asked of the type, as in `n_dims_of`. The dtypes of a Series are one dtype.
    if not hasattr(dtypes, "items"):
        if is_not_numpy(rows):
            return [(None, dtype_of(rows))]
        if isinstance(dtypes, list):  # of the columns of a frame of polars
            return [(name, _numpy_dtype(rows[name].dtype)) for name in rows.columns]
        return [(None, _numpy_dtype(rows.dtype) if hasattr(type(rows), "dtype") else None)]
    return list(dtypes.items())


def _numpy_dtype(dtype: Any) -> Any:
    """Return a dtype of polars as the NumPy dtype of its kind; others are not changed."""
    if not hasattr(dtype, "is_temporal"):
        return dtype
    if dtype.is_temporal():
        return np.dtype("datetime64[us]")
    if dtype.is_numeric():
        return np.dtype(np.float64 if dtype.is_float() or dtype.is_decimal() else np.int64)
    return np.dtype(bool if str(dtype) == "Boolean" else object)


def has_types_of(meta: Any, other: Any) -> bool:
    """Return whether empty containers have the same columns, in any order, of the same types."""
    is_alike = type(meta) is type(other) and meta.shape[1:] == other.shape[1:]
    return is_alike and dict(dtypes_of(meta)) == dict(dtypes_of(other))


def n_dims_of(values: Any) -> int:
    """Return the number of dimensions of values; 0 for values without a shape."""
    # Of the type: a Delayed value claims to have every attribute. The shape of a frame has its
    # length, for which Dask makes an expression.
    if hasattr(type(values), "ndim"):
        return int(values.ndim)
    return len(values.shape) if hasattr(type(values), "shape") else 0


def is_numeric(dtype: Any) -> bool:
    """Return whether a dtype has real numbers, or categories that are real numbers."""
    categories = getattr(dtype, "categories", None)
    return getattr(dtype if categories is None else categories.dtype, "kind", "O") in "biuf"


def has_unknown_categories(dtype: Any) -> bool:
    """Return whether a dtype has the categories of a Dask frame that are not known yet."""
    categories = getattr(dtype, "categories", None)
    return categories is not None and _UNKNOWN_CATEGORIES in categories


def _is_date(dtype: Any) -> bool:
    """Return whether a dtype has dates, times or durations."""
    return getattr(dtype, "kind", "O") in "mM" or str(dtype).startswith("period")


def check_target_shape(y: Any, *, several: bool) -> None:
    """Raise unless targets of any container have one dimension, or two if `several` are allowed."""
    n_dims = n_dims_of(y)
    if n_dims > 2 or (n_dims == 2 and not several):
        column = "y.iloc[:, 0]" if hasattr(y, "iloc") else "y[:, 0]"
        raise ValueError(
            f"y should be a 1d array, got one of {n_dims} dimensions instead. Take its column, "
            f"{column} say."
        )


def warn_of_column() -> None:
    """Warn of targets of shape (n, 1) where one dimension is expected, as scikit-learn does."""
    warn(
        "A column-vector y was passed when a 1d array was expected. Please change the shape of y "
        "to (n_samples,), for example using ravel().",
        DataConversionWarning,
    )


def check_target_type(y: Any, *, numeric: bool, name: str = "y") -> None:
    """Raise for targets of any container of complex dtype, or not numeric if required."""
    for column, dtype in dtypes_of(y):
        subject = name if column is None else f"Column {column!r} of {name}"
        if getattr(dtype, "kind", "O") == "c":
            # scikit-learn's checks look for its "Complex data not supported".
            raise ValueError(
                f"{subject} must be real. Got {dtype} instead. Complex data not supported."
            )
        if numeric and _is_definite(dtype) and not is_numeric(dtype):
            raise ValueError(
                f"{subject} must be numeric. Got dtype {dtype} instead. Take a classifier for "
                "labels, or make numbers of them."
            )


def _is_definite(dtype: Any) -> bool:
    """Return whether a dtype determines the type of its values; object does not."""
    return dtype is not None and str(dtype) != "object" and not has_unknown_categories(dtype)


def check_has_partial_fit(subject: str, learner: Any, alternative: str) -> None:
    """Raise unless an estimator has partial_fit, and its state can be loaded in this process."""
    name, library = type(learner).__name__, type(learner).__module__.partition(".")[0]
    incremental = "one that learns incrementally (SGDClassifier, MiniBatchKMeans, ...)"
    # cuML's linear models and k-means have no partial_fit; ours of the same kind have.
    if library == "cuml":
        skfleet_name = "SGDClassifier" if is_classifier(learner) else "SGDRegressor"
        skfleet_name = "MiniBatchKMeans" if is_clusterer(learner) else skfleet_name
        name, incremental = f"cuml.{name}", f"skfleet.estimators.{skfleet_name}(device='cuda')"
    if not hasattr(learner, "partial_fit"):
        raise TypeError(
            f"{subject} must have partial_fit. Got {name} instead. Take {incremental}, or "
            f"{alternative}."
        )
    if library == "cuml" and device_library() is None:
        raise TypeError(
            f"{subject} must be one that this process can open, as the model is returned to it. "
            f"Got {name} and no GPU here instead. Take {incremental}, or a process with a GPU."
        )


def unique_values(y: np.ndarray, *, return_inverse: bool = False) -> Any:
    """Return the sorted labels in y, and optionally their codes per row, or raise."""
    known = None
    if y.ndim == 1 and y.size:
        known = _unique_texts(y) if y.dtype == object else _unique_whole_numbers(y)
    if known is not None:
        return known if return_inverse else known[0]
    try:
        return np.unique(y, return_inverse=return_inverse)
    except TypeError as error:
        kinds = " and ".join(sorted({type(label).__name__ for label in y.ravel().tolist()}))
        raise ValueError(
            f"y must hold labels of one kind. Got {kinds} instead, which have no order. Make text "
            "of them, with y.astype(str) say."
        ) from error


def _unique_whole_numbers(y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the sorted labels in y, and their codes; None where they are not near one another."""
    if y.dtype.kind not in "iu":
        return None
    low = y.min()
    if int(y.max()) - int(low) >= max(_COUNTED_RANGE, _COUNTED_RANGE_PER_ROW * len(y)):
        return None
    places = (y - low if y.dtype.kind == "u" else y.astype(np.int64) - low).astype(np.int64)
    is_present = np.bincount(places) > 0
    labels = np.flatnonzero(is_present).astype(y.dtype) + low
    return labels, (np.cumsum(is_present) - 1)[places]


def _unique_texts(y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the sorted texts in y, and their codes; None where not all labels are text.

    They are told apart by their hashes: to sort all rows takes seven times as long.
    """
    import pandas as pd

    try:
        codes, labels = pd.factorize(y, use_na_sentinel=False)
    except TypeError:  # some have no hash
        return None
    if not all(type(label) is str for label in labels):
        return None
    order = np.argsort(labels)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return labels[order], ranks[codes]


def check_weight_type(sample_weight: Any) -> None:
    """Raise for weights of any container with a shape or dtype other than a number per row."""
    n_dims = n_dims_of(sample_weight)
    if n_dims != 1:
        raise ValueError(
            "sample_weight must be 1D array or scalar. "
            f"Got {n_dims} dimensions instead. Give one weight per row."
        )
    ((_, dtype),) = dtypes_of(sample_weight)
    if _is_definite(dtype) and not is_numeric(dtype):
        raise ValueError(
            f"sample_weight must be numeric. Got dtype {dtype} instead. Give a number per row."
        )


def check_sample_weight(sample_weight: Any, n_rows: int) -> Any:
    """Return weights for rows in this process as one finite number per row, or raise."""
    if sample_weight is None:
        return None
    # A number is the weight of every row, as scikit-learn's `_check_sample_weight` has it.
    if isinstance(sample_weight, Real):
        sample_weight = np.full(n_rows, float(sample_weight))
    if not is_array(sample_weight) and not hasattr(sample_weight, "iloc"):
        sample_weight = np.asarray(sample_weight)
    check_weight_type(sample_weight)
    if sample_weight.shape[0] != n_rows:
        raise ValueError(
            f"sample_weight must have as many rows as X. Got {sample_weight.shape[0]} instead of "
            f"{n_rows}."
        )
    if not is_array(sample_weight):
        sample_weight = np.asarray(sample_weight)
    if not is_floating(sample_weight):
        sample_weight = weights_as_numbers(sample_weight)
    if not _linalg.all_finite(sample_weight):
        raise ValueError(
            "Input sample_weight contains NaN or infinity. Every weight must be finite."
        )
    check_weight(sample_weight)
    check_total_weight(float(namespace(sample_weight).sum(sample_weight)))
    return sample_weight


def weights_as_numbers(sample_weight: Any) -> Any:
    """Return weights in float64, or raise for objects that are not numbers."""
    try:
        return astype(sample_weight, np.dtype(np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"sample_weight must be numeric. Got objects of which one is none instead: {error}. "
            "Give a number per row."
        ) from error


def check_several_classes(labels: np.ndarray) -> None:
    """Raise for labels of fewer than two classes."""
    if len(labels) < 2:
        raise ValueError(
            "y must hold at least two classes. Got only one class instead: "
            f"{labels.tolist()[0]!r}. Classifier can't train when only one class is present."
        )


def check_total_weight(total: float) -> None:
    """Raise if all weights are zero."""
    if total == 0:
        raise ValueError(
            "sample_weight must hold a weight above 0. Got zero for every row instead."
        )


def check_in_interval(
    name: str, value: Any, low: float, high: float = np.inf, *, open: str = ""
) -> None:
    """Raise unless a parameter is a number from low to high, without the ends in `open`."""
    # True is a Real and an Integral of Python's, and hardly ever meant as a number.
    is_valid = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    is_valid = is_valid and (value > low if "l" in open else value >= low)
    if not (is_valid and (value < high if "r" in open else value <= high)):
        minimum = f"above {low:g}" if "l" in open else f"at least {low:g}"
        maximum = "" if high == np.inf else f" and {'below' if 'r' in open else 'at most'} {high:g}"
        finite = "finite and " if high == np.inf and "r" in open else ""
        raise ValueError(
            f"{name} must be a number {finite}{minimum}{maximum}. Got {value!r} instead."
        )


def check_positive_int(name: str, value: Any, low: int = 1) -> None:
    """Raise unless a parameter is a whole number of at least low."""
    if not isinstance(value, Integral) or isinstance(value, bool | np.bool_) or value < low:
        raise ValueError(f"{name} must be a whole number of at least {low}. Got {value!r} instead.")


def check_bool(name: str, value: Any) -> None:
    """Raise unless a parameter is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False. Got {value!r} instead.")


def check_verbose(name: str, value: Any) -> None:
    """Raise unless a parameter is True, False or a whole number of at least 0."""
    if not isinstance(value, bool | np.bool_):
        check_positive_int(name, value, 0)


def check_option(name: str, value: Any, options: Any) -> None:
    """Raise unless a parameter is one of the options."""
    if not isinstance(value, str) or value not in options:
        names = ", ".join(map(repr, options))
        raise ValueError(f"{name} must be one of {names}. Got {value!r} instead.")


def check_n_jobs(name: str, value: Any) -> None:
    """Raise unless a parameter is a whole number or None."""
    if value is not None and (not isinstance(value, Integral) or isinstance(value, bool)):
        raise ValueError(f"{name} must be a whole number or None. Got {value!r} instead.")


def check_seed(name: str, value: Any) -> None:
    """Raise unless a parameter is a valid random_state."""
    if type(value) is int and 0 <= value < 2**32:
        return  # without seeding a generator, which takes a while
    try:
        check_random_state(value)
    except ValueError as error:
        raise ValueError(
            f"{name} must be a whole number, a RandomState or None. Got {value!r} instead: {error}."
        ) from error


# Checks of parameters by name, also in estimators that ignore them.
_COMMON: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("copy", "copy_X", "copy_x", "fit_intercept", "warm_start"), check_bool),
    "n_jobs": check_n_jobs,
    "random_state": check_seed,
    "verbose": check_verbose,
}


def check_common_parameters(estimator: Any) -> None:
    """Raise for invalid values of parameters with one meaning in all estimators."""
    for name, check in _COMMON.items():
        if hasattr(estimator, name):
            check(name, getattr(estimator, name))


def check_unsupported(name: str, value: Any, only: Any, instead: str) -> None:
    """Raise unless an unsupported parameter has its only allowed value."""
    if value is None or value != only:
        raise ValueError(f"{name} must be {only!r}. Got {value!r} instead. {instead}")


_NAME_WARNINGS = IgnoredWarnings(UserWarning, r"X (does not have valid|has) feature names, but ")


def warn_of_names(model: Any, X: Any) -> None:
    """Warn at the user's line if either the rows or the model have feature names, but not both."""
    if not hasattr(model, "n_features_in_"):
        return
    name, rows_have = type(model).__name__, _has_names(X)
    if hasattr(model, "feature_names_in_") and not rows_have:
        warn(f"X does not have valid feature names, but {name} was fitted with feature names")
    elif rows_have and not hasattr(model, "feature_names_in_"):
        warn(f"X has feature names, but {name} was fitted without feature names")


def _has_names(X: Any) -> bool:
    """Return whether columns have names that are text."""
    columns = X.columns if n_dims_of(X) == 2 and hasattr(X, "columns") else ()
    return any(isinstance(column, str) for column in columns)


def without_name_warnings() -> IgnoredWarnings:
    """Suppress scikit-learn's warnings about feature names, which each block would repeat."""
    return _NAME_WARNINGS
