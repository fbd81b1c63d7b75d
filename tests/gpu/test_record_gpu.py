"""The record of a run of the GPU tests, without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

PLUGIN = Path(__file__).parents[2] / "benchmarks" / "record_gpu.py"
SOURCES = {
    "_array.py": "x = 1",
    "glm/_losses.py": "y = 1",
    "fleet.py": "# workers with a GPU",
    "_progress.py": "z = 1",
    "estimators/nearest.cu": "__global__ void assign()",
}


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("record_gpu", PLUGIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


@pytest.fixture
def sources(tmp_path):
    for name, content in SOURCES.items():
        path = tmp_path / "src" / "skfleet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path / "src" / "skfleet"


def report(name, when, outcome, longrepr=None, **more):
    return SimpleNamespace(
        nodeid=name, when=when, outcome=outcome, duration=0.25, longrepr=longrepr, **more
    )


def written(plugin):
    (path,) = plugin.RESULTS.glob("gpu-*.json")
    return json.loads(path.read_text())


def test_outcomes_are_written(plugin):
    record = plugin.Record({"device": "a device"})
    record.pytest_runtest_logreport(report("a", "setup", "passed"))
    record.pytest_runtest_logreport(report("a", "call", "passed"))
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="ValueError: no\nmore"))
    record.pytest_runtest_logreport(report("b", "call", "failed", crash))
    record.pytest_runtest_logreport(report("c", "setup", "failed", "E   lost"))
    skip = ("file.py", 3, "Skipped: no cuML")
    record.pytest_runtest_logreport(report("d", "setup", "skipped", skip))
    record.pytest_runtest_logreport(report("e", "call", "skipped", "", wasxfail="later"))
    record.pytest_collectreport(report("f.py", "", "failed", "tried\nImportError: g"))
    record.pytest_sessionfinish(1)
    content = written(plugin)
    assert content["device"] == "a device"
    assert content["exit"] == "tests failed"
    assert content["seconds"] >= 0
    assert content["counts"] == {"failed": 2, "passed": 1, "skipped": 2}
    assert content["tests"]["a"] == {"outcome": "passed", "seconds": 0.25}
    reasons = {name: content["tests"][name]["reason"] for name in "bcde"}
    assert reasons == {
        "b": "ValueError: no",
        "c": "E   lost",
        "d": "no cuML",
        "e": "expected to fail: later",
    }
    assert content["collection"] == {"f.py": {"outcome": "failed", "reason": "ImportError: g"}}
    assert "numpy" in content["versions"]
    assert "src/skfleet/_array.py" in content["device_files"]


def test_what_is_written_on_the_way_stays(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "SECONDS_BETWEEN_WRITES", 0)
    record = plugin.Record({"device": "a device"})
    record.pytest_runtest_logreport(report("a", "call", "passed"))
    assert written(plugin)["exit"] == "not ended"
    assert list(written(plugin)["tests"]) == ["a"]


RUNS = {
    "tests failed": "import pytest\ndef test_a(): assert 0\ndef test_b(): pytest.skip('why')",
    "interrupted": "def test_a(): pass\ndef test_b(): raise KeyboardInterrupt",
    "interrupted ": "def test_a(: pass",  # which does not even compile
    "no tests collected": "",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ending", RUNS)
def test_a_run_of_pytest_leaves_a_record_however_it_ends(tmp_path, ending):
    (tmp_path / "recording.py").write_text(
        "import record_gpu as plugin, pathlib\n"
        "plugin.RESULTS = pathlib.Path(__file__).parent / 'results'\n"
        "plugin.device = lambda: {'device': 'none'}\n"
    )
    (tmp_path / "test_it.py").write_text(RUNS[ending])
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    code = "import sys; sys.path[:0] = sys.argv[1].split(); import pytest; "
    code += "sys.exit(pytest.main(sys.argv[2:]))"
    paths = f"{tmp_path} {PLUGIN.parent}"
    args = ["-q", "-p", "recording", "-p", "record_gpu", "-p", "no:cacheprovider", "."]
    subprocess.run([sys.executable, "-c", code, paths, *args], cwd=tmp_path, capture_output=True)
    (path,) = (tmp_path / "results").glob("gpu-*.json")
    content = json.loads(path.read_text())
    assert content["exit"] == ending.strip()
    if ending == "tests failed":
        assert content["tests"]["test_it.py::test_b"]["reason"] == "why"
    elif ending == "interrupted":
        assert "KeyboardInterrupt" in content["interrupted"]
        assert list(content["tests"]) == ["test_it.py::test_a"]
    elif ending == "interrupted ":
        assert content["collection"]["test_it.py"]["outcome"] == "failed"


@pytest.mark.slow
def test_tests_at_a_time_leave_one_record_in_the_folder_of_the_environment(tmp_path):
    pytest.importorskip("xdist")
    (tmp_path / "recording.py").write_text(
        "import record_gpu\nrecord_gpu.device = lambda: {'device': 'none'}\n"
    )
    (tmp_path / "test_it.py").write_text("def test_a(): pass\ndef test_b(): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    args = ["-q", "-n", "2", "-p", "recording", "-p", "record_gpu", "-p", "no:cacheprovider", "."]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, [tmp_path, PLUGIN.parent])),
        "SKFLEET_GPU_RESULTS": str(tmp_path / "records"),
    }
    command = [sys.executable, "-m", "pytest", *args]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    (path,) = (tmp_path / "records").glob("gpu-*.json")
    assert json.loads(path.read_text())["counts"] == {"passed": 2}


def test_refuses_without_cupy(plugin, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(pytest.UsageError, match="need CuPy"):
        plugin.device()


class _CudaError(RuntimeError):
    pass


def _cupy(properties):
    """Stand in for what CuPy tells of a device."""
    runtime = SimpleNamespace(
        CUDARuntimeError=_CudaError,
        getDeviceProperties=properties,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 12090,
    )
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


def test_refuses_without_a_device(plugin, monkeypatch):
    def no_device(number):
        raise _CudaError("cudaErrorNoDevice")

    monkeypatch.setitem(sys.modules, "cupy", _cupy(no_device))
    with pytest.raises(pytest.UsageError, match=r"need a CUDA device \(cudaErrorNoDevice\)"):
        plugin.device()


def test_what_cupy_tells_of_the_device(plugin, monkeypatch):
    found = {"name": b"A GPU", "totalGlobalMem": 2**30, "major": 9, "minor": 0}
    monkeypatch.setitem(sys.modules, "cupy", _cupy(lambda number: found))
    assert plugin.device() == {
        "device": "A GPU",
        "device_memory_bytes": 2**30,
        "compute_capability": "9.0",
        "cuda_driver": "13.0",
        "cuda_runtime": "12.9",
    }


@pytest.mark.parametrize("told", ["", "abc"])
def test_commit_of_a_copy_without_history(plugin, monkeypatch, tmp_path, told):
    monkeypatch.setenv("SKFLEET_COMMIT", told)
    monkeypatch.setattr(plugin, "ROOT", tmp_path)
    assert plugin.commit() == (told or "unknown")
    monkeypatch.setenv("PATH", "")  # and without git
    assert plugin.commit() == (told or "unknown")


def test_commit_is_not_that_of_a_folder_around(plugin, monkeypatch, tmp_path):
    monkeypatch.delenv("SKFLEET_COMMIT", raising=False)
    monkeypatch.setattr(plugin, "ROOT", PLUGIN.parent)
    assert plugin.commit() == "unknown"


def test_device_files_are_chosen_by_rule(plugin, sources):
    files = plugin.device_files(sources.parents[1])
    assert list(files) == [
        "src/skfleet/_array.py",
        "src/skfleet/estimators/nearest.cu",
        "src/skfleet/fleet.py",
        "src/skfleet/glm/_losses.py",
    ]
    (sources / "fleet.py").write_text("# workers with two GPUs")
    again = plugin.device_files(sources.parents[1])
    assert {name for name in files if files[name] != again[name]} == {"src/skfleet/fleet.py"}


def test_nothing_to_say_of_the_same_sources(plugin, sources):
    files = plugin.device_files(sources.parents[1])
    assert plugin.stale_because({"device_files": files}, files) is None


def test_says_what_changed_is_new_and_is_gone(plugin):
    then = {"src/skfleet/a.py": "1", "src/skfleet/b.py": "1", "src/skfleet/c.py": "1"}
    now = {"src/skfleet/a.py": "1", "src/skfleet/b.py": "2", "src/skfleet/d.py": "1"}
    said = plugin.stale_because({"commit": "abc", "device_files": then}, now)
    assert said == (
        "The GPU tests last ran on other sources (abc). changed: b.py; new: d.py; gone: c.py"
    )
    many = {f"src/skfleet/{i}.py": "1" for i in range(10)}
    assert "7.py and 2 more" in plugin.stale_because({}, many)


def test_says_that_there_is_no_record(plugin):
    assert plugin.newest_record() is None
    assert plugin.stale_because(None, {}) == "No run of the GPU tests is on record."


def test_writes_numbers_of_other_libraries(plugin, tmp_path):
    content = {"a": np.float32(0.5), "b": np.array([2]), "c": np.arange(2)}
    plugin.write(tmp_path / "deep" / "gpu-1.json", content)
    assert plugin.read(tmp_path / "deep" / "gpu-1.json") == {"a": 0.5, "b": 2, "c": "[0 1]"}


@pytest.mark.parametrize("content", ["{", "[]", '{"commit": "abc"}'])
def test_reads_what_can_be_read(plugin, tmp_path, content):
    path = tmp_path / "gpu-20260101-000000.json"
    path.write_text(content)
    assert plugin.read(path) == ({"commit": "abc"} if "abc" in content else None)
    assert plugin.read(tmp_path / "missing.json") is None


def test_newest_record_is_one_of_the_tests(plugin, tmp_path):
    for name in ("gpu-20260102-000000", "gpu-20260101-000000", "gpu-bench-20260103-000000"):
        (tmp_path / f"{name}.json").write_text("{}")
    assert plugin.newest_record(tmp_path).name == "gpu-20260102-000000.json"


# The mark comes after the settings that make errors of warnings: this test never fails.
@pytest.mark.filterwarnings("always")
def test_warns_if_the_sources_changed_since_the_last_run_on_a_gpu(plugin):
    newest = plugin.newest_record(PLUGIN.parent / "results")
    said = plugin.stale_because(plugin.read(newest), plugin.device_files())
    if said:
        warnings.warn(f"{said} Run make test-gpu.", plugin.StaleRecordWarning, stacklevel=1)
