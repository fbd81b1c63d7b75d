"""Solvers: they reach the optimum, in as many evaluations as they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skfleet.glm import NullModel, ObjectiveValue, Penalty, lbfgs, newton

SOLVERS = [newton, lbfgs]


class Quadratic:
    """Half of (c - target)' A (c - target), which counts its evaluations."""

    def __init__(self, A, target):
        self.A, self.target = A, target
        self.n_evaluations = self.n_hessians = 0

    def evaluate(self, coef, *, hessian=False, columns=None):
        self.n_evaluations += 1
        self.n_hessians += hessian
        value, gradient, curve = self.at(coef)
        return ObjectiveValue(value, gradient, curve if hessian else None)

    def at(self, coef):
        off = coef - self.target
        return 0.5 * off @ self.A @ off, self.A @ off, self.A


class Softplus(Quadratic):
    """A sum of log(1 + exp(.)) both ways: full Newton steps from far out overshoot."""

    def at(self, coef):
        off = self.A @ (coef - self.target)
        value = np.logaddexp(0, off).sum() + np.logaddexp(0, -off).sum()
        slope = np.tanh(off / 2)
        curve = 0.5 / np.cosh(np.clip(off / 2, -300, 300)) ** 2
        return value, self.A.T @ slope, (self.A.T * curve) @ self.A


def _l2(strength):
    return Penalty(np.zeros_like(strength), strength)


def _free(n):
    return _l2(np.zeros(n))


def _solve(solver, objective, penalty, start=None, **how):
    """Solve from zero, which is the null model, or from elsewhere."""
    zero = np.zeros(len(objective.target))
    null = NullModel(zero, objective.at(zero)[0], objective.at(zero)[1])
    return solver(objective, penalty, zero if start is None else start, null, **how)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 8), log_cond=st.floats(0, 6), seed=st.integers(0, 100), i=st.integers(0, 1))
def test_they_reach_the_optimum(n, log_cond, seed, i):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    A = (basis * np.logspace(0, -log_cond, n)) @ basis.T
    objective = Quadratic(A, rng.normal(size=n))
    penalty = _l2(rng.uniform(0, 1e-3, n))
    found = _solve(SOLVERS[i], objective, penalty, tol=1e-10, max_iter=1000)
    gradient = objective.at(found.coef)[1] + penalty.gradient(found.coef)
    assert found.converged
    # SciPy's L-BFGS may end at the rounding of the value, the square root of its gradient's
    assert np.abs(gradient).max() < (1e-10 if SOLVERS[i] is newton else 1e-6)


def test_a_full_newton_step_is_the_next_iteration():
    objective = Quadratic(np.diag([1.0, 100.0]), np.ones(2))
    found = _solve(newton, objective, _free(2), tol=1e-8, max_iter=10)
    assert (found.n_iter, objective.n_evaluations) == (1, 2)
    # at the optimum already
    again = _solve(newton, objective, _free(2), found.coef, tol=1e-8, max_iter=10)
    assert (again.n_iter, objective.n_evaluations) == (0, 3)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.__name__)
def test_steps_that_overshoot_are_shortened(solver):
    objective = Softplus(np.eye(3), np.array([4.0, -5.0, 6.0]))
    found = _solve(solver, objective, _free(3), tol=1e-9, max_iter=100)
    assert found.converged
    np.testing.assert_allclose(found.coef, objective.target, atol=1e-6)
    assert objective.n_evaluations > found.n_iter + 1


def test_a_singular_hessian_gives_the_shortest_step():
    A = np.ones((3, 3))
    found = _solve(newton, Quadratic(A, np.array([3.0, 0, 0])), _free(3), tol=1e-9, max_iter=9)
    assert found.converged
    np.testing.assert_allclose(found.coef, np.ones(3), atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.__name__)
def test_an_unfinished_solution_says_so(solver):
    objective = Softplus(np.eye(3), np.array([4.0, -5.0, 6.0]))
    found = _solve(solver, objective, _free(3), tol=1e-12, max_iter=2)
    assert not found.converged
    assert found.n_iter == 2


def test_a_thrifty_newton_does_without_hessians_near_the_solution():
    objective = Softplus(np.diag([1.0, 2.0, 3.0]), np.array([0.3, -0.2, 0.1]))
    start = objective.target + 0.05
    found = _solve(newton, objective, _free(3), start, tol=1e-10, max_iter=50, reuse_hessian=True)
    assert found.converged
    assert objective.n_hessians == 1 < objective.n_evaluations
    np.testing.assert_allclose(found.coef, objective.target, atol=1e-8)


def test_a_start_worse_than_the_null_model_is_given_up():
    objective = Softplus(np.eye(3), np.array([0.3, -0.2, 0.1]))
    far = np.full(3, 1e3)
    found = _solve(newton, objective, _free(3), far, tol=1e-10, max_iter=50, reuse_hessian=True)
    assert found.converged
    np.testing.assert_allclose(found.coef, objective.target, atol=1e-8)


def test_penalty():
    penalty = Penalty(np.array([0.0, 0.5, 0.0]), np.array([2.0, 0.0, 1.0]))
    coef, h = np.array([1.0, -2.0, 3.0]), 1e-6
    slope = [
        (penalty.value(coef + h * e) - penalty.value(coef - h * e)) / (2 * h) for e in np.eye(3)
    ]
    smooth = penalty.gradient(coef)
    np.testing.assert_allclose(smooth + penalty.l1 * np.sign(coef), slope, atol=1e-8)
    np.testing.assert_array_equal(penalty.prox(np.array([0.1, 0.3, -1]), 1.0), [0.1, 0.0, -1])
    # at zero a slope within the strength violates nothing
    at_zero = penalty.kkt_violation(np.zeros(3), np.array([0.1, -0.4, 0.0]))
    np.testing.assert_allclose(at_zero, [0.1, 0, 0])
    np.testing.assert_allclose(penalty.kkt_violation(coef, -penalty.l1 * np.sign(coef)), 0)


@pytest.mark.parametrize("seed", range(5))
def test_near_the_optimum_the_last_hessian_is_enough(seed):
    rng = np.random.default_rng(seed)
    A, target = rng.normal(size=(200, 6)), rng.normal(size=6)
    counts = []
    for reuse_near in (False, True):
        objective = Softplus(A, target)
        solution = _solve(newton, objective, _free(6), tol=1e-4, max_iter=50, reuse_near=reuse_near)
        assert solution.converged
        np.testing.assert_allclose(solution.coef, target, atol=1e-3)
        counts.append((objective.n_hessians, objective.n_evaluations))
    assert counts[1][0] < counts[0][0]
    assert counts[1][1] <= counts[0][1] + 1
