"""The tests for a GPU, on a stand-in for CuPy: NumPy behind its signatures, kernels emulated."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "tests" / "stand_ins"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("cupy") is not None, reason="there is CuPy: make test-gpu")
@pytest.mark.skipif(shutil.which("g++") is None, reason="kernels need g++")
def test_what_needs_a_gpu_passes_on_a_stand_in():
    places = [STAND_INS / "kernels", STAND_INS / "cupy_on_numpy", os.environ.get("PYTHONPATH")]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    env["PYTHONPATH"] = os.pathsep.join(str(place) for place in places if place)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-20_000:]
    (n_passed,) = re.findall(r"(\d+) passed", run.stdout)
    assert int(n_passed) > 300
