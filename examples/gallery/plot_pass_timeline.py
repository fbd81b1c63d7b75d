"""
One pass over the rows, block by block
======================================

Rows on Dask lie in blocks, and a *pass* reads all of them once. Each worker takes one block after
the other, reduces it to a small partial result, and forgets the block.

This example draws a pass: which worker had which block, and when. Then it draws the passes of a
model that needs several. Such a picture tells you whether a fit spends its time on reading or on
computing, and so what would make it faster.
"""

# %%
# Blocks that say where they are
# ------------------------------
#
# A real fit reads blocks from files. Here a function makes them, and a short sleep stands for the
# slow disk. The tasks of a fit have names but no block numbers, so the function also logs an event
# with the number of its block, its worker and its times. Dask collects these events from all
# workers.
#
# The workers are threads of this process here, so the script needs no
# ``if __name__ == "__main__":``. All of it works with worker processes as well.
import time
from collections import Counter

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from distributed import get_task_stream, get_worker
from distributed.utils import key_split
from matplotlib.patches import Patch

from skfleet import Fleet, config_context
from skfleet.engine import counting
from skfleet.estimators import LogisticRegression, Ridge

N_BLOCKS, N_ROWS, N_COLUMNS = 12, 15_000, 20


def read_block(block_id):
    """Make the rows of a block, and log where and when."""
    begin = time.time()
    time.sleep(0.04)  # the disk
    rows = np.random.default_rng(block_id[0]).normal(size=(N_ROWS, N_COLUMNS))
    worker = get_worker()
    worker.log_event("reads", (block_id[0] + 1, worker.address, begin, time.time()))
    return rows


def is_large(rows):
    """Make the target from the rows of a block."""
    return (rows[:, :3].sum(axis=1) + np.sin(9 * rows[:, 3]) > 0).astype(float)


chunks = ((N_ROWS,) * N_BLOCKS, (N_COLUMNS,))
X = da.map_blocks(read_block, chunks=chunks, dtype=float, meta=np.empty((0, 0)))
y = X.map_blocks(is_large, drop_axis=1, dtype=float, meta=np.empty(0))
print(f"{X.numblocks[0]} blocks, {X.nbytes / 1e6:.1f} MB")

# %%
# Few rows are no pass over blocks
# --------------------------------
#
# These are few rows, and the library treats them as such. By default, Dask rows of at most 32 MiB
# are fitted in one task: a single worker collects all blocks and fits them as rows in memory. That
# is quicker than messages about many small blocks.
fleet = Fleet(n_workers=2, threads_per_worker=1, processes=False)

with counting() as counts:
    Ridge().fit(X, y)
print(counts)

# %%
# :func:`~skfleet.engine.counting` shows the passes, the tasks, and how many blocks they loaded.
# ``config_context(single_task_below=0)`` turns this off, so that a small example shows what happens
# to large rows. Leave it out in your own code.
#
# The tasks come from Dask: :class:`~distributed.get_task_stream` records each of them with its
# worker and its times.


def record(model, **settings):
    """Fit a model, and return the tasks, the reads of blocks, and the counts."""
    client, start = fleet.client, time.time()
    with get_task_stream(client) as stream, counting() as counts:
        with config_context(single_task_below=0, **settings):
            model.fit(X, y)
        time.sleep(0.2)  # the last tasks may still be on their way into the stream
    reads = [event for logged_at, event in client.get_events("reads") if logged_at > start]
    return stream.data, reads, counts


ridge = record(Ridge())
print(ridge[2])

# %%
# One pass
# --------
#
# A ridge regression needs the sums of products of the columns, and these add up over blocks. So it
# makes a single pass. Its tasks are called ``block-products``, and each of them reads one block.
for name, n_tasks in Counter(key_split(task["key"]) for task in ridge[0]).items():
    print(f"{n_tasks:3d} x {name}")

# %%
# ``block-products-combine`` adds the sums of several blocks on a worker, so that less is sent to
# this process.
#
# In the picture, each box is a task. Its blue part is the read, and the rest is work on the rows.
# Tasks that only add partial results take almost no time, and are left out.
BLUE, ORANGE = "#3499cd", "#f79a3b"


def draw(ax, tasks, reads, numbers=False):
    """Draw the tasks of each worker, and the blocks that they read."""
    parts = [
        (task["worker"], part["start"], part["stop"])
        for task in tasks
        for part in task["startstops"]
        if part["action"] == "compute" and not key_split(task["key"]).endswith("-combine")
    ]
    workers = sorted({worker for _, worker, _, _ in reads})
    start = min(begin for _, begin, _ in parts)
    for worker, begin, end in parts:
        box = {"color": ORANGE, "edgecolor": "white", "linewidth": 0.5}
        ax.barh(workers.index(worker), end - begin, left=begin - start, **box)
    for block, worker, begin, end in reads:
        row = workers.index(worker)
        ax.barh(row, end - begin, left=begin - start, color=BLUE)
        if numbers:
            middle = (begin + end) / 2 - start
            ax.text(middle, row, block, color="white", ha="center", va="center")
    ax.set_yticks([0, 1], ["worker 1", "worker 2"])


def add_legend(fig):
    """Say what the colours mean."""
    labels = {"read a block": BLUE, "work on its rows": ORANGE}
    handles = [Patch(color=color, label=label) for label, color in labels.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)


fig, ax = plt.subplots(figsize=(8, 2.4), layout="constrained")
draw(ax, ridge[0], ridge[1], numbers=True)
ax.set_xlabel("seconds since the first task began")
add_legend(fig)
plt.show()

# %%
# What to look at:
#
# - **The numbers.** Each block is read once, by one of the workers. Their order does not matter, as
#   the sums are the same. A worker that is quicker takes more of them.
# - **Blue and orange.** Where blue is long and orange is short, the disk is the limit. More cores
#   will not help, but fewer passes or a faster disk will.
# - **The right ends.** No worker waits for long at the end, because there are several blocks for
#   each. With two or three large blocks it would.
#
# Several passes
# --------------
#
# A logistic regression cannot be solved in one pass. Its solver passes over the rows until the
# coefficients no longer change. What happens to the blocks between two passes is what matters then:
#
# - By default they stay in the memory of the workers, if they fit.
# - ``keep_blocks=False`` reads them again in every pass. The fit needs the memory of a few blocks
#   only, however many there are.
model = LogisticRegression(C=0.1)
fits = {
    "blocks stay in memory": record(model),
    "keep_blocks=False": record(model, keep_blocks=False),
}
fleet.close()

for name, (_, _, counts) in fits.items():
    print(f"{name}: {counts.passes} passes, {counts.tasks} tasks, {counts.loads} blocks loaded")

# %%
# The passes are as many, but without memory each of them loads all blocks.
fig, axes = plt.subplots(2, figsize=(8, 3.8), sharex=True, layout="constrained")
for ax, (name, (tasks, reads, _)) in zip(axes, fits.items(), strict=True):
    draw(ax, tasks, reads)
    ax.set_title(name, fontsize=10, loc="left")
axes[-1].set_xlabel("seconds since the first task began")
add_legend(fig)
plt.show()

# %%
# What to look at:
#
# - **Above.** All blue is on the left. Later passes are orange only, and each of them is one task
#   on each worker, which goes through all blocks that the worker holds.
# - **Below.** Blue and orange alternate to the end: every pass waits for the disk again. Where
#   memory is short, a copy on the local disk of the workers may be quicker to read than your files;
#   the setting ``disk_cache`` is about that.
#
# .. seealso::
#
#    - :doc:`/guide/memory` says where blocks stay between passes, and how to choose.
#    - :doc:`/reference/configuration` explains ``single_task_below``, ``keep_blocks`` and
#      ``disk_cache``.
#    - :func:`~skfleet.engine.counting` counts passes, tasks and loaded blocks.
