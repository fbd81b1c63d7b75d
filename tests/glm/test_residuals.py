"""Absolute errors of many linear models on each split, in groups of models that memory holds."""

import numpy as np
import pytest
from sklearn.model_selection import KFold

from skfleet._array import to_host
from skfleet._device import to_device
from skfleet.blocks import make_folds, row_blocks
from skfleet.engine import LocalEngine, Reduction, map_reduce
from skfleet.glm import _cv_normal_equations, combine_residuals, residuals_by_split

rng = np.random.default_rng(0)
N, COLUMNS, TARGETS, MODELS, SPLITS = 90, 4, 2, 11, 3
X, y = rng.normal(size=(N, COLUMNS)), rng.normal(size=(N, TARGETS))
coefs = rng.normal(size=(SPLITS, TARGETS, MODELS, COLUMNS))
intercepts = rng.normal(size=(SPLITS, TARGETS, MODELS))


def here(x):
    return x


@pytest.mark.parametrize("upload", [here, to_device], ids=["host", "device"])
@pytest.mark.parametrize("n_at_once", [MODELS, 4, 1])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_errors_of_models_are_computed_in_groups(upload, n_at_once, dtype, monkeypatch):
    monkeypatch.setenv("SKFLEET_DEVICE", "array_api_strict:device1")
    check(upload, n_at_once, dtype, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("n_at_once", [MODELS, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_errors_of_models_on_a_gpu_are_those_of_the_host(n_at_once, dtype, monkeypatch):
    check(to_device, n_at_once, dtype, monkeypatch)


def check(upload, n_at_once, dtype, monkeypatch):
    widths, dot = [], _cv_normal_equations.dot

    def counted(rows, models):
        widths.append(models.shape[1])
        assert 8 * rows.shape[0] * models.shape[1] <= _cv_normal_equations.ERROR_BYTES
        return dot(rows, models)

    folds = make_folds(KFold(SPLITS), N)
    monkeypatch.setattr(_cv_normal_equations, "dot", counted)
    n_bytes = 8 * TARGETS * (N // SPLITS) * n_at_once
    monkeypatch.setattr(_cv_normal_equations, "ERROR_BYTES", n_bytes)
    rows = row_blocks(upload(X.astype(dtype)), upload(y.astype(dtype)))
    reduction = Reduction(residuals_by_split, combine_residuals)
    found = map_reduce(LocalEngine(1), reduction, rows, folds, coefs, intercepts, True)
    predicted = np.einsum("nd,stmd->sntm", X, coefs) + intercepts[:, None]
    errors = np.abs(y[None, :, :, None] - predicted)
    tol = 1e-4 if dtype == "float32" else 1e-9
    for split, (train, test) in enumerate(KFold(SPLITS).split(X)):
        for side, numbers in enumerate((test, train)):
            total, largest = (to_host(values[side][split]) for values in found)
            np.testing.assert_allclose(total, errors[split, numbers].sum(axis=0), rtol=tol)
            np.testing.assert_allclose(largest, errors[split, numbers].max(axis=0), rtol=tol)
    n_groups = -(-MODELS // n_at_once)
    assert max(widths) == TARGETS * n_at_once
    assert len(widths) == SPLITS * SPLITS * n_groups
