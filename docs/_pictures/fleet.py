"""The parts of a fleet: your process with the client, the scheduler, and the workers."""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"

plt.rcParams["font.size"] = 10
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.set(xlim=(0, 14), ylim=(0, 7.2))
axes.axis("off")


def box(x, y, width, height, colour, title, *lines):
    """Draw a box with a title, and smaller lines below it."""
    style = "round,pad=0,rounding_size=0.15"
    axes.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, fc="white", ec=colour, lw=2)
    )
    middle, step = x + width / 2, 0.55
    top = y + height / 2 + step * len(lines) / 2
    axes.text(middle, top, title, ha="center", va="center", weight="bold")
    for number, line in enumerate(lines, 1):
        axes.text(middle, top - number * step, line, ha="center", va="center", color=GREY)


def arrow(begin, end, colour):
    """Draw an arrow from one point to another."""
    style = "-|>,head_length=5,head_width=3"
    axes.add_patch(FancyArrowPatch(begin, end, arrowstyle=style, color=colour, lw=1.5))


box(0.2, 2.4, 3.6, 2.4, BLUE, "your process", "your code", "and the client")
box(5.9, 2.4, 2.7, 2.4, GREY, "scheduler", "picks a worker", "for each task")
for number, y in enumerate((5.2, 2.8, 0.4), 1):
    box(10.7, y, 3.2, 1.6, ORANGE, f"worker {number}", "runs tasks")
    arrow((8.7, 3.6 + 0.35 * (2 - number)), (10.6, y + 0.8), GREY)
arrow((3.9, 3.95), (5.8, 3.95), BLUE)
arrow((5.8, 3.25), (3.9, 3.25), ORANGE)
axes.text(4.85, 4.25, "tasks", ha="center", color=GREY)
axes.text(4.85, 2.7, "results", ha="center", color=GREY)
