"""What a call shows of its progress: under which name, and how a search is going."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterator
from itertools import chain
from numbers import Real
from typing import Any

from skfleet._joblib._worker import function_name
from skfleet._progress_bar import ProgressBar, open_bar
from skfleet._sklearn_private import is_fit

__all__ = ["SearchProgress", "call_bar", "check_progress"]


def check_progress(progress: Any) -> bool:
    """Check a ``progress`` parameter."""
    if not isinstance(progress, bool):
        raise TypeError(
            f"progress must be True or False. Got {progress!r} instead. "
            'Write parallel_config("skfleet", progress=True).'
        )
    return progress


def call_bar(call: tuple[Any, Any, Any], n_calls: int | None) -> ProgressBar | None:
    """Open the bar of a ``Parallel`` call, given its first function call.

    It has the name of what the user runs: of the estimator that is fitted, else of the one which
    makes the call, else of the function.
    """
    function, args, kwargs = call
    if is_fit(function, args, kwargs):
        return open_bar(_name(args[0]), "fits", n_calls)
    of_call = (one for one in [*args[:1], *kwargs.values()] if _is_estimator(one))
    names = (_name(estimator) for estimator in chain(_calling_estimators(), of_call))
    return open_bar(next(names, function_name(function)), "tasks", n_calls)


def _is_estimator(value: Any) -> bool:
    return hasattr(type(value), "get_params")


def _name(estimator: Any) -> str:
    """Name an estimator by its class; a pipeline by its last step."""
    steps = getattr(estimator, "steps", None)
    last = steps[-1][1] if steps else None
    return _name(last) if _is_estimator(last) else type(estimator).__name__


def _calling_estimators() -> Iterator[Any]:
    """Yield the estimators whose methods run, from the innermost on."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            estimator = frame.f_locals.get("self")
            if _is_estimator(estimator):
                yield estimator
        frame = frame.f_back  # type: ignore[assignment]


class SearchProgress:
    """How a search is going: fits that others spared it, and the best candidate so far."""

    def __init__(self) -> None:
        self.n_saved = 0
        self._scores: dict[Hashable, list[float]] = {}
        self._best: float | None = None

    def add(self, candidate: Hashable, score: Any, n_splits: int, *, was_saved: bool) -> None:
        """Count a fit; the best is among the candidates whose splits have all been scored."""
        self.n_saved += was_saved
        scores = self._scores.setdefault(candidate, [])
        scores.append(float(score) if isinstance(score, Real) else math.nan)
        mean = sum(scores) / n_splits
        is_known = len(scores) == n_splits and not math.isnan(mean)
        if is_known and (self._best is None or mean > self._best):
            self._best = mean

    def __str__(self) -> str:
        saved = [f"{self.n_saved} saved"] if self.n_saved else []
        return ", ".join(saved + ([f"best {self._best:.4g}"] if self._best is not None else []))
