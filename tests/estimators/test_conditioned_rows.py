"""Few, shifted, badly scaled and nearly equal columns, in single and in double precision.

References are made in double precision of the same values, with each column centred and scaled and
the penalty translated, as scikit-learn's own solvers fail on offsets.
"""

import warnings

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg
from sklearn import linear_model as reference
from sklearn.exceptions import ConvergenceWarning

import skfleet.estimators as ours
from random_examples import n_examples
from skfleet.engine import counting
from skfleet.model_selection import GridSearchCV

SHAPES = {"tall": (150, 12), "square": (50, 50), "wide": (40, 90)}
CONDITIONS = ["well", "badly", "scaled", "offset", "duplicate", "near"]


def make_rows(shape, condition, dtype, seed):
    """Return rows and targets, both as they are in a precision, in float64."""
    rng, (n, p) = np.random.default_rng(seed), SHAPES[shape]
    X = rng.normal(size=(n, p))
    half = p // 2
    if condition == "badly":
        X = (X * np.geomspace(1, 1e-4, p)) @ linalg.qr(rng.normal(size=(p, p)))[0]
    elif condition == "scaled":
        X *= np.geomspace(1e-3, 1e3, p)
    elif condition == "offset":
        X += 1e6
    elif condition != "well":
        size = 0.0 if condition == "duplicate" else 1e-6
        X[:, half : 2 * half] = X[:, :half] * (1 + size * rng.normal(size=(n, half)))
    X = X.astype(dtype).astype(np.float64)
    signal = (X - X.mean(axis=0)) / X.std(axis=0) @ rng.normal(size=p) / np.sqrt(p)
    return X, (signal + 0.3 * rng.normal(size=n)).astype(dtype).astype(np.float64)


def as_rows(values, dtype, lazy):
    values = values.astype(dtype)
    return da.from_array(values, chunks=(17, *values.shape[1:])) if lazy else values


def ridge_predictions(X, y, alpha):
    """Predictions of the rows less their mean; columns at unit deviation, each with its penalty."""
    mean, scale = X.mean(axis=0), X.std(axis=0)
    Z = (X - mean) / scale
    rows = np.vstack([Z, np.diag(np.sqrt(alpha) / scale)])
    coef = linalg.lstsq(rows, np.append(y - y.mean(), np.zeros(X.shape[1])), cond=1e-13)[0]
    return Z @ coef


def least_squares_predictions(X, y):
    """The same without a penalty, without the directions that `tol` of LinearRegression drops."""
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    return Z @ linalg.lstsq(Z, y - y.mean(), cond=1e-6)[0]


def lasso_objective(X, y, alpha, coef):
    residual = y - y.mean() - (X - X.mean(axis=0)) @ coef
    return residual @ residual / (2 * len(y)) + alpha * np.abs(coef).sum()


rows_of_any_kind = {
    "shape": st.sampled_from(list(SHAPES)),
    "condition": st.sampled_from(CONDITIONS),
    "dtype": st.sampled_from(["float32", "float64"]),
    "seed": st.integers(0, 100),
}


@settings(max_examples=n_examples(10, 300), deadline=None)
@given(**rows_of_any_kind, alpha=st.sampled_from([1e-3, 0.1, 10.0]))
def test_least_squares_of_any_rows(shape, condition, dtype, seed, alpha):
    X, y = make_rows(shape, condition, dtype, seed)
    rows, targets = as_rows(X, dtype, False), as_rows(y, dtype, False)
    deviation, tol = X - X.mean(axis=0), 2e-3 if dtype == "float32" else 1e-5
    model = ours.Ridge(alpha).fit(rows, targets)
    want = ridge_predictions(X, y, alpha)
    np.testing.assert_allclose(deviation @ model.coef_.astype(float), want, atol=tol * y.std())
    np.testing.assert_allclose(
        model.predict(rows), want + y.mean(), atol=(1.0 if condition == "offset" else tol) * y.std()
    )
    chosen = ours.RidgeCV([alpha], cv=3).fit(rows, targets)
    np.testing.assert_allclose(chosen.coef_, model.coef_, rtol=1e-3, atol=1e-6)
    model = ours.LinearRegression().fit(rows, targets)
    want = least_squares_predictions(X, y)
    np.testing.assert_allclose(deviation @ model.coef_.astype(float), want, atol=tol * y.std())
    labels = y > np.median(y)
    model = ours.RidgeClassifier(alpha).fit(rows, labels)
    want = ridge_predictions(X, 2.0 * labels - 1, alpha)
    np.testing.assert_allclose(deviation @ np.ravel(model.coef_).astype(float), want, atol=tol)


@settings(max_examples=n_examples(8, 150), deadline=None)
@given(**rows_of_any_kind, alpha=st.sampled_from([0.05, 0.3]))
def test_lasso_of_any_rows(shape, condition, dtype, seed, alpha):
    X, y = make_rows(shape, condition, dtype, seed)
    options = {"alpha": alpha, "max_iter": 10_000}
    model = ours.Lasso(**options).fit(as_rows(X, dtype, False), as_rows(y, dtype, False))
    want = reference.Lasso(tol=1e-6, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        want.fit(X - X.mean(axis=0), y)
    values = [lasso_objective(X, y, alpha, m.coef_.astype(float)) for m in (model, want)]
    assert values[0] <= values[1] + 1e-4 * y.var()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_give_the_same_models(shape, condition, dtype, cluster_client):
    X, y = make_rows(shape, condition, dtype, 0)
    deviation, tol = X - X.mean(axis=0), 2e-3 if dtype == "float32" else 1e-5
    models = [ours.LinearRegression(), ours.Ridge(1e-3), ours.RidgeCV([1e-3, 1.0])]
    with cluster_client.as_current():
        for model in models:
            want = model.fit(as_rows(X, dtype, False), as_rows(y, dtype, False)).coef_
            coef = model.fit(as_rows(X, dtype, True), as_rows(y, dtype, True)).coef_
            difference = deviation @ (coef.astype(float) - want.astype(float))
            np.testing.assert_allclose(difference, 0.0, atol=tol * y.std())


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_rows_generalise_as_in_scikit_learn(dtype, lazy, cluster_client):
    rng = np.random.default_rng(0)
    X, coef = rng.normal(size=(160, 120)), rng.normal(size=120)
    y = X @ coef + rng.normal(size=160)
    want = reference.LinearRegression().fit(X[:60], y[:60]).score(X[60:], y[60:])
    with cluster_client.as_current():
        model = ours.LinearRegression().fit(
            as_rows(X[:60], dtype, lazy), as_rows(y[:60], dtype, lazy)
        )
    assert model.score(X[60:].astype(dtype), y[60:]) == pytest.approx(want, abs=1e-4)
    assert model.rank_ == 59
    assert model.singular_.shape == (60,)


def test_columns_that_agree_to_nine_digits_are_told_apart():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    X[:, 2] = X[:, 1] + 1e-9 * rng.normal(size=200)
    y = X[:, 0] + 1e9 * (X[:, 2] - X[:, 1])
    model = ours.LinearRegression(tol=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=1e-5)
    assert model.score(X, y) == pytest.approx(1.0)


def test_well_conditioned_rows_take_one_pass(cluster_client):
    X, y = make_rows("tall", "well", "float32", 0)
    X, y = as_rows(X, "float32", True), as_rows(y, "float32", True)
    models = [ours.LinearRegression(), ours.Ridge(), ours.Lasso(0.1), ours.RidgeCV(cv=3)]
    models += [ours.PCA(), ours.PCA(3), ours.LassoCV(alphas=3)]
    for model in models:
        with cluster_client.as_current(), counting() as counts:
            model.fit(X, y)
        assert counts.passes == 1


@settings(max_examples=n_examples(8, 150), deadline=None)
@given(**rows_of_any_kind)
def test_principal_components_of_any_rows(shape, condition, dtype, seed):
    X, _ = make_rows(shape, condition, dtype, seed)
    model = ours.PCA().fit(as_rows(X, dtype, False))
    values = linalg.svdvals(X - X.mean(axis=0))
    # variances below the rounding of sums of squares are not known from sums in float64
    tol = 1e-5 if dtype == "float32" else 1e-7
    np.testing.assert_allclose(model.singular_values_, values, rtol=1e-5, atol=tol * values[0])


@settings(max_examples=n_examples(2, 40), deadline=None)
@given(**rows_of_any_kind, name=st.sampled_from(["Ridge", "LinearRegression", "Lasso"]))
def test_searches_of_any_rows(shape, condition, dtype, seed, name):
    X, y = make_rows(shape, condition, dtype, seed)
    grids = {"Ridge": {"alpha": [0.01, 1.0]}, "Lasso": {"alpha": [0.1, 0.3]}}
    options = {"max_iter": 100_000} if name == "Lasso" else {}
    model = getattr(ours, name)(**options)
    search = GridSearchCV(
        model, grids.get(name, {"fit_intercept": [True]}), cv=3, scoring="neg_mean_squared_error"
    ).fit(as_rows(X, dtype, False), as_rows(y, dtype, False))
    for i, params in enumerate(search.cv_results_["params"]):
        for j, test in enumerate(np.array_split(np.arange(len(X)), 3)):
            train = np.setdiff1d(np.arange(len(X)), test)
            fitted = getattr(ours, name)(**options, **params).fit(X[train], y[train])
            mean = X[train].mean(axis=0)
            predicted = (X[test] - mean) @ fitted.coef_ + y[train].mean()
            error = np.mean((y[test] - predicted) ** 2)
            score = search.cv_results_[f"split{j}_test_score"][i]
            assert -score == pytest.approx(error, rel=1e-2)


@settings(max_examples=n_examples(8, 150), deadline=None)
@given(
    shape=st.sampled_from(list(SHAPES)),
    condition=st.sampled_from(CONDITIONS),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 100),
    max_iter=st.sampled_from([1, 3, 10, 1000]),
    log_alpha=st.integers(-4, 0),
)
def test_coordinate_descent_ends_as_scikit_learn_s(
    shape, condition, dtype, seed, max_iter, log_alpha
):
    X, y = make_rows(shape, condition, dtype, seed)
    options = {"alpha": 10.0**log_alpha, "max_iter": max_iter}
    outcomes = []
    # scikit-learn's, on the rows that have no offset left to lose digits by
    for lasso, rows in ((reference.Lasso, X - X.mean(axis=0)), (ours.Lasso, X.astype(dtype))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = lasso(**options).fit(rows, y)
        warned = any(w.category is ConvergenceWarning for w in caught)
        outcomes.append((model.n_iter_, warned, model))
    (_, _, want), (n_iter, warned, model) = outcomes
    assert n_iter <= max_iter
    assert warned == (model.dual_gap_ > model.tol * y.var() * (1 + 1e-6))
    if shape != "tall" and condition == "well":
        assert (n_iter, warned) == outcomes[0][:2]
    if not warned and not outcomes[0][1]:
        values = [lasso_objective(X, y, want.alpha, m.coef_.astype(float)) for m in (model, want)]
        assert values[0] <= values[1] + 2e-4 * y.var()


@pytest.mark.parametrize(
    "model",
    [
        ours.Lasso(1e-3, max_iter=2),
        ours.ElasticNet(1e-3, positive=True, max_iter=2),
        ours.ElasticNet(0.1, l1_ratio=0.0, positive=True, max_iter=2),
        ours.LassoCV(alphas=5, max_iter=2),
        ours.Ridge(1e-3, positive=True, max_iter=2),
        ours.PoissonRegressor(alpha=1e-6, max_iter=2),
        ours.SGDRegressor(max_iter=2),
    ],
    ids=lambda model: repr(model),
)
def test_a_loop_that_ends_by_max_iter_says_so(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(140, 400))
    y = np.abs(X[:, :5].sum(axis=1) + rng.normal(size=140))
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert model.n_iter_ is None or model.n_iter_ <= 2
