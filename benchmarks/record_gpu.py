"""What a run on a GPU leaves behind: the machine, the versions, the sources, each outcome.

A pytest plugin, loaded by ``make test-gpu``. It refuses to run without CuPy and a CUDA device, so
that skipped tests are never taken for passed ones. ``gpu.py`` writes the same heading.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = Path(os.environ.get("SKFLEET_GPU_RESULTS") or Path(__file__).parent / "results")
PACKAGES = ["scikit-fleet", "scikit-learn", "numpy", "scipy", "dask", "distributed"]
PACKAGES += ["array-api-compat", "cupy-cuda13x", "cupy-cuda12x", "cuml-cu13", "cuml-cu12"]
PACKAGES += ["rmm-cu13", "dask-cuda", "xgboost", "xgboost-cu13"]
# What kernels and placement are made of. Other sources count if they speak of a GPU at all.
ROOMS = ["_array.py", "_linalg.py", "blocks", "engine", "inference"]
ROOMS += ["estimators", "glm", "metrics"]
OF_A_GPU = re.compile(rb"cuda|gpu|cupy|cuml", re.IGNORECASE)
# A run that is killed leaves what was written last.
SECONDS_BETWEEN_WRITES = 2.0


class StaleRecordWarning(UserWarning):
    """The newest record of the GPU tests is of other sources than these."""


def versions() -> dict[str, str]:
    """Return the versions of what is installed among the packages that matter."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def device() -> dict[str, Any]:
    """Describe the first CUDA device, or end the run with what is missing."""
    try:
        import cupy
    except ImportError:
        missing = "CuPy (pip install '.[gpu]', or only cupy-cuda13x)"
        raise pytest.UsageError(f"The GPU tests need {missing}.") from None
    runtime = cupy.cuda.runtime
    try:
        found = runtime.getDeviceProperties(0)
    except runtime.CUDARuntimeError as error:
        raise pytest.UsageError(f"The GPU tests need a CUDA device ({error}).") from None
    name = found["name"]
    return {
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "device_memory_bytes": int(found["totalGlobalMem"]),
        "compute_capability": f"{found['major']}.{found['minor']}",
        "cuda_driver": _dotted(runtime.driverGetVersion()),
        "cuda_runtime": _dotted(runtime.runtimeGetVersion()),
    }


def _dotted(number: int) -> str:
    """Write CUDA's number of a version, 13020, as 13.2."""
    return f"{number // 1000}.{number % 1000 // 10}"


def commit() -> str:
    """Return the commit under test, marked where files differ from it.

    A copy of the files without their history says what SKFLEET_COMMIT says, or "unknown".
    """
    try:
        top = _git("rev-parse", "--show-toplevel")
        # the history of a folder around a copy is not the copy's
        if top and Path(top).resolve() == ROOT.resolve():
            described = _git("describe", "--always", "--dirty", "--abbrev=12")
            if described:
                return described
    except (OSError, subprocess.SubprocessError):
        pass
    return os.environ.get("SKFLEET_COMMIT") or "unknown"


def _git(*args: str) -> str:
    """Return what git answers, nothing where it refuses."""
    run = subprocess.run(["git", *args], capture_output=True, text=True, cwd=ROOT, timeout=60)
    return run.stdout.strip() if run.returncode == 0 else ""


def device_files(root: Path | None = None) -> dict[str, str]:
    """Return the hash of every source whose change makes a record stale, by path, sorted."""
    root = ROOT if root is None else root
    package = root / "src" / "skfleet"
    found = {}
    for path in [*package.rglob("*.py"), *package.rglob("*.cu")]:
        content = path.read_bytes()
        if path.relative_to(package).parts[0] in ROOMS or OF_A_GPU.search(content):
            name = path.relative_to(root).as_posix()
            found[name] = hashlib.sha256(name.encode() + b"\0" + content).hexdigest()
    return dict(sorted(found.items()))


def heading() -> dict[str, Any]:
    """Return what every record begins with, but for the device."""
    files = device_files()
    return {
        "commit": commit(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "versions": versions(),
        "device_files_hash": hashlib.sha256("".join(files.values()).encode()).hexdigest(),
        "device_files": files,
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a record, or the next state of it, so that no reader finds half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(content, indent=1, default=_plain) + "\n")
    beside.replace(path)


def _plain(value: Any) -> Any:
    """Return a number of an array library as Python's own, anything else as text."""
    return value.item() if getattr(value, "size", 0) == 1 else str(value)


def newest_record(folder: Path | None = None) -> Path | None:
    """Return the newest record of the GPU tests, None where there is none."""
    folder = RESULTS if folder is None else folder
    return max(folder.glob("gpu-[0-9]*.json"), default=None, key=lambda path: path.name)


def read(path: Path | None) -> dict[str, Any] | None:
    """Return what a record holds, None where there is none that can be read."""
    try:
        content = json.loads(path.read_text()) if path is not None else None
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def stale_because(record: dict[str, Any] | None, files: dict[str, str]) -> str | None:
    """Say in few words in what the sources differ from those of a record; None where in nothing."""
    if record is None:
        return "No run of the GPU tests is on record."
    then = record.get("device_files", {})
    said = {
        "changed": sorted(f for f in files if f in then and files[f] != then[f]),
        "new": sorted(files.keys() - then.keys()),
        "gone": sorted(then.keys() - files.keys()),
    }
    parts = [f"{word}: {_few(names)}" for word, names in said.items() if names]
    if not parts:
        return None
    return f"The GPU tests last ran on other sources ({record.get('commit')}). " + "; ".join(parts)


def _few(names: list[str], most: int = 8) -> str:
    """Name some files, and count the others."""
    short = [name.removeprefix("src/skfleet/") for name in names]
    more = f" and {len(short) - most} more" if len(short) > most else ""
    return ", ".join(short[:most]) + more


class Record:
    """Collects the outcome of each test, and writes as it goes and when the run ends."""

    def __init__(self, device: dict[str, Any]) -> None:
        self.began = self.written = time.perf_counter()
        self.path = RESULTS / time.strftime("gpu-%Y%m%d-%H%M%S.json", time.gmtime())
        self.start = {**heading(), **device}
        self.ended: dict[str, Any] = {"exit": "not ended"}
        self.collection: dict[str, dict[str, str]] = {}
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that could not be read, or was skipped whole."""
        if report.outcome != "passed":
            said = {"outcome": report.outcome, "reason": _reason(report)}
            self.collection[report.nodeid] = said

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the outcome of the call, or of a set-up or tear-down that did not pass."""
        if report.when == "call" or report.outcome != "passed":
            said = {"outcome": report.outcome, "seconds": round(report.duration, 3)}
            reason = _reason(report)
            self.tests[report.nodeid] = {**said, "reason": reason} if reason else said
        if time.perf_counter() - self.written > SECONDS_BETWEEN_WRITES:
            self.write()

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note what ended the run early."""
        self.ended["interrupted"] = excinfo.exconly()

    def pytest_internalerror(self, excrepr: object) -> None:
        """Note what ended the run early."""
        self.ended["interrupted"] = _last_line(str(excrepr))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write what was collected; pytest comes here after errors and interruptions too."""
        known = {int(code): code.name.lower().replace("_", " ") for code in pytest.ExitCode}
        self.ended["exit"] = known.get(int(exitstatus), f"code {exitstatus}")
        self.write()
        print(f"\nwrote {self.path}")

    def write(self) -> None:
        """Write what is known so far."""
        self.written = time.perf_counter()
        outcomes = [test["outcome"] for test in self.tests.values()]
        content = {
            **self.start,
            **self.ended,
            "seconds": round(self.written - self.began, 1),
            "counts": {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
            "collection": self.collection,
            "tests": self.tests,
        }
        write(self.path, content)


def _reason(report: Any) -> str:
    """Return why a test was skipped or failed, in a line; nothing where it passed."""
    if report.outcome == "passed":
        return ""
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    said = report.longrepr
    if isinstance(said, tuple):  # of a skip: file, line, reason
        return str(said[2]).removeprefix("Skipped: ")
    crash = getattr(said, "reprcrash", None)
    return _first_line(crash.message) if crash is not None else _last_line(str(said))


def _first_line(text: str) -> str:
    """Return the first line, cut."""
    return text.strip().split("\n")[0][:300]


def _last_line(text: str) -> str:
    """Return the last line, cut."""
    return text.strip().split("\n")[-1][:300]


def pytest_configure(config: pytest.Config) -> None:
    """Start recording; with pytest-xdist in the process that hears of all tests."""
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Record(device()), "record of the GPU tests")
