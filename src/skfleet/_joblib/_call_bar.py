"""Progress bar of a ``Parallel`` call, named after the estimator or function that runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

from skfleet._joblib._worker import CallItem, function_name
from skfleet._progress_bar import ProgressBar, open_bar
from skfleet._sklearn_private import is_fit


def open_call_bar(call: CallItem, n_calls: int | None) -> ProgressBar | None:
    """Open the bar of a ``Parallel`` call, given its first function call.

    It has the name of the estimator that is fitted, else of the estimator that makes the call, else
    of the function.
    """
    function, args, kwargs = call
    if is_fit(function, args, kwargs):
        return open_bar(_name(args[0]), "fits", n_calls)
    arguments = (arg for arg in [*args[:1], *kwargs.values()] if _is_estimator(arg))
    names = (_name(estimator) for estimator in chain(_calling_estimators(), arguments))
    return open_bar(next(names, function_name(function)), "tasks", n_calls)


def _is_estimator(value: Any) -> bool:
    return hasattr(type(value), "get_params")


def _name(estimator: Any) -> str:
    """Return the class name of an estimator; of a pipeline, that of its last step."""
    steps = getattr(estimator, "steps", None)
    last = steps[-1][1] if steps else None
    return _name(last) if _is_estimator(last) else type(estimator).__name__


def _calling_estimators() -> Iterator[Any]:
    """Yield the estimators whose methods are on the stack, from the innermost on."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_varnames[:1] == ("self",):
            estimator = frame.f_locals.get("self")
            if _is_estimator(estimator):
                yield estimator
        frame = frame.f_back  # type: ignore[assignment]
