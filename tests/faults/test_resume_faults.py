"""Searches whose client, scheduler or worker is killed, and that are resumed."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from distributed import Client
from sklearn.tree import DecisionTreeClassifier

pytestmark = pytest.mark.slow

N_FITS = 60

# A search as a user would write it: on workers that others started, or on a fleet of its own.
SCRIPT = """
import sys, time, pathlib
import numpy as np
from distributed import Client
from sklearn.datasets import load_digits
from sklearn.tree import DecisionTreeClassifier
from skfleet import Fleet
from skfleet.model_selection._dispatch._routes import _on_workers
from skfleet.model_selection import GridSearchCV

# stolen fits may run twice, and fits are counted here
_on_workers.SLOW_BATCH_SECONDS = 60.0

class Tree(DecisionTreeClassifier):
    def fit(self, X, y):
        (pathlib.Path({folder!r}) / f"{{time.time_ns()}}").touch()
        time.sleep(0.1)
        return super().fit(X, y)

if __name__ == "__main__":
    X, y = load_digits(return_X_y=True)
    grid = {{"max_depth": list(range(1, 16)), "random_state": [0]}}
    address = sys.argv[1] if len(sys.argv) > 1 else None
    with Client(address) if address else Fleet(n_workers=2):
        search = GridSearchCV(Tree(), grid, cv=4, refit=False, checkpoint={checkpoint!r})
        search.fit(X, y)
    scores = {{k: v for k, v in search.cv_results_.items() if k.endswith("_score")}}
    np.savez({out!r}, **scores)
"""


class Processes:
    """A scheduler and two workers, each a process that can be killed."""

    def __init__(self, folder):
        self.address_file = folder / f"scheduler-{time.time_ns()}.json"
        arguments = ["--scheduler-file", str(self.address_file)]
        self.scheduler = self._start("dask_scheduler", "--port", "0", "--no-dashboard", *arguments)
        self.workers = [
            self._start(
                "dask_worker", "--no-nanny", "--no-dashboard", "--nthreads", "1", *arguments
            )
            for _ in range(2)
        ]
        while not self.address_file.exists():
            time.sleep(0.05)
        with Client(scheduler_file=str(self.address_file)) as client:
            client.wait_for_workers(2, timeout=60)
            self.address = client.scheduler.address

    @staticmethod
    def _start(kind, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{kind}", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


@pytest.mark.parametrize("victim", ["client", "scheduler", "worker"])
@pytest.mark.parametrize("seed", [0, 1])
def test_what_was_recorded_is_not_made_again(tmp_path, victim, seed):
    folder, checkpoint, out = tmp_path / "fits", tmp_path / "checkpoint", tmp_path / "out.npz"
    folder.mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(folder), checkpoint=str(checkpoint), out=str(out)))
    processes = None if victim == "client" else Processes(tmp_path)
    try:
        search = subprocess.Popen(
            [sys.executable, str(script), *([processes.address] if processes else [])],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        n_begun = random.Random(f"{victim} {seed}").randrange(5, 50)
        while len(list(folder.iterdir())) < n_begun and search.poll() is None:
            time.sleep(0.02)
        killed = {"client": search, "scheduler": processes and processes.scheduler}.get(
            victim, processes and processes.workers[0]
        )
        os.kill(killed.pid, signal.SIGKILL)
        if victim == "worker":
            assert search.wait(timeout=90) == 0
        elif victim == "scheduler":
            assert search.wait(timeout=200) != 0
        else:
            search.wait()
            time.sleep(3)  # its workers follow it
    finally:
        if processes is not None:
            processes.end()
        subprocess.run(["pkill", "-9", "-s", str(search.pid)], check=False)
    recorded = b"".join(path.read_bytes() for path in checkpoint.glob("*.fits")).splitlines()
    if victim == "worker":
        assert len(recorded) == N_FITS
    else:
        assert 0 < len(recorded) < N_FITS
        assert not out.exists()
    for path in folder.iterdir():
        path.unlink()
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)
    assert len(list(folder.iterdir())) == N_FITS - len(recorded)
    with np.load(out) as saved:
        found = dict(saved)

    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV

    X, y = load_digits(return_X_y=True)
    grid = {"max_depth": list(range(1, 16)), "random_state": [0]}
    plain = GridSearchCV(DecisionTreeClassifier(), grid, cv=4, refit=False).fit(X, y)
    for name, values in found.items():
        np.testing.assert_array_equal(values, plain.cv_results_[name], err_msg=name)
