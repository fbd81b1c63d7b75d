"""Sums and extremes of many rows on a device, which its library is to reduce by runs of rows."""

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import make_classification

from skfleet._array import INT64, namespace, to_host
from skfleet._linalg import column_sums, reduce_down, sums_down
from skfleet.blocks import BlockRef, open_block, row_blocks
from skfleet.estimators.cluster import KMeans, MiniBatchKMeans, SpectralClustering
from skfleet.estimators.decomposition import PCA, IncrementalPCA, TruncatedSVD
from skfleet.estimators.linear_model import (
    ElasticNet,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
)
from skfleet.estimators.mixture import GaussianMixture
from skfleet.metrics import r2_score

X, labels = make_classification(333, 8, n_classes=3, n_informative=4, random_state=0)
target = np.abs(X[:, 0] + X[:, 1])
DEVICE = strict.Device("device1")


def on_device(values):
    return strict.asarray(values, device=DEVICE)


FITS = [
    (Ridge(), target),
    (RidgeClassifier(), labels),
    (ElasticNet(0.1), target),
    (PoissonRegressor(), target),
    (LogisticRegression(), labels),
    (KMeans(3, n_init=1, random_state=0, max_iter=5), None),
    (MiniBatchKMeans(3, random_state=0, n_init=1, max_iter=1), None),
    (SpectralClustering(3, n_landmarks=20, random_state=0), None),
    (GaussianMixture(3, max_iter=3, tol=1.0, random_state=0), None),
    (PCA(3), None),
    (PCA(3, svd_solver="full"), None),
    (PCA(3, svd_solver="randomized", random_state=0), None),
    (TruncatedSVD(3, random_state=0), None),
    (IncrementalPCA(3, batch_size=160), None),
]


@pytest.mark.parametrize("case", FITS, ids=lambda case: repr(case[0]))
def test_a_fit_sums_runs_of_rows_on_a_device(case, short_runs):
    estimator, y = case
    model = clone(estimator).fit(on_device(X), None if y is None else on_device(y))
    expected = clone(estimator).fit(X, y)
    for name, value in vars(expected).items():
        if name.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            ours = to_host(vars(model)[name])
            np.testing.assert_allclose(ours, value, rtol=1e-6, atol=1e-6, err_msg=name)


def test_a_score_sums_runs_of_rows_on_a_device(short_runs):
    Y = np.stack([target, X[:, 2]], axis=1)
    expected = r2_score(Y, X[:, :2])
    np.testing.assert_allclose(r2_score(on_device(Y), on_device(X[:, :2])), expected)


@given(st.integers(0, 9000), st.integers(1, 3), st.booleans())
def test_reductions_by_runs_are_numpys(n_rows, n_columns, is_float):
    values = np.random.default_rng(n_rows).integers(-9, 9, (n_rows, n_columns))
    values = values.astype(np.float32) if is_float else values
    rows, xp = on_device(values), namespace(on_device(values))
    np.testing.assert_array_equal(to_host(column_sums(rows)), values.sum(axis=0))
    assert sums_down(rows).dtype == xp.float64
    assert sums_down(rows, INT64).dtype == xp.int64
    if n_rows:
        np.testing.assert_array_equal(to_host(reduce_down(xp.max, rows)), values.max(axis=0))
        np.testing.assert_array_equal(to_host(reduce_down(xp.any, rows)), values.any(axis=0))


@pytest.mark.gpu
@pytest.mark.parametrize("is_local", [True, False], ids=["of this process", "of a worker"])
def test_rows_in_column_order_are_put_in_row_order_once(monkeypatch, is_local):
    cupy = pytest.importorskip("cupy")
    copied = []
    copy = cupy.ascontiguousarray
    monkeypatch.setattr(cupy, "ascontiguousarray", lambda x: copied.append(x.shape) or copy(x))
    X = np.random.default_rng(0).normal(size=(400, 6))
    there = cupy.asfortranarray(cupy.asarray(X))
    refs = row_blocks(there).blocks if is_local else [BlockRef(there)]
    for _ in range(3 * len(refs)):  # passes
        block = open_block(refs[0])
        assert block.X.flags.c_contiguous
        np.testing.assert_array_equal(to_host(block.X), X)
    assert len(copied) == (1 if is_local else 3)
