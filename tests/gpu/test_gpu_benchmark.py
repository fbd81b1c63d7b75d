"""The benchmark on a GPU, tried with NumPy in place of CuPy and scikit-learn in place of cuML."""

import json
import subprocess
import sys
import types
from dataclasses import replace
from types import SimpleNamespace

import bench_large_svd
import numpy as np
import pytest
import record_gpu
from gpu_cases import large, machine, run, searches
from gpu_cases.machine import TRIAL, Machine
from sklearn import cluster, decomposition, linear_model

import gpu
from skfleet import Fleet

pytestmark = pytest.mark.slow

SIZES = replace(TRIAL, repeats=1, patience=0.5)


@pytest.fixture
def record(tmp_path):
    path = tmp_path / "gpu-bench-1.json"
    record_gpu.write(path, {"cases": {}})
    return path


def entries(path, case):
    return {entry["who"]: entry for entry in json.loads(path.read_text())["cases"][case]["entries"]}


@pytest.fixture
def one_process(monkeypatch):
    """No processes, of joblib or of a fleet."""
    monkeypatch.setattr(searches, "n_cores", lambda: 1)
    labels = [{"CPU": 1.0}, {"GPU": 1.0}]
    here = {"n_workers": 2, "processes": False, "dashboard_address": None}
    monkeypatch.setattr(Machine, "gpu_fleet", lambda self: Fleet(resources=labels, **here))
    monkeypatch.setattr(Machine, "cpu_fleet", lambda self: Fleet(**here))


class _KMeansOfCuml(cluster.KMeans):
    """One that takes no tolerance of 0, as cuML's takes none."""

    def fit(self, X, y=None):
        assert self.tol > 0
        return super().fit(X)


@pytest.fixture
def stand_in(monkeypatch, one_process):
    """A machine that takes NumPy for the library of a device, and scikit-learn for cuML."""
    library = types.ModuleType("stand_in")
    library.__getattr__ = lambda name: getattr(np, name)
    library.cuda = SimpleNamespace(Device=lambda: SimpleNamespace(synchronize=lambda: None))
    library.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    library.random = SimpleNamespace(Philox4x3210=np.random.Philox, Generator=np.random.Generator)
    cuml = types.ModuleType("cuml")
    for source in (linear_model, decomposition, cluster):
        for name in ("Ridge", "LogisticRegression", "PCA", "KMeans"):
            if hasattr(source, name):
                setattr(cuml, name, getattr(source, name))
    cuml.KMeans = _KMeansOfCuml
    rmm = types.ModuleType("rmm")
    rmm.mr = SimpleNamespace(
        set_current_device_resource=lambda resource: None, CudaAsyncMemoryResource=object
    )
    for module in (library, cuml, rmm):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(machine, "FULL", TRIAL)
    monkeypatch.setattr(Machine, "on_gpu", {})
    return Machine("stand_in")


WITHOUT_CUML = [
    pytest.param(case, marks=[pytest.mark.slow] if case in ("svd", "search", "accel") else [])
    for case in gpu.CASES
]


@pytest.mark.parametrize("case", WITHOUT_CUML)
def test_every_case_runs_without_a_device_or_cuml(case, record, one_process):
    gpu.run_case(case, record, Machine("numpy"), SIZES)
    found = entries(record, case)
    errors = {who: entry["error"] for who, entry in found.items() if "error" in entry}
    assert set(errors.values()) <= {"not installed"}
    assert not [entry for entry in found.values() if "error_in_comparison" in entry]
    assert any("seconds" in entry for entry in found.values())


@pytest.mark.parametrize("case", ["ridge", "logistic", "kmeans", "pca", "search"])
def test_compares_with_cuml(case, record, stand_in):
    gpu.run_case(case, record, stand_in, SIZES)
    found = entries(record, case)
    assert not [e for e in found.values() if "error" in e or "error_in_comparison" in e]
    assert json.loads(record.read_text())["cases"][case]["allocator"] == "RMM, cudaMallocAsync"
    if case == "search":
        assert len(found["GPU fleet, cuML logistic, 28 KB"]["mean_test_scores"]) == 10
        apart = found["scores apart from scikit-learn's, Ridge, 140 rows"]
        assert apart["GPU fleet, skfleet Ridge"] < 1e-3
        return
    assert found["skfleet"]["floor_reading"] > 0
    assert found["skfleet"]["passes"] >= 1
    assert found["skfleet, times as fast as"]["cuml"] > 0
    theirs = found["cuml"]
    if case in ("ridge", "pca"):
        assert theirs.get("coef_apart", theirs.get("variances_apart")) < 1e-4
    elif case == "kmeans":
        assert theirs["n_iter"] == found["skfleet"]["n_iter"] == SIZES.n_iter
        assert theirs["skfleets_inertia_over"] == pytest.approx(1, abs=1e-5)
        assert 0.8 < found["cuml, own start"]["skfleets_inertia_over"] < 1.25
        assert found["skfleet, own start, times as fast as"]["cuml, own start"] > 0
    else:
        assert theirs["objective"] == pytest.approx(found["skfleet"]["objective"], abs=1e-4)
    sliced = found["skfleet to scikit-learn, on a slice"]
    apart = ("coef_apart", "variances_apart", "centers_apart")
    assert max(sliced.get(name, 0) for name in apart) < 1e-3


@pytest.mark.gpu
def test_primitives_on_a_device(record, monkeypatch):
    monkeypatch.setattr(machine, "FULL", TRIAL)
    gpu.run_case("primitives", record, Machine("cupy"), SIZES)
    timed = entries(record, "primitives")
    assert not [e for e in timed.values() if "error" in e or "error_in_comparison" in e]
    assert max(entry.get("from_float64", 0) for entry in timed.values()) < 1e-5
    assert {"first pass of a classifier", "upload of page-locked memory"} <= timed.keys()


def test_the_mean_of_squares_is_of_as_many_bytes(record, stand_in):
    gpu.run_case("squares", record, stand_in, SIZES)
    found = entries(record, "squares")["stand_in, one task at a time"]
    assert found["bytes"] == SIZES.squares_bytes
    assert found["mean"] == pytest.approx(1, abs=0.01)


@pytest.fixture
def few_prototypes(monkeypatch):
    monkeypatch.setattr(bench_large_svd, "N_PROTOTYPES", 200)
    for cached in (bench_large_svd.prototypes, large._table):
        cached.cache_clear()
    yield
    for cached in (bench_large_svd.prototypes, large._table):
        cached.cache_clear()


def test_large_svd_is_exact_and_says_what_was_measured(record, stand_in, few_prototypes):
    # which is bounded by its rows, however slow the machine
    gpu.run_case("svd", record, stand_in, replace(SIZES, patience=600))
    found = entries(record, "svd")
    whole = found["uint8, 4,000 rows"]
    assert whole["error_of_values"] < 1e-8
    assert whole["scaled_by"] == 10_000_000 * 20_000 / (4_000 * 64)
    assert "NumPy on all cores, 1,000 rows" in found


def test_genotypes_are_those_of_the_benchmark_on_the_cpu(few_prototypes):
    ours = large.genotypes("numpy", 1_100, 16, 500)
    theirs = bench_large_svd.genotypes(1_100, 16, 550, 16)
    assert ours.chunks[0] == (500, 500, 100)
    np.testing.assert_array_equal(ours.compute(), theirs.compute())


@pytest.fixture
def trial():
    kept = []
    return run.Run("a case", Machine("numpy"), SIZES, kept.append), kept


def broken(*args):
    raise ValueError("no\nmore")


def test_an_error_is_kept_and_the_next_goes_on(trial):
    one, kept = trial
    assert one.timed("first", broken, bytes=3) is None
    assert one.timed_share("second", broken, broken, 10) is None
    assert one.timed("third", lambda: 5, broken) == 5
    assert [entry["who"] for entry in kept] == ["first", "second", "third"]
    assert kept[0]["error"] == kept[1]["error"] == "ValueError: no"
    assert kept[0]["bytes"] == 3
    assert kept[2]["seconds"] >= 0
    assert kept[2]["error_in_comparison"] == "ValueError: no"
    one.ratios("third", ["first", "second"])  # of which there are no times
    assert len(kept) == 3


def test_an_error_outside_of_what_is_timed_ends_the_case_alone(record, monkeypatch):
    monkeypatch.setitem(gpu.CASES, "ridge", broken)
    gpu.run_case("ridge", record, Machine("numpy"), SIZES)
    assert entries(record, "ridge")["the case"]["error"] == "ValueError: no"


def test_a_share_is_scaled_up_and_says_so(trial, monkeypatch):
    one, kept = trial
    now = [0.0]
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def work(n):
        now[0] += 0.1 + n * 1e-4

    one.timed_share("share", lambda n: n, work, 300_000, step=300)
    (entry,) = kept
    # 3,600 rows take 0.46 seconds; four times as many would take more than the half that is allowed
    assert entry["measured_rows"] == 3_600
    assert entry["measured_seconds"] == pytest.approx(0.46)
    assert entry["seconds"] == pytest.approx(30.1)
    assert entry["scaled_by"] == pytest.approx(30.1 / 0.46)
    one.timed_share("all", lambda n: n, work, 1_200)
    assert kept[-1]["seconds"] == pytest.approx(0.22)
    assert "scaled_by" not in kept[-1]
    one.timed_share("no more", lambda n: n, work, 10_000, most=1_500)
    assert kept[-1]["measured_rows"] == 1_500
    one.timed_share("at once too long", lambda n: n, work, 10_000, step=5_000)
    assert kept[-1]["seconds"] == pytest.approx(1.2)


def test_first_call_is_the_only_one_where_it_takes_long(monkeypatch):
    now = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0])
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    numpy = Machine("numpy")
    assert numpy.best_of(lambda: 3, 5, 4.0) == (5.0, 5.0, 1, 3)
    assert numpy.best_of(lambda: 3, 1, 4.0) == (1.0, 2.0, 1, 3)


def command(tmp_path, *args):
    code = [sys.executable, gpu.__file__, "--xp", "numpy", "--out", str(tmp_path), *args]
    done = subprocess.run(code, capture_output=True, text=True)
    (path,) = tmp_path.glob("gpu-bench-*.json")
    return done, json.loads(path.read_text())


def test_the_command_writes_the_heading_and_a_process_for_each_case(tmp_path):
    done, found = command(tmp_path, "--only", "ridge", "pca")
    assert done.returncode == 0, done.stderr
    assert list(found["cases"]) == ["ridge", "pca"]
    assert found["device"] == "none: a trial with NumPy"
    assert found["device_files"] == record_gpu.device_files()
    assert found["sizes"]["n_rows"] == TRIAL.n_rows
    assert found["seconds"] > 0
    assert "skfleet" in done.stdout


def test_a_case_that_takes_too_long_is_ended_and_noted(tmp_path):
    done, found = command(tmp_path, "--only", "ridge", "--limit", "0.01")
    assert done.returncode == 1
    assert found["cases"]["ridge"]["entries"][-1]["error"] == "took more than 0.01 seconds"
    assert "with errors: ridge" in done.stdout


def test_what_has_no_time_left_is_noted(tmp_path):
    done, found = command(tmp_path, "--only", "ridge", "pca", "--seconds", "1")
    assert done.returncode == 1
    assert found["sizes"]["patience"] == pytest.approx(1 / 60)
    assert found["cases"]["pca"]["entries"][-1]["error"] == "not run: no time left"
    assert found["seconds"] < 60


def test_refuses_without_a_device(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(SystemExit, match="need CuPy"):
        gpu.main(["--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
