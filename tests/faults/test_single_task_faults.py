"""The worker dies that has all rows of a fit: the task runs again, elsewhere, with one answer."""

import os
import signal
import threading
import time
import warnings

import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from clusters import local_client, persist_in_turn
from skfleet.engine import counting
from skfleet.estimators import GaussianMixture

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("single_task")]


def kill_during(client, prefix, killed):
    """Kill the worker process that runs a task of this name."""
    pids, deadline = client.run(os.getpid), time.monotonic() + 60
    while not killed and time.monotonic() < deadline:
        for address, keys in client.processing().items():
            # not one that passes on the worker's rows
            own = [key for key in map(str, keys) if key.startswith(prefix) and "-rows-" not in key]
            if own and not killed:
                time.sleep(0.1)
                os.kill(pids[address], signal.SIGKILL)
                killed.append(address)
        time.sleep(0.02)


@pytest.mark.parametrize("is_persisted", [False, True])
def test_a_worker_that_dies_in_the_task_costs_it_again(is_persisted):
    X = np.random.default_rng(0).normal(size=(2000, 5))
    model = GaussianMixture(4, max_iter=300, tol=0.0, random_state=0)
    with warnings.catch_warnings(), local_client(2, threads_per_worker=1) as client:
        warnings.simplefilter("ignore", ConvergenceWarning)
        rows = da.from_array(X, chunks=(250, 5))
        rows = persist_in_turn(client, [rows])[0] if is_persisted else rows
        killed = []
        thread = threading.Thread(target=kill_during, args=(client, "fit-Gaussian", killed))
        thread.start()
        with counting() as counts:
            model.fit(rows)
        thread.join()
    assert len(killed) == 1
    assert counts.tasks == (3 if is_persisted else 1)  # two workers pass on what they have
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        want = GaussianMixture(4, max_iter=300, tol=0.0, random_state=0).fit(X)
    np.testing.assert_allclose(model.means_, want.means_, rtol=1e-9)
