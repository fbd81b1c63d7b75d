"""Newton and L-BFGS solvers of smooth objectives, with few passes over the rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import linalg, optimize

from skfleet.glm._dense_solvers import equilibrate
from skfleet.glm._objective import ObjectiveValue
from skfleet.glm._penalties import Penalty

logger = logging.getLogger("skfleet.glm")


class Smooth(Protocol):
    """An objective with value, gradient and Hessian."""

    def evaluate(
        self, coef: np.ndarray, *, hessian: bool = False, columns: np.ndarray | None = None
    ) -> ObjectiveValue:
        """Return value, gradient and, if requested, Hessian (of some columns) at coef."""


@dataclass(frozen=True)
class Solution:
    """Final coefficients of a solver, its name, its iterations, and whether it converged."""

    coef: np.ndarray
    n_iter: int
    converged: bool
    solver: str


@dataclass(frozen=True)
class NullModel:
    """The intercept-only model: default start of solvers, and reference of their tolerance.

    `value` and `gradient` are those of the average loss at its coefficients `coef`; the gradient is
    None where it would need a pass.
    """

    coef: np.ndarray
    value: float
    gradient: np.ndarray | None = None

    def kkt_violation(
        self, penalty: Penalty, first: np.ndarray, measure: np.ndarray | float = 1.0
    ) -> float:
        """Return the largest violation there; a solver that starts there knows its `first` ones."""
        if self.gradient is not None:
            first = penalty.kkt_violation(self.coef, self.gradient + penalty.gradient(self.coef))
        return float(np.max(first * measure, initial=0.0))


MAX_HALVINGS = 30
# A Hessian is reused while steps reduce the gradient to this fraction: to the second one with so
# many coefficients or more, of which a new Hessian takes several times as long as a gradient.
NEWTON_REDUCTION_RATIO, WIDE_REDUCTION_RATIO, WIDE_COEF = 0.1, 0.5, 300
# A step that promises to lower the value by no more than this fraction changes the Hessian little.
NEAR_DECREMENT = 0.005
# The same where the Hessian serves further penalties too.
MAX_REDUCTION_RATIO = 0.5
EPS = np.finfo(np.float64).eps


def newton(
    objective: Smooth,
    penalty: Penalty,
    start: np.ndarray,
    null: NullModel,
    *,
    tol: float,
    max_iter: int,
    reuse_hessian: bool = False,
    reuse_near: bool = False,
) -> Solution:
    """Minimise objective + penalty by Newton's method (Nocedal and Wright, 2006, section 3.3).

    Value, gradient and Hessian come from one evaluation, so the evaluation that finds a full step
    good enough is the next iteration's; only a step that must be halved costs another one. With
    `reuse_hessian`, for a start near the solution, evaluations do without the Hessian as long as
    the last one, updated by the gradients (BFGS, section 6.1), serves; with `reuse_near`, from the
    first step on that promises little. Stops when the largest entry
    of the gradient is at most `tol` times that at the null model, or when no step can lower the
    value by more than its own rounding. With a penalty, a step may lower the value by no more than
    `tol` times that either: losses and gradients of separable classes vanish together, long before
    the penalty has stopped the coefficients. A start no better than the null model is replaced by
    it.
    """
    # The first evaluation serves the start, the tolerance and the first step.
    coef = start
    current = _with_penalty(objective, penalty, coef, hessian=True)
    at_null = current.value if start is null.coef else null.value + penalty.value(null.coef)
    # Not `>`: a start whose value is NaN is replaced as well.
    if not current.value <= at_null:
        coef, reuse_hessian = null.coef, False
        current = _with_penalty(objective, penalty, coef, hessian=True)
    hessian: Any = current.hessian
    gradient_tol = tol * null.kkt_violation(penalty, np.abs(current.gradient))
    # Without a penalty the loss of separable classes falls for ever.
    no_optimum = not penalty.l2.any()
    for n_iter in range(max_iter + 1):
        # The step and the decrease that it promises, by which convergence is judged too.
        step = _newton_step(hessian, current.gradient)
        decrement = -float(current.gradient @ step)
        is_small = np.abs(current.gradient).max(initial=0.0) <= gradient_tol
        converged = bool(is_small and (no_optimum or decrement <= tol * abs(current.value)))
        if converged or n_iter == max_iter:
            break
        logger.debug("newton %d: value %.15g, decrement %.3g", n_iter, current.value, decrement)
        reuse_hessian |= reuse_near and decrement <= NEAR_DECREMENT * abs(current.value)
        # Halve the step until it lowers the value enough (Armijo).
        rounding = 8 * EPS * max(abs(current.value), np.finfo(np.float64).tiny)
        size = 1.0
        for _ in range(MAX_HALVINGS):
            trial = _with_penalty(objective, penalty, coef + size * step, hessian=not reuse_hessian)
            # Near the minimum rounding hides the decrease; there a smaller gradient is enough.
            if trial.value <= current.value - 1e-4 * size * decrement or (
                decrement <= rounding
                and np.abs(trial.gradient).max() < np.abs(current.gradient).max()
            ):
                break
            # No shorter step can lower the value by more than its rounding.
            if decrement * size <= rounding:
                return Solution(coef, n_iter + 1, True, "newton")
            size /= 2
        else:
            return Solution(coef, n_iter + 1, bool(is_small), "newton")
        # The next Hessian: an exact one that came with the value, or an update of the last.
        coef = coef + size * step
        if trial.hessian is not None:
            hessian = trial.hessian
        else:
            hessian = _updated(hessian, size * step, trial.gradient - current.gradient)
        # A reused Hessian must pay: it is dropped once a step does not cut the gradient as much.
        reduction_ratio = np.abs(trial.gradient).max() / np.abs(current.gradient).max()
        highest = NEWTON_REDUCTION_RATIO if len(coef) < WIDE_COEF else WIDE_REDUCTION_RATIO
        if reuse_hessian and not reduction_ratio <= highest:
            reuse_hessian = reuse_near = False
        current = trial
    return Solution(coef, n_iter, converged, "newton")


class WarmNewton:
    """Newton's method for one L2 penalty after another, each from the optimum of the last.

    The rows' part of value, gradient and Hessian is the same for every penalty, so the first step
    of each costs no evaluation; and the Hessian, updated by the gradients, serves for several
    penalties (BFGS: Nocedal and Wright, 2006, section 6.1). It is recomputed when a step with it
    leaves more than half of the gradient. `coef` has the last solution, `n_iter` its steps.
    """

    def __init__(self, objective: Smooth, start: np.ndarray) -> None:
        self._objective = objective
        self.coef = start
        self._current = objective.evaluate(start, hessian=True)
        self._hessian: Any = self._current.hessian
        self.n_iter = 0

    def solve(self, l2: np.ndarray, *, tol: float, max_iter: int) -> bool:
        """Minimise until no entry of the gradient exceeds `tol`; return whether that succeeded."""
        is_new = False
        for self.n_iter in range(max_iter):
            gradient = self._current.gradient + l2 * self.coef
            largest = np.abs(gradient).max(initial=0.0)
            if largest <= tol:
                return True
            coef = self.coef + _newton_step(self._hessian + np.diag(l2), gradient)
            next_value = self._objective.evaluate(coef)
            reduction_ratio = np.abs(next_value.gradient + l2 * coef).max()
            if reduction_ratio <= MAX_REDUCTION_RATIO * largest:
                change = next_value.gradient - self._current.gradient
                self._hessian = _updated(self._hessian, coef - self.coef, change)
                self.coef, self._current, is_new = coef, next_value, False
            # Not even the exact Hessian helps, so further passes would not either.
            elif is_new:
                return False
            else:
                self._current = self._objective.evaluate(self.coef, hessian=True)
                self._hessian, is_new = self._current.hessian, True
        return False


def _with_penalty(
    objective: Smooth, penalty: Penalty, coef: np.ndarray, *, hessian: bool
) -> ObjectiveValue:
    """Evaluate objective + penalty."""
    result = objective.evaluate(coef, hessian=hessian)
    value = result.value + penalty.value(coef)
    curve = None if result.hessian is None else result.hessian + np.diag(penalty.l2)
    return ObjectiveValue(value, result.gradient + penalty.gradient(coef), curve)


def _updated(hessian: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Update a Hessian by the change of the gradient along a step, keeping it positive (BFGS)."""
    product = hessian @ step
    along, curve = float(step @ product), float(step @ change)
    # A step along which the gradient hardly changed would make the Hessian nearly singular.
    if curve <= 1e-8 * along or along <= 0:
        return hessian
    return hessian - np.outer(product, product) / along + np.outer(change, change) / curve


def _newton_step(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solve hessian @ step = -gradient; the minimum-norm solution for a singular Hessian."""
    eps = EPS * len(hessian)
    # The penalty of a small column is large to that of others.
    unit, scale = equilibrate(hessian)
    with suppress(linalg.LinAlgError):
        factor = linalg.cho_factor(unit, lower=True)
        pivots = np.diag(factor[0]) ** 2
        if pivots.min() > 100 * eps * pivots.max():
            return -linalg.cho_solve(factor, gradient / scale) / scale
    # Collinear columns: directions that are lost in rounding get no step.
    values, vectors = linalg.eigh(unit)
    mask = values > eps * values[-1]
    along = vectors[:, mask]
    return -along @ ((along.T @ (gradient / scale)) / values[mask]) / scale


def lbfgs(
    objective: Smooth,
    penalty: Penalty,
    start: np.ndarray,
    null: NullModel,
    *,
    tol: float,
    max_iter: int,
    measure: np.ndarray | float = 1.0,
    callback: Callable[[np.ndarray], None] | None = None,
) -> Solution:
    """Minimise objective + penalty by L-BFGS (Liu and Nocedal, 1989), by SciPy.

    An iteration is one evaluation of value and gradient where its first step is taken. Stops when
    the largest entry of the gradient times `measure` is at most `tol` times that of the null model,
    and with a penalty the last iteration lowered the value by no more than `tol` times that, or
    when the value falls by its rounding only. `callback` gets the coefficients at the start and
    after each iteration, of which there is an empty one where no step is taken.
    """
    # The tolerance is relative to the null model.
    evaluation = _with_penalty(objective, penalty, start, hessian=False)
    largest = null.kkt_violation(penalty, np.abs(evaluation.gradient), measure)
    is_first = True  # the first evaluation was made above
    last_value = evaluation.value
    no_optimum = not penalty.l2.any()

    # SciPy's callback gets no gradient: `evaluation` is the last one that it asked for.
    def max_gradient() -> float:
        return float(np.max(np.abs(evaluation.gradient) * measure, initial=0.0))

    def evaluate(coef: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal evaluation, is_first
        if not is_first:
            evaluation = _with_penalty(objective, penalty, coef, hessian=False)
        is_first = False
        return evaluation.value, evaluation.gradient

    def stop(intermediate_result: Any) -> None:
        nonlocal last_value
        if callback is not None:
            callback(intermediate_result.x)
        change, last_value = last_value - evaluation.value, evaluation.value
        is_settled = no_optimum or change <= tol * abs(evaluation.value)
        if max_gradient() <= tol * largest and is_settled:
            raise StopIteration

    if callback is not None:
        callback(start)
    converged = max_gradient() <= tol * largest
    if converged or max_iter == 0:
        if callback is not None:
            callback(start)
        return Solution(start, 0, converged, "lbfgs")
    # Evaluations suffice for a line search of `maxls` in each iteration: `max_iter` alone limits.
    options: dict[str, Any] = {
        "maxiter": max_iter,
        "maxls": 50,
        # The callback tests the gradient; of SciPy's own tests only that of the value's rounding is
        # left.
        "gtol": 0.0,
        "ftol": EPS,
        "maxfun": 50 * max_iter,
    }
    result = optimize.minimize(
        evaluate, start, method="L-BFGS-B", jac=True, options=options, callback=stop
    )
    # Rounding limits the gradient to about the square root of the precision of the value.
    rounding = 100 * np.sqrt(EPS) * max(largest, 1.0)
    at_rounding = result.status in (0, 2) and max_gradient() <= rounding
    converged = max_gradient() <= tol * largest or at_rounding
    return Solution(result.x, int(result.nit), converged, "lbfgs")
