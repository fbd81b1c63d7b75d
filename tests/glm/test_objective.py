"""The average loss over blocks: its derivatives, weights, and what scaling leaves alone."""

import numpy as np
import pytest
from scipy import optimize, sparse

from skfleet.blocks import row_blocks
from skfleet.engine import counting, engine_for
from skfleet.glm import BinaryLogistic, ClassEncoding, Multinomial, Objective, Scaling


def _objective(n_classes=2, *, weighted=False, to=lambda X: X, scaled=True, fit_intercept=True):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3)) * [1, 10, 0.1] + [0, 5, 0]
    names = np.array(["a", "b", "c"])[:n_classes]
    y = names[rng.integers(0, n_classes, 80)]
    weight = rng.uniform(0, 2, 80) if weighted else None
    class_weight = np.arange(1.0, n_classes + 1) if weighted else None
    rows = row_blocks(to(X), y, weight)
    shift = X.mean(axis=0) if scaled and not sparse.issparse(to(X)) else np.zeros(3)
    return Objective(
        engine_for(rows),
        rows,
        BinaryLogistic() if n_classes == 2 else Multinomial(n_classes),
        total_weight=80.0,
        scaling=Scaling(shift, X.std(axis=0) if scaled else np.ones(3)),
        labels=ClassEncoding(names, class_weight),
        fit_intercept=fit_intercept,
    )


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("to", [lambda X: X, sparse.csr_array], ids=["dense", "sparse"])
def test_gradient_and_hessian_are_the_derivatives(n_classes, weighted, fit_intercept, to):
    objective = _objective(n_classes, weighted=weighted, to=to, fit_intercept=fit_intercept)
    size = (1 if n_classes == 2 else n_classes) * (3 + fit_intercept)
    coef = np.random.default_rng(1).normal(size=size)
    value, gradient, hessian = objective.evaluate(coef, hessian=True)
    alone = objective.evaluate(coef)
    assert value == pytest.approx(alone[0], rel=1e-14)
    np.testing.assert_allclose(gradient, alone[1], rtol=1e-12)
    slope = optimize.approx_fprime(coef, lambda c: objective.evaluate(c)[0], 1e-7)
    np.testing.assert_allclose(gradient, slope, atol=1e-5)
    curve = optimize.approx_fprime(coef, lambda c: objective.evaluate(c)[1], 1e-7)
    np.testing.assert_allclose(hessian, curve, atol=1e-5)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)


def test_scaling_changes_the_coordinates_only():
    rng = np.random.default_rng(1)
    scaled, plain = _objective(scaled=True), _objective(scaled=False)
    scaling = scaled._scaling
    coef = rng.normal(size=4)
    same = np.append(coef[:3] / scaling.scale, coef[3] - coef[:3] / scaling.scale @ scaling.shift)
    assert scaled.evaluate(coef)[0] == pytest.approx(plain.evaluate(same)[0])


def test_every_evaluation_is_one_pass():
    objective = _objective()
    with counting() as counts:
        objective.evaluate(np.zeros(4))
        objective.evaluate(np.zeros(4), hessian=True)
    assert counts.passes == 2


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("to", [lambda X: X, sparse.csr_array], ids=["dense", "sparse"])
def test_the_hessian_of_some_columns_is_a_part_of_it(n_classes, to):
    objective = _objective(n_classes, weighted=True, to=to)
    coef = np.random.default_rng(1).normal(size=4 if n_classes == 2 else 12)
    columns = np.array([0, 2])
    where = objective.coef_indices(columns)
    whole = objective.evaluate(coef, hessian=True)
    part = objective.evaluate(coef, hessian=True, columns=columns)
    np.testing.assert_allclose(part.hessian, whole.hessian[np.ix_(where, where)], rtol=1e-12)
    np.testing.assert_array_equal(part.gradient, whole.gradient)


def test_large_offsets_are_taken_off_the_rows():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(500, 3)), rng.integers(0, 2, 500)
    coef = rng.normal(size=4)
    found = []
    for offset in (0.0, 1e6):
        rows = row_blocks(X + offset, y)
        objective = Objective(
            engine_for(rows),
            rows,
            BinaryLogistic(),
            total_weight=500.0,
            scaling=Scaling(np.full(3, offset), np.ones(3)),
            labels=ClassEncoding(np.array([0, 1])),
        )
        found.append(objective.evaluate(coef, hessian=True))
    for near, far in zip(*found, strict=True):
        np.testing.assert_allclose(far, near, rtol=1e-8, atol=1e-10)
