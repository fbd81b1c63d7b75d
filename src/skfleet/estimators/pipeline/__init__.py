"""Pipelines whose first steps are of this library, on Dask rows."""

from skfleet.estimators.pipeline._divide import (
    DividedPipeline,
    fit_last_step,
    fit_on_gathered_rows,
    joined_pipeline,
)
from skfleet.estimators.pipeline._first_steps import FirstSteps, RefitFirstSteps, TransformedParts
from skfleet.estimators.pipeline._fit import FittedSteps
from skfleet.estimators.pipeline._splits import shares_passes

__all__ = [
    "DividedPipeline",
    "FirstSteps",
    "FittedSteps",
    "RefitFirstSteps",
    "TransformedParts",
    "fit_last_step",
    "fit_on_gathered_rows",
    "joined_pipeline",
    "shares_passes",
]
