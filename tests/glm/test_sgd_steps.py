"""Losses and steps of stochastic gradient descent, by themselves."""

import array_api_strict
import numpy as np
import pytest

from skfleet.glm import SGD_LOSSES, SGDConfig, SGDTargets, SGDWeights, _sgd_steps, descend


@pytest.mark.parametrize("epsilon", [0.1, 0.7])
@pytest.mark.parametrize("name", SGD_LOSSES)
def test_gradients_are_the_values_slopes(name, epsilon):
    p = np.linspace(-3.013, 3.021, 400)[:, None]
    loss = SGD_LOSSES[name]
    for y in (-1.0, 1.0, 0.3):
        y = np.full_like(p, y)
        low, high = (loss.value(y, p + h, epsilon) for h in (-1e-6, 1e-6))
        np.testing.assert_allclose(loss.gradient(y, p, epsilon), (high - low) / 2e-6, atol=1e-5)
        assert (loss.value(y, p, epsilon) >= 0).all()


def _how(**settings):
    usual = {"loss": "squared_error", "epsilon": 0.1, "l1": 0.0, "l2": 0.0, "alpha": 1e-3}
    usual |= {"learning_rate": "constant", "eta0": 0.01, "power_t": 0.5, "fit_intercept": True}
    return SGDConfig(**usual | {"average": 0, "batch_size": 10, "track_objective": True} | settings)


def _start(n_outputs, n_features, **others):
    return SGDWeights(np.zeros((n_outputs, n_features)), np.zeros(n_outputs), **others)


def test_auto_takes_a_256th_of_a_block():
    how = _how(batch_size=None)
    assert [how.batch_rows(n) for n in (1, 3, 100, 25600, 10**6)] == [1, 3, 8, 100, 256]
    assert _how(batch_size=512).batch_rows(100) == 100


def test_a_batch_in_a_narrow_bowl_goes_as_far_as_its_rows_would():
    """Equal rows change the slope alike, so that the batch is as good as one after the other."""
    X, y = np.ones((50, 1)), SGDTargets(np.ones(50))
    for eta0 in (1e-3, 0.05, 0.5, 1.0):
        how = _how(eta0=eta0, fit_intercept=False, batch_size=50)
        got = descend(_start(1, 1), X, y, how)
        np.testing.assert_allclose(got.coef, 1 - (1 - eta0) ** 50, rtol=1e-6)
    too_far = descend(_start(1, 1), X, y, _how(eta0=1.9, fit_intercept=False, batch_size=50))
    np.testing.assert_allclose(too_far.coef, 1.9)  # no less than one row would


def test_rows_that_are_met_already_move_nothing():
    got = descend(_start(1, 2), np.ones((20, 2)), SGDTargets(np.zeros(20)), _how())
    assert (got.coef == 0).all()
    assert (got.intercept == 0).all()


@pytest.mark.parametrize("loss", ["hinge", "squared_error"])
@pytest.mark.parametrize("n_shuffled", [0, 47])
def test_stretches_of_batches_change_nothing(loss, n_shuffled, monkeypatch):
    rng = np.random.default_rng(0)
    X, weight = rng.normal(size=(47, 3)), rng.random(47)
    is_label, order = loss == "hinge", rng.permutation(47) if n_shuffled else None
    targets = SGDTargets(X[:, 0], weight)
    if is_label:
        targets = SGDTargets(rng.integers(0, 3, 47), weight, np.arange(3), rng.random((2, 3)))
    config = _how(loss=loss, l1=1e-3, l2=1e-2)
    learned = []
    for n_values in (1, 150, 2**17):  # one batch, two, and all
        monkeypatch.setattr(_sgd_steps, "STRETCH_VALUES", n_values)
        start = _start(3 if is_label else 1, 3, l1_applied=np.zeros((3 if is_label else 1, 3)))
        learned.append(descend(start, X, targets, config, order))
    for other in learned[1:]:
        for got, want in zip(other[:10], learned[0][:10], strict=True):
            if want is not None:
                np.testing.assert_allclose(got, want, rtol=1e-12)


def test_weights_given_stay_as_they_were():
    start = _start(1, 2, l1_applied=np.zeros((1, 2)))
    X = np.random.default_rng(0).normal(size=(40, 2))
    learned = descend(start, X, SGDTargets(X[:, 0]), _how(l1=0.01, l2=0.1))
    assert (start.coef == 0).all()
    assert (start.l1_applied == 0).all()
    assert learned.t == 41
    assert (learned.n_rows, learned.weight) == (40, 40.0)


@pytest.mark.parametrize("settings", [{}, {"loss": "hinge"}, {"l1": 0.1}, {"average": 5}], ids=str)
def test_nothing_leaves_a_device_between_batches(settings, monkeypatch):
    xp = array_api_strict
    X = np.random.default_rng(0).normal(size=(120, 3))
    codes = (X[:, 0] > 0).astype(int)
    targets = SGDTargets(codes, np.ones(120), np.array([1]), np.array([[2.0], [1.0]]))
    start = _start(1, 3, mean_coef=np.zeros((1, 3)), mean_intercept=np.zeros(1))
    start = start._replace(l1_applied=np.zeros((1, 3)))
    there = xp.asarray(X, device=xp.Device("device1"))
    left = []
    for name in ("__bool__", "__float__", "__int__", "__index__", "__array__", "to_device"):
        plain = getattr(type(there), name, None)
        if plain is not None:
            watched = lambda self, *a, plain=plain, **k: left.append(1) or plain(self, *a, **k)  # noqa: E731
            monkeypatch.setattr(type(there), name, watched)
    n_left, order = [], np.random.default_rng(0).permutation(120)
    for batch_size in (60, 3):
        how = _how(batch_size=batch_size, **settings)
        left.clear()
        found = descend(start, there, targets, how, order)
        n_left.append(len(left))
        np.testing.assert_array_equal(found.coef, descend(start, X, targets, how, order).coef)
    assert 0 < n_left[0] == n_left[1]
