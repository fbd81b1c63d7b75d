"""The packages of skfleet, floor by floor."""

from _drawing import GREY, ORANGE, arrow, box, canvas

FLOORS = [
    ["joblib_backend"],
    ["model_selection"],
    ["estimators", "datasets"],
    ["_joblib", "fleet", "glm", "inference", "metrics"],
    ["quantiles"],
    ["engine"],
    ["blocks"],
    ["_cluster"],
    ["_validation"],
    ["_linalg", "_device"],
    ["_array"],
    ["_config, exceptions, _progress_bar, _sklearn_private, ..."],
    ["_private_names"],
]

axes = canvas(10, len(FLOORS), size=(7, 6.2))
for i, names in enumerate(FLOORS):
    y = len(FLOORS) - 1 - i + 0.15
    width = 9.0 / max(len(names), 2) - 0.15 if len(names) > 1 else 5.6
    left = 5 - (width + 0.15) * len(names) / 2 + 0.075
    for j, name in enumerate(names):
        public = not name.startswith("_")
        box(axes, left + j * (width + 0.15), y, width, 0.62, name, filled=public, size=9)
    if i:
        arrow(axes, (5, y + 1.02), (5, y + 0.62), color=ORANGE)
axes.text(9.95, len(FLOORS) - 0.5, "imports point\ndownwards", ha="right", color=GREY, size=9)
