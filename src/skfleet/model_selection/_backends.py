"""The joblib backend that makes the fits of model selection: a fleet, or this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import joblib
from joblib.parallel import ParallelBackendBase

from skfleet._config import config_context
from skfleet._doc_link import is_own
from skfleet.engine import device_of, fit_on_gpu_worker, fleet_engine
from skfleet.model_selection._dispatch._sequential_fits import SequentialFits


def joblib_backend() -> Any:
    """Return the joblib backend in use, or the name of the default one."""
    with joblib.parallel_config() as config:
        return config["backend"]


def planning_backend(n_jobs: int | None) -> Any:
    """Return the joblib backend if it plans the fits of a call; None with n_jobs=1."""
    backend = joblib_backend()
    is_planned = getattr(backend, "supports_fit_planning", False)
    return backend if is_planned and joblib.effective_n_jobs(n_jobs) != 1 else None


def fleet_backend() -> AbstractContextManager[Any]:
    """Make the fleet joblib's backend, unless an enclosing context has set a backend."""
    has_backend = isinstance(joblib_backend(), ParallelBackendBase)
    return nullcontext() if has_backend else joblib.parallel_config("skfleet")


@contextmanager
def sequential_fits(n_jobs: int | None) -> Iterator[None]:
    """Make fits on Dask rows, or with validation rows, in this process if a fleet does not.

    That is so with ``n_jobs=1``, and within a task where all workers are busy.
    """
    if planning_backend(n_jobs) is not None:
        yield
        return
    backend = joblib_backend()
    if joblib.effective_n_jobs(n_jobs) != 1:
        raise ValueError(
            "early_stopping must be used with fits that a fleet makes, or this process. Got "
            f"n_jobs={n_jobs} with joblib's {type(backend).__name__} instead. Set "
            'n_jobs=1, or use parallel_config("skfleet").'
        )
    with joblib.parallel_config(SequentialFits(backend)):
        yield


def fit_on_device(estimator: Any, X: Any, *args: Any, **params: Any) -> Any:
    """Fit an estimator in this process, or on a GPU worker if it needs one; return the fitted."""
    backend = None
    if device_of(estimator) == "cuda" and not is_own(estimator):  # which finds one itself
        backend = planning_backend(None)
    if backend is None:
        return estimator.fit(X, *args, **params)
    with config_context(device="cuda"):
        engine = fleet_engine(backend.client)
    return fit_on_gpu_worker(engine, estimator, X, args, params)
