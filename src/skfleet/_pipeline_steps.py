"""The last step of a pipeline, and its first steps that are of this library."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from sklearn.pipeline import Pipeline

from skfleet._doc_link import is_own


def last_step(estimator: Any) -> Any:
    """Return the last step of a pipeline, and any other estimator itself."""
    has_steps = isinstance(estimator, Pipeline) and estimator.steps
    return estimator.steps[-1][1] if has_steps else estimator


# A class that is derived from Pipeline may fit its steps otherwise: below, it is one step.


def n_steps_of(estimator: Any) -> int:
    """Return the number of steps of a pipeline; another estimator is one step."""
    return len(estimator.steps) if type(estimator) is Pipeline else 1


def n_blockwise_steps(estimator: Any) -> int:
    """Return how many first steps of a pipeline are blockwise; another estimator is one step."""
    steps = [step for _, step in estimator.steps] if type(estimator) is Pipeline else [estimator]
    blockwise = list(takewhile(_is_blockwise, steps))
    return len(blockwise) if any(hasattr(step, "fit") for step in blockwise) else 0


def takes_dask_rows(estimator: Any) -> bool:
    """Return whether an estimator, and each step of a pipeline, is of this library."""
    return n_blockwise_steps(estimator) == n_steps_of(estimator)


def has_processes(estimator: Any) -> bool:
    """Return whether an estimator, or one inside, is fitted by processes on all machines."""
    return any(getattr(value, "_has_processes", False) for value in with_parameters(estimator))


def with_parameters(estimator: Any) -> list[Any]:
    """Return an estimator and the values of its parameters, those of estimators inside too."""
    inner = estimator.get_params().values() if hasattr(estimator, "get_params") else ()
    return [estimator, *inner]


def _is_blockwise(step: Any) -> bool:
    """Return whether a step of a pipeline is of this library, and so is fitted on Dask rows."""
    if step is None or step == "passthrough":
        return True
    # a wrapper of another library's estimator may fit it in one process
    return is_own(step) and not getattr(step, "_fits_on_local_rows", False)
