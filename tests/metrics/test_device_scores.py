"""Scores of predictions on a device are scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import get_scorer

from skfleet.metrics import DEVICE_SCORES, device_scores

xp = pytest.importorskip("array_api_strict")
rng = np.random.default_rng(0)
N = 60


class Fixed:
    """A fitted model whose responses are known."""

    def __init__(self, y_pred):
        self.y_pred, self.n_calls = y_pred, 0

    def predict(self, X):
        self.n_calls += 1
        return self.y_pred

    predict_proba = predict


def on_device(y_pred):
    return Fixed(xp.asarray(y_pred, device=xp.Device("device1")))


def reference(name, y, y_pred):
    scorer = get_scorer(name)
    return scorer._sign * scorer._score_func(y, y_pred, **scorer._kwargs)


REGRESSION = ["neg_mean_absolute_error", "neg_mean_squared_error", "r2"]
REGRESSION += ["neg_root_mean_squared_error"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(N,), (N, 3)])
def test_regression(shape, dtype):
    y = rng.normal(size=shape)
    y_pred = (y + rng.normal(size=shape)).astype(dtype)
    model = on_device(y_pred)
    scores = device_scores(REGRESSION, model, model.y_pred, y)
    np.testing.assert_allclose(scores, [reference(n, y, y_pred) for n in REGRESSION], rtol=1e-6)
    assert model.n_calls == 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.bool_])
def test_accuracy(dtype):
    y, y_pred = rng.integers(2, size=(2, N))
    model = on_device(y_pred.astype(dtype))
    (score,) = device_scores(["accuracy"], model, model.y_pred, y)
    assert score == reference("accuracy", y, y_pred)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [[0, 1], [-3, 2, 7]])
def test_log_loss(classes, dtype):
    y = rng.choice(classes, size=N)
    y_pred = rng.dirichlet(np.ones(len(classes)), size=N).astype(dtype)
    y_pred[0] = np.arange(len(classes)) == 0  # which is clipped
    model = on_device(y_pred)
    model.classes_ = np.array(classes)
    (score,) = device_scores(["neg_log_loss"], model, model.y_pred, y)
    assert score == pytest.approx(reference("neg_log_loss", y, y_pred), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "y", "y_pred"),
    [
        ("r2", np.ones(3), np.zeros(3)),
        ("r2", np.ones(1), np.zeros(1)),
        ("r2", np.ones((3, 1)), np.zeros(3)),
        ("r2", np.array([1.0, np.nan, 2.0]), np.zeros(3)),
        ("accuracy", np.array(["a", "b"]), np.zeros(2)),
        ("accuracy", np.eye(3), np.eye(3)),
        ("neg_log_loss", np.array([0, 0, 0]), np.full((3, 2), 0.5)),
        ("neg_log_loss", np.array([0, 1, 2]), np.full((3, 2), 0.5)),
        ("neg_log_loss", np.array([0, 1, 1]), np.full((3, 2), 0.7)),
        ("neg_log_loss", np.array([0, 1, 1]), np.full(3, 0.7)),
    ],
)
def test_what_scikit_learn_must_score(name, y, y_pred):
    model = on_device(y_pred)
    model.classes_ = np.array([0, 1])
    with pytest.raises(NotImplementedError):
        device_scores([name], model, model.y_pred, y)


def test_responses_on_the_host_are_scikit_learns():
    with pytest.raises(NotImplementedError):
        device_scores(["r2"], Fixed(np.zeros(3)), on_device(np.zeros(3)).y_pred, np.arange(3.0))


def test_names_are_scorers():
    for name in DEVICE_SCORES:
        assert get_scorer(name)._response_method == DEVICE_SCORES[name].response
