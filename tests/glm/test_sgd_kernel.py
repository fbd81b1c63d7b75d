"""The CUDA kernel of stochastic gradient descent, emulated on the host, and on a device."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import Kernels

from skfleet._cuda import DeviceLimits
from skfleet.estimators import Incremental, SGDClassifier, SGDRegressor
from skfleet.glm import REGRESSION_LOSSES, SGD_LOSSES, SGDConfig, SGDTargets, SGDWeights, _sgd_kernel
from skfleet.glm._sgd_kernel import CompileOptions, LaunchConfig
from skfleet.glm._sgd_steps import descend_by_batches

SOURCE = Path(_sgd_kernel.__file__).with_name("descent.cu")
H100 = DeviceLimits(132, 227 * 1024, 228 * 1024)
SMALL = DeviceLimits(1, 40 * 1024, 48 * 1024)  # where no batch is staged


class Emulator:
    """Runs the kernels on the host."""

    def __init__(self, folder):
        self.folder = folder
        self.kernels = cache(self._kernels)
        self.reversed = False
        self.launched = []

    def _kernels(self, build):
        library = self.folder / f"{'-'.join(map(str, build))}.so"
        return Kernels(SOURCE, build.options, library)

    def launch(self, build, name, grid, shared, args):
        self.launched.append((name, grid, build.is_staged))
        self.kernels(build).launch(
            name, grid, _sgd_kernel.THREADS, shared, args, is_reversed=self.reversed
        )


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return Emulator(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def emulator(compiled, monkeypatch):
    compiled.launched.clear()
    compiled.reversed = False
    monkeypatch.setattr(_sgd_kernel, "launch", compiled.launch)
    monkeypatch.setattr(_sgd_kernel, "limits", lambda x: H100)
    return compiled


def configured(loss, **settings):
    usual = {"epsilon": 0.1, "l1": 0.0, "l2": 0.0, "alpha": 1e-2, "learning_rate": "constant"}
    usual |= {"eta0": 0.05, "power_t": 0.25, "fit_intercept": True, "average": 0}
    return SGDConfig(loss=loss, **usual | {"batch_size": 16, "track_objective": False} | settings)


def problem(loss, n, d, dtype="float64", *, weighted=True, seed=0):
    """Return initial weights, rows and targets: of three classes, or of a regression."""
    rng, k = np.random.default_rng(seed), 1 if loss in REGRESSION_LOSSES else 3
    rows = (rng.normal(size=(n, d)) / np.sqrt(d)).astype(dtype)
    weight = rng.random(n) if weighted else None
    targets = SGDTargets(rng.normal(size=n), weight)
    if k == 3:
        sides = rng.random((2, 3)) if weighted else None
        targets = SGDTargets(rng.integers(0, 3, n), weight, np.arange(3), sides)
    coef, applied = rng.normal(size=(k, d)), rng.random((k, d)) / 10
    start = SGDWeights(coef, rng.normal(size=k), coef + 1, np.ones(k), applied)
    return start._replace(l1_due=rng.random(k), value=2.0, penalty=3.0, t=5.0), rows, targets


def compare(start, rows, targets, config, order=None, tol=1e-11):
    learned = _sgd_kernel.descend(start, rows, targets, config, order)
    expected = descend_by_batches(start, rows, targets, config, order)
    for name, ours, theirs in zip(SGDWeights._fields, learned, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, tol, tol, err_msg=name)
        assert np.shape(ours) == np.shape(theirs), name
    assert not np.allclose(learned.coef, start.coef)


def with_everything(loss, **settings):
    usual = {"l1": 1e-2, "l2": 3e-2, "average": 30, "track_objective": True}
    return configured(loss, **usual | settings)


@pytest.mark.parametrize("loss", SGD_LOSSES)
def test_losses_are_those_of_the_host(emulator, loss):
    order = np.random.default_rng(1).permutation(41)
    compare(*problem(loss, 41, 5), with_everything(loss), order)
    emulator.reversed = True  # threads may run in any order
    compare(*problem(loss, 41, 5, weighted=False), configured(loss))
    k = 1 if loss in REGRESSION_LOSSES else 3
    names = [("schedule", (1, 1, 1), True), ("descend", (k, 1, 1), True)]
    assert emulator.launched == names * 2
