"""Versions of all that work depends on, as text for a report of what went wrong."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import psutil
from threadpoolctl import threadpool_info

__all__ = ["show_versions"]

_NEEDED = (
    "scikit-fleet", "scikit-learn", "numpy", "scipy", "joblib", "dask", "distributed", "pandas",
    "pyarrow", "fsspec", "array-api-compat", "threadpoolctl", "psutil",
)  # fmt: skip
_OPTIONAL = (
    "cupy-cuda13x", "cuml-cu13", "dask-cuda", "rmm-cu13", "xgboost", "xgboost-cpu", "lightgbm",
    "optuna", "numba", "torch", "matplotlib", "rich", "bokeh",
)  # fmt: skip


def show_versions() -> None:
    """Print versions of Python, of this library and of what it uses, and the machine's size.

    Nothing is imported for it but what is loaded already; workers of a fleet are not asked.

    See Also
    --------
    sklearn.show_versions : The same of scikit-learn.

    Examples
    --------
    >>> import skfleet
    >>> skfleet.show_versions()  # doctest: +ELLIPSIS
    <BLANKLINE>
    System:
        python: ...
    """
    system = {
        "python": sys.version.replace("\n", " "),
        "executable": sys.executable,
        "machine": platform.platform(),
        "cores": f"{len(_cores())} of {os.cpu_count()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
    }
    needed = {name: _version_of(name) or "missing" for name in _NEEDED}
    optional = {name: found for name in _OPTIONAL if (found := _version_of(name))}
    pools = {
        f"{pool['user_api']} ({pool['internal_api']})": f"{pool['num_threads']} threads, version "
        f"{pool['version']}"
        for pool in threadpool_info()
    }
    _print("System", system)
    _print("Python dependencies", needed)
    _print("Optional", optional)
    _print("Thread pools", pools)


def _cores() -> set[int] | range:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _version_of(name: str) -> str | None:
    """Return the version of a distribution that is installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _print(title: str, lines: dict[str, str]) -> None:
    """Print one section."""
    width = max(map(len, lines), default=0)
    print(
        f"\n{title}:", *(f"{key:>{width + 4}}: {value}" for key, value in lines.items()), sep="\n"
    )
