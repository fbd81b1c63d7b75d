"""Pipelines of transformers on Dask rows: fits on the training rows of splits."""

from skfleet.estimators.compose._shared_fit import FittedSteps
from skfleet.estimators.pipeline._splits import (
    SuspendedFit,
    fit_on_splits,
    shares_passes,
    start_fit,
)

__all__ = ["FittedSteps", "SuspendedFit", "fit_on_splits", "shares_passes", "start_fit"]
