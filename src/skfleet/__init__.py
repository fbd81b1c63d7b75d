"""Your scikit-learn code, on a fleet of CPU and GPU workers."""

import importlib
from typing import Any

import joblib

from skfleet._config import config_context, get_config

__version__ = "0.1.0.dev0"

_submodules = ["engine", "estimators", "exceptions", "metrics", "model_selection"]

__all__ = ["Fleet", "__version__", "config_context", "get_config", *_submodules]


def __getattr__(name: str) -> Any:
    """Import rooms, and the cluster libraries under ``Fleet``, when they are first asked for."""
    if name in _submodules:
        return importlib.import_module(f"skfleet.{name}")
    if name == "Fleet":
        return importlib.import_module("skfleet.fleet").Fleet
    raise AttributeError(f"module 'skfleet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return sorted(__all__)


def _joblib_backend(**params: Any) -> Any:
    """Make the joblib backend; only then are the cluster libraries imported."""
    return importlib.import_module("skfleet.joblib_backend").FleetBackend(**params)


joblib.register_parallel_backend("skfleet", _joblib_backend)
