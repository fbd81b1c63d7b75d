"""Metrics that are weighted means over rows, or functions of several means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn import metrics

from skfleet.metrics._reductions import MetricReduction


class Mean(NamedTuple):
    """A sum over rows, with the weight of these rows."""

    total: Any
    weight: float


def mean_reduction(
    reference: Callable[..., Any],
    options: dict[str, Any],
    finalize: Callable[[Any], Any] | None = None,
    *,
    normalize: bool = True,
) -> MetricReduction:
    """Return the reduction of a metric that is a weighted mean over rows.

    `reference(true, predicted, sample_weight=, **options)` computes it for some rows.
    """
    return MetricReduction(
        partial(part_of_mean, reference, options),
        finalize=partial(_finalize_mean, normalize, finalize),
    )


def part_of_mean(
    reference: Callable[..., Any],
    options: dict[str, Any],
    true: np.ndarray,
    predicted: np.ndarray,
    weight: np.ndarray | None,
) -> Mean:
    """Return the weighted sum of a block, from the metric of the block."""
    total = float(len(true) if weight is None else weight.sum())
    weight_kwargs = {} if weight is None else {"sample_weight": weight}
    if not total:  # scikit-learn divides by it
        value = reference(true, predicted, **options)
        return Mean(np.zeros_like(np.asarray(value, dtype=np.float64)), 0.0)
    value = np.asarray(reference(true, predicted, **weight_kwargs, **options), dtype=np.float64)
    return Mean(value * total, total)


def _finalize_mean(normalize: bool, finalize: Callable[[Any], Any] | None, mean: Mean) -> Any:
    """Divide by the weight of all rows."""
    if normalize and not mean.weight:
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")
    value = mean.total / mean.weight if normalize else mean.total
    return float(value) if finalize is None else finalize(value)


def over_outputs(multioutput: Any, values: np.ndarray) -> Any:
    """Average values of several outputs as scikit-learn's `multioutput` says."""
    values = np.atleast_1d(values)
    if multioutput is None or isinstance(multioutput, str):
        return values if multioutput == "raw_values" else float(values.mean())
    return float(np.average(values, weights=np.asarray(multioutput)))


def root_over_outputs(multioutput: Any, values: np.ndarray) -> Any:
    """Average the square roots of values of several outputs."""
    return over_outputs(multioutput, np.sqrt(values))


def part_of_max_error(true: np.ndarray, predicted: np.ndarray, weight: Any) -> float:
    if weight is not None:
        raise TypeError("max_error takes no sample_weight. Drop the rows of weight 0 instead.")
    return float(metrics.max_error(true, predicted))


class Spread(NamedTuple):
    """Sums of squares of some rows, per output: targets about their mean, residuals likewise."""

    weight: float
    mean: np.ndarray
    total: np.ndarray
    residual_mean: np.ndarray
    residual: np.ndarray
    n_rows: int


def check_same_width(true: np.ndarray, predicted: np.ndarray) -> None:
    """Raise for targets and predictions that differ in their number of outputs."""
    if true.shape != predicted.shape:
        raise ValueError(
            f"y_pred must have the shape of y_true. Got {predicted.shape[1:]} values a row "
            f"instead of {true.shape[1:]}."
        )


def spread_of(true: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None) -> Spread:
    """Return the sums of squares of some rows about their own means."""
    check_same_width(true, predicted)
    weight = np.ones(len(true)) if weight is None else weight
    # Sums of squares of float32 values lose digits where there are many rows.
    true = true.reshape(len(true), -1).astype(np.float64)
    residual = true - predicted.reshape(len(true), -1)
    n = float(weight.sum())
    mean, shift = (weight @ v / n if n else np.zeros(v.shape[1]) for v in (true, residual))
    squares = weight @ (true - mean) ** 2, weight @ (residual - shift) ** 2
    return Spread(n, mean, squares[0], shift, squares[1], len(true))


def combine_spread(a: Spread, b: Spread) -> Spread:
    """Combine the sums of two runs of rows (Chan, Golub and LeVeque, 1983)."""
    weight = a.weight + b.weight
    fraction = b.weight / weight if weight else 0.0
    shifts = b.mean - a.mean, b.residual_mean - a.residual_mean
    return Spread(
        weight,
        a.mean + fraction * shifts[0],
        a.total + b.total + a.weight * fraction * shifts[0] ** 2,
        a.residual_mean + fraction * shifts[1],
        a.residual + b.residual + a.weight * fraction * shifts[1] ** 2,
        a.n_rows + b.n_rows,
    )


def explained_reduction(**options: Any) -> MetricReduction:
    """Return the reduction of r2 or, with residuals about their mean, of explained variance."""
    return MetricReduction(spread_of, combine_spread, partial(_explained_variance, **options))


def explained_fraction(residual: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return 1 - residual / total; where total is 0, 1 for exact predictions and 0 for others."""
    is_constant = total == 0
    score = 1 - residual / np.where(is_constant, 1.0, total)
    return np.where(is_constant, np.where(residual != 0, 0.0, 1.0), score)


def _explained_variance(s: Spread, *, centred: bool, multioutput: Any, force_finite: bool) -> Any:
    """Return the fraction of the variance of the targets that is explained."""
    if s.n_rows < 2 and not centred:
        # scikit-learn itself warns and returns NaN
        return metrics.r2_score([0.0], [0.0])
    residual = s.residual if centred else s.residual + s.weight * s.residual_mean**2
    if force_finite:
        score = explained_fraction(residual, s.total)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            score = 1 - residual / s.total
    if not isinstance(multioutput, str) or multioutput != "variance_weighted":
        return over_outputs(multioutput, score)
    return float(np.average(score, weights=s.total) if s.total.any() else score.mean())
