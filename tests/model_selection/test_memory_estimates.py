"""Estimated memory of searches, next to the most that their processes take."""

import contextlib
import logging
import os
import re
import threading
from pathlib import Path

import dask.array as da
import numpy as np
import psutil
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfleet import Fleet
from skfleet.estimators import LogisticRegression
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV, HyperbandSearchCV

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.skipif(not psutil.LINUX, reason="memory is counted by what Linux tells"),
]

N_ROWS, N_COLUMNS = 250_000, 100
SGD = SGDClassifier(max_iter=2, tol=None, random_state=0)
FOREST = RandomForestClassifier(4, max_depth=3, max_features=2, random_state=0)
ALPHAS = [1e-4, 1e-3, 1e-2]


def on_dask(X, y):
    n_rows = len(X)
    rows = da.random.default_rng(0).random(X.shape, chunks=(n_rows // 8, N_COLUMNS))
    return rows, (rows[:, 0] > 0.5).astype(int)


def in_memory(X, y):
    return X, y


SEARCHES = {
    "grid": (in_memory, GridSearchCV(SGD, {"alpha": ALPHAS}, cv=3, refit=False)),
    "shared steps": (
        in_memory,
        GridSearchCV(
            make_pipeline(StandardScaler(), SGD),
            {"sgdclassifier__alpha": ALPHAS},
            cv=3,
            refit=False,
        ),
    ),
    "forest": (
        in_memory,
        GridSearchCV(FOREST, {"min_samples_leaf": [1, 2, 3]}, cv=3, refit=False),
    ),
    "halving": (
        in_memory,
        HalvingGridSearchCV(
            SGD, {"alpha": [*ALPHAS, 1e-5, 0.1, 1.0]}, cv=3, refit=False, random_state=0
        ),
    ),
    "hyperband": (
        in_memory,
        HyperbandSearchCV(SGD, {"alpha": [*ALPHAS, 1e-5, 0.1, 1.0]}, max_iter=9, random_state=0),
    ),
    "rows on Dask": (
        on_dask,
        GridSearchCV(LogisticRegression(max_iter=3), {"C": [1.0, 0.1]}, cv=3, refit=False),
    ),
}


@pytest.fixture(scope="module")
def data():
    X = np.random.default_rng(0).random((N_ROWS, N_COLUMNS))
    return X, (X[:, 0] > 0.5).astype(int)


def resident_bytes(pid):
    """Return the private and the shared bytes of a process that are in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    private, shared = (
        int(re.search(rf"{name}:\s+(\d+) kB", status).group(1)) * 1024
        for name in ("RssAnon", "RssShmem")
    )
    return private, shared


def shared_bytes():
    """Add up the shared memory that this process has made, whoever reads it."""
    sizes = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith("/memfd:skfleet"):
                sizes[link.stat().st_ino] = link.stat().st_size
    return sum(sizes.values())


class Peaks:
    """The most memory that workers and this process take inside a ``with``, above the begin."""

    def __init__(self, pids):
        self._pids, self._done = pids, threading.Event()

    def __enter__(self):
        self.workers, self.here = [0] * len(self._pids), 0
        self._before = [sum(resident_bytes(pid)) for pid in self._pids]
        self._before_here = resident_bytes("self")[0] + shared_bytes()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.wait(0.005):
            now = [sum(resident_bytes(pid)) for pid in self._pids]
            above = [n - before for n, before in zip(now, self._before, strict=True)]
            self.workers = list(map(max, self.workers, above))
            here = resident_bytes("self")[0] + shared_bytes() - self._before_here
            self.here = max(self.here, here)

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()


def megabytes(text):
    number, unit = text.split()
    return float(number) * (1000 if unit == "GB" else 1)


@pytest.mark.parametrize("kind", SEARCHES)
def test_estimate_is_near_the_peak(kind, data, caplog):
    place, search = SEARCHES[kind]
    with Fleet(n_workers=2, threads_per_worker=1, memory_limit="4 GB") as client:
        search.fit(*place(data[0][:3000], data[1][:3000]))  # imports
        pids = list(client.run(os.getpid).values())
        idle = max(client.run(lambda: psutil.Process().memory_info().rss).values()) / 1e6
        with caplog.at_level(logging.INFO, "skfleet"), Peaks(pids) as peaks:
            search.fit(*place(*data))
    (line,) = [text for text in caplog.messages if " per worker (limit 4.00 GB)" in text]
    pattern = r"\w+: about ([\d.]+ .B) per worker \(limit 4.00 GB\)(?:, ([\d.]+ .B) here)?: X "
    worker, here = map(megabytes, re.match(pattern, line).groups("0 MB"))
    assert worker - min(idle, 300) == pytest.approx(max(peaks.workers) / 1e6, rel=0.3)
    if place is in_memory:
        assert here == pytest.approx(peaks.here / 1e6, rel=0.3)


def test_worker_with_many_threads_runs_as_many_fits_as_it_can_hold(data, caplog):
    """Four at a time would exceed its memory."""
    search = GridSearchCV(SGD, {"alpha": ALPHAS}, cv=4, refit=False, error_score="raise")
    with Fleet(n_workers=1, threads_per_worker=4, memory_limit="1.3 GB") as client:
        with caplog.at_level(logging.INFO, "skfleet"):
            search.fit(*data)
        assert not client.get_events("worker-restart-memory")
    (line,) = [text for text in caplog.messages if " per worker (limit 1.30 GB)" in text]
    assert re.search(r"[12] fits? at a time instead of 4", line)
