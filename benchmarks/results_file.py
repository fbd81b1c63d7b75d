"""Files of results in ``benchmarks/results``, which the pictures of the documentation read."""

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ["scikit-fleet", "scikit-learn", "numpy", "dask", "distributed", "joblib"]


def heading(command, note="", packages=()):
    """Return what a file of results begins with: when, by what, on which machine and versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "note": note,
        "cores": os.cpu_count(),
        "load_before": load(),
        "versions": versions([*PACKAGES, *packages]),
    }


def load():
    """Return the load of the machine in the last minute: how many processes want a core."""
    return round(os.getloadavg()[0], 1)


def versions(packages):
    """Return the version of Python, and of those packages that are installed."""
    numbers = {"python": platform.python_version()}
    for package in packages:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            continue
    return numbers


def write(path, content):
    """Write results, with a line for each list of numbers and each small entry."""
    path.write_text(_text(content) + "\n", encoding="utf-8")


def _text(value, indent=""):
    flat = json.dumps(value)
    if len(indent) + len(flat) <= 120 or not isinstance(value, (dict, list)) or not value:
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key))}: {_text(part, inner)}" for key, part in value.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _text(part, inner) for part in value) + f"\n{indent}]"
