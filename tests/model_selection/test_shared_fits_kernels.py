"""Kernel methods over their penalties score as each by itself, with a kernel that is made once."""

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_search import compare
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.kernel_ridge import KernelRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from skfleet.model_selection import GridSearchCV
from skfleet.model_selection._paths import _kernels, _registry

X, y = make_classification(180, 6, n_informative=6, n_redundant=0, n_classes=3, random_state=0)
yr = X[:, 0] + np.random.RandomState(0).randn(180) / 5
HOLED = X.copy()
HOLED[0] = np.nan
weights = np.random.RandomState(1).rand(180) + 0.1


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    which=st.sampled_from(["ridge", "classes", "regression"]),
    kernel=st.sampled_from(["linear", "rbf", "poly", "sigmoid"]),
    penalties=st.lists(st.floats(1e-2, 10), min_size=2, max_size=3, unique=True),
    gamma=st.sampled_from([None, 0.05, "scale", "auto"]),
    n_columns=st.integers(1, 8),
    weighted=st.booleans(),
    in_pipeline=st.booleans(),
    scale=st.sampled_from([1.0, 1e-2, 1e2]),
    kind_of_rows=st.sampled_from(["array", "frame", "integers"]),
    seed=st.integers(0, 1000),
)
def test_at_random(
    which, kernel, penalties, gamma, n_columns, weighted, in_pipeline, scale, kind_of_rows, seed
):
    rng = np.random.RandomState(seed)
    rows = rng.randn(60, n_columns)
    targets = rows[:, 0] + rng.randn(60) / 3
    if which == "classes":
        targets = np.array(["low", "mid", "high"])[np.digitize(targets, [-0.4, 0.6])]
    # libsvm may go on for hours on columns of other lengths
    rows = rows * np.logspace(0, np.log10(scale), n_columns) if which == "ridge" else rows
    makers = {"frame": pd.DataFrame, "integers": lambda rows: np.round(3 * rows).astype(int)}
    rows = makers.get(kind_of_rows, np.asarray)(rows)
    tol = 1e-3
    model, name = {
        "ridge": (KernelRidge(kernel=kernel, gamma=gamma, degree=2), "alpha"),
        "classes": (SVC(kernel=kernel, tol=tol, degree=2), "C"),
        "regression": (SVR(kernel=kernel, tol=tol, degree=2), "C"),
    }[which]
    if gamma is not None and which != "ridge":
        model.set_params(gamma=gamma)
    if isinstance(gamma, str) and which == "ridge":
        model.set_params(gamma=None)
    grid, params = {name: penalties}, {"sample_weight": rng.rand(60)} if weighted else {}
    if which == "regression":
        grid["epsilon"] = [0.05, 0.2]
    if in_pipeline:
        model = make_pipeline(StandardScaler(), model)
        step = model.steps[-1][0]
        grid = {f"{step}__{key}": values for key, values in grid.items()}
        params = {f"{step}__{key}": value for key, value in params.items()}
    search = compare(model, grid, rows, targets, rtol=1e-9, fit_params=params)
    assert sum(use.n_saved for use in search.shared_fits_) > 0


@pytest.mark.parametrize("targets", [y, y == 1, np.array(["a", "b", "c"])[y]])
@pytest.mark.parametrize("shape", ["ovr", "ovo"])
def test_machines_decide_alike(targets, shape):
    model = SVC(decision_function_shape=shape, tol=1e-9, class_weight="balanced")
    shared_fit = _registry.member_of(model, {"C": 1.0}).shared_fit
    found = shared_fit.fit(
        clone(model), [{"C": 0.3}, {"C": 30.0}], pd.DataFrame(X).add_prefix("c"), targets
    )
    for one, C in zip(found, (0.3, 30.0), strict=True):
        alone = clone(model).set_params(C=C).fit(pd.DataFrame(X).add_prefix("c"), targets)
        rows = pd.DataFrame(X).add_prefix("c")
        assert vars(one).keys() == vars(alone).keys()
        assert one.get_params() == alone.get_params()
        np.testing.assert_array_equal(one.predict(rows), alone.predict(rows))
        np.testing.assert_array_equal(one.decision_function(rows), alone.decision_function(rows))
        for name in ("support_", "n_support_", "support_vectors_", "shape_fit_", "classes_"):
            np.testing.assert_array_equal(getattr(one, name), getattr(alone, name))


def test_linear_machines_have_their_coefficients():
    model = SVC(kernel="linear", tol=1e-9)
    shared_fit = _registry.member_of(model, {"C": 1.0}).shared_fit
    found = shared_fit.fit(clone(model), [{"C": 1.0}, {"C": 2.0}], X, y)[1]
    alone = clone(model).set_params(C=2.0).fit(X, y)
    np.testing.assert_array_equal(found.coef_, alone.coef_)


@pytest.mark.parametrize("kernel", ["linear", "rbf", "poly", "sigmoid"])
def test_kernels_are_those_of_libsvm_in_single_precision(monkeypatch, kernel):
    machine = SVC(kernel=kernel, gamma=0.2, coef0=0.1)
    exact = _kernels._LibsvmKernel(machine, X)
    expected = np.array([[exact(i, j) for j in range(len(X))] for i in range(len(X))], np.float32)
    plain = _kernels.pairwise_kernels
    # half of an element in single precision is lost where a product ends close to it
    off = 0.9 * exact.rounding(
        plain(X, metric=kernel, filter_params=True, gamma=0.2, coef0=0.1), slice(None)
    )
    sign = np.random.RandomState(0).choice([-1, 1], off.shape)
    monkeypatch.setattr(_kernels, "_NEGLIGIBLE", 0.0)
    monkeypatch.setattr(_kernels, "_MAX_UNCERTAIN_PER_ROW", len(X))
    monkeypatch.setattr(
        _kernels, "pairwise_kernels", lambda *args, **kwargs: plain(*args, **kwargs) + sign * off
    )
    found = _registry.member_of(machine, {"C": 1.0}).shared_fit._kernel(machine, X)
    np.testing.assert_array_equal(found.astype(np.float32), expected)
    np.testing.assert_array_equal(np.diag(found), [exact(i, i) for i in range(len(X))])


def test_kernels_that_are_lost_in_rounding_are_left_to_each_fit(monkeypatch):
    monkeypatch.setattr(_kernels, "_MAX_UNCERTAIN_PER_ROW", 0.5)
    (use,) = compare(SVC(), {"C": [0.1, 1.0]}, X, y).shared_fits_
    assert "lost in rounding" in use.refused


def test_kernel_ridge_of_several_targets_to_the_last_bit():
    model = KernelRidge(kernel="rbf")
    shared_fit = _registry.member_of(model, {"alpha": 1.0}).shared_fit
    targets = np.c_[yr, -yr, yr**2]
    one = shared_fit.fit(clone(model), [{"alpha": 0.1}], X, targets, sample_weight=weights)[0]
    alone = clone(model).set_params(alpha=0.1).fit(X, targets, sample_weight=weights)
    assert vars(one).keys() == vars(alone).keys()
    np.testing.assert_array_equal(one.dual_coef_, alone.dual_coef_)
    np.testing.assert_array_equal(one.predict(X), alone.predict(X))


@pytest.mark.parametrize(
    ("model", "rows", "word"),
    [
        (SVC(kernel=lambda a, b: a @ b.T), X, "kernel must be one of"),
        (SVC(max_iter=3), X, "max_iter must be -1"),
        (SVC(), X.astype(np.float32), "float64"),
        (SVC(), sparse.csr_array(X), "dense"),
        (KernelRidge(kernel="laplacian"), X, "kernel must be one of"),
    ],
)
def test_what_might_differ_is_fitted_by_itself(model, rows, word):
    name = "alpha" if isinstance(model, KernelRidge) else "C"
    params = {"cv": 3, "refit": False, "error_score": -9}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = GridSearchCV(model, {name: [0.1, 1.0]}, **params).fit(rows, y)
        theirs = reference.GridSearchCV(model, {name: [0.1, 1.0]}, **params).fit(rows, y)
    np.testing.assert_array_equal(
        ours.cv_results_["mean_test_score"], theirs.cv_results_["mean_test_score"]
    )
    assert sum(use.n_saved for use in ours.shared_fits_) == 0
    assert any(word in use.refused for use in ours.shared_fits_ if use.refused)


def test_missing_values_fail_as_they_do():
    params = {"cv": 3, "refit": False, "error_score": -9}
    grid = {"alpha": [0.1, 1.0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = GridSearchCV(KernelRidge(), grid, **params).fit(HOLED, yr)
        theirs = reference.GridSearchCV(KernelRidge(), grid, **params).fit(HOLED, yr)
    for name in ("split0_test_score", "split1_test_score", "split2_test_score"):
        np.testing.assert_array_equal(ours.cv_results_[name], theirs.cv_results_[name])
    refused = {use.refused: use.n_fits for use in ours.shared_fits_}
    assert refused["rows and targets must be finite"] == 4


def test_kernels_of_many_rows_are_left_to_each_fit(monkeypatch):
    monkeypatch.setattr(_kernels, "_MAX_ROWS", 100)
    (use,) = compare(SVC(), {"C": [0.1, 1.0]}, X, y).shared_fits_
    assert "at most 100" in use.refused
