"""Fit of a generalised linear model: first pass, scaling, warm start on a sample, solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skfleet._array import FLOAT64, is_not_numpy
from skfleet._config import get_config
from skfleet._linalg import dense_rows
from skfleet._validation import check_total_weight
from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.engine import (
    Engine,
    Reduction,
    are_cached,
    counting_disabled,
    engine_for,
    limit_threadpools,
    map_reduce,
    with_row_offsets,
)
from skfleet.estimators._column_statistics import (
    DataSummary,
    LabelCounts,
    combine_summaries,
    concat_samples,
    summarize,
    summary_takes_whole,
)
from skfleet.glm import (
    ClassEncoding,
    Loss,
    NullModel,
    Objective,
    Penalty,
    Scaling,
    Solution,
    lbfgs,
    newton,
    proximal_newton,
    round_coef,
)

# Up to this size a Hessian costs less than the passes it saves. Sparse products are slow; passes
# over rows out of core are slower still.
MAX_NEWTON_COEF, MAX_NEWTON_COEF_SPARSE, MAX_NEWTON_COEF_OUT_OF_CORE = 600, 100, 1200
# Limit of the Hessian, also for the solvers that need one.
MAX_HESSIAN_COEF = 5000
# Size of the sample for a warm start: enough rows per column, but a small part of all rows.
SAMPLE_ROWS = 5000
SAMPLE_ROWS_PER_COLUMN = 500
MIN_SAMPLE_ROWS_PER_COLUMN = 20
MIN_SAMPLE_ROWS_PER_CLASS = 10
MAX_SAMPLE_FRACTION = 1 / 8
MAX_SAMPLE_BYTES = 2**27

# Solvers by scikit-learn's names; None leaves the choice to `_solver_for`.
SOLVERS = {
    "auto": None,
    "lbfgs": lbfgs,
    "newton-cg": newton,
    "newton-cholesky": newton,
    "liblinear": None,
    "sag": None,
    "saga": None,
}


class SummarizedData(NamedTuple):
    """Persisted rows, with the summary of the first pass and the scaling from it."""

    engine: Engine
    rows: RowBlocks
    summary: DataSummary
    scaling: Scaling


@contextmanager
def first_pass(
    rows: RowBlocks, *, fit_intercept: bool, use_sample: bool, check: Callable | None
) -> Iterator[SummarizedData]:
    """Persist rows, and summarise columns and targets in a first pass over them.

    `check` validates the targets of a block; None stands for labels. With `use_sample`, the summary
    holds a sample of the rows where there are many.
    """
    engine = engine_for(rows)
    with engine.persist(rows) as rows:
        rows = with_row_offsets(engine, rows)
        use_sample = use_sample and (engine.is_out_of_core(rows) or not _is_on_device(rows))
        fraction = _sample_size(rows) / max(rows.n_rows or 0, 1) if use_sample else 0.0
        reduction = Reduction(summarize, combine_summaries, takes_whole=summary_takes_whole)
        summary = map_reduce(engine, reduction, rows, fraction, check)
        rows = replace(rows, checked=True)
        scaling = _scaling(summary, rows.dtype, centred=fit_intercept and not rows.is_sparse)
        yield SummarizedData(engine, rows, summary, scaling)


def _is_on_device(rows: RowBlocks) -> bool:
    """Return whether rows are on a GPU, where passes cost less than a warm start."""
    on_device = all(is_not_numpy(block.X) for block in rows.blocks)
    return on_device or rows.on_device or get_config().device == "cuda"


def _sample_size(rows: RowBlocks) -> int:
    """Return the number of rows to sample for a warm start, 0 where it does not pay."""
    target = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_COLUMN * rows.n_features)
    n_rows = rows.n_rows or 0
    max_rows = min(n_rows * MAX_SAMPLE_FRACTION, MAX_SAMPLE_BYTES / rows.row_bytes)
    min_rows = max(SAMPLE_ROWS // 2, MIN_SAMPLE_ROWS_PER_COLUMN * rows.n_features)
    return int(min(target, max_rows)) if max_rows >= min_rows else 0


def _scaling(summary: DataSummary, dtype: Any, *, centred: bool) -> Scaling:
    """Return the scaling of columns to unit deviation, with a shift to mean 0 if `centred`."""
    columns = summary.columns
    deviation = np.sqrt(columns.squares / columns.n_rows)
    # The deviation of a constant column is rounding error, which must not be scaled up.
    flat = deviation <= 10 * np.finfo(dtype).eps * np.abs(columns.mean)
    scale = np.where(flat | (deviation == 0), 1.0, deviation)
    # Rows are centred in their own precision, in which they subtract what this subtracts.
    mean = columns.mean.astype(dtype).astype(np.float64)
    return Scaling(mean if centred else np.zeros_like(scale), scale)


@dataclass(frozen=True)
class GLMSpec:
    """A loss, penalties of the coefficients, and solver options."""

    loss: Loss
    l1: float
    l2: float
    fit_intercept: bool
    solver: str
    tol: float
    max_iter: int
    start: tuple[np.ndarray, np.ndarray] | None  # coef and intercept of unscaled columns
    verbose: int = 0
    # Gets coefficients and intercepts by output after each iteration of L-BFGS.
    callback: Callable[[np.ndarray, np.ndarray], None] | None = None

    @classmethod
    def of(
        cls,
        estimator: Any,
        loss: Loss,
        l1: float,
        l2: float,
        shape: tuple[int, ...],
        callback: Callable[[np.ndarray, np.ndarray], None] | None = None,
    ) -> GLMSpec:
        """Return the options of an estimator with `coef_` of a shape."""
        names = ("fit_intercept", "solver", "tol", "max_iter", "verbose")
        options = {name: getattr(estimator, name) for name in names}
        start = warm_start(estimator, shape)
        return cls(loss, l1, l2, start=start, callback=callback, **options)


def warm_start(estimator: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return `coef_` and `intercept_` by output for a warm start; None for none of that shape."""
    coef = getattr(estimator, "coef_", None)
    if not getattr(estimator, "warm_start", False) or coef is None or coef.shape != shape:
        return None
    coef = np.atleast_2d(dense_rows(coef)).astype(np.float64)
    return coef, np.atleast_1d(estimator.intercept_).astype(np.float64)


class GLMFit(NamedTuple):
    """Coefficients and intercepts by output, for unscaled columns."""

    coef: np.ndarray
    intercept: np.ndarray
    n_iter: int
    solver: str


def fit_glm(
    data: SummarizedData,
    model: GLMSpec,
    null: NullModel,
    total_weight: float,
    labels: ClassEncoding,
) -> GLMFit:
    """Fit coefficients of scaled columns, and return those of unscaled columns.

    1. Choose the solver by the number of coefficients.
    2. Scale columns and penalties; L-BFGS equilibrates loss and penalty together.
    3. Start from the last fit, or from the solution on a sample.
    4. Solve, and undo the scaling; warn where the solver did not converge.
    """
    engine, rows, summary, scaling = data
    loss, n_features, dtype = model.loss, rows.n_features, rows.dtype
    if rows.n_rows is not None and rows.n_rows <= n_features:
        # Few rows leave directions that only the penalty keeps short, less than rounding in single
        # precision does.
        rows = replace(rows, dtype=FLOAT64)
    # 1. The solver: what a Hessian costs depends on how fast the rows are read and multiplied.
    size = n_features + model.fit_intercept
    out_of_core = engine.is_out_of_core(rows)
    max_newton_coef = MAX_NEWTON_COEF_SPARSE if rows.is_sparse else MAX_NEWTON_COEF
    max_newton_coef = MAX_NEWTON_COEF_OUT_OF_CORE if out_of_core else max_newton_coef
    solver = _solver_for(model, loss.n_outputs * size, max_newton_coef)

    # Coefficients are in one vector: by output, the intercept last.
    def per_coefficient(of_columns: np.ndarray, of_intercept: float) -> np.ndarray:
        one = np.append(of_columns, of_intercept) if model.fit_intercept else of_columns
        return np.tile(one, loss.n_outputs)

    def unscaled(coef: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        coef = coef.reshape(loss.n_outputs, size)
        unscaled = coef[:, :n_features] / scaling.scale
        if not model.fit_intercept:
            return unscaled, np.zeros(loss.n_outputs)
        return round_coef(unscaled, scaling.shift, coef[:, n_features], dtype)

    # 2. Scaling of columns and penalties.
    options: dict[str, Any] = {"tol": model.tol, "max_iter": model.max_iter}
    if solver is lbfgs:
        # Its convergence depends on the condition of loss plus penalty.
        unit, scaling = scaling, _equilibrated_scaling(scaling, loss, null, model)
        options["measure"] = per_coefficient(scaling.scale / unit.scale, 1.0)
        if null.gradient is not None:
            null = replace(null, gradient=null.gradient / options["measure"])
    # Penalties of unscaled coefficients, in terms of scaled ones.
    l1, l2 = model.l1 / scaling.scale, model.l2 / scaling.scale**2
    penalty = Penalty(per_coefficient(l1, 0.0), per_coefficient(l2, 0.0))
    objective = Objective(
        engine,
        rows,
        loss,
        total_weight=total_weight,
        scaling=scaling,
        labels=labels,
        fit_intercept=model.fit_intercept,
    )
    # 3. The start: the last fit, else the solution on a sample, else the null model.
    start = null.coef
    if model.start is not None:
        start = _scaled_coef(*model.start, scaling, fit_intercept=model.fit_intercept)
    # BLAS threads keep spinning after a small system is solved, when the next pass needs the cores.
    with limit_threadpools(1):
        if solver is newton:
            # On a device a Hessian takes as long as four gradients. The last ones add digits beyond
            # `tol`, which the host has too, but single precision has no use for.
            is_single = rows.dtype == np.float32
            options["reuse_near"] = is_single and _is_on_device(rows) and not out_of_core
        # A start near the solution lets Newton's method go on with its first Hessian. Where each
        # pass loads the rows, the Hessian comes with the pass at little cost.
        if summary.samples and model.start is None:
            start = _warm_start_on_sample(summary.samples, objective, penalty, null, solver)
            if solver is newton:
                is_loaded = out_of_core and not are_cached(rows)
                options["reuse_hessian"] = start is not null.coef and not is_loaded
        # The tolerance refers to the gradient of the null model, which this start does not
        # evaluate.
        if start is not null.coef and null.gradient is None:
            null = replace(null, gradient=objective.evaluate(null.coef).gradient)
        if solver is lbfgs and (callback := model.callback) is not None:
            options["callback"] = lambda coef: callback(*unscaled(coef))
        solved: Solution = solver(objective, penalty, start, null, **options)
    # 4. Report, and undo the scaling.
    if model.verbose:
        state = "converged" if solved.converged else "did not converge"
        print(f"{solved.solver} {state} in {solved.n_iter} iterations.")
    if not solved.converged:
        warn(
            f"{solved.solver} did not reach tol={model.tol:g} in max_iter={model.max_iter} "
            "iterations. Increase max_iter, or scale the columns.",
            ConvergenceWarning,
        )
    return GLMFit(*unscaled(solved.coef), solved.n_iter, solved.solver)


def _equilibrated_scaling(scaling: Scaling, loss: Loss, null: NullModel, model: GLMSpec) -> Scaling:
    """Return the scaling that equalises the curvature of loss plus penalty along the columns."""
    eta = null.coef.reshape(loss.n_outputs, -1)[:, -1] if model.fit_intercept else np.zeros(1)
    mean = loss.mean(np.broadcast_to(eta, (1, loss.n_outputs)))
    curves = [float(loss.hessian(mean[:, j], mean, j, j)[0]) for j in range(loss.n_outputs)]
    curve = max(float(np.mean(curves)), 1e-6)
    return Scaling(scaling.shift, np.sqrt(scaling.scale**2 + model.l2 / curve))


def _scaled_coef(
    coef: np.ndarray, intercept: np.ndarray, scaling: Scaling, *, fit_intercept: bool
) -> np.ndarray:
    """Return the scaled coefficients of unscaled ones."""
    scaled = coef * scaling.scale
    if not fit_intercept:
        return scaled.ravel()
    return np.column_stack([scaled, intercept + coef @ scaling.shift]).ravel()


def _solver_for(model: GLMSpec, n_coefficients: int, max_newton_coef: int) -> Any:
    """Return the requested solver, or the one that is expected to be the fastest."""
    if model.l1:
        return proximal_newton
    requested = SOLVERS[model.solver]
    if requested is None:
        return newton if n_coefficients <= max_newton_coef else lbfgs
    return lbfgs if n_coefficients > MAX_HESSIAN_COEF else requested


def _warm_start_on_sample(
    samples: Any, objective: Objective, penalty: Penalty, null: NullModel, solver: Any
) -> np.ndarray:
    """Return the solution on a sample in the driver, which saves passes over all rows."""
    with counting_disabled():
        rows = concat_samples(samples)
        if objective.min_class_count(rows.y) < MIN_SAMPLE_ROWS_PER_CLASS:
            return null.coef
        sampled = objective.on_sample(rows.X, rows.y, rows.sample_weight)
        if not np.isfinite(sampled.evaluate(null.coef).value):
            return null.coef
        # The null model's value is that of all rows, which the sample must not be compared with.
        start = replace(null, value=np.inf)
        return solver(sampled, penalty, start.coef, start, tol=1e-3, max_iter=20).coef


def null_model_from_classes(
    loss: Loss, counts: LabelCounts, class_weight: Any, scaling: Scaling, *, fit_intercept: bool
) -> tuple[NullModel, float]:
    """Return the intercept-only model of the class frequencies, and the total weight."""
    each = np.ones(len(counts.labels)) if class_weight is None else class_weight
    weight = counts.weight * each
    total = float(weight.sum())
    # Of two classes only the second one has an output.
    chosen = slice(1, 2) if loss.n_outputs == 1 else slice(None)
    mean = (weight / total)[chosen]
    eta = loss.link(mean) if fit_intercept else np.zeros(loss.n_outputs)
    coef_gradient = None
    if counts.x is not None:
        x = (each[:, None] * counts.x - np.outer(weight, scaling.shift)) / scaling.scale
        expected = loss.mean(eta[None, :])[0]
        coef_gradient = (np.outer(expected, x.sum(axis=0)) - x[chosen]) / total
    return _null_model(loss, mean, eta, coef_gradient, len(scaling.scale), fit_intercept), total


def null_model_from_targets(model: GLMSpec, data: SummarizedData) -> tuple[NullModel, float]:
    """Return the intercept-only model of the mean of the targets, and the total weight."""
    loss, fit_intercept = model.loss, model.fit_intercept
    sums, scaling = data.summary.targets, data.scaling
    check_total_weight(sums.weight)
    mean = sums.y / sums.weight
    eta = loss.link(mean) if fit_intercept else np.zeros(loss.n_outputs)
    coef_gradient = None
    if sums.x is not None and sums.xy is not None:
        # The gradient is linear in y.
        at_0, at_1 = (
            loss.evaluate(np.full((1, loss.n_outputs), y)[:, 0], eta[None, :]).gradient[0]
            for y in (0.0, 1.0)
        )
        x = (sums.x - sums.weight * scaling.shift) / scaling.scale
        xy = (sums.xy.T - np.outer(sums.y, scaling.shift)) / scaling.scale
        coef_gradient = (np.outer(at_0, x) + (at_1 - at_0)[:, None] * xy) / sums.weight
    null = _null_model(loss, mean, eta, coef_gradient, len(scaling.scale), fit_intercept)
    return null, float(sums.weight)


def _null_model(
    loss: Loss, mean: Any, eta: Any, coef_gradient: Any, n_features: int, fit_intercept: bool
) -> NullModel:
    """Return the null model with flat coefficients and gradient."""
    coef = np.zeros((loss.n_outputs, n_features + fit_intercept))
    if fit_intercept:
        coef[:, n_features] = eta
    if coef_gradient is not None:
        coef_gradient = np.pad(coef_gradient, ((0, 0), (0, int(fit_intercept)))).ravel()
    return NullModel(coef.ravel(), loss.mean_loss(mean, eta), coef_gradient)
