"""Least squares from sums of products: systems of any scale and rank, and L1 penalties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import enet_path

from skfleet.glm import (
    Quadratic,
    _coordinate_descent,
    elastic_net_path,
    rows_with_gram,
    solve_positive,
    solve_ridge,
)


def _design(n, p, seed=0, log_scale=0.0, rank=None):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    if rank is not None:
        X = X[:, : min(rank, p)] @ rng.normal(size=(min(rank, p), p))
    return X * np.logspace(-log_scale, log_scale, p), rng.normal(size=n)


@pytest.mark.parametrize("log_scale", [0, 4])
@pytest.mark.parametrize("rank", [None, 3])
def test_the_solution_is_the_shortest(log_scale, rank):
    X, y = _design(50, 6, log_scale=log_scale, rank=rank)
    coef, how, kept = solve_ridge(X.T @ X, (X.T @ y)[:, None], 0.0)
    assert (how, kept) == (("cholesky", 6) if rank is None else ("eigen", 3))
    residual = y - X @ coef[0]
    np.testing.assert_allclose(X.T @ residual / np.linalg.norm(X, axis=0), 0, atol=1e-7)
    if rank is not None:
        # No part of it in the directions along which nothing changes.
        _, _, vectors = np.linalg.svd(X / np.linalg.norm(X, axis=0))
        free = np.linalg.qr(vectors[3:].T / np.linalg.norm(X, axis=0)[:, None])[0]
        np.testing.assert_allclose(free.T @ coef[0] / np.linalg.norm(coef[0]), 0, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    p=st.integers(1, 8),
    rank=st.integers(1, 8),
    log_scale=st.integers(0, 4),
    seed=st.integers(0, 50),
)
def test_few_rows_stand_for_many(p, rank, log_scale, seed):
    X, y = _design(40, p, seed, log_scale, rank)
    design, target = rows_with_gram(X.T @ X, X.T @ y, y @ y)
    assert design.shape == (p + 1, p)
    scale = np.linalg.norm(X, axis=0)
    unit = np.outer(scale, scale)
    np.testing.assert_allclose(design.T @ design / unit, X.T @ X / unit, atol=1e-10)
    np.testing.assert_allclose(design.T @ target / scale, X.T @ y / scale, atol=1e-6)
    assert target @ target == pytest.approx(y @ y)


def test_coefficients_of_at_least_zero():
    X, y = _design(50, 6, log_scale=2)
    (coef,), converged = solve_positive(X.T @ X, (X.T @ y)[:, None], 0.5)
    assert converged
    slope = X.T @ (X @ coef - y) + 0.5 * coef
    assert (coef >= 0).all()
    assert (coef == 0).any()
    scale = np.linalg.norm(X, axis=0)
    np.testing.assert_allclose(slope[coef > 0] / scale[coef > 0], 0, atol=1e-9)
    assert (slope[coef == 0] / scale[coef == 0] > -1e-9).all()


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(5, 40),
    p=st.integers(1, 30),
    log_scale=st.integers(0, 3),
    l1_ratio=st.sampled_from([0.0, 0.3, 1.0]),
    positive=st.booleans(),
    collinear=st.booleans(),
    seed=st.integers(0, 50),
)
def test_the_conditions_of_a_minimum_hold_on_a_path(
    n, p, log_scale, l1_ratio, positive, collinear, seed
):
    X, y = _design(n, p, seed, log_scale)
    if collinear and p > 2:
        X[:, 1] = X[:, 0]
        X[:, 2] = 0.0
    y = y + 3 * X[:, 0] / (np.linalg.norm(X[:, 0]) or 1)
    problem = Quadratic(X.T @ X / n, X.T @ y / n, y @ y / n)
    scale = np.linalg.norm(X, axis=0) / np.sqrt(n)
    scale[scale == 0] = 1.0
    largest = np.abs(problem.xy).max() or 1.0
    alphas = largest * np.array([0.001, 0.3, 0.03])
    limits = {"tol": 1e-4, "max_iter": 1_000_000, "positive": positive}
    points = elastic_net_path(problem, alphas, l1_ratio, **limits)
    at_zero = np.abs(problem.xy / scale).max()
    for alpha, point in zip(alphas, points, strict=True):
        l1, coef = alpha * l1_ratio, point.coef
        slope = problem.gram @ coef - problem.xy + alpha * (1 - l1_ratio) * coef
        unused = np.maximum((-slope if positive else np.abs(slope)) - l1, 0)
        violation = np.where(coef != 0, np.abs(slope + l1 * np.sign(coef)), unused) / scale
        assert violation.max() <= 1e-4 * at_zero
        assert point.converged
        assert point.dual_gap <= 1e-3 * problem.yy
        if positive:
            assert (coef >= 0).all()


def test_it_is_scikit_learn_s_minimum():
    X, y = _design(60, 10)
    y += X[:, 0]
    problem = Quadratic(X.T @ X / 60, X.T @ y / 60, y @ y / 60)
    alphas = np.geomspace(1, 1e-3, 20)
    got = elastic_net_path(problem, alphas, 0.7, tol=1e-4, max_iter=1000)
    _, want, _ = enet_path(X, y, l1_ratio=0.7, alphas=alphas, tol=1e-14, max_iter=10_000)
    np.testing.assert_allclose([point.coef for point in got], want.T, atol=1e-7)
    # in any order of the alphas
    again = elastic_net_path(problem, alphas[::-1], 0.7, tol=1e-4, max_iter=1000)
    for one, other in zip(again[::-1], got, strict=True):
        np.testing.assert_allclose(one.coef, other.coef, atol=1e-9)


def test_a_minimum_that_is_not_reached_is_said_to_be(monkeypatch):
    X, y = _design(30, 200)
    problem = Quadratic(X.T @ X / 30, X.T @ y / 30, y @ y / 30)
    monkeypatch.setattr(
        _coordinate_descent._PenalizedQuadratic,
        "refine_active_set",
        lambda self, coef, gradient_tol, work: coef,
    )
    (point,) = elastic_net_path(problem, np.array([1e-9]), 1.0, tol=1e-9, max_iter=1)
    assert not point.converged


def test_the_products_are_checked_for_no_alpha(monkeypatch):
    calls, path = [], _coordinate_descent.enet_path
    monkeypatch.setattr(
        _coordinate_descent, "enet_path", lambda *args, **kw: calls.append(kw) or path(*args, **kw)
    )
    X, y = _design(60, 10)
    problem = Quadratic(X.T @ X / 60, X.T @ y / 60, y @ y / 60)
    elastic_net_path(problem, np.geomspace(1, 1e-3, 20), 0.7, tol=1e-4, max_iter=1000)
    (call,) = calls
    assert call["check_input"] is False
