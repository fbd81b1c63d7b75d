"""The record of a run of the GPU tests, without a GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

PLUGIN = Path(__file__).parent.parent / "benchmarks" / "record_gpu.py"


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("record_gpu", PLUGIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def report(name, when, outcome):
    return SimpleNamespace(nodeid=name, when=when, outcome=outcome, duration=0.25)


def test_outcomes_are_written(plugin):
    record = plugin.Record("a device")
    record.pytest_runtest_logreport(report("a", "setup", "passed"))
    record.pytest_runtest_logreport(report("a", "call", "passed"))
    record.pytest_runtest_logreport(report("b", "call", "failed"))
    record.pytest_runtest_logreport(report("c", "setup", "failed"))
    record.pytest_sessionfinish()
    (path,) = plugin.RESULTS.glob("gpu-*.json")
    content = json.loads(path.read_text())
    assert content["device"] == "a device"
    assert content["counts"] == {"failed": 2, "passed": 1}
    assert content["tests"]["a"] == {"outcome": "passed", "seconds": 0.25}
    assert "numpy" in content["versions"]


def test_refuses_without_cupy(plugin, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(pytest.UsageError, match="need CuPy"):
        plugin.device()
