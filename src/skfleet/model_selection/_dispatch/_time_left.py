"""Seconds that a search has left, as a function of the durations so far and the work that remains.

The duration of a candidate that has not run is foreseen by a ridge regression of log seconds on the
parameters: on the logarithm of positive numbers, and on one indicator for each other value. It is
expected in proportion to the resources. What no candidate has shown so far (the slow kind of a
parameter, an interaction) is not foreseen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import Ridge

# Variance of the noise over that of the effect of a parameter of unit variance.
_PENALTY = 0.1
# Weight of a candidate's own mean of m durations: m / (m + this).
_PRIOR_DURATIONS = 0.5
_MIN_SECONDS = 1e-5
# A duration is not expected to be further from those that were seen.
_MAX_EXTRAPOLATION = math.log(30)
_MAX_VALUES = 20  # of a parameter that is no number

_PLAIN_TYPES = (str, bool, int, float, tuple, type(None))

Params = Mapping[str, Any]


class DurationModel:
    """Durations of fits by candidate, and those expected of candidates that have not run."""

    def __init__(self) -> None:
        # By candidate and resources: parameters, total of the seconds, number of fits.
        self._seen: dict[tuple[Hashable, float], tuple[Params, float, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._seen)

    def record(
        self, candidate: Hashable, params: Params | None, seconds: float, resources: float = 1.0
    ) -> None:
        """Record the seconds of a fit, made with an amount of resources."""
        key = candidate, resources
        _, total, n = self._seen.get(key, ({}, 0.0, 0))
        self._seen[key] = params or {}, total + max(seconds, _MIN_SECONDS), n + 1

    def expected(
        self, candidates: Mapping[Any, Params | None], resources: float = 1.0
    ) -> dict[Any, float]:
        """Return the seconds that a fit of each candidate is expected to take."""
        if not self._seen:
            raise ValueError("durations must be recorded before any is expected. Got none instead.")
        seen = list(self._seen)
        used = [params for params, _, _ in self._seen.values()]
        totals, counts = np.array([(total, n) for _, total, n in self._seen.values()]).T
        amounts = np.array([*(amount for _, amount in seen), *(resources for _ in candidates)])
        log_amounts = np.log(amounts)
        features = _features([*used, *(params or {} for params in candidates.values())])
        features = np.column_stack([features, _scaled(log_amounts)])
        n_seen = len(seen)
        # in proportion to the resources, unless several amounts of them show another slope
        target = np.log(totals / counts) - log_amounts[:n_seen]
        model = Ridge(alpha=_PENALTY).fit(features[:n_seen], target, sample_weight=counts)
        logs = model.predict(features)
        low, high = target.min() - _MAX_EXTRAPOLATION, target.max() + _MAX_EXTRAPOLATION
        logs = np.clip(logs, low, high)
        weights = counts / (counts + _PRIOR_DURATIONS)
        own = weights * (target - logs[:n_seen])
        # the mean of seconds is above the seconds of the mean logarithm
        fitted = np.exp(logs[:n_seen] + own + log_amounts[:n_seen])
        scale = totals.sum() / (counts @ fitted)
        corrections = dict(zip(seen, own, strict=True))
        return {
            candidate: float(scale * math.exp(log + corrections.get((candidate, resources), 0.0)))
            for candidate, log in zip(candidates, (logs + log_amounts)[n_seen:], strict=True)
        }


def _features(candidates: Sequence[Params]) -> np.ndarray:
    """Return one row of numbers for the parameters of each candidate, scaled to unit variance."""
    columns: list[np.ndarray] = []
    for name in sorted({name for params in candidates for name in params}):
        values = [params.get(name) for params in candidates]
        if all(isinstance(value, Real) and not isinstance(value, bool) for value in values):
            numbers = np.array([_number(value) for value in values])
            columns.append(np.log(numbers) if numbers.min() > 0 else numbers)
            continue
        kinds = [_kind(value) for value in values]
        distinct = list(dict.fromkeys(kinds))[:_MAX_VALUES]
        if len(distinct) > 1:
            columns += [np.array([kind == one for kind in kinds], dtype=float) for one in distinct]
    scaled = [_scaled(column) for column in columns]
    return np.column_stack(scaled) if scaled else np.empty((len(candidates), 0))


def _number(value: Any) -> float:
    """Return a number as a float, 0 for one that is infinite or none."""
    try:
        number = float(value)
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _kind(value: Any) -> str:
    """Return the text of a plain value, and the type of any other."""
    return repr(value)[:100] if isinstance(value, _PLAIN_TYPES) else type(value).__name__


def _scaled(values: np.ndarray) -> np.ndarray:
    """Return values with mean 0 and variance 1, or zeros where all are equal."""
    return (values - values.mean()) / (values.std() or 1.0)


class RemainingWork(NamedTuple):
    """Durations that are expected of the fits that some slots have left."""

    n_slots: int
    seconds: Sequence[float]


def seconds_left(works: Iterable[RemainingWork]) -> float:
    """Return the seconds in which work is done that all begins now."""
    return max((makespan(work.seconds, work.n_slots) for work in works), default=0.0)


def makespan(seconds: Sequence[float], n_slots: int) -> float:
    """Return the seconds in which slots have done work of some durations, the longest first."""
    n_slots = max(1, n_slots)
    total = math.fsum(seconds)
    if len(seconds) > 50 * n_slots:
        return max(total / n_slots, max(seconds))
    ends = [0.0] * n_slots
    for duration in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
