"""Solvers of smooth objectives with few evaluations, each of which is a pass over the rows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import linalg, optimize

from skfleet.glm._penalties import Penalty

logger = logging.getLogger("skfleet.glm")


class Smooth(Protocol):
    """What solvers see of rows."""

    def value_and_gradient(self, coef: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient at coef."""
        ...

    def value_gradient_hessian(self, coef: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return value, gradient and Hessian at coef."""
        ...


@dataclass(frozen=True)
class Solution:
    """Where a solver ended: the coefficients, its iterations, and whether it met its tolerance."""

    coef: np.ndarray
    n_iter: int
    converged: bool


# How far a step may be halved before the solver gives up.
MAX_HALVINGS = 30


def newton(
    objective: Smooth,
    penalty: Penalty,
    start: np.ndarray,
    *,
    tol: float,
    max_iter: int,
    value_at_zero: float = np.inf,
) -> Solution:
    """Minimise objective + penalty by Newton's method (Nocedal and Wright, 2006, section 3.3).

    Value, gradient and Hessian come from one evaluation, so the evaluation that finds a full step
    good enough is the next iteration's; only a step that must be halved costs another one. Stops
    when the largest entry of the gradient is at most tol, or when no step can lower the value by
    more than its own rounding. A start no better than `value_at_zero` is given up for zero.
    """
    coef = start
    value, gradient, hessian = _with_penalty(objective, penalty, coef)
    if not value <= value_at_zero:
        coef = np.zeros_like(start)
        value, gradient, hessian = _with_penalty(objective, penalty, coef)
    for n_iter in range(max_iter):
        if np.max(np.abs(gradient), initial=0.0) <= tol:
            return Solution(coef, n_iter, True)
        step = _newton_step(hessian, gradient)
        slope = float(gradient @ step)
        logger.debug("newton %d: value %.15g, decrement %.3g", n_iter, value, -slope)
        rounding = 8 * np.finfo(np.float64).eps * max(abs(value), np.finfo(np.float64).tiny)
        size = 1.0
        for _ in range(MAX_HALVINGS):
            tried = _with_penalty(objective, penalty, coef + size * step)
            # Near the minimum rounding hides the decrease; there a smaller gradient will do.
            if tried[0] <= value + 1e-4 * size * slope or (
                -slope <= rounding and np.abs(tried[1]).max() < np.abs(gradient).max()
            ):
                break
            if -slope * size <= rounding:
                return Solution(coef, n_iter + 1, True)
            size /= 2
        else:
            return Solution(coef, n_iter + 1, False)
        coef = coef + size * step
        value, gradient, hessian = tried
    return Solution(coef, max_iter, bool(np.max(np.abs(gradient), initial=0.0) <= tol))


def _with_penalty(
    objective: Smooth, penalty: Penalty, coef: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Evaluate objective + penalty."""
    value, gradient, hessian = objective.value_gradient_hessian(coef)
    hessian = hessian + np.diag(penalty.hessian(coef))
    return value + penalty.value(coef), gradient + penalty.gradient(coef), hessian


def _newton_step(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solve hessian @ step = -gradient; the shortest solution where the Hessian is singular."""
    eps = np.finfo(np.float64).eps * len(hessian)
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
    objective: Smooth, penalty: Penalty, start: np.ndarray, *, tol: float, max_iter: int
) -> Solution:
    """Minimise objective + penalty by L-BFGS (Liu and Nocedal, 1989), as SciPy has it.

    An iteration is one evaluation of value and gradient where its first step is taken. Stops when
    the largest entry of the gradient is at most tol, or when the value falls by its rounding only.
    """

    def evaluate(coef: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective.value_and_gradient(coef)
        return value + penalty.value(coef), gradient + penalty.gradient(coef)

    options: dict[str, Any] = {
        "maxiter": max_iter,
        "maxls": 50,
        "gtol": tol,
        "ftol": np.finfo(np.float64).eps,
        "maxfun": 50 * max_iter,
    }
    found = optimize.minimize(evaluate, start, method="L-BFGS-B", jac=True, options=options)
    # Status 2 is a line search that finds nothing lower. Where the gradient is about the square
    # root of the value's rounding, no more can be had.
    largest = float(np.max(np.abs(found.jac), initial=0.0))
    at_rounding = found.status == 2 and largest <= 100 * np.sqrt(np.finfo(np.float64).eps)
    return Solution(found.x, int(found.nit), found.status == 0 or at_rounding)
