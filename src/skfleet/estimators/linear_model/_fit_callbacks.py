"""Callbacks of scikit-learn during the iterations of a fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from skfleet._sklearn_private import begin_fit_callbacks, has_callbacks_set_on


@contextmanager
def fit_callbacks(
    estimator: Any, X: Any, y: Any, metadata: dict[str, Any] | None = None
) -> Iterator[Callable[[dict[str, Any]], None] | None]:
    """Call the hooks of a fit, and yield what gets the attributes at the start and later ones.

    As in scikit-learn, each iteration is a task, and one begins after the last that ends empty. The
    method around must have ``sklearn.callback.with_callbacks``.
    """
    if not has_callbacks_set_on(estimator):
        yield None
        return
    fit = begin_fit_callbacks(estimator, max(estimator.max_iter, 1) + 1)
    rows = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
    fit.call_on_fit_task_begin(**rows)
    iteration = None

    def on_iteration(attributes: dict[str, Any]) -> None:
        nonlocal iteration
        if iteration is not None:
            iteration.call_on_fit_task_end(**rows, reconstruction_attributes=attributes)
        iteration = fit.subcontext(task_name="lbfgs-iter")
        iteration.call_on_fit_task_begin(**rows, reconstruction_attributes=attributes)

    yield on_iteration
    if iteration is not None:
        iteration.call_on_fit_task_end(estimator=estimator)
    fit.call_on_fit_task_end(**rows, reconstruction_attributes={})
