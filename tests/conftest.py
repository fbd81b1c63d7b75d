"""Worlds: every (engine, container) pair in which an estimator must give the same answer."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import os
import random
import re
import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from skfleet.blocks import _block
from skfleet.engine import _single_task

with contextlib.suppress(ModuleNotFoundError):
    import random_examples  # noqa: F401  settings of hypothesis, before any test takes them

if sys.version_info < (3, 11, 8):
    # Two threads in ast.parse at once, pytest's and one that formats a traceback, end in "AST
    # constructor recursion depth mismatch" (python/cpython#106905). It takes a collection of
    # garbage within the call to give way to the other thread.
    _parse, _parsing = ast.parse, threading.Lock()

    def _parse_alone(*args, **kwargs):
        with _parsing:
            collecting = gc.isenabled()
            gc.disable()
            try:
                return _parse(*args, **kwargs)
            finally:
                if collecting:
                    gc.enable()

    ast.parse = _parse_alone

if sys.version_info < (3, 11, 9):
    # distributed's profiler asks for the frames of all threads every 10 ms, also in this process,
    # and a collection of garbage within that call can bring the interpreter to a halt
    # (python/cpython#106883). An environment variable reaches the workers' processes too.
    os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"

# Where the package falls back for an error of its own code, the test sees it, from workers too.
os.environ["SKFLEET_STRICT_FALL_BACKS"] = "1"

# Rows of tests are small, and those of fits on blocks stay there; `single_task` changes it, and so
# does a run of suites whose answers are those of both places.
SMALL_BYTES = _single_task.SMALL_BYTES
if not os.environ.get("SKFLEET_SINGLE_TASK"):
    _single_task.SMALL_BYTES = 0

# Modules that import one of these at their top are skipped where it is not installed.
OPTIONAL_LIBRARIES = {
    "array_api_strict", "lightgbm", "matplotlib", "numpydoc", "optuna", "rich", "torch", "xgboost",
}  # fmt: skip


# Slow suites that kill processes, or measure time or memory, of which no other may take any.
ALONE = (
    "tests/faults/",
    "tests/fleet/",
    "tests/joblib_backend/",
    "tests/journeys/",
    "tests/estimators/boosting/test_client_kills.py",
    "tests/estimators/boosting/test_kills.py",
    "tests/estimators/test_model_scatter.py",
    "tests/model_selection/test_memory_estimates.py",
    "tests/model_selection/test_search_larger_than_memory.py",
    "tests/model_selection/test_search_memory.py",
)


def pytest_collection_modifyitems(items):
    """Mark the tests that must run without others at the same time, and those not in a sample."""
    sampled = defaultdict(list)
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")
        if item.get_closest_marker("sampled"):
            sampled[item.nodeid.partition("[")[0]].append(item)
    for name, cases in sampled.items():
        (n_cases,) = cases[0].get_closest_marker("sampled").args
        for item in random.Random(name).sample(cases, max(0, len(cases) - n_cases)):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Skip a module for which an optional library is missing, instead of ending the run."""
    report = yield
    if report.failed:
        names = re.findall(r"ModuleNotFoundError: No module named '(\w+)'", str(report.longrepr))
        if names and names[-1] in OPTIONAL_LIBRARIES:
            reason = f"Skipped: could not import {names[-1]!r}"
            report.outcome, report.longrepr = "skipped", (str(collector.path), 0, reason)
    return report


def _cuts(n: int) -> tuple[int, ...]:
    """Unequal cuts of n rows, one of them empty."""
    first = n // 3
    return (first, 0, n // 2 - first, n - n // 2)


def _frame(X):
    import pandas as pd

    return pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])])


def _dask_array(X, **chunks):
    import dask.array as da

    return da.from_array(X, chunks=(_cuts(len(X)), *((2,) if X.ndim == 2 else ())))


def _unknown(X):
    import dask.array as da

    X = da.from_array(X, chunks=(_cuts(len(X)), *X.shape[1:]))
    return X[da.ones(X.shape[0], chunks=X.chunks[0], dtype=bool)]


def _dask_frame(X):
    import dask.dataframe as dd
    import pandas as pd

    if X.ndim == 1:
        return dd.from_pandas(pd.Series(X, name="y"), npartitions=3)
    return dd.from_pandas(_frame(X), npartitions=3)


def _strict(X):
    import array_api_strict as xp

    return xp.asarray(X, device=xp.Device("device1")) if X.dtype.kind in "biuf" else X


def _cupy(X):
    import cupy

    return cupy.asarray(X) if X.dtype.kind in "biuf" else X


def _dask_cupy(X):
    return _dask_array(X).map_blocks(_cupy) if X.dtype.kind in "biuf" else _dask_array(X)


def _csr(X):
    from scipy import sparse

    return sparse.csr_array(X)


def _csr_matrix(X):
    from scipy import sparse

    return sparse.csr_matrix(X)


def _persisted(X):
    return _dask_array(X).rechunk({1: -1} if X.ndim == 2 else {}).persist()


def _same(X):
    return X


@dataclass
class World:
    """One way to hand over rows; `X` and `column` turn host arrays into the world's containers."""

    name: str
    to_X: Callable[[Any], Any]
    to_column: Callable[[Any], Any] = _same
    on_cluster: bool = False
    piece_bytes: int | None = None
    client: Any = field(default=None, repr=False)

    @property
    def on_device(self):
        """Tell whether rows lie where an estimator of the host takes none."""
        return self.name == "strict" or "cupy" in self.name

    def X(self, X):
        return self.to_X(X)

    def column(self, v):
        """Turn y or sample_weight into what this world's caller would have."""
        return None if v is None else self.to_column(np.asarray(v))

    def host(self, answer):
        """Bring an answer home as a NumPy array."""
        from skfleet._array import to_host

        answer = answer.compute() if hasattr(answer, "compute") else answer
        return to_host(answer)

    def __str__(self):
        return self.name


WORLDS = [
    World("numpy", _same),
    World("numpy-7-pieces", _same, piece_bytes=2**11),
    World("csr-array", _csr),
    World("csr-matrix", _csr_matrix),
    World("strict", _strict, _strict, piece_bytes=2**11),
    World("pandas", _frame),
    World("dask-array", _dask_array, _dask_array),
    World("dask-frame", _dask_frame, _dask_frame),
    World("cluster-array", _dask_array, _dask_array, on_cluster=True),
    World("cluster-persisted", _persisted, _persisted, on_cluster=True),
    World("cluster-unknown", _unknown, _unknown, on_cluster=True),
    World("cluster-frame", _dask_frame, _dask_frame, on_cluster=True),
    pytest.param(World("cupy", _cupy, _cupy), marks=pytest.mark.gpu),
    pytest.param(
        World("cluster-cupy", _dask_cupy, _dask_array, on_cluster=True), marks=pytest.mark.gpu
    ),
]


@pytest.fixture(autouse=True)
def same_scheduler_after():
    """Undo what a client that was closed within its own ``with`` leaves in Dask's settings."""
    import dask

    before = dask.config.get("scheduler", None)
    yield
    if dask.config.get("scheduler", None) is not before:
        dask.config.set(scheduler=before)


@pytest.fixture(scope="module", autouse=True)
def same_folder_after():
    """A module leaves Dask's folder as it was; fixtures that end in another order do not."""
    import dask

    before = dask.config.get("temporary-directory", None)
    yield
    assert dask.config.get("temporary-directory", None) == before


@pytest.fixture(scope="session")
def cluster_client():
    """Two workers of one thread each in this process; nobody's default client."""
    from clusters import local_client

    with local_client(2, threads_per_worker=1, processes=False, set_as_default=False) as client:
        yield client


@pytest.fixture
def current_client(cluster_client):
    """Make the client of the cluster in this process the current one."""
    with cluster_client.as_current():
        yield cluster_client


@pytest.fixture
def single_task(monkeypatch):
    """Fit small rows on Dask in one task, as everywhere but in tests."""
    monkeypatch.setattr(_single_task, "SMALL_BYTES", SMALL_BYTES)


@pytest.fixture
def two_library_threads():
    """Let BLAS and OpenMP use two threads, whatever the environment says of them."""
    with threadpoolctl.threadpool_limits(2):
        yield


@pytest.fixture(scope="session")
def process_cluster():
    """Two worker processes of one thread each; a module opens clients of its own."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def cluster():
    """A cluster of Dask's with one worker on a thread, which has a label."""
    from distributed import LocalCluster

    with LocalCluster(
        processes=False,
        n_workers=1,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
        resources={"CPU": 1},
    ) as cluster:
        yield cluster


@pytest.fixture(params=WORLDS, ids=str)
def world(request, monkeypatch):
    """Each world in turn, its cluster the current one where it has one."""
    chosen = request.param
    with contextlib.ExitStack() as stack:
        if chosen.piece_bytes:
            monkeypatch.setattr(_block, "PIECE_BYTES", chosen.piece_bytes)
            monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", chosen.piece_bytes)
            monkeypatch.setattr(_block, "MIN_PIECE_ROWS", 1)
        if chosen.on_cluster:
            client = request.getfixturevalue("cluster_client")
            stack.enter_context(client.as_current())
        yield chosen


@pytest.fixture(
    params=["array_api_strict:device1", pytest.param("", marks=pytest.mark.gpu, id="cupy")]
)
def device(request, monkeypatch):
    """What ``device="cuda"`` computes with: a stand-in that refuses hidden copies, or CuPy."""
    from skfleet._device import DEVICE_VARIABLE

    monkeypatch.setenv(DEVICE_VARIABLE, request.param)
    return request.param


@pytest.fixture(scope="module")
def kernel_folder(tmp_path_factory):
    """A folder for CUDA kernels that are compiled for the host."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def short_runs(monkeypatch):
    """Reduce runs of 8 rows on a device, and fail where its library is to reduce many at once."""
    import array_api_strict as xp

    from skfleet import _linalg
    from skfleet._array import is_host

    monkeypatch.setattr(_linalg, "RUN_ROWS", 8)

    def checked(reduce):
        def call(x, /, *, axis=None, **kwargs):
            is_down = axis == 0 and x.ndim > 1 and not is_host(x)
            assert not (is_down and x.shape[0] >= 32), f"{reduce.__name__} of {x.shape}"
            return reduce(x, axis=axis, **kwargs)

        return call

    for name in ("sum", "mean", "var", "std", "min", "max", "any", "all"):
        monkeypatch.setattr(xp, name, checked(getattr(xp, name)))


@pytest.fixture
def cuml(device, monkeypatch):
    """cuML, or a stand-in that cannot be opened without a GPU; workers that are started find it."""
    if not device:
        module = pytest.importorskip("cuml")
        rmm = pytest.importorskip("rmm")  # whose default, without a pool, is warned of
        if type(rmm.mr.get_current_device_resource()) is rmm.mr.CudaMemoryResource:
            rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
        yield module
        return
    place = str(Path(__file__).parent / "stand_ins")
    monkeypatch.syspath_prepend(place)
    paths = [place, *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    yield importlib.import_module("cuml")
    del sys.modules["cuml"]


@pytest.fixture(scope="module")
def mixed_fleet():
    """A worker for CPUs, and one that is labelled as if it had a GPU, in this process."""
    from distributed import Client

    from skfleet.fleet._local_cluster import start_local_cluster

    with (
        start_local_cluster(processes=False, resources=[{"CPU": 1}, {"GPU": 1}]) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
