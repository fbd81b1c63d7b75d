"""Reports of the results of fits to the callbacks of joblib that wait for them."""

from __future__ import annotations

from collections.abc import Iterable

from skfleet._joblib import BatchResult
from skfleet.model_selection._dispatch._requests import FitRequest


def report_error(fits: Iterable[FitRequest], error: Exception) -> None:
    """Report the error that ends fits."""
    for fit in fits:
        report_result(fit, BatchResult(False, error))


def report_result(fit: FitRequest, result: BatchResult) -> None:
    """Call the callbacks of a fit, once; only the first one gets its output."""
    fit.is_done = True
    while fit.callbacks:
        callback = fit.callbacks.pop(0)
        if result.ok:
            value = dict(result.value[0])
            if fit.first_steps is not None and "estimator" in value:
                from skfleet.estimators.pipeline import joined_pipeline  # not at import

                value["estimator"] = joined_pipeline(fit.first_steps, value["estimator"])
            result = result._replace(value=[value])
        callback(result)
        result = result._replace(output=())
