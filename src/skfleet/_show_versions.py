"""Versions of Python, scikit-fleet and its dependencies, for bug reports."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import psutil
from threadpoolctl import threadpool_info

_REQUIRED = (
    "scikit-fleet", "scikit-learn", "numpy", "scipy", "joblib", "dask", "distributed", "pandas",
    "pyarrow", "fsspec", "array-api-compat", "threadpoolctl", "psutil", "cryptography",
)  # fmt: skip
_OPTIONAL = (
    "cupy-cuda13x", "cuml-cu13", "dask-cuda", "rmm-cu13", "xgboost", "xgboost-cpu", "lightgbm",
    "optuna", "numba", "torch", "matplotlib", "rich", "bokeh",
)  # fmt: skip


def show_versions() -> None:
    """Print versions of Python, this library and its dependencies, and the size of the machine.

    No dependency is imported for it, and workers of a fleet are not included.

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
    required = {name: _version_of(name) or "missing" for name in _REQUIRED}
    optional = {name: text for name in _OPTIONAL if (text := _version_of(name))}
    pools = {
        f"{pool['user_api']} ({pool['internal_api']})": f"{pool['num_threads']} threads, version "
        f"{pool['version']}"
        for pool in threadpool_info()
    }
    _print("System", system)
    _print("Python dependencies", required)
    _print("Optional", optional)
    _print("Thread pools", pools)


def _cores() -> set[int] | range:
    """Return the cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _version_of(name: str) -> str | None:
    """Return the version of a distribution, None if it is not installed."""
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
