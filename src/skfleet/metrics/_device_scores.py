"""Scores of predictions on a device, computed in the library of the predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import astype, is_not_numpy, is_uploadable, namespace, to_device_of, to_host

FLOAT64 = np.dtype(np.float64)


class DeviceScore(NamedTuple):
    """The response that a score is of, and its function of y, the response and the classes."""

    response: str
    score: Callable[[Any, Any, Any], float]


def _accuracy(y: Any, y_pred: Any, classes: Any) -> float:
    if y.ndim != 1 or y_pred.ndim != 1:
        raise NotImplementedError("labels must be a column")
    if y.dtype != y_pred.dtype:
        y, y_pred = astype(y, FLOAT64), astype(y_pred, FLOAT64)
    return float(namespace(y).mean(astype(y == y_pred, FLOAT64)))


def _errors(y: Any, y_pred: Any) -> Any:
    """Return the differences in double precision."""
    if y.shape != y_pred.shape:
        raise NotImplementedError("predictions must be of the shape of the targets")
    return astype(y, FLOAT64) - astype(y_pred, FLOAT64)


def _negative_mae(y: Any, y_pred: Any, classes: Any) -> float:
    xp = namespace(y_pred)
    return -float(xp.mean(xp.abs(_errors(y, y_pred))))


def _negative_mse(y: Any, y_pred: Any, classes: Any) -> float:
    return -float(namespace(y_pred).mean(_errors(y, y_pred) ** 2))


def _negative_rmse(y: Any, y_pred: Any, classes: Any) -> float:
    xp = namespace(y_pred)
    return -float(xp.mean(xp.sqrt(xp.mean(_errors(y, y_pred) ** 2, axis=0))))


def _r2(y: Any, y_pred: Any, classes: Any) -> float:
    """Return 1 - (y - y_pred)^2 / (y - mean)^2, its mean over targets."""
    xp, y = namespace(y_pred), astype(y, FLOAT64)
    residual = to_host(xp.sum(_errors(y, y_pred) ** 2, axis=0))
    total = to_host(xp.sum((y - xp.mean(y, axis=0)) ** 2, axis=0))
    if y.shape[0] < 2 or not np.all(total > 0):
        raise NotImplementedError("targets must differ")
    return float(np.mean(1 - residual / total))


def _negative_log_loss(y: Any, probabilities: Any, classes: Any) -> float:
    """Return the mean log of the probability of each row's own class."""
    xp, n_classes = namespace(probabilities), classes.shape[0]
    if y.ndim != 1 or probabilities.shape != (y.shape[0], n_classes):
        raise NotImplementedError("there must be a probability for each class")
    codes = xp.searchsorted(classes, y)
    codes = xp.where(codes < n_classes, codes, xp.zeros_like(codes))
    # the labels of a test set are all classes, or scikit-learn raises
    is_known = xp.all(xp.take(classes, codes) == y)
    if not is_known or xp.unique_values(codes).shape[0] != n_classes:
        raise NotImplementedError("labels must be all classes")
    eps = float(xp.finfo(probabilities.dtype).eps)
    doubles = astype(probabilities, FLOAT64)
    if float(xp.max(xp.abs(xp.sum(doubles, axis=1) - 1))) > eps**0.5:
        raise NotImplementedError("probabilities must sum to one")
    own = xp.take_along_axis(doubles, codes[:, None], axis=1)
    return float(xp.mean(xp.log(xp.clip(own, eps, 1 - eps))))


# by scikit-learn's names
DEVICE_SCORES = {
    "accuracy": DeviceScore("predict", _accuracy),
    "neg_log_loss": DeviceScore("predict_proba", _negative_log_loss),
    "neg_mean_absolute_error": DeviceScore("predict", _negative_mae),
    "neg_mean_squared_error": DeviceScore("predict", _negative_mse),
    "neg_root_mean_squared_error": DeviceScore("predict", _negative_rmse),
    "r2": DeviceScore("predict", _r2),
}


def device_scores(names: list[str], estimator: Any, X: Any, y: Any) -> list[float]:
    """Return scores by name of a fitted estimator whose responses are on the device of X.

    Each response is computed once. Raise NotImplementedError where scikit-learn must score, or
    knows what to raise.
    """
    y = np.asarray(y)
    if not is_uploadable(y):
        raise NotImplementedError("targets must be numbers")
    responses: dict[str, Any] = {}
    targets = to_device_of(y, X)
    scores = []
    for response, score in (DEVICE_SCORES[name] for name in names):
        if response not in responses:
            responses[response] = getattr(estimator, response)(X)
        y_pred = responses[response]
        if not is_not_numpy(y_pred) or y_pred.shape[0] != len(y):
            raise NotImplementedError("responses must be on the device, one for each row")
        classes = None
        if response == "predict_proba":
            classes = to_device_of(to_host(estimator.classes_).astype(y.dtype), y_pred)
        scores.append(score(targets, y_pred, classes))
    if not np.all(np.isfinite(scores)):
        raise NotImplementedError("scores must be finite")
    return scores
