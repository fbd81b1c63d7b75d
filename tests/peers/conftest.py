"""Runs the suite of another project in a process of its own, with one of our plugins."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def run_suite(tmp_path):
    """Give a function that runs a suite, prints what failed, and counts what passed."""

    def run(plugin, suite, *options):
        # None of our own settings: their tests warn, and have markers of their own.
        config = tmp_path / "pytest.ini"
        config.write_text("[pytest]\n")
        paths = [str(HERE), str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-c", config, f"--rootdir={tmp_path}"),
                *("-p", "no:cacheprovider", "-W", "default", "-p", plugin, "--timeout=120"),
                *("--tb=no", *options, suite),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=850,
            check=False,
        )
        lines = done.stdout.splitlines()
        report = "\n".join(
            [line for line in lines if line.startswith(("FAILED", "ERROR"))] + lines[-1:]
        )
        print(report)
        counted = re.search(r"(\d+) passed", lines[-1] if lines else "")
        assert counted, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return int(counted[1]), report

    return run
