"""Solvers with an L1 penalty: the conditions of a minimum, working sets, and passes."""

import numpy as np
import pytest
from scipy import sparse

from skfleet.blocks import row_blocks
from skfleet.engine import counting, engine_for
from skfleet.glm import (
    BinaryLogistic,
    ClassEncoding,
    Multinomial,
    NullModel,
    Objective,
    Penalty,
    Scaling,
    SquaredError,
    _proximal_solvers,
    proximal_gradient,
    proximal_newton,
)

SOLVERS = [proximal_newton, proximal_gradient]


def _problem(loss, n_features=12, n_rows=300, strength=0.02, l2=0.0, to=lambda X: X):
    """An objective, a penalty that spares the intercepts, and the null model."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features))
    X[:, 1] += X[:, 0]
    score = X[:, :3] @ np.array([1.0, -1.0, 2.0])
    if isinstance(loss, SquaredError):
        y, classes = score + rng.normal(size=n_rows), None
    else:
        classes = np.arange(max(2, loss.n_outputs))
        edges = np.quantile(score, classes[1:] / len(classes))
        y = np.searchsorted(edges, score + rng.normal(size=n_rows))
    rows = row_blocks(to(X), y)
    objective = Objective(
        engine_for(rows),
        rows,
        loss,
        total_weight=float(n_rows),
        scaling=Scaling(np.zeros(n_features), np.ones(n_features)),
        labels=ClassEncoding(classes),
    )
    each = np.tile(np.append(np.ones(n_features), 0.0), loss.n_outputs)
    zero = np.zeros(len(each))
    return objective, Penalty(strength * each, l2 * each), NullModel(zero, np.inf)


def _violation(objective, penalty, coef):
    gradient = objective.evaluate(coef).gradient + penalty.gradient(coef)
    return penalty.kkt_violation(coef, gradient).max()


@pytest.mark.parametrize("loss", [BinaryLogistic(), Multinomial(3), SquaredError()], ids=str)
@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("to", [lambda X: X, sparse.csr_array], ids=["dense", "sparse"])
def test_both_reach_the_same_optimum(loss, l2, to):
    objective, penalty, null = _problem(loss, l2=l2, to=to)
    found = [
        solver(objective, penalty, null.coef, null, tol=1e-8, max_iter=5000) for solver in SOLVERS
    ]
    for solver, solution in zip(SOLVERS, found, strict=True):
        assert solution.converged
        assert solution.solver == solver.__name__
        at_null = _violation(objective, penalty, null.coef)
        assert _violation(objective, penalty, solution.coef) <= 1e-8 * at_null
    assert (found[0].coef == 0).any()
    np.testing.assert_allclose(found[0].coef, found[1].coef, atol=1e-6)


@pytest.mark.parametrize("loss", [BinaryLogistic(), Multinomial(3)], ids=str)
def test_a_working_set_leaves_the_optimum_alone(loss, monkeypatch):
    objective, penalty, null = _problem(loss, n_features=60, strength=0.05)
    want = proximal_newton(objective, penalty, null.coef, null, tol=1e-8, max_iter=100)
    monkeypatch.setattr(_proximal_solvers, "MAX_WORKING_SET", 30 * loss.n_outputs)
    monkeypatch.setattr(_proximal_solvers, "MIN_ADDED_COLUMNS", 4)
    with counting() as counts:
        got = proximal_newton(objective, penalty, null.coef, null, tol=1e-8, max_iter=100)
    assert got.converged
    assert got.solver == "proximal_newton"
    np.testing.assert_allclose(got.coef, want.coef, atol=1e-7)
    assert counts.passes == got.n_iter + 1


def test_too_many_columns_in_use_are_left_to_gradients(monkeypatch):
    objective, penalty, null = _problem(BinaryLogistic(), n_features=30, strength=1e-3)
    want = proximal_newton(objective, penalty, null.coef, null, tol=1e-8, max_iter=100)
    monkeypatch.setattr(_proximal_solvers, "MAX_WORKING_SET", 8)
    got = proximal_newton(objective, penalty, null.coef, null, tol=1e-8, max_iter=5000)
    assert got.converged
    assert got.solver == "proximal_gradient"
    np.testing.assert_allclose(got.coef, want.coef, atol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: s.__name__)
def test_an_unfinished_solution_says_so(solver):
    objective, penalty, null = _problem(BinaryLogistic())
    found = solver(objective, penalty, null.coef, null, tol=1e-12, max_iter=2)
    assert not found.converged


def test_at_the_optimum_there_is_nothing_to_do():
    objective, penalty, null = _problem(BinaryLogistic(), strength=10.0)
    null = NullModel(null.coef, np.inf)
    found = proximal_newton(objective, penalty, null.coef, null, tol=1e-6, max_iter=50)
    assert not found.coef[:-1].any()
    again = NullModel(null.coef, np.inf, objective.evaluate(null.coef).gradient)
    found = proximal_newton(objective, penalty, found.coef, again, tol=1e-3, max_iter=50)
    assert found.n_iter == 0
