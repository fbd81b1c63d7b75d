"""Likelihoods of shifted, badly scaled and few rows, and what is left out of them.

References are made of the same values in double precision, turned to few columns of one spread:
a penalty of squares does not change by a rotation.
"""

import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import linalg, special
from sklearn import linear_model as reference
from sklearn import mixture
from sklearn.utils._param_validation import InvalidParameterError

import skfleet.estimators as ours
from random_examples import n_examples

SHAPES = {"tall": (150, 12), "square": (50, 50), "wide": (60, 120)}


def make_rows(shape, condition, dtype, seed):
    """Return rows in a precision, and a signal of unit size."""
    rng, (n, p) = np.random.default_rng(seed), SHAPES[shape]
    X = rng.normal(size=(n, p))
    signal = X @ rng.normal(size=p) / np.sqrt(p) + 0.3 * rng.normal(size=n)
    if condition == "scaled":
        X *= np.geomspace(1e-5, 1e5, p)
    elif condition == "offset":
        X += 1e6
    elif condition == "duplicate":
        X[:, p // 2 :] = X[:, : p // 2]
    return X.astype(dtype), signal


def rotated(X):
    """Return the centred rows by their principal axes."""
    left, values, _ = linalg.svd(X - X.mean(axis=0), full_matrices=False)
    return left * values


def logistic_objective(X, codes, C, model):
    eta = X @ model.coef_.astype(float).T + model.intercept_.astype(float)
    eta = np.hstack([-eta, eta]) / 2 if eta.shape[1] == 1 else eta
    losses = special.logsumexp(eta, axis=1) - eta[np.arange(len(X)), codes]
    return C * losses.sum() + 0.5 * np.sum(model.coef_.astype(float) ** 2)


def poisson_objective(X, y, alpha, model):
    eta = X @ model.coef_.astype(float) + float(model.intercept_)
    return np.mean(np.exp(eta) - y * eta) + alpha / 2 * np.sum(model.coef_.astype(float) ** 2)


rows_of_any_kind = {
    "shape": st.sampled_from(list(SHAPES)),
    "condition": st.sampled_from(["well", "scaled", "offset", "duplicate"]),
    "dtype": st.sampled_from(["float32", "float64"]),
    "seed": st.integers(0, 100),
}


@settings(max_examples=n_examples(5, 150), deadline=None)
@given(**rows_of_any_kind, C=st.sampled_from([1.0, 100.0]), n_classes=st.sampled_from([2, 3]))
@example("wide", "scaled", "float32", 1, 1.0, 2)  # separable classes
@example("wide", "scaled", "float64", 1, 100.0, 2)
def test_logistic_objective_of_any_rows(shape, condition, dtype, seed, C, n_classes):
    X, signal = make_rows(shape, condition, dtype, seed)
    codes = np.digitize(signal, np.quantile(signal, np.arange(1, n_classes) / n_classes))
    model = ours.LogisticRegression(C=C).fit(X, codes)
    Z = rotated(X.astype(float))
    options = {"C": C, "solver": "newton-cholesky", "tol": 1e-9, "max_iter": 1000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = logistic_objective(
            Z, codes, C, reference.LogisticRegression(**options).fit(Z, codes)
        )
    # coefficients of few columns have no finer digits that an intercept of 1e6 could be met by
    tol = 0.1 if (condition, dtype, shape) == ("offset", "float32", "tall") else 1e-2
    assert logistic_objective(X.astype(float), codes, C, model) <= want * (1 + tol)


@settings(max_examples=n_examples(5, 100), deadline=None)
@given(**rows_of_any_kind, alpha=st.sampled_from([1e-3, 1.0]))
def test_poisson_objective_of_any_rows(shape, condition, dtype, seed, alpha):
    X, signal = make_rows(shape, condition, dtype, seed)
    y = np.round(np.exp(signal)).astype(dtype)
    model = ours.PoissonRegressor(alpha=alpha).fit(X, y)
    Z = rotated(X.astype(float))
    options = {"alpha": alpha, "solver": "newton-cholesky", "tol": 1e-9, "max_iter": 1000}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = poisson_objective(Z, y, alpha, reference.PoissonRegressor(**options).fit(Z, y))
    assert poisson_objective(X.astype(float), y, alpha, model) <= want + 2e-4


@settings(max_examples=n_examples(5, 150), deadline=None)
@given(**rows_of_any_kind)
@example("tall", "scaled", "float64", 0)
@example("tall", "offset", "float32", 0)
def test_errors_of_rows_left_out(shape, condition, dtype, seed):
    X, y = make_rows(shape, condition, dtype, seed)
    y, alphas = y.astype(dtype), [1e-3, 0.1, 10.0]
    model = ours.RidgeCV(alphas, store_cv_results=True).fit(X, y)
    X, y = X.astype(float), y.astype(float)
    left, values, _ = linalg.svd(X - X.mean(axis=0), full_matrices=False)
    for results, alpha in zip(model.cv_results_.T, alphas, strict=True):
        shrunk = left * (values**2 / (values**2 + alpha))
        error = y - y.mean() - shrunk @ (left.T @ (y - y.mean()))
        want = (error / (1 - 1 / len(X) - np.sum(shrunk * left, axis=1))) ** 2
        np.testing.assert_allclose(results, want, rtol=1e-3, atol=1e-3 * want.mean())


@settings(max_examples=n_examples(4, 60), deadline=None)
@given(
    **rows_of_any_kind | {"condition": st.sampled_from(["well", "offset", "duplicate"])},
    kind=st.sampled_from(["full", "tied", "diag", "spherical"]),
)
def test_mixtures_from_the_same_start(shape, condition, dtype, seed, kind):
    X, _ = make_rows(shape, condition, dtype, seed)
    X[len(X) // 2 :] += 3
    shift = np.round(X.mean(axis=0, dtype=float)) if condition == "offset" else 0.0
    Z = X.astype(float) - shift
    p = Z.shape[1]
    shapes = {"tied": np.eye(p), "diag": np.ones((2, p)), "spherical": np.ones(2)}
    start = {
        "weights_init": [0.5, 0.5],
        "precisions_init": shapes.get(kind, np.stack([np.eye(p)] * 2)),
    }
    options = {"covariance_type": kind, "max_iter": 5, "tol": 0.0, "reg_covar": 1e-3}
    means = Z[[0, -1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = mixture.GaussianMixture(2, means_init=means, **start, **options).fit(Z)
        model = ours.GaussianMixture(2, means_init=means + shift, **start, **options).fit(X)
    assert model.lower_bound_ == pytest.approx(want.lower_bound_, rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(model.covariances_, want.covariances_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        model.means_ - shift,
        want.means_,
        atol=0.1 if np.any(shift) and dtype == "float32" else 1e-4,
    )


@pytest.mark.parametrize("make", [iter, lambda v: (x for x in v), lambda v: map(float, v)])
@pytest.mark.parametrize("name", ["RidgeCV", "LassoCV", "ElasticNetCV"])
def test_an_iterator_of_penalties_is_refused_as_in_scikit_learn(name, make):
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(InvalidParameterError, match=r"alphas must be .* Give list\(alphas\)"):
        getattr(ours, name)(alphas=make([0.1, 1.0])).fit(X, X[:, 0])


def test_an_iterator_of_shares_is_refused_as_in_scikit_learn():
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(InvalidParameterError, match=r"Give list\(l1_ratio\)"):
        ours.ElasticNetCV(l1_ratio=iter([0.1])).fit(X, X[:, 0])
    for options in ({"alphas": ["a"]}, {"l1_ratio": ["a"]}):
        with pytest.raises(TypeError, match="not str"):
            ours.ElasticNetCV(**options).fit(X, X[:, 0])
