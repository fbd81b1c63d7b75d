"""Single estimators on rows that are on the device: skfleet, cuML, scikit-learn on the cores.

A floor is what the device cannot do without: to read the rows once a pass, and the arithmetic of
the products. Both are computed from rates that were measured on the device in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from gpu_cases.run import Run, difference
from sklearn import cluster, decomposition, linear_model

from skfleet import estimators
from skfleet._array import to_host
from skfleet.engine import counting
from skfleet.estimators.cluster import _cuda_kernel
from skfleet.estimators.cluster._device_assign import assign
from skfleet.estimators.cluster._distances import Centers

NO_KERNEL = "skfleet, products of matrices"


class Fit(NamedTuple):
    """A fitted model and the passes that it took."""

    model: Any
    passes: int


def fit(make: Callable[[], Any], *data: Any) -> Callable[[], Fit]:
    """Return a call that fits a new model, for `Run.timed`."""

    def call() -> Fit:
        with counting() as counts:
            model = make().fit(*data)
        return Fit(model, counts.passes)

    return call


def ridge(run: Run) -> None:
    """Ridge regression."""
    X, y, _ = _rows(run)
    floor = _floor(run, X, n_products=lambda found: 1)
    _products(run, X)
    ours = run.timed("skfleet", fit(estimators.Ridge, X, y), floor)
    for who, rows in _layouts(run, X):
        _cuml(run, who, "Ridge", {"alpha": 1.0}, rows, y, lambda f: _coef(f.model, ours))
        del rows
    run.timed_share("scikit-learn", _head(X, y), _sklearn(linear_model.Ridge), len(X))
    run.ratios("skfleet", ["cuml", "cuml, column by column", "scikit-learn"])
    n = run.sizes.n_slice
    _slice(run, estimators.Ridge, linear_model.Ridge, (X[:n], y[:n]))


def logistic(run: Run) -> None:
    """Logistic regression with two classes."""
    X, _, y = _rows(run)
    read = _floor(run, X, n_products=lambda found: int(found.model.n_iter_[0]))

    def looked_at(found: Fit) -> dict[str, Any]:
        n_iter = int(np.max(to_host(found.model.n_iter_)))
        return {"n_iter": n_iter, "objective": _log_loss(run, found.model, X, y)}

    _products(run, X)
    ours = run.timed(
        "skfleet", fit(estimators.LogisticRegression, X, y), lambda f: read(f) | looked_at(f)
    )
    settings = {"C": 1.0, "max_iter": 1000}
    for who, rows in _layouts(run, X):
        compare = lambda f: _coef(f.model, ours) | looked_at(f)  # noqa: E731
        _cuml(run, who, "LogisticRegression", settings, rows, y, compare)
        del rows
    for solver in ("lbfgs", "newton-cholesky"):
        make = lambda s=solver: linear_model.LogisticRegression(solver=s, max_iter=1000)  # noqa: E731
        run.timed_share(f"scikit-learn, {solver}", _head(X, y), _sklearn(make), len(X))
    run.ratios(
        "skfleet",
        ["cuml", "cuml, column by column", "scikit-learn, lbfgs", "scikit-learn, newton-cholesky"],
    )
    n = run.sizes.n_slice
    exact = lambda: linear_model.LogisticRegression(solver="newton-cholesky", tol=1e-10)  # noqa: E731
    tight = lambda: estimators.LogisticRegression(tol=1e-8)  # noqa: E731
    _slice(run, estimators.LogisticRegression, exact, (X[:n], y[:n]))
    _slice(run, tight, exact, (X[:n], y[:n]), ", tol of 1e-8")


def kmeans(run: Run) -> None:
    """k-means from the same centres, for the same number of iterations."""
    sizes, xp = run.sizes, run.machine.xp
    rng = run.machine.generator(0)
    middle = rng.standard_normal((sizes.n_clusters, sizes.cluster_columns), dtype=xp.float32)
    member = (rng.random(sizes.n_rows, dtype=xp.float32) * sizes.n_clusters).astype(xp.int32)
    X = rng.standard_normal((sizes.n_rows, sizes.cluster_columns), dtype=xp.float32)
    X += middle[xp.minimum(member, sizes.n_clusters - 1)]
    del middle, member
    init = to_host(X[: sizes.n_clusters]).copy()
    settings = {
        "n_clusters": sizes.n_clusters,
        "init": init,
        "n_init": 1,
        "max_iter": sizes.n_iter,
        "tol": 0.0,
    }

    def looked_at(found: Fit) -> dict[str, Any]:
        model = found.model
        return {"n_iter": int(model.n_iter_), "inertia": float(model.inertia_)}

    # distances to all centres; the sums of the members are reading, and little arithmetic
    products = 2 * X.size * sizes.n_clusters / run.machine.rates.gemm
    reading = X.nbytes / run.machine.rates.copy

    def with_floor(found: Fit) -> dict[str, Any]:
        floors = {
            "passes": found.passes,
            "floor_reading": found.passes * reading,
            "floor_arithmetic": found.model.n_iter_ * products,
        }
        return floors | looked_at(found)

    ours = run.timed("skfleet", fit(lambda: estimators.KMeans(**settings), X), with_floor)
    centers = Centers(init, None, np.float32)
    floors = {"floor_reading": reading, "floor_arithmetic": products}
    run.timed("one iteration", lambda: assign(centers, X, sums=True).sums, **floors)

    def compared(found: Fit) -> dict[str, Any]:
        said = looked_at(found)
        if ours is not None:
            said["skfleets_inertia_over"] = ours.model.inertia_ / said["inertia"]
            said["centers_apart"] = difference(
                ours.model.cluster_centers_, found.model.cluster_centers_
            )
        return said

    with without_kernel():
        run.timed(NO_KERNEL, fit(lambda: estimators.KMeans(**settings), X), compared)
        who = f"one iteration{NO_KERNEL.removeprefix('skfleet')}"
        run.timed(who, lambda: assign(centers, X, sums=True).sums, **floors)
    # which takes no tolerance of 0
    _cuml(run, "cuml", "KMeans", settings | {"tol": 1e-30}, X, None, compared)
    make = lambda: cluster.KMeans(**settings)  # noqa: E731
    run.timed_share(
        "scikit-learn", _head(X), _sklearn(make), len(X), lambda m: {"n_iter": int(m.n_iter_)}
    )
    run.ratios("skfleet", [NO_KERNEL, "cuml", "scikit-learn"])
    _own_starts(run, X, looked_at)
    n = run.sizes.n_slice
    mine = estimators.KMeans(**settings).fit(X[:n])
    theirs = cluster.KMeans(**settings).fit(to_host(X[:n]).astype(np.float64))
    run.note(
        "skfleet to scikit-learn, on a slice",
        rows=n,
        inertia_over=float(mine.inertia_ / theirs.inertia_),
        centers_apart=difference(mine.cluster_centers_, theirs.cluster_centers_),
    )


def _own_starts(run: Run, X: Any, facts: Callable[[Fit], dict[str, Any]]) -> None:
    """Time k-means from each library's own start, k-means|| in both, with its default tolerance."""
    settings = {
        "n_clusters": run.sizes.n_clusters,
        "n_init": 1,
        "max_iter": run.sizes.n_iter,
        "random_state": 0,
    }
    ours = run.timed("skfleet, own start", fit(lambda: estimators.KMeans(**settings), X), facts)

    def compared(found: Fit) -> dict[str, Any]:
        if ours is None:
            return facts(found)
        ratio = float(ours.model.inertia_) / float(found.model.inertia_)
        return facts(found) | {"skfleets_inertia_over": ratio}

    _cuml(run, "cuml, own start", "KMeans", settings, X, None, compared)
    run.ratios("skfleet, own start", ["cuml, own start"])


@contextmanager
def without_kernel() -> Iterator[None]:
    """Let k-means do what it does for arrays that its CUDA kernel is not for."""
    _cuda_kernel.ENABLED = False
    try:
        yield
    finally:
        _cuda_kernel.ENABLED = True


def pca(run: Run) -> None:
    """Ten principal components, from the covariance in all three libraries."""
    xp, sizes = run.machine.xp, run.sizes
    X, _, _ = _rows(run)
    X *= xp.asarray(np.geomspace(1.0, 0.1, sizes.n_columns), dtype=xp.float32)
    n_components = min(10, sizes.n_columns)
    floor = _floor(run, X, n_products=lambda found: 1)
    _products(run, X)
    ours = run.timed(
        "skfleet",
        fit(lambda: estimators.PCA(n_components), X),
        lambda f: floor(f) | {"solver": f.model.svd_solver_},
    )

    def compared(found: Fit) -> dict[str, Any]:
        return {} if ours is None else _variances(ours.model, found.model)

    settings = {"n_components": n_components, "svd_solver": "full"}
    for who, rows in _layouts(run, X):
        _cuml(run, who, "PCA", settings, rows, None, compared)
        del rows
    make = lambda: decomposition.PCA(n_components, svd_solver="covariance_eigh")  # noqa: E731
    run.timed_share("scikit-learn", _head(X), _sklearn(make), len(X))
    run.ratios("skfleet", ["cuml", "cuml, column by column", "scikit-learn"])
    n = sizes.n_slice
    mine = estimators.PCA(n_components).fit(X[:n])
    theirs = make().fit(to_host(X[:n]).astype(np.float64))
    run.note("skfleet to scikit-learn, on a slice", rows=n, **_variances(mine, theirs))


def _rows(run: Run) -> tuple[Any, Any, Any]:
    """Make rows, numbers that follow from them, and labels, all on the device."""
    xp, sizes = run.machine.xp, run.sizes
    rng = run.machine.generator(0)
    X = rng.standard_normal((sizes.n_rows, sizes.n_columns), dtype=xp.float32)
    weights = np.random.default_rng(1).normal(size=sizes.n_columns) / np.sqrt(sizes.n_columns)
    eta = X @ xp.asarray(weights, dtype=xp.float32)
    noise = rng.standard_normal(sizes.n_rows, dtype=xp.float32)
    chance = rng.random(sizes.n_rows, dtype=xp.float32)
    labels = (chance < 1 / (1 + xp.exp(-2 * eta))).astype(xp.int32)
    return X, 3 * eta + noise, labels


def _layouts(run: Run, X: Any) -> Any:
    """Give cuML the rows as they are, and in the order that it would otherwise copy them to."""
    yield "cuml", X
    if run.machine.cuml is not None:
        yield "cuml, column by column", run.machine.xp.asfortranarray(X)


def _cuml(
    run: Run,
    who: str,
    name: str,
    settings: dict[str, Any],
    X: Any,
    y: Any,
    facts: Callable[[Fit], dict[str, Any]],
) -> None:
    """Time one of cuML's estimators where there is cuML."""
    if run.machine.cuml is None:
        run.note(who, error=run.machine.no_cuml)
        return
    kind = getattr(run.machine.cuml, name)
    run.timed(who, fit(lambda: kind(**settings), *((X,) if y is None else (X, y))), facts)


def _sklearn(make: Callable[[], Any]) -> Callable[[tuple[Any, ...]], Any]:
    """Return a call that fits one of scikit-learn's, for `Run.timed_share`."""
    return lambda data: make().fit(*data)


def _head(*arrays: Any) -> Callable[[int], tuple[Any, ...]]:
    """Return a call that copies the first rows to the host."""
    return lambda n: tuple(np.ascontiguousarray(to_host(a[:n])) for a in arrays)


def _floor(run: Run, X: Any, n_products: Callable[[Fit], int]) -> Callable[[Fit], dict[str, Any]]:
    """Return what says how long reading and multiplying the rows takes at least."""
    rates = run.machine.rates
    reading = X.nbytes / rates.copy
    product = 2 * X.shape[0] * X.shape[1] ** 2 / rates.gemm

    def floor(found: Fit) -> dict[str, Any]:
        return {
            "passes": found.passes,
            "floor_reading": found.passes * reading,
            "floor_arithmetic": n_products(found) * product,
        }

    return floor


def _products(run: Run, X: Any) -> None:
    """Time the products of all columns alone, which no solver by normal equations undercuts."""
    run.timed("X.T @ X alone", lambda: X.T @ X)


def _coef(model: Any, ours: Fit | None) -> dict[str, Any]:
    """Compare coefficients to ours."""
    return {} if ours is None else {"coef_apart": difference(ours.model.coef_, model.coef_)}


def _variances(one: Any, other: Any) -> dict[str, Any]:
    """Compare explained variances, each to its own size."""
    a, b = (np.asarray(to_host(m.explained_variance_), np.float64) for m in (one, other))
    return {"variances_apart": float(np.max(np.abs(a / b - 1)))}


def _slice(
    run: Run,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    data: tuple[Any, Any],
    remark: str = "",
) -> None:
    """Compare coefficients with those of scikit-learn in float64, on a slice."""
    X, y = data
    mine = ours().fit(X, y)
    reference = theirs().fit(to_host(X).astype(np.float64), to_host(y))
    run.note(
        f"skfleet to scikit-learn, on a slice{remark}",
        rows=len(X),
        coef_apart=difference(mine.coef_, reference.coef_),
    )


def _log_loss(run: Run, model: Any, X: Any, y: Any) -> float:
    """Return the objective with C of 1, in float64, a run of rows at a time."""
    xp = run.machine.xp
    coef = np.asarray(to_host(model.coef_), np.float64).ravel()
    intercept = float(np.asarray(to_host(model.intercept_)).ravel()[0])
    on_device = xp.asarray(coef)
    total = 0.0
    for low in range(0, len(X), 1_000_000):
        rows, label = X[low : low + 1_000_000], y[low : low + 1_000_000]
        eta = rows.astype(xp.float64) @ on_device + intercept
        total += float((xp.logaddexp(xp.zeros_like(eta), eta) - label * eta).sum())
    return (total + 0.5 * float(coef @ coef)) / len(X)
