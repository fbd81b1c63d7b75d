"""A search over nearest neighbours by cuML: on a fleet, and in one process with cuml.accel."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from gpu_cases.run import Run
from sklearn import decomposition, neighbors, pipeline, preprocessing
from sklearn.datasets import make_classification

from skfleet import config_context
from skfleet.model_selection import GridSearchCV

# Rows like those of forest cover types, over which cuML's documentation searches.
N_COLUMNS, N_CLASSES = 54, 7
GRID = {
    "pca__n_components": [10, 20],
    "neighbors__n_neighbors": [1, 3, 5, 7, 9],
    "neighbors__weights": ["uniform", "distance"],
}
ACCELERATED = """
    import json, sys, time
    import numpy as np
    from sklearn import decomposition, neighbors, pipeline, preprocessing
    from sklearn.model_selection import GridSearchCV

    X, y, grid = np.load("X.npy"), np.load("y.npy"), json.loads(sys.argv[1])
    model = pipeline.Pipeline([
        ("scaler", preprocessing.StandardScaler()),
        ("pca", decomposition.PCA()),
        ("neighbors", neighbors.KNeighborsClassifier(algorithm="brute")),
    ])
    began = time.perf_counter()
    search = GridSearchCV(model, grid, cv=5, n_jobs=1, error_score="raise").fit(X, y)
    seconds = time.perf_counter() - began
    print(json.dumps([seconds, search.cv_results_["mean_test_score"].tolist()]))
"""


def accelerated(run: Run) -> None:
    """Twenty candidates and five folds of scaler, PCA and nearest neighbours."""
    n_rows = min(run.sizes.n_rows, 300_000)
    X, y = make_classification(
        n_rows, N_COLUMNS, n_informative=20, n_classes=N_CLASSES, random_state=0
    )
    X = X.astype(np.float32)
    with run.machine.gpu_fleet():
        ours = run.timed(
            "GPU fleet, cuML's estimators",
            lambda: _search(run, X, y),
            lambda search: {"fits": 100, "best": str(search.best_params_)},
        )
    if run.machine.cuml is None:
        run.note("cuml.accel, n_jobs=1", error=run.machine.no_cuml)
        return
    scores = run.timed("cuml.accel, n_jobs=1", lambda: _in_one_process(X, y))
    if scores is not None and ours is not None:
        seconds, means = scores
        run.seconds["cuml.accel, n_jobs=1"] = seconds  # without its start and imports
        apart = np.abs(np.asarray(means) - ours.cv_results_["mean_test_score"])
        run.note("cuml.accel, the search alone", seconds=seconds, scores_apart=float(apart.max()))
        run.ratios("GPU fleet, cuML's estimators", ["cuml.accel, n_jobs=1"])


def _search(run: Run, X: Any, y: Any) -> Any:
    """Search on the fleet that is open, over cuML's estimators where there is cuML."""
    cuml = run.machine.cuml
    kinds = (
        (preprocessing.StandardScaler, decomposition.PCA, neighbors.KNeighborsClassifier)
        if cuml is None
        else (cuml.preprocessing.StandardScaler, cuml.PCA, cuml.neighbors.KNeighborsClassifier)
    )
    steps = zip(("scaler", "pca", "neighbors"), (kind() for kind in kinds), strict=True)
    model = pipeline.Pipeline(list(steps))
    with config_context(**run.machine.on_gpu):
        return GridSearchCV(model, GRID, cv=5, refit=False, error_score="raise").fit(X, y)


def _in_one_process(X: Any, y: Any) -> tuple[float, list[float]]:
    """Return the seconds and scores of scikit-learn's own search with cuml.accel."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "X.npy"), X)
        np.save(Path(folder, "y.npy"), y)
        Path(folder, "accelerated.py").write_text(textwrap.dedent(ACCELERATED))
        command = [sys.executable, "-m", "cuml.accel", "accelerated.py", json.dumps(GRID)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"cuml.accel: {done.stderr[-2000:]}")
    seconds, scores = json.loads(done.stdout.splitlines()[-1])
    return seconds, scores
