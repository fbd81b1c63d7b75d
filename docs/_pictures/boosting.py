"""Draw the rounds of two fits, one of which loses a worker."""

import matplotlib.pyplot as plt
from _drawing import BLUE, GREY, ORANGE

EVERY, LAST, DEATH, PAUSE = 50, 200, 144, 10

plt.rcParams["font.size"] = 10
figure, axes = plt.subplots(figsize=(7, 2.9))


def rounds(row, shift, first, last, colour):
    """Draw the rounds after `first` up to `last`, moved by `shift`."""
    axes.barh(row, last - first - 1, left=first + shift, height=0.4, color=colour)
    middle = (first + last) / 2 + shift
    axes.text(middle, row, f"{first + 1} to {last}", ha="center", va="center", color="white")


for row in (1, 0):
    shift = 0
    for first in range(0, LAST, EVERY):
        last = first + EVERY
        if row == 0 and first < DEATH < last:
            rounds(row, 0, first, DEATH, GREY)
            shift = DEATH - first + PAUSE
        rounds(row, shift, first, last, BLUE)
        if last < LAST:
            axes.plot(last + shift - 0.5, row + 0.32, "v", color=ORANGE, markersize=9)

ARROW = {"arrowstyle": "->"}
axes.annotate(
    "a worker dies", (DEATH, -0.22), (DEATH - 12, -0.8), ha="right", va="center", arrowprops=ARROW
)
axes.annotate(
    "all ranks start again\nfrom the last snapshot",
    (DEATH + PAUSE, -0.22),
    (DEATH + PAUSE + 12, -0.8),
    va="center",
    arrowprops=ARROW,
)
axes.plot([], [], "v", color=ORANGE, markersize=9, label="snapshot of the model")
axes.bar([0], [0], color=BLUE, label="rounds of boosting")
axes.bar([0], [0], color=GREY, label="rounds that are lost")
axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.2), ncols=3, frameon=False)
axes.set_yticks([1, 0], ["undisturbed", "with a loss"])
axes.set_xticks([])
axes.set_xlabel("time")
axes.set_ylim(-1.2, 1.5)
axes.set_xlim(-3, LAST + DEATH - 100 + PAUSE + 3)
axes.spines[["top", "right", "left"]].set_visible(False)
axes.tick_params(left=False)
