"""Grid searches over small and large rows: GPU workers, CPU workers, and scikit-learn's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from gpu_cases.run import Run, n_cores
from sklearn import linear_model
from sklearn.model_selection import GridSearchCV as StockGridSearchCV

from skfleet import config_context, estimators
from skfleet.model_selection import GridSearchCV

N_COLUMNS = 50
ALPHAS = {"alpha": np.logspace(-3, 3, 10).tolist()}
STRENGTHS = {"C": np.logspace(-3, 2, 10).tolist()}
# Fifty copies of more rows than these, sixteen at a time, fill the memory of the machine.
MOST_BYTES_ON_CPU = 280e6


class Contender(NamedTuple):
    """An estimator to search over, by whom."""

    who: str
    of: str  # which scores it is compared with
    make: Callable[[], Any]
    grid: dict[str, list[float]]
    config: dict[str, str] = {}


def search(run: Run) -> None:
    """Ten candidates and five folds: Ridge and logistic regression."""
    # in this order, so that a time limit takes what is known best
    _on_fleet(run, "GPU fleet", run.machine.gpu_fleet, _gpu_contenders(run), on_cpu=False)
    _contest(run, _stock_contenders(), _stock, on_cpu=True)
    _on_fleet(run, "CPU fleet", run.machine.cpu_fleet, _cpu_contenders(), on_cpu=True)
    for (of, n_rows), scores in run.scores.items():
        _compare(run, of, n_rows, scores)
    for n_bytes in run.sizes.search_bytes:
        for ours, theirs in (
            ("GPU fleet, skfleet Ridge", ["CPU fleet, skfleet Ridge", "scikit-learn, Ridge"]),
            (
                "GPU fleet, skfleet logistic",
                ["GPU fleet, cuML logistic", "CPU fleet, skfleet logistic"]
                + ["CPU fleet, scikit-learn logistic", "scikit-learn, logistic"],
            ),
        ):
            run.ratios(_sized(ours, n_bytes), [_sized(name, n_bytes) for name in theirs])


def _stock_contenders() -> Iterator[Contender]:
    """Give scikit-learn's estimators, for its own search."""
    yield Contender("scikit-learn, Ridge", "Ridge", linear_model.Ridge, ALPHAS)
    yield Contender("scikit-learn, logistic", "logistic", _stock_logistic, STRENGTHS)


def _cpu_contenders() -> Iterator[Contender]:
    """Give the estimators that are searched over on CPU workers."""
    yield Contender("CPU fleet, skfleet Ridge", "Ridge", estimators.Ridge, ALPHAS)
    yield Contender("CPU fleet, scikit-learn Ridge", "Ridge", linear_model.Ridge, ALPHAS)
    ours = estimators.LogisticRegression
    yield Contender("CPU fleet, skfleet logistic", "logistic", ours, STRENGTHS)
    yield Contender("CPU fleet, scikit-learn logistic", "logistic", _stock_logistic, STRENGTHS)


def _gpu_contenders(run: Run) -> Iterator[Contender]:
    """Give the estimators that are searched over on GPU workers."""
    on_gpu = run.machine.on_gpu
    ours = lambda: estimators.Ridge(**on_gpu)  # noqa: E731
    yield Contender("GPU fleet, skfleet Ridge", "Ridge", ours, ALPHAS)
    logistic = lambda: estimators.LogisticRegression(**on_gpu)  # noqa: E731
    yield Contender("GPU fleet, skfleet logistic", "logistic", logistic, STRENGTHS)
    cuml = run.machine.cuml
    if cuml is None:
        run.note("GPU fleet, cuML logistic", error=run.machine.no_cuml)
        return
    theirs = lambda: cuml.LogisticRegression(max_iter=1000)  # noqa: E731
    # which has no parameter that says where it is fitted
    yield Contender("GPU fleet, cuML logistic", "logistic", theirs, STRENGTHS, on_gpu)


def _stock_logistic() -> Any:
    """Make scikit-learn's logistic regression."""
    return linear_model.LogisticRegression(max_iter=1000)


def _on_fleet(
    run: Run, name: str, start: Callable[[], Any], contenders: Iterator[Contender], *, on_cpu: bool
) -> None:
    """Start a fleet, and search on it."""
    began = time.perf_counter()
    try:
        with start():
            run.note(f"{name}, start", seconds=time.perf_counter() - began)
            _contest(run, contenders, _ours, on_cpu=on_cpu)
    except Exception as error:
        run.failed(name, error)


def _contest(
    run: Run, contenders: Iterator[Contender], make: Callable[..., Any], *, on_cpu: bool
) -> None:
    """Time searches over rows of every size, the largest first."""
    for one in contenders:
        for n_bytes in sorted(run.sizes.search_bytes, reverse=True):
            _one(run, one, make, n_bytes, on_cpu=on_cpu)


def _one(
    run: Run, one: Contender, make: Callable[..., Any], n_bytes: float, *, on_cpu: bool
) -> None:
    """Time a search, and keep its scores."""
    n_rows = int(n_bytes // (4 * N_COLUMNS))
    who = _sized(one.who, n_bytes)

    def fitted(data: tuple[Any, Any]) -> Any:
        with config_context(**one.config):
            return make(one.make(), one.grid).fit(*data)

    def scores(found: Any) -> dict[str, Any]:
        means = found.cv_results_["mean_test_score"]
        run.scores.setdefault((one.of, prepared[-1]), {})[one.who] = means
        return {"best": str(found.best_params_), "mean_test_scores": means.tolist()}

    prepared: list[int] = []

    def prepare(n: int) -> tuple[Any, Any]:
        prepared.append(n)
        return tuple(np.ascontiguousarray(a[:n]) for a in _rows(n_rows, one.of))

    more = {"bytes": n_bytes, "fits": 50}
    if on_cpu:
        most = int(MOST_BYTES_ON_CPU // (4 * N_COLUMNS))
        run.timed_share(who, prepare, fitted, n_rows, scores, most, **more)
    else:
        data = prepare(n_rows)
        run.timed(who, lambda: fitted(data), scores, rows=n_rows, **more)


def _compare(run: Run, of: str, n_rows: int, scores: dict[str, np.ndarray]) -> None:
    """Say how far the scores of the same rows are from those of scikit-learn's own search."""
    reference = scores.get(f"scikit-learn, {of}")
    if reference is not None:
        apart = {
            who: float(np.max(np.abs(means - reference)))
            for who, means in scores.items()
            if means is not reference
        }
        if apart:
            run.note(f"scores apart from scikit-learn's, {of}, {n_rows:,} rows", **apart)


def _stock(estimator: Any, grid: dict[str, list[float]]) -> Any:
    """Make scikit-learn's search on all cores."""
    return StockGridSearchCV(
        estimator, grid, cv=5, refit=False, n_jobs=n_cores(), error_score="raise"
    )


def _ours(estimator: Any, grid: dict[str, list[float]]) -> Any:
    """Make a search on the fleet that is open."""
    return GridSearchCV(estimator, grid, cv=5, refit=False, error_score="raise")


def _sized(who: str, n_bytes: float) -> str:
    """Say with a name of how many bytes of rows."""
    unit = next((u for u, n in (("GB", 1e9), ("MB", 1e6)) if n_bytes >= n), "KB")
    return f"{who}, {n_bytes / {'GB': 1e9, 'MB': 1e6, 'KB': 1e3}[unit]:g} {unit}"


@lru_cache(maxsize=1)
def _drawn(n_rows: int) -> tuple[Any, Any, Any]:
    """Make rows on the host, numbers and labels."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, N_COLUMNS), dtype=np.float32)
    eta = X @ (rng.normal(size=N_COLUMNS) / np.sqrt(N_COLUMNS)).astype(np.float32)
    numbers = 3 * eta + rng.standard_normal(n_rows, dtype=np.float32)
    labels = (rng.random(n_rows, dtype=np.float32) < 1 / (1 + np.exp(-2 * eta))).astype(np.int32)
    return X, numbers, labels


def _rows(n_rows: int, of: str) -> tuple[Any, Any]:
    """Return the rows and what is to be predicted."""
    X, numbers, labels = _drawn(n_rows)
    return X, numbers if of == "Ridge" else labels
