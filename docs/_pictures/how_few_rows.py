"""Where a fit on Dask rows runs: a task for each block and pass, or one task for few rows."""

from _drawing import GREY, ORANGE, arrow, box, canvas

axes = canvas(14, 7.2)


def heading(x, text):
    """Write a line above a half of the picture."""
    axes.text(x, 6.75, text, ha="center", va="center", size=11, color=GREY)


heading(3.4, "more than 32 MiB: on blocks")
heading(10.6, "at most 32 MiB: one task")
box(axes, 1.7, 4.9, 3.4, 0.9, "your process", color=ORANGE)
for i in range(4):
    x = 0.2 + 1.65 * i
    box(axes, x, 2.6, 1.45, 0.9, "task")
    box(axes, x, 0.5, 1.45, 0.8, "block", color=GREY, filled=False)
    arrow(axes, (x + 0.72, 1.3), (x + 0.72, 2.6))
    arrow(axes, (x + 0.72, 3.5), (2.2 + 0.8 * i, 4.9), color=ORANGE)
axes.text(6.95, 4.2, "in every\npass", ha="center", va="center", color=GREY)
axes.plot([7.75, 7.75], [0.3, 6.6], color="#d0d0d0", lw=1)
box(axes, 9.2, 4.9, 3.4, 0.9, "your process", color=ORANGE)
box(axes, 8.6, 2.6, 4.6, 0.9, "one task: the whole fit")
arrow(axes, (10.9, 3.5), (10.9, 4.9), color=ORANGE)
axes.text(11.1, 4.2, "fitted model, once", va="center", color=GREY)
for i in range(3):
    x = 8.45 + 1.7 * i
    box(axes, x, 0.5, 1.5, 0.8, "block", color=GREY, filled=False)
    arrow(axes, (x + 0.75, 1.3), (9.2 + 1.7 * i, 2.6))
