"""Solvers of smooth objectives with few evaluations, each of which is a pass over the rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import linalg, optimize

from skfleet.glm._objective import Evaluation
from skfleet.glm._penalties import Penalty

logger = logging.getLogger("skfleet.glm")


class Smooth(Protocol):
    """What solvers see of rows."""

    def evaluate(
        self, coef: np.ndarray, *, hessian: bool = False, columns: np.ndarray | None = None
    ) -> Evaluation:
        """Return value, gradient and, if asked for, Hessian (of some columns) at coef."""
        ...


@dataclass(frozen=True)
class Solution:
    """Where a solver ended: the coefficients, its iterations, whether it met its tolerance."""

    coef: np.ndarray
    n_iter: int
    converged: bool
    solver: str


@dataclass(frozen=True)
class Null:
    """The best model without columns: where solvers start, and what they are measured by.

    `gradient` is that of the average loss, None where only a pass would tell.
    """

    coef: np.ndarray
    value: float
    gradient: np.ndarray | None = None

    def violation(
        self, penalty: Penalty, first: np.ndarray, measure: np.ndarray | float = 1.0
    ) -> float:
        """Return the largest violation there; a solver that starts there knows its `first` ones."""
        if self.gradient is not None:
            first = penalty.violation(self.coef, self.gradient + penalty.gradient(self.coef))
        return float(np.max(first * measure, initial=0.0))


# How far a step may be halved before the solver gives up.
MAX_HALVINGS = 30
# A Hessian serves for another step while a step leaves less than this of the gradient.
STALE = 0.1
# The same where the next penalties may use it too.
_MOST_LEFT = 0.5
EPS = np.finfo(np.float64).eps


def newton(
    objective: Smooth,
    penalty: Penalty,
    start: np.ndarray,
    null: Null,
    *,
    tol: float,
    max_iter: int,
    thrifty: bool = False,
) -> Solution:
    """Minimise objective + penalty by Newton's method (Nocedal and Wright, 2006, section 3.3).

    Value, gradient and Hessian come from one evaluation, so the evaluation that finds a full step
    good enough is the next iteration's; only a step that must be halved costs another one. If
    `thrifty`, for a start near the solution, evaluations do without the Hessian as long as the last
    one, updated by the gradients (BFGS, section 6.1), serves. Stops when the largest entry of the
    gradient is at most `tol` times that at the null model, or when no step can lower the value by
    more than its own rounding. A start no better than the null model is given up for it.
    """
    coef = start
    now = _with_penalty(objective, penalty, coef, hessian=True)
    at_null = now.value if start is null.coef else null.value + penalty.value(null.coef)
    if not now.value <= at_null:
        coef, thrifty = null.coef, False
        now = _with_penalty(objective, penalty, coef, hessian=True)
    hessian: Any = now.hessian
    wanted = tol * null.violation(penalty, np.abs(now.gradient))
    for n_iter in range(max_iter):
        if np.abs(now.gradient).max(initial=0.0) <= wanted:
            return Solution(coef, n_iter, True, "newton")
        step = _newton_step(hessian, now.gradient)
        slope = float(now.gradient @ step)
        logger.debug("newton %d: value %.15g, decrement %.3g", n_iter, now.value, -slope)
        rounding = 8 * EPS * max(abs(now.value), np.finfo(np.float64).tiny)
        size = 1.0
        for _ in range(MAX_HALVINGS):
            tried = _with_penalty(objective, penalty, coef + size * step, hessian=not thrifty)
            # Near the minimum rounding hides the decrease; there a smaller gradient will do.
            if tried.value <= now.value + 1e-4 * size * slope or (
                -slope <= rounding and np.abs(tried.gradient).max() < np.abs(now.gradient).max()
            ):
                break
            if -slope * size <= rounding:
                return Solution(coef, n_iter + 1, True, "newton")
            size /= 2
        else:
            return Solution(coef, n_iter + 1, False, "newton")
        coef = coef + size * step
        if tried.hessian is not None:
            hessian = tried.hessian
        else:
            hessian = _updated(hessian, size * step, tried.gradient - now.gradient)
        left = np.abs(tried.gradient).max() / np.abs(now.gradient).max()
        thrifty = thrifty and bool(left <= STALE)
        now = tried
    return Solution(coef, max_iter, bool(np.abs(now.gradient).max(initial=0.0) <= wanted), "newton")


class WarmNewton:
    """Newton's method for one L2 penalty after another, each from the optimum of the last.

    The rows' part of value, gradient and Hessian is the same for every penalty, so the first step
    of each costs no evaluation; and the Hessian, updated by the gradients, serves for several
    penalties (BFGS: Nocedal and Wright, 2006, section 6.1). It is made anew when a step with it
    leaves more than half of the gradient.
    """

    def __init__(self, objective: Smooth, start: np.ndarray) -> None:
        self._objective = objective
        self.coef = start
        self._now = objective.evaluate(start, hessian=True)
        self._hessian: Any = self._now.hessian
        self.n_iter = 0

    def solve(self, l2: np.ndarray, *, tol: float, max_iter: int) -> bool:
        """Move `coef` to where no entry of the gradient exceeds `tol`; False if it cannot."""
        is_new = False
        for self.n_iter in range(max_iter):
            gradient = self._now.gradient + l2 * self.coef
            largest = np.abs(gradient).max(initial=0.0)
            if largest <= tol:
                return True
            coef = self.coef + _newton_step(self._hessian + np.diag(l2), gradient)
            then = self._objective.evaluate(coef)
            left = np.abs(then.gradient + l2 * coef).max()
            if left <= _MOST_LEFT * largest:
                change = then.gradient - self._now.gradient
                self._hessian = _updated(self._hessian, coef - self.coef, change)
                self.coef, self._now, is_new = coef, then, False
            elif is_new:
                return False
            else:
                self._now = self._objective.evaluate(self.coef, hessian=True)
                self._hessian, is_new = self._now.hessian, True
        return False


def _with_penalty(
    objective: Smooth, penalty: Penalty, coef: np.ndarray, *, hessian: bool
) -> Evaluation:
    """Evaluate objective + penalty."""
    found = objective.evaluate(coef, hessian=hessian)
    value = found.value + penalty.value(coef)
    curve = None if found.hessian is None else found.hessian + np.diag(penalty.l2)
    return Evaluation(value, found.gradient + penalty.gradient(coef), curve)


def _updated(hessian: np.ndarray, step: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Update a Hessian by the change of the gradient along a step, keeping it positive (BFGS)."""
    product = hessian @ step
    along, curve = float(step @ product), float(step @ change)
    if curve <= 1e-8 * along or along <= 0:
        return hessian
    return hessian - np.outer(product, product) / along + np.outer(change, change) / curve


def _newton_step(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solve hessian @ step = -gradient; the shortest solution where the Hessian is singular."""
    eps = EPS * len(hessian)
    try:
        factor = linalg.cho_factor(hessian, lower=True)
        pivots = np.diag(factor[0]) ** 2
        if pivots.min() > 100 * eps * pivots.max():
            return -linalg.cho_solve(factor, gradient)
    except linalg.LinAlgError:
        pass
    values, vectors = linalg.eigh(hessian)
    keep = values > eps * values[-1]
    along = vectors[:, keep]
    return -along @ ((along.T @ gradient) / values[keep])


def lbfgs(
    objective: Smooth,
    penalty: Penalty,
    start: np.ndarray,
    null: Null,
    *,
    tol: float,
    max_iter: int,
    measure: np.ndarray | float = 1.0,
) -> Solution:
    """Minimise objective + penalty by L-BFGS (Liu and Nocedal, 1989), as SciPy has it.

    An iteration is one evaluation of value and gradient where its first step is taken. Stops when
    the largest entry of the gradient times `measure` is at most `tol` times that of the null model,
    or when the value falls by its rounding only.
    """
    last = _with_penalty(objective, penalty, start, hessian=False)
    largest = null.violation(penalty, np.abs(last.gradient), measure)
    waiting = True  # the first evaluation was made above

    def left() -> float:
        return float(np.max(np.abs(last.gradient) * measure, initial=0.0))

    def evaluate(coef: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal last, waiting
        if not waiting:
            last = _with_penalty(objective, penalty, coef, hessian=False)
        waiting = False
        return last.value, last.gradient

    def stop(intermediate_result: Any) -> None:
        if left() <= tol * largest:
            raise StopIteration

    if left() <= tol * largest:
        return Solution(start, 0, True, "lbfgs")
    options: dict[str, Any] = {
        "maxiter": max_iter,
        "maxls": 50,
        "gtol": 0.0,
        "ftol": EPS,
        "maxfun": 50 * max_iter,
    }
    found = optimize.minimize(
        evaluate, start, method="L-BFGS-B", jac=True, options=options, callback=stop
    )
    # Where the gradient is about the square root of the value's rounding, no more can be had.
    at_rounding = found.status in (0, 2) and left() <= 100 * np.sqrt(EPS) * max(largest, 1.0)
    return Solution(found.x, int(found.nit), left() <= tol * largest or at_rounding, "lbfgs")
