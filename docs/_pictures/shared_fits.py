"""One fit of a forest on a split, which has the forests of three candidates in it."""

from _drawing import BLUE, GREY, ORANGE, arrow, box, canvas
from matplotlib.patches import Rectangle

CANDIDATES, N_TREES = [5, 10, 20], 20
LEFT, WIDTH = 4.2, 0.27

axes = canvas(15, 6.6)
box(axes, 0.2, 2.5, 2.8, 1.2, "training rows\nof one split", color=GREY, filled=False)
arrow(axes, (3.0, 3.1), (4.05, 3.1))
axes.text(LEFT + N_TREES * WIDTH / 2, 5.75, "one fit of 20 trees", ha="center", size=10, color=GREY)
for row, n_trees in enumerate(CANDIDATES):
    y = 4.3 - 1.75 * row
    for tree in range(N_TREES):
        is_used = tree < n_trees
        axes.add_patch(
            Rectangle(
                (LEFT + tree * WIDTH, y),
                0.78 * WIDTH,
                1.0,
                facecolor=BLUE if is_used else "white",
                edgecolor=BLUE,
                linewidth=0.8,
            )
        )
    arrow(axes, (LEFT + N_TREES * WIDTH, y + 0.5), (10.6, y + 0.5))
    box(
        axes,
        10.7,
        y - 0.1,
        4.1,
        1.2,
        f"score of the candidate\nn_estimators={n_trees}",
        color=ORANGE,
    )
axes.text(
    LEFT, 0.15, "each row shows the same 20 trees; those in blue are scored", size=9, color=GREY
)
