"""Boxes and arrows for the drawings of the documentation."""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"


def canvas(width, height, size=(7.0, 3.6)):
    """Return axes of so many units without a frame."""
    figure, axes = plt.subplots(figsize=size)
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    return axes


def box(axes, x, y, width, height, text, *, color=BLUE, size=10, filled=True):
    """Draw a box with a text in its middle."""
    patch = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor=color if filled else "white",
        edgecolor=color,
        linewidth=1.4,
    )
    axes.add_patch(patch)
    axes.text(
        x + width / 2,
        y + height / 2,
        text,
        ha="center",
        va="center",
        size=size,
        color="white" if filled else GREY,
    )


def arrow(axes, start, end, text="", *, color=GREY, size=9, dashed=False):
    """Draw an arrow, with a text above its middle."""
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.3, "shrinkA": 2, "shrinkB": 2}
    if dashed:
        style["linestyle"] = "--"
    axes.annotate("", end, start, arrowprops=style)
    if text:
        middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
        axes.annotate(
            text, middle, (0, 3), textcoords="offset points", ha="center", size=size, color=GREY
        )
