"""Your script, a fleet of workers, and what goes between them."""

from _drawing import BLUE, GREY, ORANGE, arrow, box, canvas

axes = canvas(12, 6)
box(axes, 0.2, 2.2, 2.6, 1.6, "your script\nor notebook", color=GREY)
box(axes, 4.6, 2.2, 2.2, 1.6, "scheduler", color=GREY, filled=False)
WORKERS = [(4.4, "CPU worker", BLUE), (2.45, "CPU worker", BLUE), (0.5, "GPU worker", ORANGE)]
for y, name, color in WORKERS:
    box(axes, 8.6, y, 3.2, 1.2, "", color=color, filled=False)
    axes.text(8.8, y + 0.93, name, size=9, color=color)
    for i in range(4):
        box(axes, 8.8 + 0.73 * i, y + 0.12, 0.6, 0.6, "rows", color=color, size=7)
    arrow(axes, (6.8, 3.15), (8.6, y + 0.75), color=GREY)
    arrow(axes, (8.6, y + 0.45), (6.8, 2.85), color=ORANGE, dashed=True)
arrow(axes, (2.8, 3.2), (4.6, 3.2), "fits, passes")
arrow(axes, (4.6, 2.7), (2.8, 2.7), color=ORANGE, dashed=True)
axes.text(3.7, 2.25, "scores, sums,\nfitted models", size=9, color=GREY, ha="center", va="center")
