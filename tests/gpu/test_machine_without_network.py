"""The GPU tests and benchmarks on a machine on which nothing can be installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# a plugin that hides libraries
ABSENT = """
import sys, importlib.util

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def find_spec(name, *args, before=importlib.util.find_spec):
    return None if name in {names!r} else before(name, *args)

sys.meta_path.insert(0, Absent())
importlib.util.find_spec = find_spec
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    ("target", "program"),
    {"test-gpu": "-m pytest -p record_gpu", "bench-gpu": "benchmarks/gpu.py"}.items(),
)
def test_targets_without_set_up(target, program):
    def plan(*args):
        command = ["make", "-n", target, "VENV=no-such-folder", "ARGS=--some", *args]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert ".ci/setup" in plan()
    assert f"no-such-folder/bin/python {program}" in plan()
    without = plan("NO_SETUP=1")
    assert ".ci/setup" not in without
    assert f"{ROOT}/src:" in without
    assert re.search(f" python3 {program} .*--some", without)
    assert f" /opt/python {program}" in plan("NO_SETUP=1", "GPU_PYTHON=/opt/python")


@pytest.mark.slow
def test_tests_are_collected_without_optional_libraries(tmp_path):
    names = {"array_api_strict", "lightgbm", "matplotlib", "numpydoc", "optuna", "rich"}
    names |= {"skorch", "torch", "xgboost"}
    (tmp_path / "absent.py").write_text(ABSENT.format(names=names))
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, "-m", "pytest", "-p", "absent", "-p", "no:cacheprovider"]
    command += ["--collect-only", "-q", "-m", "gpu", "tests"]
    run = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-20_000:]
    (n_tests,) = re.findall(r"(\d+)/\d+ tests collected", run.stdout)
    assert int(n_tests) > 390
