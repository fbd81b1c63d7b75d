"""The fit of a generalised linear model: from a first pass to coefficients of the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfleet._array import is_not_numpy
from skfleet._config import get_config
from skfleet._linalg import is_sparse_kind
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.engine import (
    Engine,
    Reduction,
    counting_disabled,
    engine_for,
    limit_threadpools,
    map_reduce,
    with_row_offsets,
)
from skfleet.estimators._column_statistics import (
    DataSummary,
    LabelCounts,
    TargetSums,
    combine_summaries,
    join_samples,
    summarize,
)
from skfleet.glm import (
    Labels,
    Loss,
    Null,
    Objective,
    Penalty,
    Scaling,
    Solution,
    lbfgs,
    newton,
    proximal_newton,
)

# Up to so many coefficients a Hessian costs less than the passes it saves: for rows in memory, for
# sparse ones, of which products are slow to make, and for rows that are loaded in each pass.
NARROW, NARROW_IF_SPARSE, NARROW_IF_STREAMED = 600, 100, 1200
# The most coefficients in a Hessian, whatever is asked for.
MOST_COEFFICIENTS = 5000
# Rows of which a solution is a good start: so many per column, but not too much of all rows.
SAMPLE_ROWS = 5000
SAMPLE_ROWS_PER_COLUMN = 500
FEWEST_PER_COLUMN = 20
FEWEST_OF_A_CLASS = 10
SAMPLE_SHARE = 1 / 8
SAMPLE_BYTES = 2**27

# What scikit-learn's names ask for; the others leave the choice.
SOLVERS = {
    "auto": None,
    "lbfgs": lbfgs,
    "newton-cg": newton,
    "newton-cholesky": newton,
    "liblinear": None,
    "sag": None,
    "saga": None,
}


class Surveyed(NamedTuple):
    """Rows held for a fit, with what the first pass found."""

    engine: Engine
    rows: RowBlocks
    found: DataSummary
    scaling: Scaling
    narrow: int  # up to so many coefficients, Hessians are worth it


@contextmanager
def surveyed(
    rows: RowBlocks, X: Any, *, fit_intercept: bool, draw: bool, check: Callable | None
) -> Iterator[Surveyed]:
    """Make the first pass over rows, and keep them for others where they fit.

    `check` looks at the targets of a block; None stands for labels. With `draw`, some rows come
    along where there are many.
    """
    engine = engine_for(rows)
    with engine.persist(rows) as rows:
        rows = with_row_offsets(engine, rows)
        draw = draw and (engine.is_out_of_core(rows) or not _on_device(rows))
        share = _sample_size(rows) / max(rows.n_rows or 0, 1) if draw else 0.0
        found = map_reduce(engine, Reduction(summarize, combine_summaries), rows, share, check)
        rows = replace(rows, checked=True)
        scaling = _scaling(found, rows.dtype, centred=fit_intercept and not is_sparse_kind(X))
        narrow = NARROW_IF_SPARSE if is_sparse_kind(X) else NARROW
        narrow = NARROW_IF_STREAMED if engine.is_out_of_core(rows) else narrow
        yield Surveyed(engine, rows, found, scaling, narrow)


def _on_device(rows: RowBlocks) -> bool:
    """Say whether rows are on a GPU, where a few passes take less than a start from a sample."""
    here = all(is_not_numpy(block.X) for block in rows.blocks)
    return here or rows.on_device or get_config().device == "cuda"


def _sample_size(rows: RowBlocks) -> int:
    """How many rows to draw for a start: none where few would do no good, and many be much."""
    wanted = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_COLUMN * rows.n_features)
    most = min((rows.n_rows or 0) * SAMPLE_SHARE, SAMPLE_BYTES / (8 * rows.n_features))
    fewest = max(SAMPLE_ROWS // 2, FEWEST_PER_COLUMN * rows.n_features)
    return int(min(wanted, most)) if most >= fewest else 0


def _scaling(found: DataSummary, dtype: Any, *, centred: bool) -> Scaling:
    """Return what brings columns to unit deviation, and about their means if they may be moved."""
    columns = found.columns
    deviation = np.sqrt(columns.squares / columns.n_rows)
    # A constant column is its mean but for rounding, which must not be blown up.
    flat = deviation <= 10 * np.finfo(dtype).eps * np.abs(columns.mean)
    scale = np.where(flat | (deviation == 0), 1.0, deviation)
    return Scaling(columns.mean if centred else np.zeros_like(scale), scale)


@dataclass(frozen=True)
class Model:
    """What to fit: a loss, L1 and L2 penalties of the coefficients, and how to go about it."""

    loss: Loss
    l1: float
    l2: float
    fit_intercept: bool
    solver: str
    tol: float
    max_iter: int
    start: tuple[np.ndarray, np.ndarray] | None = None  # of columns as they are


class Fitted(NamedTuple):
    """Coefficients and intercepts by output, for columns as they are."""

    coef: np.ndarray
    intercept: np.ndarray
    n_iter: int
    solver: str
    converged: bool


def fit_glm(
    data: Surveyed, model: Model, null: Null, total_weight: float, labels: Labels
) -> Fitted:
    """Find the coefficients for columns at unit deviation, and bring them back."""
    engine, rows, found, scaling, narrow = data
    loss, n_features = model.loss, rows.n_features
    size = n_features + model.fit_intercept
    solver = _solver_for(model, loss.n_outputs * size, narrow)
    how: dict[str, Any] = {"tol": model.tol, "max_iter": model.max_iter}
    if solver is lbfgs:
        # It converges by the condition of loss and penalty together, so these scale its columns.
        unit, scaling = scaling, _even(scaling, loss, null, model)
        ratio = scaling.scale / unit.scale
        how["measure"] = _each(ratio, 1.0, loss.n_outputs, model.fit_intercept)
        if null.gradient is not None:
            null = replace(null, gradient=null.gradient / how["measure"])
    # Penalties of the coefficients of columns as they are, in terms of those of scaled columns.
    penalty = Penalty(
        _each(model.l1 / scaling.scale, 0.0, loss.n_outputs, model.fit_intercept),
        _each(model.l2 / scaling.scale**2, 0.0, loss.n_outputs, model.fit_intercept),
    )
    objective = Objective(
        engine,
        rows,
        loss,
        total_weight=total_weight,
        scaling=scaling,
        labels=labels,
        fit_intercept=model.fit_intercept,
    )
    start = null.coef
    if model.start is not None:
        start = _scaled(*model.start, scaling, fit_intercept=model.fit_intercept)
    # Of several threads, BLAS leaves some spinning for a while after a small system is solved: just
    # when the next pass needs the cores.
    with limit_threadpools(1):
        if found.drawn and model.start is None:
            start = _start_on(found.drawn, objective, penalty, null, solver)
            if solver is newton:
                how["thrifty"] = start is not null.coef and not engine.is_out_of_core(rows)
        if start is not null.coef and null.gradient is None:
            null = replace(null, gradient=objective.evaluate(null.coef).gradient)
        solved: Solution = solver(objective, penalty, start, null, **how)
    coef = solved.coef.reshape(loss.n_outputs, size)
    slopes = coef[:, :n_features] / scaling.scale
    intercept = np.zeros(loss.n_outputs)
    if model.fit_intercept:
        intercept = coef[:, n_features] - slopes @ scaling.shift
    return Fitted(slopes, intercept, solved.n_iter, solved.solver, solved.converged)


def _each(
    of_columns: np.ndarray, of_intercept: float, n_outputs: int, fit_intercept: bool
) -> np.ndarray:
    """Return a value for each coefficient from those of the columns and of the intercept."""
    one = np.append(of_columns, of_intercept) if fit_intercept else of_columns
    return np.tile(one, n_outputs)


def _even(scaling: Scaling, loss: Loss, null: Null, model: Model) -> Scaling:
    """Return the scaling in which loss and penalty together curve alike along every column."""
    eta = null.coef.reshape(loss.n_outputs, -1)[:, -1] if model.fit_intercept else np.zeros(1)
    mean = loss.mean(np.broadcast_to(eta, (1, loss.n_outputs)))
    curves = [float(loss.curve(mean[:, j], mean, j, j)[0]) for j in range(loss.n_outputs)]
    curve = max(float(np.mean(curves)), 1e-6)
    return Scaling(scaling.shift, np.sqrt(scaling.scale**2 + model.l2 / curve))


def _scaled(
    coef: np.ndarray, intercept: np.ndarray, scaling: Scaling, *, fit_intercept: bool
) -> np.ndarray:
    """Return coefficients of columns as they are as those of scaled ones."""
    slopes = coef * scaling.scale
    if not fit_intercept:
        return slopes.ravel()
    return np.column_stack([slopes, intercept + coef @ scaling.shift]).ravel()


def _solver_for(model: Model, n_coefficients: int, narrow: int) -> Any:
    """Return the solver that was asked for, or the one that is likely to be the quickest."""
    if model.l1:
        return proximal_newton
    asked = SOLVERS[model.solver]
    if asked is None:
        return newton if n_coefficients <= narrow else lbfgs
    return lbfgs if n_coefficients > MOST_COEFFICIENTS else asked


def _start_on(
    drawn: Any, objective: Objective, penalty: Penalty, null: Null, solver: Any
) -> np.ndarray:
    """Solve on a sample, here, to save passes over all rows."""
    with counting_disabled():
        rows = join_samples(drawn)
        if objective.rarest(rows.y) < FEWEST_OF_A_CLASS:
            return null.coef
        sampled = objective.on_sample(rows.X, rows.y, rows.sample_weight)
        if not np.isfinite(sampled.evaluate(null.coef).value):
            return null.coef
        start = replace(null, value=np.inf)
        return solver(sampled, penalty, start.coef, start, tol=1e-3, max_iter=20).coef


def null_of_classes(
    loss: Loss, counts: LabelCounts, class_weight: Any, scaling: Scaling, *, fit_intercept: bool
) -> tuple[Null, float]:
    """Return the model that knows the shares of the classes only, and the total weight."""
    each = np.ones(len(counts.labels)) if class_weight is None else class_weight
    weight = counts.weight * each
    total = float(weight.sum())
    chosen = slice(1, 2) if loss.n_outputs == 1 else slice(None)
    mean = (weight / total)[chosen]
    eta = loss.link(mean) if fit_intercept else np.zeros(loss.n_outputs)
    slopes = None
    if counts.x is not None:
        x = (each[:, None] * counts.x - np.outer(weight, scaling.shift)) / scaling.scale
        expected = loss.mean(eta[None, :])[0]
        slopes = (np.outer(expected, x.sum(axis=0)) - x[chosen]) / total
    return _null(loss, mean, eta, slopes, len(scaling.scale), fit_intercept), total


def null_of_targets(
    loss: Loss, sums: TargetSums, scaling: Scaling, *, fit_intercept: bool
) -> tuple[Null, float]:
    """Return the model that knows the mean of the targets only, and the total weight."""
    mean = sums.y / sums.weight
    eta = loss.link(mean) if fit_intercept else np.zeros(loss.n_outputs)
    slopes = None
    if sums.x is not None and sums.xy is not None:
        # The gradient is linear in y.
        at_0, at_1 = (
            loss.evaluate(np.full((1, loss.n_outputs), y)[:, 0], eta[None, :]).gradient[0]
            for y in (0.0, 1.0)
        )
        x = (sums.x - sums.weight * scaling.shift) / scaling.scale
        xy = (sums.xy.T - np.outer(sums.y, scaling.shift)) / scaling.scale
        slopes = (np.outer(at_0, x) + (at_1 - at_0)[:, None] * xy) / sums.weight
    null = _null(loss, mean, eta, slopes, len(scaling.scale), fit_intercept)
    return null, float(sums.weight)


def _null(
    loss: Loss, mean: np.ndarray, eta: np.ndarray, slopes: Any, n_features: int, fit_intercept: bool
) -> Null:
    """Lay out a model without columns as solvers want it."""
    size = n_features + fit_intercept
    coef = np.zeros((loss.n_outputs, size))
    gradient = None if slopes is None else np.zeros((loss.n_outputs, size))
    if gradient is not None:
        gradient[:, :n_features] = slopes
    if fit_intercept:
        coef[:, n_features] = eta
    value = loss.value_of(mean, eta)
    return Null(coef.ravel(), value, None if gradient is None else gradient.ravel())


def report(fitted: Fitted, model: Model, verbose: int) -> None:
    """Print how a fit went if asked to, and warn if it is not done."""
    if verbose:
        state = "converged" if fitted.converged else "did not converge"
        print(f"{fitted.solver} {state} in {fitted.n_iter} iterations.")
    if not fitted.converged:
        warn(
            f"{fitted.solver} did not reach tol={model.tol:g} in max_iter={model.max_iter} "
            "iterations. Increase max_iter, or scale the columns.",
            ConvergenceWarning,
        )
