"""
A worker dies while XGBoost trains
==================================

A long boosting fit may lose a worker: somebody switches off its machine, or the system ends it for
lack of memory. With scikit-fleet you do not begin again. The fit goes on from the last snapshot of
the model, on the workers that are left, and ends with the same trees.

This example kills a worker in the middle of a fit, and compares the model with the one that XGBoost
trains undisturbed.
"""

# %%
# A small cluster of processes
# ----------------------------
#
# To be killed, a worker must be a process of its own. Here the command ``dask`` starts a scheduler
# and two workers, as you would start them on the machines of a cluster. They listen on the loopback
# interface only.
#
# By default a *nanny* watches each worker, and starts a dead one again. These workers have none. So
# a dead worker is gone for good, and the fit must do without it.
import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import dask
import matplotlib.pyplot as plt
import numpy as np
import psutil
import xgboost
from distributed import Client
from sklearn.metrics import log_loss

from skfleet import Fleet, config_context
from skfleet.datasets import make_classification
from skfleet.estimators import XGBClassifier

folder = tempfile.TemporaryDirectory()
processes = []


def start_dask(*arguments):
    """Start the command ``dask`` in a process of its own."""
    command = [sys.executable, "-m", "dask", *arguments, "--host", "127.0.0.1", "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes.append(subprocess.Popen(command, **quiet))


def start_cluster(n_workers):
    """Start a scheduler and workers, wait for them, and return the scheduler's address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    start_dask("scheduler", "--port", str(port))
    for _ in range(n_workers):
        place = ["--local-directory", folder.name]
        start_dask("worker", address, "--no-nanny", "--nthreads", "1", *place)
    with Client(address, timeout=60) as first_client:
        first_client.wait_for_workers(n_workers)
    return address


def end_cluster():
    """End the workers, and then the scheduler."""
    while processes:
        process = processes.pop()
        process.terminate()
        process.wait()


atexit.register(end_cluster)  # after an error, too

# %%
# A :class:`~skfleet.Fleet` joins them by the address of the scheduler.
fleet = Fleet(start_cluster(n_workers=2))
client = fleet.client

# %%
# The accident
# ------------
#
# Boosting adds its trees in rounds, and the log ``skfleet.estimators`` has a line for each segment
# of rounds, at level ``DEBUG``. A handler of ours notes when the lines come. It also causes the
# accident: a moment after round 75, it kills a worker.
#
# A worker does not train in its own process, but in one beside it, its *rank*. A machine has one
# rank, with the threads of all its workers. So the worker to kill is the one that has a process
# beside it. It takes the rank along.
LAST_ROUND = 75


def has_rank():
    """Say whether this worker has a process beside it, and which process it is itself."""
    return bool(psutil.Process().children()), os.getpid()


class Accident(logging.Handler):
    """Note when which round was done, and kill the worker that trains."""

    def __init__(self):
        super().__init__()
        self.start, self.death = time.time(), None
        self.rounds, self.restarts = [], []

    def emit(self, record):
        """Note a line of the log."""
        seconds = record.created - self.start
        if record.msg.startswith("round "):
            self.rounds.append((seconds, record.args[0]))
            if record.args[0] == LAST_ROUND and self.death is None:
                answers = client.run(has_rank).values()
                [number] = [number for is_it, number in answers if is_it]
                threading.Timer(0.08, self.kill, [number]).start()
        elif record.levelno == logging.WARNING:
            self.restarts.append((seconds, record.args[1]))

    def kill(self, number):
        """Kill a process, on Linux by the signal ``SIGKILL``."""
        self.death = time.time() - self.start
        os.kill(number, signal.SIGKILL)


# %%
# The fit
# -------
#
# ``checkpoint_interval=25`` asks for a snapshot of the model every 25 rounds. By default there is
# one about every 30 seconds, which is too rare for an example. ``single_task_below=0`` is also here
# for the example alone: otherwise one task would fit such few rows with XGBoost's own ``fit``.
N_ROUNDS = 250
X, y = make_classification(40_000, 12, n_informative=8, random_state=0, chunks=5_000)
model = XGBClassifier(n_estimators=N_ROUNDS, learning_rate=0.1, checkpoint_interval=25)

log, accident = logging.getLogger("skfleet.estimators"), Accident()
log.addHandler(accident)
log.setLevel(logging.DEBUG)
logging.getLogger("distributed.client").setLevel(logging.ERROR)  # Dask would report the loss too
with config_context(single_task_below=0):
    model.fit(X, y)
log.removeHandler(accident)
log.setLevel(logging.NOTSET)
logging.getLogger("distributed.client").setLevel(logging.NOTSET)

print(f"a worker was killed: {accident.death is not None}")
print(f"workers that are left: {len(client.scheduler_info()['workers'])}")
print(f"training went on from round {accident.restarts[0][1]}")
print(f"rounds of the model: {model.get_booster().num_boosted_rounds()}")

# %%
# The cluster is not needed any more. A fleet that joined a scheduler leaves it running, so we end
# its processes ourselves.
fleet.close()
end_cluster()
folder.cleanup()

# %%
# The same model, undisturbed
# ---------------------------
#
# XGBoost's own class trains on the same rows in this process. On one machine there is one rank, so
# its trees should be those of a single process.
rows, labels = dask.compute(X, y)
plain = xgboost.XGBClassifier(n_estimators=N_ROUNDS, learning_rate=0.1).fit(rows, labels)

trees = [fitted.get_booster().get_dump() for fitted in (plain, model)]
print(f"{len(trees[0])} trees; the same in both models: {trees[0] == trees[1]}")

# %%
# The picture
# -----------
#
# On the left are the rounds over time, by the log. On the right is the log loss of both models on
# the training rows, if each predicts with its first rounds only.
BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"
fig, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")

before = [point for point in accident.rounds if point[0] < accident.restarts[0][0]]
after = accident.rounds[len(before) :]
begin = before[0][0]
for points, color, label in (before, BLUE, "before the death"), (after, ORANGE, "after it"):
    seconds, done = zip(*points, strict=True)
    left.plot(np.subtract(seconds, begin), done, "o-", color=color, markersize=4, label=label)
left.axvline(accident.death - begin, color=GREY, linestyle="--", linewidth=1, label="a worker dies")
left.set_xlabel("seconds since the first round")
left.set_ylabel("rounds that are done")
left.legend(frameon=False)

n_rounds = range(25, N_ROUNDS + 1, 25)
styles = {
    "undisturbed": (plain, {"color": GREY}),
    "with a death": (model, {"color": ORANGE, "linestyle": "none", "marker": "o"}),
}
for label, (fitted, style) in styles.items():
    losses = [
        log_loss(labels, fitted.predict_proba(rows, iteration_range=(0, n))) for n in n_rounds
    ]
    right.plot(n_rounds, losses, label=label, **style)
right.set_xlabel("rounds")
right.set_ylabel("log loss of the training rows")
right.legend(frameon=False)
plt.show()

# %%
# What to look at:
#
# - **The gap on the left.** Each dot is the end of a segment. Between the death and the next dot,
#   the worker that is left gets the rows of the dead one, starts a rank, and loads the snapshot.
#   Most of this time does not grow with the number of rounds.
# - **The height of the first orange dot.** It is one segment above the snapshot from which training
#   went on. Only rounds after that snapshot were trained twice.
# - **The dots on the line, on the right.** The model does not show that it was disturbed.
#
# With random draws, for example ``subsample=0.8``, a loss leads to another model, as good as the
# undisturbed one.
#
# When your own process dies, the fit ends with it. ``checkpoint="FOLDER"`` keeps the snapshots in a
# folder, and the same fit goes on from there.
#
# .. seealso::
#
#    - :doc:`/guide/boosting` is about XGBoost and LightGBM on a fleet.
#    - :doc:`/how_it_works/boosting` says what happens when something dies.
#    - :class:`~skfleet.estimators.XGBClassifier` explains ``checkpoint_interval`` and
#      ``max_retries``.
