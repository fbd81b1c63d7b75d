"""
Watch a fit and a search while they run
=======================================

Something runs for longer than you expect. Is it still reading your rows, does it wait for one slow
worker, or does the memory run out? This example asks a fleet these questions in four ways: with
a bar of progress, with counts, with the log, and with a record of tasks and memory.

The record is drawn at the end. It shows what each worker did at each moment, and how much memory
its rows took.
"""

# %%
# Rows that are made on the workers
# ---------------------------------
#
# The fit reads 320,000 rows in 16 blocks, which the workers make themselves. The search has few
# rows, and they come from this process.
#
# The workers are threads of this process, so the script needs no ``if __name__ == "__main__":``.
# On your own data, leave out the arguments of :class:`~skfleet.Fleet`, and put that line in.
import logging
import sys
import threading
import time
from contextlib import contextmanager

import matplotlib.pyplot as plt
from distributed import get_task_stream
from distributed.utils import key_split
from sklearn.datasets import make_classification as make_few_rows
from sklearn.ensemble import ExtraTreesClassifier

from skfleet import Fleet, config_context
from skfleet.datasets import make_classification
from skfleet.engine import counting
from skfleet.estimators import LogisticRegression
from skfleet.model_selection import GridSearchCV

fleet = Fleet(n_workers=2, threads_per_worker=1, processes=False)
client = fleet.client
X, y = make_classification(320_000, 20, random_state=0, chunks=20_000)

# %%
# How far is it, and what did it cost?
# ------------------------------------
#
# A *pass* reads all rows once. ``config_context(progress=True)`` shows the pass that a fit is in,
# and the blocks of that pass. In a notebook, and in a terminal with rich installed, you see a bar.
# Anywhere else you get lines: the first after five seconds, and one at the end.
#
# :func:`~skfleet.engine.counting` adds up what happens inside its block. The numbers do not depend
# on how busy the machine is, so compare them when you change something.
with config_context(progress=True), counting() as counts:
    LogisticRegression().fit(X, y)

print(f"{counts.passes} passes, {counts.tasks} tasks, {counts.loads} blocks loaded")

# %%
# Each block was loaded once, although the fit made several passes. The blocks fitted into the
# memory of the workers, and stayed there until the end of the fit.
#
# What does the library say about it?
# -----------------------------------
#
# The library logs under names that begin with ``skfleet``. ``skfleet.engine`` has a line for each
# pass, at level ``DEBUG``. ``skfleet.model_selection`` says at level ``INFO`` how much memory a
# search will need.
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
levels = {"skfleet.engine": logging.DEBUG, "skfleet.model_selection": logging.INFO}
for name, level in levels.items():
    logging.getLogger(name).addHandler(handler)
    logging.getLogger(name).setLevel(level)

# %%
# What ran when, and in how much memory?
# --------------------------------------
#
# A fleet is a Dask cluster, so Dask's own instruments work.
# :class:`~distributed.get_task_stream` records every task with its worker and its times.
#
# The scheduler knows how many bytes of results each worker holds. A thread asks for them many times
# a second. On worker processes, ``worker.memory.process`` is the memory of the whole process. Here
# both workers are in one process, so we ask for ``managed``: the results that Dask keeps.


def memory_of_workers(dask_scheduler):
    """Return the megabytes of results on each worker. This runs on the scheduler."""
    workers = dask_scheduler.workers
    return {address: worker.memory.managed / 1e6 for address, worker in workers.items()}


@contextmanager
def recording(every=0.02):
    """Record the tasks inside the ``with`` block, and the memory of the workers."""
    record = {"start": time.time(), "memory": []}
    stop = threading.Event()

    def sample():
        while not stop.wait(every):
            memory = client.run_on_scheduler(memory_of_workers)
            record["memory"].append((time.time() - record["start"], memory))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        with get_task_stream(client) as stream:
            yield record
            time.sleep(0.5)  # so that the picture shows what is left
    finally:
        stop.set()
        thread.join()
    record["tasks"] = stream.data


# %%
# :class:`distributed.diagnostics.MemorySampler` does the same in one line, if the sum over all
# workers is enough for you.
#
# Now the same fit is recorded, and then a search. The log prints a few lines.
with recording() as fit:
    LogisticRegression().fit(X, y)

X_few, y_few = make_few_rows(10_000, 20, random_state=0)
forest = ExtraTreesClassifier(20, random_state=0)
grid = {"max_depth": [2, 4, 8], "max_features": [2, 8]}
search = GridSearchCV(forest, grid, cv=3, refit=False)
with recording() as fits:
    search.fit(X_few, y_few)

# %%
# The passes with one block in one task are not passes over your rows: the solver starts from the
# solution for a small sample. :func:`~skfleet.engine.counting` leaves them out.
#
# All is recorded, so the fleet is closed, and the log gets its old settings.
fleet.close()
for name in levels:
    logging.getLogger(name).removeHandler(handler)
    logging.getLogger(name).setLevel(logging.NOTSET)

# %%
# The fit
# -------
#
# The key of a task begins with its name. ``load-block`` reads a block, or makes it, as here.
# ``summarize`` checks the rows and looks for the classes. ``glm-hessian`` and ``glm-gradient`` are
# steps of the solver. Tasks of other names take almost no time, and are left out of the picture.
COLORS = ["#3499cd", "#f79a3b", "#5b5b5b", "#7fc27a"]


def draw(record, kinds):
    """Draw what each worker ran when, above the memory of its results."""
    fig, (tasks, memory) = plt.subplots(2, figsize=(8, 4.4), sharex=True, layout="constrained")
    workers = sorted(record["memory"][0][1])
    for (kind, label), color in zip(kinds.items(), COLORS, strict=False):
        parts = [
            (workers.index(task["worker"]), part["start"], part["stop"])
            for task in record["tasks"]
            if key_split(task["key"]).startswith(kind)
            for part in task["startstops"]
            if part["action"] == "compute"
        ]
        rows, starts, stops = zip(*parts, strict=True)
        widths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        left = [start - record["start"] for start in starts]
        style = {"color": color, "edgecolor": "white", "linewidth": 0.5}
        tasks.barh(rows, widths, left=left, label=label, **style)
    tasks.set_yticks([0, 1], ["worker 1", "worker 2"])
    fig.legend(loc="outside upper center", ncols=4, frameon=False)
    for number, worker in enumerate(workers):
        seconds = [second for second, _ in record["memory"]]
        megabytes = [sample[worker] for _, sample in record["memory"]]
        style = {"color": COLORS[number], "linestyle": ["-", "--"][number]}
        memory.step(seconds, megabytes, where="post", label=f"worker {number + 1}", **style)
    memory.set_ylabel("MB of results")
    memory.set_xlabel("seconds since the recording began")
    memory.set_xlim(left=0)
    memory.set_ylim(bottom=0)
    memory.legend(loc="lower right", frameon=False)
    plt.show()


names = ["load-block", "summarize", "glm-hessian", "glm-gradient"]
draw(fit, {name: name for name in names})

# %%
# What to look at:
#
# - **The stairs below.** The memory of each worker grows by a step with every block that it has
#   loaded. It falls back to zero when the fit ends. Blocks that do not all fit into memory are
#   kept elsewhere, and :doc:`/guide/memory` says where.
# - **The colours above.** Loading comes first. The passes after it read the blocks from memory, so
#   each of them is one task on each worker.
# - **White gaps.** A worker that has nothing to do waits for the other one, or for this process,
#   which computes the next step of the solver.
#
# The search
# ----------
#
# A search sends most fits in batches, because a message for each short fit would cost time. Some
# fits travel alone, so that no worker waits at the end.
draw(fits, {"up_to": "batch of fits", "fit_and_score": "single fit"})

# %%
# What to look at:
#
# - **One step of memory, on both workers.** A search sends its rows to each worker once, and they
#   may stay for a while after its last fit. Scores are a few numbers, too small for this picture.
# - **The right ends of the coloured boxes.** Both workers should be busy until shortly before the
#   end. :doc:`Another example <plot_search_timeline>` shows which candidate each fit belonged to.
#
# .. seealso::
#
#    - :doc:`/guide/monitoring` has all ways to see what a fleet does.
#    - :doc:`/reference/logging` lists the names of the log.
#    - :func:`~skfleet.config_context` and :func:`~skfleet.engine.counting` are described in the
#      reference.
