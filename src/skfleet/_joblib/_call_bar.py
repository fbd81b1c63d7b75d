"""Progress bar of a ``Parallel`` call, named after the estimator or function that runs."""

from __future__ import annotations

from itertools import chain
from typing import Any

from skfleet._joblib._batch_task import CallItem, function_name
from skfleet._progress_bar import ProgressBar, calling_estimators, is_estimator, open_bar
from skfleet._sklearn_private import is_fit


def open_call_bar(call: CallItem, n_calls: int | None) -> ProgressBar | None:
    """Open the bar of a ``Parallel`` call, given its first function call.

    It has the name of the estimator that is fitted, else of the estimator that makes the call, else
    of the function.
    """
    function, args, kwargs = call
    if is_fit(function, args, kwargs):
        return open_bar(_name(args[0]), "fits", n_calls)
    arguments = (arg for arg in [*args[:1], *kwargs.values()] if is_estimator(arg))
    callers = (estimator for _, estimator in calling_estimators())
    names = (_name(estimator) for estimator in chain(callers, arguments))
    return open_bar(next(names, function_name(function)), "tasks", n_calls)


def _name(estimator: Any) -> str:
    """Return the class name of an estimator; of a pipeline, that of its last step."""
    steps = getattr(estimator, "steps", None)
    last = steps[-1][1] if steps else None
    return _name(last) if is_estimator(last) else type(estimator).__name__
