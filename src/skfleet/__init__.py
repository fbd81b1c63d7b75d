"""Your scikit-learn code, on a fleet of CPU and GPU workers."""

from typing import Any

import joblib

__version__ = "0.1.0.dev0"


def _joblib_backend(**params: Any) -> Any:
    """Make the joblib backend; only then are the cluster libraries imported."""
    from skfleet.joblib_backend import FleetBackend

    return FleetBackend(**params)


joblib.register_parallel_backend("skfleet", _joblib_backend)
