"""What a CUDA device makes of the estimators, the searches and arrays larger than its memory.

    python benchmarks/gpu.py [--quick] [--seconds N] [--only NAME ...] [--out FOLDER]

prints a table, and writes it to results/gpu-bench-*.json as it goes: with the machine, versions and
sources of ``make test-gpu``. Each case runs in a process of its own, so that none takes another
down. ``--xp numpy`` is a trial of the cases themselves, on few rows, without a device.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import record_gpu
from gpu_cases import accelerated, estimators, large, primitives, searches
from gpu_cases.machine import FULL, QUICK, TRIAL, Machine
from gpu_cases.run import Entry, Run, line

# In this order, so that a time limit takes the last ones.
CASES = {
    "primitives": primitives.primitives,
    "ridge": estimators.ridge,
    "kmeans": estimators.kmeans,
    "logistic": estimators.logistic,
    "search": searches.search,
    "accel": accelerated.accelerated,
    "pca": estimators.pca,
    "svd": large.svd,
    "squares": large.squares,
}
# With --seconds, what is repeated or extrapolated may take such a part of them.
PATIENCE_SHARE = 1 / 60


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases, each in its own process, or one of them here."""
    given = _parser().parse_args(argv)
    if given.into is not None:
        run_case(given.only[0], given.into, Machine(given.xp), _sizes(given))
        return 0
    trial = given.xp == "numpy"
    try:
        device = {"device": "none: a trial with NumPy"} if trial else record_gpu.device()
    except pytest.UsageError as error:
        sys.exit(str(error))
    folder = given.out or (Path(tempfile.mkdtemp()) if trial else record_gpu.RESULTS)
    path = folder / time.strftime("gpu-bench-%Y%m%d-%H%M%S.json", time.gmtime())
    sizes = asdict(_sizes(given))
    record = {**record_gpu.heading(), **device, "quick": given.quick, "sizes": sizes, "cases": {}}
    began = time.perf_counter()
    record_gpu.write(path, record)
    print(f"{device['device']}, {os.cpu_count()} cores, commit {record['commit']}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no case outlives us
    for name in given.only or CASES:
        left = given.seconds - (time.perf_counter() - began)
        _in_a_process(name, path, given, min(given.limit, left))
    record = record_gpu.read(path)
    record_gpu.write(path, {**record, "seconds": round(time.perf_counter() - began, 1)})
    print(f"wrote {path}")
    failed = [name for name, case in record["cases"].items() if _has_failed(case)]
    if failed:
        print(f"with errors: {', '.join(failed)}")
    return 1 if failed else 0


def run_case(name: str, path: Path, machine: Machine, sizes: Any) -> None:
    """Run one case here, and add each of its entries to the record as soon as it is there."""
    record = record_gpu.read(path)
    case = record["cases"].setdefault(name, {"entries": []})

    def keep(entry: Entry) -> None:
        case["entries"].append(entry)
        case["seconds"] = time.perf_counter() - began
        record_gpu.write(path, record)

    began = time.perf_counter()
    run = Run(name, machine, sizes, keep)
    try:
        rates = machine.rates
        case |= {
            "bytes_copied_a_second": rates.copy,
            "float32_operations_a_second": rates.gemm,
            "allocator": machine.allocator,
        }
        CASES[name](run)
    except Exception as error:
        run.failed("the case", error)


def _in_a_process(name: str, path: Path, given: argparse.Namespace, limit: float) -> None:
    """Run one case in a process, and note if it dies, takes too long, or has no time."""
    if limit <= 0:
        _note(name, path, "not run: no time left")
        return
    command = [sys.executable, __file__, "--only", name, "--into", str(path), "--xp", given.xp]
    command += ["--seconds", str(given.seconds)]
    command += ["--quick"] if given.quick else []
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    # workers of a fleet must find the modules of the cases as well
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    error = None
    try:
        code = process.wait(limit)
        error = None if code == 0 else f"the process ended with {code}"
    except subprocess.TimeoutExpired:
        error = f"took more than {limit:.3g} seconds"
    finally:
        _end(process)
    if error is not None:
        _note(name, path, error)


def _note(name: str, path: Path, error: str) -> None:
    """Add to the record what kept a case from its end."""
    record = record_gpu.read(path)
    entry = {"who": "the process", "error": error}
    record["cases"].setdefault(name, {"entries": []})["entries"].append(entry)
    record_gpu.write(path, record)
    print(line(name, entry), flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a case, and the workers that it started if they do not end by themselves."""
    if process.poll() is None:
        process.terminate()
    deadline = time.monotonic() + 5
    try:
        while time.monotonic() < deadline:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    except ProcessLookupError:
        pass  # nobody is left


def _has_failed(case: dict[str, Any]) -> bool:
    """Say whether there is any error in a case, other than that cuML is not installed."""
    errors = [entry["error"] for entry in case["entries"] if "error" in entry]
    compared = any("error_in_comparison" in entry for entry in case["entries"])
    return compared or any(error != "not installed" for error in errors)


def _sizes(given: argparse.Namespace) -> Any:
    """Return how large the cases are to be, and how long one thing may take."""
    sizes = TRIAL if given.xp == "numpy" else QUICK if given.quick else FULL
    return replace(sizes, patience=min(sizes.patience, PATIENCE_SHARE * given.seconds))


def _parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions")
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help="some cases")
    parser.add_argument("--out", type=Path, help="folder of the record")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for a case")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="seconds in all")
    parser.add_argument("--xp", default="cupy", choices=["cupy", "numpy"], help="array library")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
