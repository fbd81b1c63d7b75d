"""Which GPUs a fleet finds, and what it says where it finds none."""

import json
import os
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed import wait
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import Ridge as SklearnRidge

from skfleet import Fleet, config_context
from skfleet._cluster import scheduler_workers
from skfleet._device import DEVICE_MEMORY_VARIABLE
from skfleet.blocks import row_blocks
from skfleet.engine._dask import _block_locations
from skfleet.engine._dask._engine import DaskEngine
from skfleet.estimators import PCA, LogisticRegression, Ridge
from skfleet.exceptions import PlacementError
from skfleet.fleet import _gpu_workers, _worker_memory
from skfleet.fleet._gpu_workers import GpuDiscovery, find_gpus, select_gpus
from skfleet.model_selection import GridSearchCV


@pytest.fixture
def machine(monkeypatch):
    """Make a machine: how many GPUs its driver has (None for no driver), and the modules."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(n_gpus, modules=("cupy", "dask_cuda"), cupy_says=""):
        class NVMLError(Exception):
            pass

        def init():
            if n_gpus is None:
                raise NVMLError("Driver Not Loaded")

        driver = ModuleType("pynvml")
        driver.NVMLError, driver.nvmlInit, driver.nvmlShutdown = NVMLError, init, lambda: None
        driver.nvmlDeviceGetCount = lambda: n_gpus
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        monkeypatch.setattr(
            _gpu_workers, "find_spec", lambda name: name if name in modules else None
        )
        run = SimpleNamespace(returncode=int(bool(cupy_says)), stderr=f"Traceback\n{cupy_says}\n")
        monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: runs.append(args) or run)
        return runs

    monkeypatch.setattr(_gpu_workers, "_usable", set())
    runs = []
    return make


def test_all_gpus_are_found(machine, monkeypatch):
    machine(3)
    assert find_gpus() == GpuDiscovery(("0", "1", "2"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 0")
    assert find_gpus().devices == ("2", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,GPU-2")
    assert find_gpus().devices == ("MIG-1", "GPU-2")


def test_cupy_is_tried_until_it_works_and_then_no_more(machine, monkeypatch):
    for _ in range(2):
        runs = machine(2, cupy_says="CUDARuntimeError: out of memory")
        assert find_gpus().devices == ()
    assert len(runs) == 2
    machine(2)
    for _ in range(3):
        assert find_gpus().devices == ("0", "1")
    assert len(runs) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for _ in range(2):
        assert find_gpus().devices == ("1",)
    assert len(runs) == 4


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_left_alone(machine, monkeypatch, capsys, hidden):
    machine(3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert select_gpus("auto") == ()
    assert capsys.readouterr().err == ""
    with pytest.raises(PlacementError, match="hides them"):
        select_gpus(1)


@pytest.mark.parametrize(
    ("n_gpus", "modules", "cupy_says", "line"),
    [
        (2, (), "", "the driver has 2, but CuPy and dask-cuda cannot be imported"),
        (2, ("cupy",), "", "the driver has 2, but dask-cuda cannot be imported; pip install"),
        (1, ("cupy", "dask_cuda"), "CUDARuntimeError: no device", "(CUDARuntimeError: no device)"),
        (None, ("cupy", "dask_cuda"), "", "no NVIDIA driver answers (Driver Not Loaded)"),
        (0, ("cupy", "dask_cuda"), "", "the NVIDIA driver has no GPU"),
    ],
)
def test_one_line_says_why_no_gpu_is_used(machine, capsys, n_gpus, modules, cupy_says, line):
    machine(n_gpus, modules, cupy_says)
    assert select_gpus("auto") == ()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert told.startswith("scikit-fleet: no GPU is used: ")
    assert line in told
    with pytest.raises(PlacementError, match=r"GPUs of this machine\. Got 1 instead"):
        select_gpus(1)
    assert capsys.readouterr().err == ""


def test_without_cupy_nobody_expects_a_gpu(machine, monkeypatch, capsys):
    machine(None, ())
    assert select_gpus("auto") == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert select_gpus("auto") == ()
    assert capsys.readouterr().err == ""
    with pytest.raises(PlacementError, match="nvidia-ml-py cannot be imported"):
        select_gpus(1)


def test_gpus_are_chosen(machine):
    machine(3)
    assert select_gpus("auto") == ("0", "1", "2")
    assert select_gpus(2) == ("0", "1")
    assert select_gpus([2, "0"]) == ("2", "0")
    assert select_gpus(0) == ()
    for wrong in (4, [3], []):
        with pytest.raises(PlacementError, match="there are: 0, 1, 2"):
            select_gpus(wrong)
    for wrong in (-1, True, "all"):
        with pytest.raises(ValueError, match="gpus must be"):
            select_gpus(wrong)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_workers": 2, "gpus": 1}, "Got n_workers with them"),
        ({"resources": {"GPU": 1}, "cpus": 1}, "Got resources with them"),
        ({"processes": False, "cpus": 1}, "Got processes=False with them"),
        ({"gpus": 0, "cpus": 0}, "cpus must be at least 1"),
        ({"cpus": -1}, "cpus must be a whole number"),
        ({"cpus": 1, "protocol": "udp"}, "protocol must be 'tcp', 'tls' or 'ucx'"),
        ({"cpus": 1, "protocol": "tls", "security": False}, "Leave security out, and protocol too"),
        ({"processes": False, "protocol": "tcp"}, "and protocol too with processes=False"),
        ({"address": "tcp://127.0.0.1:1", "gpus": 1}, "gpus must not be given with an address"),
    ],
)
def test_contradictions(settings, message):
    with pytest.raises(ValueError, match=message):
        Fleet(**settings)


def test_ucx_must_be_installed(monkeypatch):
    monkeypatch.setattr("skfleet.fleet._local_cluster.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="without distributed-ucxx"):
        Fleet(cpus=1, protocol="ucx")


# What a worker is told by its environment.
_TOLD = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", DEVICE_MEMORY_VARIABLE)

# What dask-cuda makes a worker of, as far as a fleet hands it on.
_DASK_CUDA = """
from distributed import WorkerPlugin

class Plugin(WorkerPlugin):
    def setup(self, worker=None):
        worker.made_with = self.made_with

class Data(dict):
    def __init__(self, device_memory_limit):
        super().__init__()

def worker_data_function(*, device_memory_limit, memory_limit):
    return lambda index: (Data, {"device_memory_limit": device_memory_limit})

def worker_plugins(**settings):
    plugin = Plugin()
    plugin.made_with = settings
    return {plugin}
"""


@pytest.fixture
def dask_cuda(monkeypatch, tmp_path):
    """Put a stand-in for dask-cuda, and an empty CuPy, where workers find them."""
    package = tmp_path / "dask_cuda"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "worker_common.py").write_text(_DASK_CUDA)
    preload = "import click\n@click.command()\n@click.option('--create-cuda-context', is_flag=True)"
    (package / "initialize.py").write_text(
        f"{preload}\ndef dask_setup(service, create_cuda_context):\n"
        "    service.has_context = create_cuda_context\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "dask_cuda"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "dask_cuda"]:
        del sys.modules[name]


def _look(dask_worker):
    # what the process found at its start, which is when libraries look, and what it sees now
    at_start = Path("/proc/self/environ")
    found = os.environ
    if at_start.exists():
        found = dict(line.split("=", 1) for line in at_start.read_text().split("\0") if line)
        assert all(found.get(name) == os.environ.get(name) for name in _TOLD)
    return {
        "visible": found["CUDA_VISIBLE_DEVICES"],
        "index": getattr(dask_worker, "made_with", {}).get("device_index"),
        "has_context": getattr(dask_worker, "has_context", None),
        "threads": (dask_worker.state.nthreads, found["OMP_NUM_THREADS"]),
        "room": found.get(DEVICE_MEMORY_VARIABLE),
    }


@pytest.mark.slow
@pytest.mark.usefixtures("dask_cuda")
def test_each_gpu_has_a_worker_and_cpu_workers_see_none(monkeypatch):
    found = GpuDiscovery(("3", "5"))
    monkeypatch.setattr(_gpu_workers, "find_gpus", lambda: found)
    # on a busy machine other workers are being started before a process is there
    start = BaseProcess.start
    monkeypatch.setattr(BaseProcess, "start", lambda process: (time.sleep(0.3), start(process)))
    fleet = Fleet(cpus=1, threads_per_worker=2, device_memory_limit=10**9, dashboard_address=None)
    with fleet as client:
        assert repr(fleet).startswith("Fleet(1 CPU worker, 2 GPU workers, 4 threads, ")
        info = scheduler_workers(client)
        labels = {worker["name"]: worker["resources"] for worker in info.values()}
        assert labels == {"gpu-3": {"GPU": 1}, "gpu-5": {"GPU": 1}, 0: {"CPU": 2}}
        limits = {worker["name"]: worker["memory_limit"] for worker in info.values()}
        assert limits[0] == limits["gpu-3"] == limits["gpu-5"] > 0
        saw = {info[address]["name"]: what for address, what in client.run(_look).items()}
        on_gpu = {"has_context": True, "threads": (1, "1"), "room": "1000000000"}
        assert saw == {
            "gpu-3": {"visible": "3,5", "index": 3, **on_gpu},
            "gpu-5": {"visible": "5,3", "index": 5, **on_gpu},
            0: {
                "visible": "",
                "index": None,
                "has_context": None,
                "threads": (2, "2"),
                "room": None,
            },
        }
        # a worker that dies comes back as what it was
        address = next(a for a, worker in info.items() if worker["name"] == "gpu-5")
        client.restart_workers([address], timeout=60)
        visible = client.submit(os.getenv, "CUDA_VISIBLE_DEVICES", resources={"GPU": 1})
        assert visible.result() in ("3,5", "5,3")
        fleet.scale(2)
        names = {w["name"] for w in scheduler_workers(client).values()}
        assert names == {"gpu-3", "gpu-5"}
        fleet.scale(3)
        fleet.adapt(minimum=1, maximum=3)
        assert fleet._adaptive.cluster.sync(fleet._adaptive.workers_to_close, 1) != []
        names = fleet._adaptive.cluster.sync(fleet._adaptive.workers_to_close, 1)
        assert not any(str(name).startswith("gpu-") for name in names)


@pytest.mark.slow
@pytest.mark.usefixtures("dask_cuda")
def test_a_gpu_that_is_named_twice_has_two_workers(monkeypatch):
    monkeypatch.setattr(_gpu_workers, "find_gpus", lambda: GpuDiscovery(("0", "1")))
    fleet = Fleet(gpus=[0, 0], cpus=1, device_memory_limit=0.4, dashboard_address=None)
    with fleet as client:
        info = scheduler_workers(client)
        labels = {worker["name"]: worker["resources"] for worker in info.values()}
        assert labels == {"gpu-0": {"GPU": 1}, "gpu-0-1": {"GPU": 1}, 0: {"CPU": 1}}
        saw = {info[address]["name"]: what for address, what in client.run(_look).items()}
        assert [saw[name]["visible"] for name in ("gpu-0", "gpu-0-1")] == ["0", "0"]


@pytest.mark.gpu
def test_two_workers_on_one_card():
    pytest.importorskip("dask_cuda")
    X, y = load_diabetes(return_X_y=True)
    rows, targets = da.from_array(X, chunks=(50, 10)), da.from_array(y, chunks=50)
    with Fleet(gpus=[0, 0], cpus=1, device_memory_limit=0.4, dashboard_address=None) as client:
        offers = [w["resources"] for w in scheduler_workers(client).values()]
        assert offers.count({"GPU": 1}) == 2
        model = Ridge(device="cuda").fit(rows, targets)
    np.testing.assert_allclose(model.coef_, Ridge().fit(X, y).coef_, rtol=1e-6)


GIB = 2**30


@pytest.mark.parametrize(
    ("n_cpus", "n_gpus", "on_cpu", "on_gpu"),
    [(15, 1, 64 / 15, 64), (1, 1, 64, 64), (4, 0, 32, 0), (0, 2, 64, 64), (56, 8, 64 / 56, 8)],
)
def test_gpu_workers_have_half_of_the_memory(n_cpus, n_gpus, on_cpu, on_gpu):
    limits = _worker_memory.divide_memory(128 * GIB, n_cpus, n_gpus)
    assert limits[1] == int(on_gpu * GIB)
    if n_cpus:
        assert limits[0] == int(on_cpu * GIB)
    assert n_cpus * limits[0] + n_gpus * limits[1] <= 128 * GIB


def _sum_there(n):
    import cupy

    return float(cupy.arange(n).sum()), cupy.cuda.runtime.getDeviceCount()


def _n_devices():
    import cupy

    try:
        return cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


@pytest.mark.gpu
def test_a_fleet_on_hardware():
    pytest.importorskip("dask_cuda")
    with Fleet(gpus=1, cpus=1, dashboard_address=None) as client:
        assert client.submit(_sum_there, 10, resources={"GPU": 1}).result() == (45.0, 1)
        assert client.submit(_n_devices, resources={"CPU": 1}, pure=False).result() == 0


def test_a_task_has_blocks_of_a_quarter_of_a_device(mixed_fleet, monkeypatch):
    X = np.random.default_rng(0).normal(size=(1000, 5))
    workers = _block_locations.scheduler_workers

    def with_memory(n_bytes):
        def described(client, max_age):
            of_gpu = {"gpu": {"name": "", "memory-total": n_bytes}}
            return {a: {**worker, **of_gpu} for a, worker in workers(client).items()}

        monkeypatch.setattr(_block_locations, "scheduler_workers", described)

    for label, of_gpu in (("GPU", True), ("CPU", False)):
        with mixed_fleet.as_current():
            rows = da.from_array(X, chunks=(100, 5), name=False).persist(resources={label: 1})
            wait(rows)
            blocks = row_blocks(rows).blocks
            # four times three blocks of 4,000 bytes, and then less than one
            for n_bytes, n_groups in ((4 * 3 * 4000, 4), (4000, 10), (10**6, 1)):
                with_memory(n_bytes)
                groups = DaskEngine(mixed_fleet).group_by_worker(blocks)
                assert len(groups) == (n_groups if of_gpu else 1)
                assert [block.number for group in groups for block in group] == list(range(10))
            with_memory(4 * 3 * 4000)
            model = PCA(2).fit(rows)
    np.testing.assert_allclose(model.components_, PCA(2).fit(X).components_)


@pytest.mark.gpu
def test_rows_larger_than_the_limit_of_a_device_spill():
    pytest.importorskip("dask_cuda")
    X = da.random.default_rng(0).normal(size=(400_000, 50), chunks=(25_000, 50))
    y = X @ np.arange(50.0)
    expected = Ridge().fit(X, y)
    with (
        Fleet(gpus=1, cpus=1, device_memory_limit="40 MB", dashboard_address=None),
        config_context(keep_blocks=True),
    ):
        model = LogisticRegression(device="cuda").fit(X, y > 0)
        ridge = Ridge(device="cuda").fit(X, y)
        here = Ridge(device="cuda").fit(X.compute(), y.compute())
    np.testing.assert_allclose(here.coef_, expected.coef_, rtol=1e-6)
    np.testing.assert_allclose(ridge.coef_, expected.coef_, rtol=1e-6)
    assert model.score(X, y > 0) > 0.95


@pytest.mark.gpu
def test_xgboost_is_searched_on_a_gpu():
    pytest.importorskip("dask_cuda")
    xgboost = pytest.importorskip("xgboost")
    X, y = load_breast_cancer(return_X_y=True)
    grid = {"max_depth": [2, 3]}
    with Fleet(gpus=1, cpus=1, dashboard_address=None) as client:
        model = xgboost.XGBClassifier(device="cuda", n_estimators=20)
        search = GridSearchCV(model, grid, cv=3).fit(X, y)
        workers = scheduler_workers(client)
        assert {workers[fit.worker]["name"] for fit in search.timeline_.itertuples()} == {"gpu-0"}
    told = json.loads(search.best_estimator_.get_booster().save_config())
    assert told["learner"]["generic_param"]["device"].startswith("cuda")
    assert search.best_score_ > 0.93


@pytest.mark.gpu
def test_cuml_is_searched_on_a_gpu():
    pytest.importorskip("dask_cuda")
    cuml = pytest.importorskip("cuml")
    X, y = load_diabetes(return_X_y=True)
    grid = {"alpha": [0.01, 0.1, 1.0]}
    with Fleet(gpus=1, cpus=1, dashboard_address=None):
        search = GridSearchCV(cuml.Ridge(), grid, cv=3).fit(X, y)
    expected = GridSearchCV(SklearnRidge(), grid, cv=3).fit(X, y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], atol=1e-3
    )
    assert type(search.best_estimator_) is SklearnRidge
