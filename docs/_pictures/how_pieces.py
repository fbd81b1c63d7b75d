"""The size of the pieces in which workers read Parquet files, over their memory."""

from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY

from skfleet.blocks import _block

IMPORTS = 300e6  # what a worker process has imported
plt.rcParams["font.size"] = 10

limits = np.geomspace(400e6, 20e9, 400)
sizes = []
for limit in limits:
    with patch.object(_block, "thread_memory", return_value=limit - IMPORTS):
        sizes.append(_block.file_block_bytes() / 2**20)

figure, axes = plt.subplots(figsize=(7, 3.2))
axes.plot(limits / 1e9, sizes, color=BLUE, lw=2)
axes.set(xscale="log", yscale="log", ylim=(1.5, 180))
axes.set_xlabel("memory limit of a worker of one thread (GB)")
axes.set_ylabel("size of a piece (MiB)")
ticks = [0.4, 0.8, 1.5, 4, 9, 20]
axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
axes.set_yticks([2, 16, 128], ["2", "16", "128"])
axes.minorticks_off()
axes.grid(color="#e0e0e0", lw=0.6)
axes.spines[["top", "right"]].set_visible(False)
axes.spines[["left", "bottom"]].set_color(GREY)
figure.tight_layout()
