"""The parts of a fleet: your process with the client, the scheduler, and the workers."""

from _drawing import BLUE, GREY, ORANGE, arrow, box, canvas

axes = canvas(14, 7.2)
box(axes, 0.2, 2.4, 3.6, 2.4, "your process:\nyour code\nand the client", filled=False)
scheduler = "scheduler:\npicks a worker\nfor each task"
box(axes, 5.9, 2.4, 2.7, 2.4, scheduler, color=GREY, filled=False)
for number, y in enumerate((5.2, 2.8, 0.4), 1):
    box(axes, 10.7, y, 3.2, 1.6, f"worker {number}:\nruns tasks", color=ORANGE, filled=False)
    arrow(axes, (8.6, 3.6 + 0.35 * (2 - number)), (10.7, y + 0.8))
arrow(axes, (3.8, 3.95), (5.9, 3.95), "tasks", color=BLUE)
arrow(axes, (5.9, 3.25), (3.8, 3.25), color=ORANGE)
axes.text(4.85, 2.8, "results", ha="center", color=GREY, size=9)
