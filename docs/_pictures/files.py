"""Where the rows of a folder of files go in a fit and in a prediction: a drawing."""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"
plt.rcParams["font.size"] = 10

figure, axes = plt.subplots(figsize=(7, 3.6))
axes.set(xlim=(0, 14), ylim=(0, 7.2))
axes.set_axis_off()


def box(x, y, width, height, text, colour):
    """Draw a box with a text."""
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0.08",
        facecolor="white",
        edgecolor=colour,
        lw=1.6,
    )
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center")


def arrow(start, end, colour):
    """Draw an arrow."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.6})


for number in range(4):
    y = 0.4 + 0.9 * number
    box(0.2, y, 2.2, 0.5, f"trips/{3 - number}.parquet", GREY)
    box(11.4, y, 2.4, 0.5, f"part.{3 - number}.parquet", GREY)
for y in (0.5, 2.4):
    box(5.4, y, 3.0, 1.2, "worker\none block at a time", BLUE)
    arrow((2.6, y + 0.6), (5.25, y + 0.6), GREY)
    arrow((8.55, y + 0.6), (11.25, y + 0.6), GREY)
    axes.text(3.9, y + 0.8, "rows", ha="center", color=GREY)
    axes.text(9.9, y + 0.8, "predictions", ha="center", color=GREY)
box(5.0, 5.7, 3.8, 1.1, "your process\nlearns from the summaries", ORANGE)
arrow((6.1, 3.75), (6.1, 5.55), ORANGE)
arrow((7.7, 5.55), (7.7, 3.75), ORANGE)
axes.text(5.9, 4.65, "samples, categories, sums", ha="right", va="center", color=GREY)
axes.text(7.9, 4.65, "what was learned so far", ha="left", va="center", color=GREY)
figure.tight_layout(pad=0.2)
