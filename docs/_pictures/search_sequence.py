"""The way of one batch of fits from a search to a worker and back."""

from _drawing import GREY, arrow, box, canvas

ACTORS = ["GridSearchCV", "joblib_backend", "_dispatcher", "_on_workers", "_scheduler", "a worker"]
STEPS = [
    (0, 1, "calls of _fit_and_score"),
    (1, 2, "calls, read ahead"),
    (2, 2, "equal fits merged; shared fits\nand first steps named"),
    (2, 3, "fits that no other\nroute takes"),
    (3, 4, "fit requests"),
    (4, 3, "the next batch"),
    (3, 5, "one task for each batch"),
    (5, 3, "scores, durations, output"),
    (3, 4, "durations"),
    (3, 2, "outcomes"),
    (2, 0, "results, in the order of the calls"),
]

axes = canvas(12, len(STEPS) + 2, size=(7, 5.6))
x = [1 + 2 * i for i in range(len(ACTORS))]
top = len(STEPS) + 1
for position, name in zip(x, ACTORS, strict=True):
    box(axes, position - 0.92, top, 1.84, 0.8, name, size=8)
    axes.plot([position, position], [0.2, top], color=GREY, lw=0.8, ls=":")
for i, (start, end, text) in enumerate(STEPS):
    y = top - 0.95 - i
    if start == end:
        axes.text(x[start] + 0.15, y, text, size=8, color=GREY, va="center")
        axes.plot(x[start], y, "o", color=GREY, ms=4)
    else:
        arrow(axes, (x[start], y), (x[end], y), text, dashed=end < start, size=8)
