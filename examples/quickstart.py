"""Each main use of scikit-fleet next to plain scikit-learn, on data that scikit-learn ships.

Run it with ``make demo``. It ends with a table, and with an error if an answer differs from
scikit-learn's by more than its tolerance.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import joblib
import numpy as np
from sklearn import cluster, decomposition, linear_model, model_selection
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import (
    PCA,
    ElasticNetCV,
    Incremental,
    KMeans,
    LogisticRegression,
    ParallelPostFit,
    Ridge,
)
from skfleet.model_selection import GridSearchCV


@dataclass
class Answer:
    """What a run ends with: a figure to show, made when it is asked for, and values to compare."""

    figure: Callable[[], str]
    values: list[Any]


@dataclass
class Use:
    """One use: our code, scikit-learn's, and by how much their values may differ."""

    title: str
    about: str
    ours: Callable[[], Answer]
    theirs: Callable[[], Answer]
    tolerance: float
    costs: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Do the work twice; note the answers, seconds, passes and tasks."""
        start = time.perf_counter()
        with counting() as counts:
            ours = self.ours()
        middle = time.perf_counter()
        theirs = self.theirs()
        end = time.perf_counter()
        self.costs = {
            "ours": ours.figure(),
            "theirs": theirs.figure(),
            "difference": max(
                difference(a, b) for a, b in zip(ours.values, theirs.values, strict=True)
            ),
            "seconds": (middle - start, end - middle),
            # What joblib sends is whole fits: there are no passes over blocks to count.
            "passes": counts.passes or "-",
            "tasks": counts.tasks or "-",
        }

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the tolerance; NaN is not."""
        return self.costs["difference"] <= self.tolerance

    @property
    def verdict(self) -> str:
        """Say whether the answers agree, in a few words."""
        if not self.agrees:
            return f"DIFFERS by {self.costs['difference']:.1e}, more than {self.tolerance:g}"
        return f"agrees within {self.tolerance:g}" if self.tolerance else "agrees exactly"


def difference(ours: Any, theirs: Any) -> float:
    """Norm of the difference over the norm of scikit-learn's; share of unlike ones for labels."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return np.inf
    if theirs.dtype.kind != "f":
        return float(np.mean(ours != theirs))
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-300))


def in_blocks(n_blocks: int, *arrays: np.ndarray) -> list[Any]:
    """Cut arrays by rows into Dask arrays of so many blocks."""
    rows = -(-len(arrays[0]) // n_blocks)
    return [da.from_array(a, chunks=(rows, *a.shape[1:])) for a in arrays]


def forest(n_trees: int = 1_000) -> Use:
    """Plain scikit-learn, on the fleet through joblib: some seconds of work for each worker."""
    X, y = load_digits(return_X_y=True)
    n_train = 1_400

    def answer(backend: Any) -> Answer:
        forest = RandomForestClassifier(n_estimators=n_trees, random_state=0)
        with backend:
            forest.fit(X[:n_train], y[:n_train])
        found = forest.predict_proba(X[n_train:])
        score = np.mean(forest.classes_[found.argmax(axis=1)] == y[n_train:])
        return Answer(lambda: f"acc. {score:.4f}", [found])

    return Use(
        "forest by joblib",
        f"{n_trees:,} trees, {n_train:,} digits",
        lambda: answer(joblib.parallel_config("skfleet")),
        lambda: answer(nullcontext()),
        1e-12,
    )


def search(n_rows: int | None = None) -> Use:
    """A pipeline in a grid search."""
    X, y = (array[:n_rows] for array in load_digits(return_X_y=True))
    pipeline = make_pipeline(StandardScaler(), decomposition.PCA(), SVC())
    grid = {"pca__n_components": [20, 40], "svc__C": [0.1, 1.0, 10.0], "svc__gamma": [0.003, 0.01]}

    def answer(kind: type) -> Answer:
        found = kind(pipeline, grid).fit(X, y)
        scores = [found.cv_results_[f"split{i}_test_score"] for i in range(found.n_splits_)]
        return Answer(lambda: f"CV {found.best_score_:.4f}", [scores, str(found.best_params_)])

    return Use(
        "GridSearchCV",
        "pipeline of 3 steps, 12 candidates x 5 folds, digits",
        lambda: answer(GridSearchCV),
        lambda: answer(model_selection.GridSearchCV),
        0.0,
    )


def search_with_shared_fits(n_rows: int | None = None) -> Use:
    """A grid search whose candidates share one fit per split."""
    X, y = (array[:n_rows] for array in load_digits(return_X_y=True))
    model = HistGradientBoostingClassifier(early_stopping=False, random_state=0, max_leaf_nodes=8)
    grid = {"max_iter": [10, 15, 20, 25, 30]}

    def scores(found: Any) -> list[Any]:
        return [found.cv_results_[f"split{i}_test_score"] for i in range(found.n_splits_)]

    def ours() -> Answer:
        found = GridSearchCV(model, grid, cv=3, refit=False).fit(X, y)
        (use,) = found.shared_fits_
        return Answer(lambda: f"saved {use.n_saved}/{use.n_fits}", scores(found))

    def theirs() -> Answer:
        found = model_selection.GridSearchCV(model, grid, cv=3, refit=False).fit(X, y)
        return Answer(lambda: "saved 0", scores(found))

    return Use(
        "GridSearchCV, shared fits",
        "boosting, 5 max_iter x 3 folds: one fit a fold",
        ours,
        theirs,
        0.0,
    )


def logistic_regression() -> Use:
    """A classifier on rows in blocks."""
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    rows, labels = in_blocks(6, X, y)

    def ours() -> Answer:
        model = LogisticRegression(tol=1e-10).fit(rows, labels)
        return Answer(
            lambda: f"acc. {model.score(rows, labels):.4f}", [model.coef_, model.intercept_]
        )

    def theirs() -> Answer:
        model = linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(X, y)
        return Answer(lambda: f"acc. {model.score(X, y):.4f}", [model.coef_, model.intercept_])

    return Use("LogisticRegression", "breast cancer in 6 blocks", ours, theirs, 1e-5)


def ridge() -> Use:
    """A regressor on rows in blocks."""
    X, y = load_diabetes(return_X_y=True)
    rows, target = in_blocks(5, X, y)

    def ours() -> Answer:
        model = Ridge(alpha=0.1).fit(rows, target)
        return Answer(
            lambda: f"R2 {model.score(rows, target):.4f}", [model.coef_, model.intercept_]
        )

    def theirs() -> Answer:
        model = linear_model.Ridge(alpha=0.1, solver="cholesky").fit(X, y)
        return Answer(lambda: f"R2 {model.score(X, y):.4f}", [model.coef_, model.intercept_])

    return Use("Ridge", "diabetes in 5 blocks", ours, theirs, 1e-5)


def elastic_net_cv() -> Use:
    """A path of penalties on every fold, from one pass over rows in blocks."""
    X, y = load_diabetes(return_X_y=True)
    rows, target = in_blocks(5, X, y)

    def answer(kind: type, X: Any, y: Any, **settings: Any) -> Answer:
        model = kind(l1_ratio=[0.5, 0.9, 1.0], tol=1e-10, **settings).fit(X, y)
        return Answer(
            lambda: f"MSE {model.mse_path_.mean(axis=-1).min():.2f}",
            [model.mse_path_, model.coef_, model.alpha_, model.l1_ratio_],
        )

    return Use(
        "ElasticNetCV",
        "100 alphas x 3 ratios x 5 folds, diabetes in 5 blocks",
        lambda: answer(ElasticNetCV, rows, target),
        lambda: answer(linear_model.ElasticNetCV, X, y, max_iter=10_000),
        1e-5,
    )


def kmeans() -> Use:
    """Clusters of rows in blocks, from the same start."""
    X, _ = load_digits(return_X_y=True)
    (rows,) = in_blocks(8, X)
    settings = {"n_clusters": 10, "n_init": 1, "tol": 0.0}
    start = X[np.random.default_rng(0).choice(len(X), 10, replace=False)]

    def answer(kind: type, X: Any) -> Answer:
        model = kind(init=start, **settings).fit(X)
        return Answer(
            lambda: f"SSE {model.inertia_:.0f}",
            [model.cluster_centers_, model.inertia_, model.labels_],
        )

    return Use(
        "KMeans",
        "digits in 8 blocks",
        lambda: answer(KMeans, rows),
        lambda: answer(cluster.KMeans, X),
        1e-6,
    )


def pca() -> Use:
    """Principal components of rows in blocks that are cut along both axes."""
    X, _ = load_digits(return_X_y=True)
    rows = da.from_array(X, chunks=(300, 16))

    def answer(kind: type, X: Any) -> Answer:
        model = kind(n_components=10).fit(X)
        return Answer(
            lambda: f"{model.explained_variance_ratio_.sum():.1%} expl.",
            [model.components_, model.explained_variance_],
        )

    return Use(
        "PCA",
        "digits in 6 x 4 blocks",
        lambda: answer(PCA, rows),
        lambda: answer(decomposition.PCA, X),
        1e-9,
    )


def incremental() -> Use:
    """An estimator of scikit-learn that learns block by block."""
    X, y = load_digits(return_X_y=True)
    X = X / 16
    rows, labels = in_blocks(9, X, y)
    epochs, classes = 5, np.unique(y)

    def ours() -> Answer:
        model = Incremental(
            linear_model.SGDClassifier(random_state=0), epochs=epochs, shuffle=False
        ).fit(rows, labels)
        return Answer(
            lambda: f"acc. {model.score(rows, labels):.4f}",
            [model.estimator_.coef_, model.estimator_.intercept_],
        )

    def theirs() -> Answer:
        model = linear_model.SGDClassifier(random_state=0)
        for _ in range(epochs):
            for block in np.split(np.arange(len(X)), np.cumsum(rows.chunks[0])[:-1]):
                model.partial_fit(X[block], y[block], classes=classes)
        return Answer(lambda: f"acc. {model.score(X, y):.4f}", [model.coef_, model.intercept_])

    return Use("Incremental(SGD)", "SGDClassifier, digits in 9 blocks", ours, theirs, 1e-12)


def post_fit(n_shades: int = 30) -> Use:
    """A model trained on few rows, predicting many."""
    X, y = load_digits(return_X_y=True)
    model = SVC(gamma=0.001).fit(X, y)
    # Every digit in many shades, made block by block on the workers.
    shades = np.linspace(0.7, 1.3, n_shades)
    (digits,) = in_blocks(1, X)
    rows = da.concatenate([digits * shade for shade in shades])
    many = np.concatenate([X * shade for shade in shades])
    truth = np.tile(y, len(shades))

    def ours() -> Answer:
        labels = ParallelPostFit(model).predict(rows).compute()
        return Answer(lambda: f"acc. {np.mean(labels == truth):.4f}", [labels])

    def theirs() -> Answer:
        labels = model.predict(many)
        return Answer(lambda: f"acc. {np.mean(labels == truth):.4f}", [labels])

    return Use(
        "ParallelPostFit(SVC)", f"{len(many):,} digits, trained on {len(X):,}", ours, theirs, 0.0
    )


USES = [
    forest,
    search,
    search_with_shared_fits,
    logistic_regression,
    ridge,
    elastic_net_cv,
    kmeans,
    pca,
    incremental,
    post_fit,
]


def table(uses: list[Use]) -> str:
    """Write all answers and costs as an aligned table."""
    lines = [
        ["what", "ours", "scikit-learn", "difference", "seconds", "sk-learn's", "passes", "tasks"]
    ]
    for use in uses:
        costs = use.costs
        cells = [use.title, costs["ours"], costs["theirs"], f"{costs['difference']:.1e}"]
        cells += [f"{seconds:.2f}" for seconds in costs["seconds"]]
        lines.append([*cells, str(costs["passes"]), str(costs["tasks"])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


NOTE = """\
difference: of coefficients, centres or scores, relative to scikit-learn's; of labels,
the share that is unlike. passes: times that all rows in blocks were read; tasks: what
that took. scikit-learn works in one process, ours in two."""


def main() -> int:
    """Run every use on a fleet of two worker processes; return the exit status."""
    start = time.perf_counter()
    print("Starting a fleet of 2 worker processes ... ", end="", flush=True)
    uses = []
    with Fleet(n_workers=2):
        print(f"{time.perf_counter() - start:.1f} s", flush=True)
        for number, make in enumerate(USES, 1):
            use = make()
            print(f"[{number}/{len(USES)}] {use.title}: {use.about} ... ", end="", flush=True)
            use.run()
            print(use.verdict, flush=True)
            uses.append(use)
    print(f"\n{table(uses)}\n\n{NOTE}\n")
    unlike = [use.title for use in uses if not use.agrees]
    if unlike:
        print(f"FAILED: answers differ by more than they may: {', '.join(unlike)}")
        return 1
    print(f"All {len(uses)} agree with scikit-learn. {time.perf_counter() - start:.0f} s in all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
