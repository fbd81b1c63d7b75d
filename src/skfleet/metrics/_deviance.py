"""D2 score of a Tweedie deviance, from sums that combine exactly."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn import metrics

from skfleet.metrics._reductions import MetricReduction


class Deviances(NamedTuple):
    """Sums over some rows: deviances from the predictions, and from the rows' own mean."""

    weight: float
    mean: float
    residual: float
    spread: float
    n_rows: int


def d2_reduction(power: float) -> MetricReduction:
    """Return the reduction of 1 - deviance / deviance of the mean (D squared)."""
    combine = partial(_combine_deviances, power)
    return MetricReduction(partial(deviances, power), combine, _explained_fraction)


def deviances(
    power: float, true: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None
) -> Deviances:
    """Return the deviances of some rows."""
    weight = np.ones(len(true)) if weight is None else weight
    total = float(weight.sum())
    if not total:
        return Deviances(0.0, 0.0, 0.0, 0.0, len(true))
    mean = float(np.average(true, weights=weight))
    residual = metrics.mean_tweedie_deviance(true, predicted, sample_weight=weight, power=power)
    spread = _from(true, mean, power, weight)
    return Deviances(total, mean, residual * total, spread * total, len(true))


def _from(true: np.ndarray, mean: float, power: float, weight: np.ndarray | None = None) -> float:
    """Return the mean deviance from a constant, 0 for counts that are all 0."""
    # scikit-learn refuses predictions of 0, which are exact here.
    if 1 <= power < 2 and mean == 0:
        return 0.0
    predicted = np.full(len(true), mean)
    return metrics.mean_tweedie_deviance(true, predicted, sample_weight=weight, power=power)


def _combine_deviances(power: float, a: Deviances, b: Deviances) -> Deviances:
    """Combine the sums of two runs of rows: deviances are Bregman divergences (Banerjee, 2005)."""
    weight = a.weight + b.weight
    if not weight:
        return a
    mean = (a.weight * a.mean + b.weight * b.mean) / weight
    # About another mean, a part gains its weight times the deviance of its own mean from it.
    spread = sum(
        part.spread + part.weight * _from(np.array([part.mean]), mean, power)
        for part in (a, b)
        if part.weight
    )
    return Deviances(weight, mean, a.residual + b.residual, spread, a.n_rows + b.n_rows)


def _explained_fraction(sums: Deviances) -> float:
    """Return the explained fraction: 0 or 1 for constant targets."""
    if sums.n_rows < 2:
        # scikit-learn itself warns and returns NaN
        return metrics.d2_tweedie_score([1.0], [1.0])
    if not sums.spread:
        return 1.0 if not sums.residual else 0.0
    return 1 - sums.residual / sums.spread
