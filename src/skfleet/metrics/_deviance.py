"""The share of a Tweedie deviance that is explained, from sums that merge exactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn import metrics

from skfleet.metrics._reductions import Statistic


class Deviances(NamedTuple):
    """Sums over some rows: deviances from the predictions, and from the rows' own mean."""

    weight: float
    mean: float
    left: float
    spread: float
    n_rows: int


def d2_statistic(power: float) -> Statistic:
    """Return the statistic of 1 - deviance / deviance of the mean (D squared)."""
    return Statistic(partial(deviances, power), _Merge(power), _explained)


def deviances(
    power: float, true: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None
) -> Deviances:
    """Return the deviances of some rows."""
    weight = np.ones(len(true)) if weight is None else weight
    total = float(weight.sum())
    if not total:
        return Deviances(0.0, 0.0, 0.0, 0.0, len(true))
    mean = float(np.average(true, weights=weight))
    left = metrics.mean_tweedie_deviance(true, predicted, sample_weight=weight, power=power)
    spread = _from(true, mean, power, weight)
    return Deviances(total, mean, left * total, spread * total, len(true))


def _from(true: np.ndarray, mean: float, power: float, weight: np.ndarray | None = None) -> float:
    """Return the mean deviance from a constant; counts that are all 0 have none from 0."""
    if 1 <= power < 2 and mean == 0:
        return 0.0
    predicted = np.full(len(true), mean)
    return metrics.mean_tweedie_deviance(true, predicted, sample_weight=weight, power=power)


@dataclass(frozen=True)
class _Merge:
    """Merges the sums of two runs of rows: deviances are Bregman divergences (Banerjee, 2005)."""

    power: float

    def __call__(self, a: Deviances, b: Deviances) -> Deviances:
        weight = a.weight + b.weight
        if not weight:
            return a
        mean = (a.weight * a.mean + b.weight * b.mean) / weight
        spread = sum(
            part.spread + part.weight * _from(np.array([part.mean]), mean, self.power)
            for part in (a, b)
            if part.weight
        )
        return Deviances(weight, mean, a.left + b.left, spread, a.n_rows + b.n_rows)


def _explained(sums: Deviances) -> float:
    """Return the share; of targets that are all alike nothing, or all, is explained."""
    if sums.n_rows < 2:
        # scikit-learn warns and answers NaN; have it do so itself
        return metrics.d2_tweedie_score([1.0], [1.0])
    if not sums.spread:
        return 1.0 if not sums.left else 0.0
    return 1 - sums.left / sums.spread
