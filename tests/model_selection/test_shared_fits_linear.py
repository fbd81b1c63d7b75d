"""Linear models over their penalty: solved together, they score as each by itself."""

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as reference
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference_search import compare
from scipy import sparse
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from random_examples import n_examples
from skfleet.glm import WarmNewton
from skfleet.model_selection import GridSearchCV
from skfleet.model_selection._paths._logistic import LogisticPath

Xr, yr = make_regression(150, 10, noise=5, bias=30, random_state=0)
X, y = make_classification(200, 8, n_informative=8, n_redundant=0, random_state=0)
y3 = np.digitize(X[:, 0] + np.random.RandomState(0).randn(200) / 5, [-1, 1])
FIT_PARAMS = {"sample_weight": np.random.RandomState(1).rand(200) + 0.1}


pytestmark = pytest.mark.usefixtures("one_thread")


def use_of(model, grid, X, y, *, used=True, **params):
    """Return how a search used the one shared fit, once its scores are scikit-learn's."""
    (use,) = compare(model, grid, X, y, **params).shared_fits_
    assert (use.n_saved > 0) == used
    return use


@settings(max_examples=n_examples(12, 40), deadline=None)
@given(
    alphas=st.lists(st.floats(1e-4, 1e5), min_size=2, max_size=6, unique=True),
    n_columns=st.integers(1, 60),
    n_targets=st.integers(0, 3),
    intercept=st.booleans(),
    in_pipeline=st.booleans(),
    weighted=st.booleans(),
    shift=st.sampled_from([0.0, 1e3]),
    scale=st.sampled_from([1.0, 1e-3, 1e3]),
    seed=st.integers(0, 1000),
)
def test_ridge(alphas, n_columns, n_targets, intercept, in_pipeline, weighted, shift, scale, seed):
    rng = np.random.RandomState(seed)
    rows = (rng.randn(60, n_columns) + shift) * np.logspace(0, np.log10(scale), n_columns)
    targets = rng.randn(60, n_targets) if n_targets else rng.randn(60)
    model, name = Ridge(fit_intercept=intercept), "alpha"
    params = {"sample_weight": rng.rand(60)} if weighted and not in_pipeline else {}
    if in_pipeline:
        model, name = make_pipeline(StandardScaler(), model), "ridge__alpha"
    how = {"rtol": 1e-9, "return_train_score": False, "fit_params": params}
    ours = compare(model, {name: alphas}, rows, targets, **how)
    uses = [use for use in ours.shared_fits_ if use.estimator == "Ridge"] or ours.shared_fits_
    assert sum(use.n_fits for use in uses) == 3 * len(alphas)


@pytest.mark.parametrize("labels", [y, y3, y3.astype(str)])
@pytest.mark.parametrize("params", [{}, {"class_weight": "balanced"}, {"fit_intercept": False}])
def test_ridge_classifier(labels, params):
    grid = {"alpha": [0.01, 1.0, 100.0]}
    use = use_of(RidgeClassifier(**params), grid, X, labels, rtol=1e-9, scoring="accuracy")
    assert use.n_saved == 6
    use_of(RidgeClassifier(**params), grid, X, labels, rtol=1e-9, fit_params=FIT_PARAMS)


def test_fitted_models_are_as_if_alone():
    grid = {"alpha": [0.01, 1.0, 100.0]}
    for model, targets in [(Ridge(), yr), (Ridge(), np.c_[yr, yr]), (Ridge(), yr[:, None])]:
        seen = []

        def look(fitted, rows, targets, seen=seen):
            seen.append(vars(fitted))
            return fitted.score(rows, targets)

        GridSearchCV(model, grid, cv=2, refit=False, scoring=look).fit(Xr, targets)
        for found in seen[:3]:
            alone = Ridge(alpha=found["alpha"]).fit(Xr[75:], targets[75:])
            assert vars(alone).keys() == found.keys()
            for name in ("coef_", "intercept_"):
                assert np.shape(found[name]) == np.shape(vars(alone)[name])
                np.testing.assert_allclose(found[name], vars(alone)[name], 1e-9, 1e-9)


@pytest.mark.parametrize(
    ("model", "data", "word"),
    [
        (Ridge(solver="sag", random_state=0), (Xr, yr), "solver must be"),
        (Ridge(positive=True), (Xr, yr), "positive must be False"),
        (Ridge(), (Xr.astype(np.float32), yr), "float64"),
        (Ridge(), (sparse.csr_array(Xr), yr), "dense"),
        (Ridge(solver="svd"), (Xr, yr), "solver must be"),
        (Ridge(), (1e4 * np.c_[Xr, Xr], yr), "conditioned"),
        (Lasso(warm_start=True), (Xr, yr), "warm_start must be False"),
        (Lasso(selection="random", random_state=0), (Xr, yr), "selection must be 'cyclic'"),
        (Lasso(), (Xr, np.c_[yr, yr]), "one column"),
        (ElasticNet(precompute=Xr.T @ Xr), (Xr, yr), "precompute"),
    ],
)
def test_what_might_differ_is_fitted_by_itself(model, data, word):
    use = use_of(model, {"alpha": [1e-6, 1.0]}, *data, used=False)
    assert word in use.refused
    assert use.n_fits == 6


@pytest.mark.parametrize("model", [Ridge(), Lasso()])
@pytest.mark.parametrize("in_targets", [False, True])
def test_missing_values_fail_as_they_do(model, in_targets):
    rows, targets = Xr.copy(), yr.copy()
    (targets if in_targets else rows)[0] = np.nan
    params = {"cv": 3, "refit": False, "error_score": -9}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = GridSearchCV(model, {"alpha": [0.1, 1.0]}, **params).fit(rows, targets)
        theirs = reference.GridSearchCV(model, {"alpha": [0.1, 1.0]}, **params).fit(rows, targets)
    for name in ("split0_test_score", "split1_test_score", "split2_test_score"):
        np.testing.assert_array_equal(ours.cv_results_[name], theirs.cv_results_[name])
    refused = {use.refused: use.n_fits for use in ours.shared_fits_}
    assert refused["rows and targets must be finite"] == 4


@pytest.mark.parametrize("alpha", [0.0, -1.0, True, "many"])
def test_penalties_that_are_none(alpha):
    grid = {"alpha": [1.0, 2.0, alpha]}
    search = GridSearchCV(Ridge(), grid, cv=2, refit=False, error_score=-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(Xr, yr)
    assert [(use.n_fits, use.n_saved) for use in search.shared_fits_] == [(4, 2), (2, 0)]
    assert "alpha must be a positive number" in search.shared_fits_[1].refused


@pytest.mark.parametrize("in_pipeline", [False, True])
@pytest.mark.parametrize("params", [{}, {"positive": True}, {"fit_intercept": False}])
def test_lasso_and_elastic_net(params, in_pipeline):
    for model in (Lasso(**params), ElasticNet(tol=1e-2, **params)):
        name = type(model).__name__.lower()
        grid = {"alpha": [0.01, 10.0, 0.1, 1.0]}
        if name == "elasticnet":
            grid["l1_ratio"] = [0.2, 0.9]
        if in_pipeline:
            model = make_pipeline(StandardScaler(), model)
            grid = {f"{name}__{key}": values for key, values in grid.items()}
        use = use_of(model, grid, Xr, yr, rtol=1e-10)
        assert use.refused is None
    use = use_of(Lasso(), {"alpha": [1.0, 0.1]}, Xr[:12], yr[:12], used=False)
    assert "no more than rows" in use.refused
    few = Lasso(tol=1e-9, max_iter=3)
    use = use_of(few, {"alpha": [1.0, 0.1]}, Xr[:24], yr[:24], used=False)
    assert "max_iter" in use.refused
    use = use_of(Lasso(), {"alpha": [1.0, 2.0]}, X, X[:, 0], used=False, fit_params=FIT_PARAMS)
    assert "sample_weight" in use.refused


@pytest.mark.sampled(3)
@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky"])
@pytest.mark.parametrize("labels", [y, y3])
def test_logistic_regression(solver, labels):
    model = LogisticRegression(solver=solver, tol=1e-8, max_iter=5000, random_state=0)
    grid = {"C": [1.0, 0.01, 10.0, 0.1]}
    how = {"rtol": 1e-4, "scoring": "neg_log_loss", "share_fits": "approximate"}
    use = use_of(model, grid, X, labels, **how)
    assert use.refused is None
    use = use_of(model, grid, X, labels, fit_params=FIT_PARAMS, **how)
    assert use.refused is None


def test_logistic_regression_is_not_shared_within_its_tolerance_unasked():
    grid = {"C": np.logspace(-2, 2, 8)}
    model = LogisticRegression(tol=0.1)
    use = use_of(model, grid, X, y, used=False, scoring="neg_log_loss")
    assert use[:4] == ("LogisticRegression", ("C",), 24, 0)
    assert use.refused.startswith("share_fits must be 'approximate', as scores are within")
    with pytest.raises(AssertionError, match="Not equal to tolerance rtol=1e-07"):
        compare(model, grid, X, y, rtol=1e-7, scoring="neg_log_loss", share_fits="approximate")


@pytest.mark.parametrize(
    ("params", "word"),
    [
        ({"solver": "liblinear"}, "solver must be"),
        ({"solver": "saga", "random_state": 0}, "solver must be"),
        ({"tol": 1e-12}, "converge within"),
        ({"warm_start": True}, "warm_start must be False"),
    ],
)
def test_logistic_regression_that_might_differ(params, word):
    model = LogisticRegression(**{"max_iter": 2, **params})
    search = GridSearchCV(model, {"C": [0.1, 1.0]}, cv=2, refit=False, share_fits="approximate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(X, y)
    (use,) = search.shared_fits_
    assert word in use.refused
    assert use.n_saved == 0


@example(  # weights that "balanced" looks at too
    Cs=[1.0, 11.0, 10.0],
    n_classes=3,
    solver="lbfgs",
    intercept=False,
    weighted=True,
    balanced=True,
    in_pipeline=False,
    scale=0.01,
    kind="integers",
    seed=508,
)
@settings(max_examples=n_examples(5, 25), deadline=None)
@given(
    Cs=st.lists(st.floats(1e-4, 1e2), min_size=2, max_size=7, unique=True),
    n_classes=st.integers(2, 4),
    solver=st.sampled_from(["lbfgs", "newton-cg", "newton-cholesky"]),
    intercept=st.booleans(),
    weighted=st.booleans(),
    balanced=st.booleans(),
    in_pipeline=st.booleans(),
    scale=st.sampled_from([1.0, 1e-2, 1e2]),
    kind=st.sampled_from(["array", "frame", "single", "integers", "sparse"]),
    seed=st.integers(0, 1000),
)
def test_logistic_regression_at_random(
    Cs, n_classes, solver, intercept, weighted, balanced, in_pipeline, scale, kind, seed
):
    rng = np.random.RandomState(seed)
    rows = rng.randn(120, 5) * np.logspace(0, np.log10(scale), 5)
    labels = np.digitize(rows[:, 0] + rng.randn(120) / 2, [-0.5, 0.5, 0.8][: n_classes - 1])
    labels = np.array(["few", "many", "most", "all"])[labels]
    makers = {
        "frame": pd.DataFrame,
        "single": lambda rows: rows.astype(np.float32),
        "integers": lambda rows: np.round(3 * rows).astype(int),
        "sparse": sparse.csr_array,
    }
    rows = makers.get(kind, np.asarray)(rows)
    tol = 1e-5 if kind == "single" else 1e-6
    model = LogisticRegression(
        solver=solver,
        tol=tol,
        max_iter=20_000,
        fit_intercept=intercept,
        class_weight="balanced" if balanced else None,
    )
    grid, params = {"C": Cs}, {"sample_weight": rng.rand(120)} if weighted else {}
    if in_pipeline:
        model = make_pipeline(MaxAbsScaler(), model)
        grid = {"logisticregression__C": Cs}
        params = {f"logisticregression__{name}": value for name, value in params.items()}
    rtol = 1e-2 if kind == "single" else 1e-3
    how = {"scoring": "neg_log_loss", "share_fits": "approximate"}
    compare(model, grid, rows, labels, rtol=rtol, fit_params=params, **how)


@settings(max_examples=n_examples(4, 25), deadline=None)
@given(
    alphas=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=9, unique=True),
    ratios=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=2, unique=True),
    n_columns=st.integers(1, 60),
    intercept=st.booleans(),
    positive=st.booleans(),
    in_pipeline=st.booleans(),
    shift=st.sampled_from([0.0, 1e2]),
    scale=st.sampled_from([1.0, 1e-3, 1e3]),
    tol=st.sampled_from([1e-1, 1e-4, 1e-8]),
    seed=st.integers(0, 1000),
)
def test_elastic_net_at_random(
    alphas, ratios, n_columns, intercept, positive, in_pipeline, shift, scale, tol, seed
):
    rng = np.random.RandomState(seed)
    rows = (rng.randn(60, n_columns) + shift) * np.logspace(0, np.log10(scale), n_columns)
    targets = rows[:, 0] + rng.randn(60)
    model = ElasticNet(tol=tol, max_iter=10**5, fit_intercept=intercept, positive=positive)
    grid = {"alpha": alphas, "l1_ratio": ratios}
    if in_pipeline:
        model = make_pipeline(StandardScaler(), model)
        grid = {f"elasticnet__{name}": values for name, values in grid.items()}
    compare(model, grid, rows, targets, rtol=1e-7)


def test_paths_whose_end_would_stop_early_are_not_taken():
    rng = np.random.RandomState(0)
    rows = rng.randn(300, 30) @ (np.eye(30) + 0.95)  # so alike that descent is slow
    targets = rows[:, 0] + rng.randn(300)
    use = use_of(Lasso(), {"alpha": [1.0, 0.1, 0.01]}, rows, targets, used=False)
    assert "max_iter" in use.refused


def test_newton_steps_are_left_to_the_solver_where_they_fail(monkeypatch):
    grid = {"C": np.logspace(-2, 2, 8)}
    model = LogisticRegression(tol=1e-7, max_iter=5000)
    led = []
    monkeypatch.setattr(WarmNewton, "solve", lambda self, *args, **kwargs: led.append(1))
    compare(model, grid, X, y, rtol=1e-5, scoring="neg_log_loss", share_fits="approximate")
    assert len(led) == 3 * 7


def test_newton_steps_that_lead_elsewhere_are_found_out(monkeypatch):
    monkeypatch.setattr(WarmNewton, "solve", lambda self, *args, **kwargs: True)
    candidates = [{"C": C} for C in np.logspace(-2, 2, 8)]
    with pytest.raises(NotImplementedError, match="nothing left to do"):
        LogisticPath().fit(LogisticRegression(), candidates, X, y)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cg", "newton-cholesky"])
@pytest.mark.parametrize("labels", [y, y3])
def test_newton_steps_leave_the_solver_nothing_to_do(solver, labels):
    counts = []

    class Counting(LogisticRegression):
        def fit(self, X, y):
            counts.append(self.C)
            return super().fit(X, y)

    candidates = [{"C": C} for C in np.logspace(-2, 2, 8)]
    model = Counting(tol=1e-6, solver=solver, max_iter=1000)
    found = LogisticPath().fit(model, candidates, X, labels)
    assert counts[:1] == [100.0]  # and one at the end, to be sure
    assert len(counts) == 2
    for one, candidate in zip(found, candidates, strict=True):
        alone = LogisticRegression(**{**model.get_params(), **candidate, "warm_start": False})
        alone.fit(X, labels)
        assert vars(one).keys() == vars(alone).keys()
        assert one.C == alone.C
        np.testing.assert_allclose(one.coef_, alone.coef_, 1e-3, 1e-3)
        for name in ("coef_", "intercept_", "n_iter_"):
            assert getattr(one, name).dtype == getattr(alone, name).dtype
            assert getattr(one, name).shape == getattr(alone, name).shape


def test_fits_that_stop_before_their_optimum_do_so():
    # The strongest penalty needs fewer iterations than there may be.
    model = LogisticRegression(C=1e-3, tol=1e-6)
    n_iter = int(model.fit(X, y).n_iter_[0]) + 1
    model.set_params(max_iter=n_iter)
    grid = {"C": [1e-3, 1e-2, 10.0]}
    how = {"used": False, "scoring": "neg_log_loss", "share_fits": "approximate"}
    use = use_of(model, grid, X, y, **how)
    assert f"max_iter={n_iter}" in use.refused
