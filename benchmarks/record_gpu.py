"""What a run of the GPU tests leaves behind: the machine, the versions, each test's outcome.

A pytest plugin, loaded by ``make test-gpu``. It refuses to run without CuPy and a CUDA device, so
that skipped tests are never taken for passed ones.
"""

from __future__ import annotations

import json
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent / "results"
PACKAGES = ["scikit-fleet", "scikit-learn", "numpy", "scipy", "dask", "distributed"]
PACKAGES += ["cupy-cuda13x", "cupy-cuda12x", "cuml-cu13", "dask-cuda", "xgboost"]


def versions() -> dict[str, str]:
    """Return the versions of what is installed among the packages that matter."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device() -> str:
    """Return the name of the first CUDA device, or end the run with what is missing."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    except ImportError:
        missing = "CuPy (pip install '.[gpu]', or only cupy-cuda13x)"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        missing = f"a CUDA device ({error})"
    raise pytest.UsageError(f"The GPU tests need {missing}.")


def commit() -> str:
    """Return the commit under test, marked where files differ from it."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return run.stdout.strip() or "unknown"


class Record:
    """Collects the outcome of each test, and writes them when the run ends."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.tests: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of the call, or of a set-up or tear-down that did not pass."""
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.nodeid] = {
                "outcome": report.outcome,
                "seconds": round(report.duration, 3),
            }

    def pytest_sessionfinish(self) -> None:
        """Write what was collected."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / time.strftime("gpu-%Y%m%d-%H%M%S.json", time.gmtime())
        outcomes = [test["outcome"] for test in self.tests.values()]
        content = {
            "commit": commit(),
            "device": self.device,
            "versions": versions(),
            "counts": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
            "tests": self.tests,
        }
        path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"\nwrote {path}")


def pytest_configure(config: pytest.Config) -> None:
    """Start recording."""
    config.pluginmanager.register(Record(device()), "record_gpu")
