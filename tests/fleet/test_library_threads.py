"""Libraries in workers hear the worker's threads, whatever they ask, and run no more."""

import importlib
import os
import threading
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from clusters import local_client
from skfleet import Fleet
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._threadpools import CORES_VARIABLE, limit_threadpools

on_linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")

# A thread that has this part of the processor time of a library is one of those that it runs.
BUSY = 0.1


def thread_times():
    """Read how long each thread of this process was on a processor, in nanoseconds."""
    times = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            times[task.name] = int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return times


def n_busy_threads(work):
    """Count the threads that have a part in some work: the fewest of three times.

    What a library runs takes part each time; what else there is in the process comes and goes.
    """
    return min(n_busy_threads_once(work) for _ in range(3))


def n_busy_threads_once(work):
    """Count the threads that had a part in some work: this one, and those that came for it.

    The process's other Python threads are a worker's own.
    """
    others, before, spent = other_threads(), thread_times(), {}
    while sum(spent.values()) < 5e7:
        work()
        others |= other_threads()
        spent = {
            name: after - before.get(name, 0)
            for name, after in thread_times().items()
            if name not in others
        }
    return sum(one > BUSY * sum(spent.values()) for one in spent.values())


def other_threads():
    """Name the Python threads of this process but the one that asks."""
    here = threading.get_native_id()
    return {str(one.native_id) for one in threading.enumerate() if one.native_id != here}


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 20))
    return X, (X[:, 0] + X[:, 1] ** 2 > 1).astype(int)


def fits(model):
    """Make what fits a model, once before it counts: what is built at first is not a fit."""
    X, y = rows()
    model.fit(X[:200], y[:200])
    return lambda: model.fit(X, y)


def lightgbm():
    from lightgbm import LGBMClassifier

    return fits(LGBMClassifier(n_estimators=30, verbose=-1))


def xgboost():
    from xgboost import XGBClassifier

    return fits(XGBClassifier(n_estimators=30))


def gradient_boosting():
    return fits(HistGradientBoostingClassifier(max_iter=20))


def forest():
    return fits(RandomForestClassifier(20))


def blas():
    A = np.random.default_rng(0).normal(size=(400, 400))
    return lambda: [A @ A for _ in range(20)]


def pca():
    return fits(PCA(10, svd_solver="full"))


def logistic():
    return fits(LogisticRegression())


def numba():
    import numba

    @numba.njit(parallel=True)
    def total(A):
        sums = np.zeros(len(A))
        for i in numba.prange(len(A)):
            sums[i] = np.sqrt(np.abs(np.sin(A[i]))).sum()
        return sums

    A = np.random.default_rng(0).normal(size=(1000, 2000))
    total(A[:2])
    return lambda: total(A)


def torch():
    import torch

    A = torch.randn(600, 600)
    return lambda: [A @ A for _ in range(20)]


LIBRARIES = [
    lightgbm,
    xgboost,
    gradient_boosting,
    blas,
    *(pytest.param(one, marks=pytest.mark.slow) for one in (forest, pca, logistic, numba, torch)),
]


def allow_two_threads():
    """Let the libraries use two threads for this thread, whatever the environment says."""
    threadpool_limits(2)  # for good: outside of a with nothing is restored


def count(library):
    """Count the threads of a library, here."""
    return n_busy_threads(library())


@pytest.fixture(
    scope="module",
    params=["Fleet", pytest.param("LocalCluster", marks=pytest.mark.slow), "threads"],
)
def client(request):
    """Workers of one thread on a machine of more cores."""
    if request.param == "LocalCluster":
        with local_client(1, threads_per_worker=1, set_as_default=False) as one:
            yield one
    else:
        processes = request.param == "Fleet"
        with Fleet(n_workers=1, threads_per_worker=1, processes=processes) as one:
            yield one


@pytest.mark.sampled(3)
@on_linux
@pytest.mark.skipif(joblib.cpu_count() < 2, reason="there is one core to hear of")
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
def test_one_thread_works_for_a_slot(library, client):
    if library in (lightgbm, xgboost, numba, torch):
        pytest.importorskip(library.__name__)
        # as what a call needs is, when it is unpickled
        client.submit(importlib.import_module, library.__name__).result()
    client.submit(allow_two_threads, pure=False).result()
    with joblib.parallel_config("skfleet", client=client):
        assert joblib.Parallel()([joblib.delayed(count)(library)]) == [1]
    engine = DaskEngine(client)
    assert engine.gather([engine.submit(count, library)]) == [1]


def heard():
    return joblib.cpu_count(), joblib.cpu_count(only_physical_cores=True)


@pytest.mark.skipif(joblib.cpu_count() < 2, reason="there is one core to hear of")
def test_joblib_hears_the_threads_of_the_task():
    whole = heard()
    with limit_threadpools(1):
        assert heard() == (1, 1)
        with limit_threadpools(2):  # the first one's: a process has one answer
            assert heard() == (1, 1)
    assert heard() == whole
    assert CORES_VARIABLE not in os.environ


def test_what_was_told_before_is_put_back(monkeypatch):
    monkeypatch.setenv(CORES_VARIABLE, "2")
    with limit_threadpools(1):
        pass
    assert os.environ[CORES_VARIABLE] == "2"


@pytest.mark.slow
def test_a_task_does_not_change_what_scikit_learn_knows_of_the_machine(tmp_path):
    import subprocess
    import sys

    code = """
from skfleet.engine._threadpools import CORES_VARIABLE, limit_threadpools
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads as n_threads
with limit_threadpools(1):
    inside = n_threads()
print(inside, n_threads())
"""
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    inside, after = map(int, done.stdout.split())
    assert inside <= after == joblib.cpu_count(only_physical_cores=True)


def test_overlapping_tasks_leave_nothing_behind():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with limit_threadpools(1):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with limit_threadpools(1):
        thread.start()
        entered.wait(10)
    assert heard() == (1, 1)
    leave.set()
    thread.join()
    assert CORES_VARIABLE not in os.environ
