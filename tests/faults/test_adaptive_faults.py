"""Adaptive searches whose workers or client are killed, and models that kill their workers."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import SGDClassifier

from skfleet import Fleet
from skfleet.model_selection import HyperbandSearchCV, SuccessiveHalvingSearchCV

pytestmark = pytest.mark.slow


class Writer(ClassifierMixin, BaseEstimator):
    """Writes down every call of partial_fit as it ends; dies where it is told to."""

    def __init__(self, quality=0.5, log=None, seconds=0.05, die_at=None):
        self.quality = quality
        self.log = log
        self.seconds = seconds
        self.die_at = die_at

    def partial_fit(self, X, y, classes=None):
        self.n_calls_ = getattr(self, "n_calls_", 0) + 1
        self.classes_ = classes
        time.sleep(self.seconds)
        if self.die_at is not None and self.n_calls_ >= self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(self.log).open("a") as log:
            log.write(f"{self.quality} {self.n_calls_}\n")
        return self

    def score(self, X, y):
        return self.quality * (1 - 0.5**self.n_calls_)


X, Y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
QUALITIES = [round(0.01 * i, 2) for i in range(1, 100)]


def made(log):
    path = Path(log)
    return Counter(path.read_text().split("\n")[:-1]) if path.exists() else Counter()


def recorded(checkpoint):
    """By the number of each candidate, after how many calls its last record is."""
    most = {}
    for path in Path(checkpoint).glob("*.fits"):
        for line in path.read_bytes().splitlines():
            number, n_calls, _ = json.loads(line.split(b" ", 1)[1])["fit"].split("-")
            most[int(number)] = max(most.get(int(number), 0), int(n_calls))
    return most


def assert_not_made_again(calls, before, search):
    """Of the calls that were recorded at some time, none was made again after it."""
    quality = {
        number: params["quality"]
        for number, params in zip(
            search.cv_results_["candidate"], search.cv_results_["params"], strict=True
        )
    }
    for number, n_calls in before.items():
        for n in range(1, n_calls + 1):
            assert calls[f"{quality[number]} {n}"] == 1


def kill_a_worker(client, when, look=lambda: None):
    """Kill a worker process as soon as a condition holds; tell what there was to see just then."""
    pids, seen = list(client.run(os.getpid).values()), []

    def wait():
        deadline = time.monotonic() + 60
        while not when() and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(look())
        os.kill(pids[0], signal.SIGKILL)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, seen


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("n_before", [3, 30, 70])
def test_killed_worker_costs_only_its_own_work(tmp_path, n_before, checkpoint):
    log, plain_log = tmp_path / "log", tmp_path / "plain"
    how = {"max_iter": 9, "random_state": 0}
    plain = HyperbandSearchCV(
        Writer(log=str(plain_log), seconds=0), {"quality": QUALITIES}, n_jobs=1, **how
    ).fit(X, Y)
    if checkpoint:
        how["checkpoint"] = tmp_path / "search"
    with Fleet(n_workers=2) as client:
        search = HyperbandSearchCV(Writer(log=str(log)), {"quality": QUALITIES}, **how)
        thread, seen = kill_a_worker(
            client,
            lambda: made(log).total() >= min(n_before, 60),
            lambda: recorded(tmp_path / "search"),
        )
        search.fit(X, Y)
        thread.join()
    assert search.best_params_ == plain.best_params_
    for key in ("mean_test_score", "budget", "partial_fit_calls"):
        np.testing.assert_array_equal(search.cv_results_[key], plain.cv_results_[key])
    calls = made(log)
    assert set(calls) == set(made(plain_log))
    twice = sum(calls.values()) - len(calls)
    # what is in progress on the worker: an order or two; without a checkpoint the models too
    assert twice <= (18 if checkpoint else 45)
    assert_not_made_again(calls, seen[0], plain)


@pytest.mark.parametrize(
    ("die_at", "resources"),
    # with labels, the only worker that may train is now and then not there
    [(1, None), (2, None), (1, {"GPU": 1})],
)
def test_model_that_kills_its_worker_is_dropped_with_a_message(tmp_path, die_at, resources):
    log = tmp_path / "log"
    space = [{"quality": [0.99], "die_at": [die_at]}, {"quality": QUALITIES[:8], "die_at": [None]}]
    search = SuccessiveHalvingSearchCV(
        Writer(log=str(log)),
        space,
        n_initial_parameters="grid",
        random_state=0,
        resources=resources,
    )
    dropped = pytest.warns(FitFailedWarning, match="must leave its worker alive")
    with Fleet(resources=[{"CPU": 1}, {"CPU": 1} if resources is None else resources]), dropped:
        search.fit(X, Y)
    # one that dies when it is trained on was best before that
    assert search.best_params_["quality"] == (QUALITIES[7] if die_at == 1 else 0.99)
    assert search.best_estimator_.quality == search.best_params_["quality"]
    scores = search.cv_results_["mean_test_score"]
    # none of its neighbours is blamed for it
    assert np.isnan(scores).sum() == (1 if die_at == 1 else 0)


class DyingForest(RandomForestClassifier):
    """Ends its worker in the first fit of some number of trees."""

    def __init__(self, max_depth=None, marker=None, n_estimators=10, warm_start=False):
        super().__init__(
            n_estimators, max_depth=max_depth, random_state=0, warm_start=warm_start, n_jobs=1
        )
        self.marker = marker

    def fit(self, X, y):
        super().fit(X, y)
        if self.n_estimators == 9 and self.marker and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self


@pytest.mark.parametrize("params", [{}, {"cv": 3}])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_models_of_other_resources_are_made_again(tmp_path, params, checkpoint):
    """Those that were grown from level to level on the worker that dies, and their splits."""
    rows = np.random.default_rng(0).normal(size=(120, 4))
    labels = (rows[:, 0] * rows[:, 1] > 0).astype(int)
    how = {"max_iter": 9, "resource": "n_estimators", "random_state": 0} | params
    space = {"max_depth": [1, 2, 3, 4, 5, 6]}
    plain = HyperbandSearchCV(DyingForest(), space, n_jobs=1, **how).fit(rows, labels)
    if checkpoint:
        how["checkpoint"] = tmp_path / "search"
    forest = DyingForest(marker=str(tmp_path / "marker"))
    with Fleet(n_workers=2):
        search = HyperbandSearchCV(forest, space, **how).fit(rows, labels)
    assert (tmp_path / "marker").exists()
    for key in ("mean_test_score", "std_test_score", "budget", "n_resources"):
        np.testing.assert_array_equal(search.cv_results_[key], plain.cv_results_[key])
    np.testing.assert_array_equal(search.predict_proba(rows), plain.predict_proba(rows))


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from skfleet import Fleet
from skfleet.model_selection import HyperbandSearchCV
from test_adaptive_faults import QUALITIES, Writer, X, Y

if __name__ == "__main__":
    with Fleet(n_workers=2):
        search = HyperbandSearchCV(
            Writer(log={log!r}), {{"quality": QUALITIES}}, max_iter=9, random_state=0,
            checkpoint={checkpoint!r},
        ).fit(X, Y)
    print(search.best_params_["quality"], search.best_estimator_.n_calls_)
"""


@pytest.mark.parametrize("n_before", [1, 20, 60])
def test_killed_client_is_resumed_without_a_recorded_call(tmp_path, n_before):
    log, script, checkpoint = tmp_path / "log", tmp_path / "script.py", tmp_path / "search"
    script.write_text(
        SCRIPT.format(tests=str(Path(__file__).parent), log=str(log), checkpoint=str(checkpoint))
    )
    first = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while made(log).total() < n_before:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    first.kill()
    first.wait()
    time.sleep(1.0)  # its workers notice
    before = recorded(checkpoint)
    again = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True
    )
    plain = HyperbandSearchCV(
        Writer(log=str(tmp_path / "plain"), seconds=0),
        {"quality": QUALITIES},
        max_iter=9,
        random_state=0,
        n_jobs=1,
    ).fit(X, Y)
    expected = f"{plain.best_params_['quality']} {plain.best_estimator_.n_calls_}"
    assert again.stdout.strip().endswith(expected)
    calls = made(log)
    assert set(calls) == set(made(tmp_path / "plain"))
    assert_not_made_again(calls, before, plain)
    assert n_before == 1 or before
    # twice only what was under way: an order or two of each worker
    assert sum(calls.values()) - len(calls) <= 36


def test_ctrl_c_keeps_the_best_so_far(tmp_path):
    log, script = tmp_path / "log", tmp_path / "script.py"
    script.write_text(
        SCRIPT.format(tests=str(Path(__file__).parent), log=str(log), checkpoint=None)
        .replace("import sys\n", "import signal, sys, time\n", 1)
        .replace("        search = Hyper", "        try:\n          search = search = Hyper")
        .replace(
            ").fit(X, Y)\n",
            ")\n          search.fit(X, Y)\n        except KeyboardInterrupt:\n"
            "          began = time.monotonic()\n",
        )
        .replace("    print(search", "    print(len(search.history_), search")
        .replace(
            'if __name__ == "__main__":\n',
            'if __name__ == "__main__":\n'
            "    signal.signal(signal.SIGINT, signal.default_int_handler)\n",
        )
    )
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while made(log).total() < 12:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    n_records, quality, n_calls = out.split()
    assert 1 <= int(n_records) < 29
    assert float(quality) > 0
    assert int(n_calls) >= 1


def test_rows_are_held_once_per_worker_and_models_stay():
    """Of 80 MB of rows no worker holds a second copy, and no model comes home but the best."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(100_000, 100)), np.arange(100_000) % 2
    search = SuccessiveHalvingSearchCV(
        Heavy(), {"quality": QUALITIES}, n_initial_parameters=27, random_state=0
    )
    with Fleet(n_workers=2) as client, ThreadPoolExecutor() as pool:
        search.fit(rows[::10], labels[::10])  # workers import what they need
        before = client.run(anonymous_bytes)
        home = received()
        peaks, fitting = [], pool.submit(search.fit, rows, labels)
        while not fitting.done():
            peaks += client.run(bytes_of_rows).values()
        fitting.result()
        came = received() - home
        after = client.run(anonymous_bytes)
    assert rows.nbytes <= max(peaks) <= rows.nbytes * 1.02
    # models of 2 MB, batches of 10,000 rows, and no copy of the rows
    assert max(after[worker] - before[worker] for worker in after) < rows.nbytes * 0.75
    assert came < 12e6  # of 40 models of 2 MB
    assert search.best_estimator_.ballast_.nbytes == 2_000_000


class Heavy(Writer):
    """A model of 2 MB."""

    def partial_fit(self, X, y, classes=None):
        self.n_calls_ = getattr(self, "n_calls_", 0) + 1
        self.classes_ = classes
        self.ballast_ = np.random.default_rng(self.n_calls_).random(250_000)
        return self


def anonymous_bytes():
    """Memory of this process that is of no file, as shared rows are."""
    import psutil

    memory = psutil.Process().memory_info()
    return memory.rss - memory.shared


def bytes_of_rows(dask_worker):
    """Bytes of rows that this worker keeps for tasks."""
    from skfleet.engine._dask._serialize import Pickled

    return sum(v.nbytes for v in dask_worker.data.values() if isinstance(v, Pickled))


def received():
    """Bytes that this process has read so far."""
    import psutil

    return psutil.Process().io_counters().read_chars


def test_checkpoint_that_workers_do_not_see(tmp_path):
    search = SuccessiveHalvingSearchCV(
        Writer(log=str(tmp_path / "log")), {"quality": QUALITIES}, random_state=0
    )
    with Fleet(n_workers=2), pytest.raises(ValueError, match="a place that all workers see"):
        search.set_params(checkpoint="memory://of-this-process").fit(X, Y)
    assert not made(tmp_path / "log")


def pid_of_worker():
    return os.getpid()


@pytest.mark.parametrize("lazy", [False, True])
def test_rows_larger_than_a_workers_memory(lazy):
    """Rows of this process are spread over the workers; more than both can hold are streamed."""
    import dask.array as da

    limit = 500e6
    if lazy:
        rng = da.random.default_rng(0)
        rows = rng.normal(size=(3_000_000, 50), chunks=(100_000, 50))  # 1.2 GB
        labels = (rows[:, 0] > 0).astype(int)
    else:
        rows = np.random.default_rng(0).normal(size=(800_000, 50))  # 320 MB
        labels = (rows[:, 0] > 0).astype(int)
    search = SuccessiveHalvingSearchCV(
        SGDClassifier(random_state=0),
        {"alpha": [1e-4, 10.0, 100.0]},
        n_initial_parameters="grid",
        n_initial_iter=2,
        random_state=0,
    )
    with Fleet(n_workers=2, memory_limit=int(limit)) as client:
        before = set(client.run(pid_of_worker).values())
        search.fit(rows, labels)
        assert set(client.run(pid_of_worker).values()) == before  # nobody was restarted
    assert search.best_params_ == {"alpha": 1e-4}
    assert search.best_score_ > 0.97
