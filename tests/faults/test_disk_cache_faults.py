"""Rows on the disks of worker processes, one of which is killed, or that have little memory."""

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

from clusters import local_client
from skfleet import config_context
from skfleet.blocks import row_blocks
from skfleet.engine import Reduction, counting, engine_for, map_reduce
from skfleet.estimators import KMeans, LogisticRegression

pytestmark = pytest.mark.slow

N_BLOCKS, N_ROWS = 20, 20_000


def _load(directory, block_info=None):
    """Make a block, and leave a mark that it was made."""
    i = block_info[None]["chunk-location"][0]
    with open(Path(directory) / "loads", "a") as stream:
        stream.write(f"{i}\n")
    time.sleep(0.02)
    return np.random.default_rng(i).normal(size=(N_ROWS, 10))


def _rows(directory, n_blocks=N_BLOCKS):
    chunks = ((N_ROWS,) * n_blocks, (10,))
    load = partial(_load, str(directory))
    return da.map_blocks(load, chunks=chunks, dtype=float, meta=np.empty((0, 0)))


def _loads(directory):
    return (Path(directory) / "loads").read_text().split()


def _files(directory):
    return list(Path(directory).glob("**/*.joblib"))


processes = partial(local_client, 2, threads_per_worker=1)


def _square(block):
    time.sleep(0.01)
    return block.X.T @ block.X


def _n_files(dask_worker):
    return len(_files(dask_worker.local_directory))


def test_a_killed_worker_costs_its_blocks(tmp_path):
    X = _rows(tmp_path)
    with processes(directory=tmp_path) as client, config_context(keep_blocks=False, disk_cache=1e9):
        rows = row_blocks(X)
        engine = engine_for(rows)
        with engine.persist(rows) as held:
            expected = map_reduce(engine, Reduction(_square), held)
            assert len(_loads(tmp_path)) == len(_files(tmp_path)) == N_BLOCKS
            shares = client.run(_n_files)
            victim = max(shares, key=shares.get)
            pid = client.run(os.getpid, workers=[victim])[victim]
            threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()
            for _ in range(6):
                found = map_reduce(engine, Reduction(_square), held)
                np.testing.assert_allclose(found, expected)
            again = len(_loads(tmp_path)) - N_BLOCKS
            assert 1 <= again <= shares[victim], "no other block is loaded again"
            assert len(_files(tmp_path)) >= N_BLOCKS
        deadline = time.monotonic() + 20
        while _files(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not _files(tmp_path), "what the dead worker left behind is removed as well"


@pytest.mark.parametrize("name", ["logistic", "k-means"])
def test_fits_survive_a_killed_worker(name, tmp_path):
    X = _rows(tmp_path)
    start = np.random.default_rng(1).normal(size=(8, 10))
    if name == "logistic":
        model, y = LogisticRegression(solver="lbfgs", tol=1e-10), (X[:, 0] > X[:, 1]).astype(int)
        y = (y + (da.random.default_rng(0).uniform(size=len(X), chunks=N_ROWS) > 0.8)) % 2
    else:
        model, y = KMeans(8, init=start, n_init=1, max_iter=10, tol=0), None
    attribute = "coef_" if name == "logistic" else "cluster_centers_"
    with processes(directory=tmp_path) as client, config_context(keep_blocks=False, disk_cache=1e9):
        undisturbed = getattr(model.fit(X, y), attribute).copy()
        victim = min(client.run(os.getpid).values())
        with counting() as counts:

            def kill():
                deadline = time.monotonic() + 120
                while counts.passes < 4 and time.monotonic() < deadline:
                    time.sleep(0.005)
                os.kill(victim, signal.SIGKILL)

            thread = threading.Thread(target=kill)
            thread.start()
            found = getattr(model.fit(X, y), attribute)
            thread.join()
    assert counts.passes > 4
    assert counts.loads == N_BLOCKS
    np.testing.assert_allclose(found, undisturbed, rtol=1e-5, atol=1e-8)
    assert not _files(tmp_path)


def test_workers_of_little_memory_map_more_than_they_hold(tmp_path):
    """What is mapped counts as a process's memory: a worker that kept it would be killed."""
    X = _rows(tmp_path, n_blocks=240)  # 384 MB; a process alone takes about 200 MB
    with (
        processes(directory=tmp_path, memory_limit="400 MB") as client,
        config_context(keep_blocks=False, disk_cache=1e9),
    ):
        before = set(client.nthreads())
        rows = row_blocks(X)
        engine = engine_for(rows)
        with engine.persist(rows) as held, counting() as counts:
            for _ in range(4):
                sums = map_reduce(engine, Reduction(_square), held)
        assert np.isfinite(sums).all()
        assert counts.loads == 0
        assert set(client.nthreads()) == before, "none was killed"
        assert len(_loads(tmp_path)) == 240
