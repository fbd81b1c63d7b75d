"""Your scikit-learn code, on a fleet of CPU and GPU workers."""

import importlib
from typing import TYPE_CHECKING, Any

import joblib

from skfleet._config import config_context, get_config

if TYPE_CHECKING:  # what __getattr__ gives, for completion and type checkers
    from skfleet import datasets, engine, estimators, exceptions, metrics, model_selection
    from skfleet._show_versions import show_versions
    from skfleet.fleet import Fleet

__version__ = "0.1.0.dev0"

__all__ = [
    "Fleet",
    "__version__",
    "config_context",
    "datasets",
    "engine",
    "estimators",
    "exceptions",
    "get_config",
    "metrics",
    "model_selection",
    "show_versions",
]

# Where the names are that are imported when they are first asked for; None for a module itself.
_HOMES = {
    "Fleet": "skfleet.fleet",
    "show_versions": "skfleet._show_versions",
    **dict.fromkeys(
        ("datasets", "engine", "estimators", "exceptions", "metrics", "model_selection")
    ),
}


if not TYPE_CHECKING:  # to whom every name would be one of the package

    def __getattr__(name: str) -> Any:
        """Import rooms, and the cluster libraries under ``Fleet``, when first asked for."""
        if name not in _HOMES:
            raise AttributeError(f"module 'skfleet' has no attribute {name!r}")
        home = _HOMES[name]
        if home is None:
            return importlib.import_module(f"skfleet.{name}")
        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return sorted(__all__)


def _joblib_backend(**params: Any) -> Any:
    """Make the joblib backend; only then are the cluster libraries imported."""
    return importlib.import_module("skfleet.joblib_backend").FleetBackend(**params)


joblib.register_parallel_backend("skfleet", _joblib_backend)
