"""Where the rows of a folder of files go in a fit and in a prediction: a drawing."""

from _drawing import GREY, ORANGE, arrow, box, canvas

axes = canvas(14, 7.2)
for number in range(4):
    y = 0.4 + 0.9 * number
    box(axes, 0.1, y, 2.6, 0.6, f"trips/{3 - number}.parquet", color=GREY, filled=False)
    box(axes, 11.4, y, 2.4, 0.6, f"part.{3 - number}.parquet", color=GREY, filled=False)
for y in (0.5, 2.4):
    box(axes, 5.4, y, 3.0, 1.2, "worker\none block at a time", filled=False)
    arrow(axes, (2.8, y + 0.6), (5.35, y + 0.6), "rows")
    arrow(axes, (8.45, y + 0.6), (11.3, y + 0.6), "predictions")
box(axes, 4.5, 5.7, 4.8, 1.1, "your process\nlearns from the summaries", color=ORANGE, filled=False)
arrow(axes, (6.1, 3.65), (6.1, 5.65), color=ORANGE)
arrow(axes, (7.7, 5.65), (7.7, 3.65), color=ORANGE)
axes.text(5.9, 4.65, "samples, categories, sums", ha="right", va="center", color=GREY, size=10)
axes.text(7.9, 4.65, "what was learned so far", ha="left", va="center", color=GREY, size=10)
