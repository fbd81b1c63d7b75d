"""Stands for cuML: it answers on the device, and what was fitted cannot be opened without one.

A process has a GPU in a task of a worker that is labelled so, and outside tasks where
``gpu_outside`` says so.
"""

import threading
from contextlib import contextmanager

import numpy as np
from distributed import get_worker
from sklearn import linear_model
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from skfleet._array import is_not_numpy, to_host
from skfleet._device import device_library

gpu_outside = False
_output = threading.local()

# What answered: whether on a GPU, and the type of the rows.
calls = []


@contextmanager
def using_output_type(kind):
    """Say what answers are, in this thread."""
    before, _output.kind = getattr(_output, "kind", None), kind
    try:
        yield
    finally:
        _output.kind = before


def _has_gpu():
    try:
        return bool(get_worker().state.total_resources.get("GPU"))
    except ValueError:
        return gpu_outside


class _OnDevice(BaseEstimator):
    def fit(self, X, y=None):
        if not _has_gpu():
            raise RuntimeError("no CUDA-capable device is detected")
        assert isinstance(y, np.ndarray)
        model = self._estimator().fit(to_host(X), y)
        self.learned_ = {k: _up(v) for k, v in vars(model).items() if k not in self.get_params()}
        self.n_features_in_ = X.shape[1]
        return self

    def _estimator(self):
        return self._kind(**self.get_params())

    def predict(self, X):
        assert _has_gpu()
        calls.append(("predict", type(X)))
        found = self._as_sklearn().predict(to_host(X))
        kind = getattr(_output, "kind", None) or ("cupy" if is_not_numpy(X) else "numpy")
        return _up(found) if kind == "cupy" else found

    def _as_sklearn(self):
        assert _has_gpu()
        model = self._kind(**self.get_params())
        vars(model).update({k: _down(v) for k, v in self.learned_.items()})
        return model

    as_sklearn = _as_sklearn

    def __setstate__(self, state):
        if "learned_" in state and not _has_gpu():
            raise RuntimeError("no CUDA-capable device is detected")
        learned = {k: _up(v) for k, v in state.pop("learned_", {}).items()}
        super().__setstate__(state | ({"learned_": learned} if learned else {}))

    def __getstate__(self):
        state = dict(super().__getstate__())
        if "learned_" in state:
            state["learned_"] = {k: _down(v) for k, v in self.learned_.items()}
        return state


def _up(value):
    # not by to_device, which counts
    library = device_library()
    is_numbers = isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    if library is None or not is_numbers:
        return value
    return library.xp.asarray(value, device=library.device)


def _down(value):
    return to_host(value) if is_not_numpy(value) else value


class Ridge(RegressorMixin, _OnDevice):
    """As scikit-learn's."""

    _kind = linear_model.Ridge

    def __init__(self, alpha=1.0):
        self.alpha = alpha


class LogisticRegression(ClassifierMixin, _OnDevice):
    """As scikit-learn's."""

    _kind = linear_model.LogisticRegression

    def __init__(self, C=1.0, penalty="l2", l1_ratio=None):
        self.C = C
        self.penalty = penalty
        self.l1_ratio = l1_ratio

    def _estimator(self):
        ratio = {"l2": 0.0, "l1": 1.0, "elasticnet": self.l1_ratio}[self.penalty]
        solver = "lbfgs" if self.penalty == "l2" else "saga"
        return self._kind(C=self.C, l1_ratio=ratio, solver=solver, max_iter=5000, random_state=0)

    @property
    def classes_(self):
        """What the labels are."""
        return _down(self.learned_["classes_"])


class OnlyHere(RegressorMixin, _OnDevice):
    """One without an equivalent."""

    _kind = linear_model.Ridge

    def __init__(self, alpha=1.0):
        self.alpha = alpha

    @property
    def as_sklearn(self):
        """There is none."""
        raise AttributeError("as_sklearn")
