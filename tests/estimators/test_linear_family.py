"""Every linear model against scikit-learn's: checks, optima on hard designs, worlds and passes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax, xlogy
from sklearn import linear_model as reference
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import estimators as ours
from skfleet.engine import counting

SOLVED_DIRECTLY = "there are no iterations: n_iter_ is None, as for scikit-learn's direct solvers"


def _expected_failures(estimator):
    if isinstance(estimator, ours.RidgeClassifier):
        return {"check_non_transformer_estimators_n_iter": SOLVED_DIRECTLY}
    if isinstance(estimator, ours.LinearRegression) and estimator.positive:
        reason = "of more columns than rows with a weight there is more than one solution"
        return {
            "check_sample_weight_equivalence_on_dense_data": reason,
            "check_sample_weight_equivalence_on_sparse_data": reason,
        }
    return {}


@parametrize_with_checks(
    [
        ours.ElasticNet(),
        ours.ElasticNetCV(),
        ours.GammaRegressor(),
        ours.Lasso(),
        ours.LassoCV(),
        ours.LinearRegression(),
        ours.LinearRegression(positive=True),
        ours.LogisticRegression(l1_ratio=1.0),
        ours.LogisticRegression(l1_ratio=0.5),
        ours.PoissonRegressor(),
        ours.RidgeCV(),
        ours.RidgeCV(cv=3),
        ours.RidgeClassifier(),
        ours.TweedieRegressor(),
        ours.TweedieRegressor(power=1.5),
    ],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("name", ours.linear_model.__all__)
def test_parameters_are_scikit_learn_s(name):
    """Names, order and defaults; but for device, solver, batches, and what is deprecated there."""
    here = getattr(ours, name)().get_params()
    assert here.pop("device") == "auto"
    there = getattr(reference, name)().get_params()
    if name.startswith("SGD"):
        assert here.pop("batch_size") == "auto"
    assert list(here) == list(there)
    for one, value in there.items():
        if one != "solver" or name.startswith("Ridge"):
            assert here[one] == value, one


# Parameters that scikit-learn does not have, or that mean something else there.
OURS = {"device", "solver"}


# -- designs ----------------------------------------------------------------------------------


def _design(kind, n_rows=300, n_features=8, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "wide":
        n_rows, n_features = 40, 60
    X = rng.normal(size=(n_rows, n_features))
    X[:, 1] += 0.5 * X[:, 0]
    if kind == "bad scale":
        X *= np.logspace(-4, 4, n_features)
    if kind == "collinear":
        X[:, 2], X[:, 3] = X[:, 0], X[:, 0] + X[:, 4]
    if kind == "constant":
        X[:, 2], X[:, 3] = 0.0, 7.0
    if kind == "sparse":
        X[np.abs(X) < 1] = 0
    return X


def _unit(X):
    deviation = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(deviation > 1e-12, deviation, 1.0)


def _half_deviance(y, mean, p):
    """Half the Tweedie deviance of each row."""
    if p == 1:
        return xlogy(y, y / mean) - y + mean
    if p == 2:
        return np.log(mean / y) + y / mean - 1
    own = y ** (2 - p) / ((1 - p) * (2 - p))
    return own - y * mean ** (1 - p) / (1 - p) + mean ** (2 - p) / (2 - p)


DESIGNS = ["plain", "bad scale", "collinear", "constant", "wide", "sparse"]


@dataclass
class Case:
    """An estimator with the targets it is for, and its average loss and penalties."""

    model: Any
    target: str
    power: float | None = None

    def reference(self, **settings):
        known = {k: v for k, v in self.model.get_params().items() if k not in OURS}
        return getattr(reference, type(self.model).__name__)(**known | settings)

    def y(self, X, seed=1):
        rng = np.random.default_rng(seed)
        eta = 0.5 * _unit(X)[:, :3] @ [1.0, -1.0, 0.5]
        if self.target == "number":
            return 3 * eta + rng.normal(size=len(X)) + 2
        if self.target == "count":
            return rng.poisson(np.exp(eta)).astype(float)
        if self.target == "amount":
            return rng.gamma(2.0, np.exp(eta) / 2)
        noise = 0 if self.target == "separable" else rng.logistic(size=len(X))
        n_classes = 3 if self.target == "three" else 2
        edges = [0.0] if n_classes == 2 else [-0.5, 0.7]
        return np.array(list("abc"))[np.searchsorted(edges, 2 * eta + noise)]

    def strengths(self, weight):
        """L1 and L2 penalties of the average objective."""
        p = self.model.get_params()
        if "C" in p:
            return p["l1_ratio"] / p["C"] / weight, (1 - p["l1_ratio"]) / p["C"] / weight
        name = type(self.model).__name__
        if name in ("Lasso", "ElasticNet"):
            share = p.get("l1_ratio", 1.0)
            return p["alpha"] * share, p["alpha"] * (1 - share)
        if name == "LinearRegression":
            return 0.0, 0.0
        return 0.0, p["alpha"] / weight if name.startswith("Ridge") else p["alpha"]

    def loss(self, coef, intercept, X, y, weight):
        """Return the average loss and its gradient in the coefficients."""
        eta = X @ coef.T + intercept
        if y.dtype.kind == "U":
            classes = np.unique(y)
            eta = np.hstack([np.zeros_like(eta), eta]) if eta.shape[1] == 1 else eta
            codes = np.searchsorted(classes, y)
            value = -log_softmax(eta, axis=1)[np.arange(len(y)), codes]
            slope = np.exp(log_softmax(eta, axis=1)) - np.eye(len(classes))[codes]
            slope = slope[:, -len(coef) :]
        elif self.power is not None:
            mean = np.exp(eta[:, 0])
            value = _half_deviance(y, mean, self.power)
            slope = ((mean - y) * mean ** (1 - self.power))[:, None]
        else:
            value, slope = 0.5 * (eta[:, 0] - y) ** 2, eta - y[:, None]
        share = weight / weight.sum()
        return share @ value, ((share[:, None] * slope).T @ X), share @ slope

    def objective(self, model, X, y, weight):
        coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
        l1, l2 = self.strengths(weight.sum())
        value, _, _ = self.loss(coef, intercept, X, y, weight)
        return value + l1 * np.abs(coef).sum() + 0.5 * l2 * (coef**2).sum()

    def violation(self, coef, intercept, X, y, weight):
        """The largest violation of an optimality condition, for columns at unit deviation."""
        l1, l2 = self.strengths(weight.sum())
        _, slope, free = self.loss(coef, intercept, X, y, weight)
        # taken about the mean: the intercept sees to the rest
        slope = slope - np.outer(free, np.average(X, axis=0, weights=weight)) + l2 * coef
        used = np.abs(slope + l1 * np.sign(coef))
        each = np.where(coef != 0, used, np.maximum(np.abs(slope) - l1, 0))
        deviation = X.std(axis=0)
        return max((each / np.where(deviation > 1e-12, deviation, 1)).max(), np.abs(free).max())

    def null(self, X, y, weight):
        """The model that knows the mean of the targets only."""
        share = weight / weight.sum()
        if y.dtype.kind == "U":
            classes = np.unique(y)
            p = np.array([share[y == c].sum() for c in classes])
            eta = np.array([np.log(p[1] / p[0])]) if len(classes) == 2 else np.log(p)
        else:
            mean = share @ y
            eta = np.array([np.log(mean) if self.power is not None else mean])
        return np.zeros((len(eta), X.shape[1])), eta


CASES = {
    "ols": Case(ours.LinearRegression(), "number"),
    "ridge": Case(ours.Ridge(0.5), "number"),
    "lasso": Case(ours.Lasso(0.05), "number"),
    "elastic net": Case(ours.ElasticNet(0.05), "number"),
    "poisson": Case(ours.PoissonRegressor(alpha=0.01), "count", 1.0),
    "gamma": Case(ours.GammaRegressor(alpha=0.01), "amount", 2.0),
    "tweedie": Case(ours.TweedieRegressor(power=1.5, alpha=0.01), "count", 1.5),
    "poisson lbfgs": Case(ours.PoissonRegressor(alpha=0.01, solver="lbfgs"), "count", 1.0),
    "logistic": Case(ours.LogisticRegression(), "two"),
    "logistic lbfgs": Case(ours.LogisticRegression(solver="lbfgs"), "two"),
    "logistic l1": Case(ours.LogisticRegression(l1_ratio=1.0), "two"),
    "logistic elastic": Case(ours.LogisticRegression(C=0.3, l1_ratio=0.5), "two"),
    "separable": Case(ours.LogisticRegression(), "separable"),
    "separable l1": Case(ours.LogisticRegression(l1_ratio=1.0), "separable"),
    "multinomial": Case(ours.LogisticRegression(), "three"),
    "multinomial l1": Case(ours.LogisticRegression(l1_ratio=1.0), "three"),
    "multinomial elastic": Case(ours.LogisticRegression(l1_ratio=0.5), "three"),
}
# scikit-learn's solvers to be measured by, each to a tight tolerance.
OTHERS = {
    "LogisticRegression": ["lbfgs", "newton-cholesky"],
    "PoissonRegressor": ["lbfgs", "newton-cholesky"],
    "GammaRegressor": ["lbfgs", "newton-cholesky"],
    "TweedieRegressor": ["lbfgs", "newton-cholesky"],
    "Ridge": ["svd", "cholesky"],
}


def _references(case, X, y, weight):
    """Fit scikit-learn's model by each of its solvers."""
    name = type(case.model).__name__
    solvers = OTHERS.get(name, [None])
    if "C" in case.model.get_params() and case.model.l1_ratio:
        solvers = ["saga"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for solver in solvers:
            tight = {"tol": 1e-12} if name != "LinearRegression" else {}
            tight |= {"max_iter": 3000} if "max_iter" in case.model.get_params() else {}
            yield case.reference(**tight | ({} if solver is None else {"solver": solver})).fit(
                X, y, sample_weight=weight
            )


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("name", CASES)
def test_the_optimum_is_found_on_hard_designs(name, design):
    """Near scikit-learn's best by the objective, and the conditions of a minimum hold to tol."""
    case, X = CASES[name], _design(design)
    y = case.y(X)
    weight = np.random.default_rng(3).uniform(0.5, 2, len(X))
    rows = sparse.csr_array(X) if design == "sparse" else X
    model = case.model.fit(rows, y, sample_weight=weight)
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    null = case.null(X, y, weight)
    at_null = case.violation(*null, X, y, weight)
    tol = case.model.get_params().get("tol", 1e-6)
    assert case.violation(coef, intercept, X, y, weight) <= tol * at_null + 1e-12
    # Solvers that stop early there have an optimum that is further off: the best one counts.
    least = min(case.objective(m, X, y, weight) for m in _references(case, X, y, weight))
    whole = case.loss(*null, X, y, weight)[0]
    slack = 1e-6 * abs(whole)
    tight = type(case.model)(
        **case.model.get_params() | ({"tol": 1e-8} if "tol" in case.model.get_params() else {})
    )
    if hasattr(tight, "max_iter"):
        tight.max_iter = 5000
    assert case.objective(tight.fit(rows, y, weight), X, y, weight) <= least + slack


# -- choosing by cross-validation -------------------------------------------------------------

SPLITS = [
    {},
    {"cv": 3, "alphas": [1.0, 0.1, 0.01]},
    {"cv": KFold(4, shuffle=True, random_state=0)},
    {"cv": ShuffleSplit(3, random_state=0), "fit_intercept": False},
    {"positive": True, "alphas": 20},
]


@pytest.mark.parametrize("settings", [*SPLITS, {"l1_ratio": [0.2, 0.7, 1.0]}], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_elastic_net_cv_chooses_as_scikit_learn_does(settings, weighted):
    X = _design("plain")
    y = CASES["lasso"].y(X)
    weight = np.random.default_rng(3).uniform(0.5, 2, len(X)) if weighted else None
    got = ours.ElasticNetCV(tol=1e-7, **settings).fit(X, y, weight)
    want = reference.ElasticNetCV(tol=1e-12, max_iter=10_000, **settings)
    want.fit(X, y, sample_weight=weight)
    assert got.alpha_ == pytest.approx(want.alpha_)
    assert got.l1_ratio_ == want.l1_ratio_
    np.testing.assert_allclose(got.alphas_, want.alphas_)
    np.testing.assert_allclose(got.mse_path_, want.mse_path_, rtol=1e-6)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-8)


@pytest.mark.parametrize("settings", SPLITS, ids=str)
def test_lasso_cv_chooses_as_scikit_learn_does(settings):
    X = _design("wide")
    y = CASES["lasso"].y(X)
    got = ours.LassoCV(tol=1e-9, **settings).fit(X, y)
    want = reference.LassoCV(tol=1e-12, max_iter=100_000, **settings).fit(X, y)
    assert got.alpha_ == pytest.approx(want.alpha_)
    np.testing.assert_allclose(got.mse_path_, want.mse_path_, rtol=1e-4)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fit_intercept": False, "scoring": "r2"},
        {"store_cv_results": True},
        {"store_cv_results": True, "scoring": "r2"},
        {"scoring": "neg_mean_absolute_error"},
        {"alpha_per_target": True},
        {"cv": 3},
        {"cv": 3, "scoring": "neg_root_mean_squared_error"},
        {"cv": KFold(4, shuffle=True, random_state=0), "scoring": "neg_mean_squared_error"},
        {"cv": ShuffleSplit(3, random_state=0), "fit_intercept": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_targets", [None, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("design", ["plain", "sparse"])
def test_ridge_cv_chooses_as_scikit_learn_does(settings, n_targets, weighted, design):
    X = _design(design)
    y = CASES["ridge"].y(X)
    if n_targets:
        y = y[:, None] + X[:, 4:7] @ np.diag([5.0, 0.3, 0.0])
    weight = np.random.default_rng(3).uniform(0.5, 2, len(X)) if weighted else None
    alphas = [0.01, 1.0, 10.0, 100.0]
    got = ours.RidgeCV(alphas, **settings)
    got.fit(sparse.csr_array(X) if design == "sparse" else X, y, weight)
    want = reference.RidgeCV(alphas, **settings).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(got.alpha_, want.alpha_)
    np.testing.assert_allclose(got.best_score_, want.best_score_)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-8)
    np.testing.assert_allclose(got.intercept_, want.intercept_, atol=1e-8)
    if settings.get("store_cv_results"):
        np.testing.assert_allclose(got.cv_results_, want.cv_results_, atol=1e-8)


# -- what each has of its own -----------------------------------------------------------------


@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 3.0, "b": 0.5}])
@pytest.mark.parametrize("target", ["two", "three"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_classifier_agrees_with_scikit_learn(class_weight, target, weighted):
    X = _design("plain")
    y = Case(None, target).y(X)
    weight = np.random.default_rng(3).uniform(0.5, 2, len(X)) if weighted else None
    got = ours.RidgeClassifier(class_weight=class_weight).fit(X, y, weight)
    want = reference.RidgeClassifier(class_weight=class_weight).fit(X, y, weight)
    # as its documentation has it; of two classes scikit-learn 1.9 leaves one dimension out
    assert got.coef_.ndim == 2
    np.testing.assert_allclose(got.coef_, np.atleast_2d(want.coef_), atol=1e-10)
    np.testing.assert_allclose(got.intercept_, want.intercept_, atol=1e-10)
    np.testing.assert_array_equal(got.predict(X), want.predict(X))
    np.testing.assert_allclose(got.decision_function(X), want.decision_function(X), atol=1e-9)


def test_ridge_classifier_of_several_labels():
    X = _design("plain")
    y = (X[:, :3] > 0.3).astype(int)
    got, want = ours.RidgeClassifier().fit(X, y), reference.RidgeClassifier().fit(X, y)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-10)
    np.testing.assert_array_equal(got.predict(X), want.predict(X))
    rows, labels = da.from_array(X, chunks=(100, 8)), da.from_array(y, chunks=(70, 3))
    lazy = ours.RidgeClassifier().fit(rows, labels)
    np.testing.assert_array_equal(lazy.predict(rows).compute(), want.predict(X))


def test_a_class_that_only_some_blocks_have():
    X = _design("plain")
    y = np.sort(Case(None, "three").y(X))
    rows, labels = da.from_array(X, chunks=(30, 8)), da.from_array(y, chunks=30)
    for name in ("RidgeClassifier", "LogisticRegression"):
        one, other = getattr(ours, name)().fit(rows, labels), getattr(ours, name)().fit(X, y)
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"l1_ratio": 1.0}, {"solver": "lbfgs"}], ids=str)
@pytest.mark.parametrize("target", ["two", "three"])
def test_a_class_without_weight(settings, target):
    """It keeps its place among the classes, and next to no probability."""
    X = _design("plain")
    y = Case(None, target).y(X)
    weight = (y != "c").astype(float)
    model = ours.LogisticRegression(**settings).fit(X, y, weight)
    if target == "three":
        assert model.predict_proba(X)[:, 2].max() < 1e-3
    assert set(model.predict(X)) == {"a", "b"}


def test_counts_that_are_all_zero():
    """Their logarithm has no end, which is said; without an intercept there is an optimum."""
    X = _design("plain")
    model = ours.PoissonRegressor()
    with pytest.warns(ConvergenceWarning, match="did not reach tol"):
        model.fit(X, np.zeros(len(X)))
    assert np.isfinite(model.coef_).all()
    assert model.predict(X).max() < 1e-6
    got, want = (
        m.PoissonRegressor(fit_intercept=False, tol=1e-8).fit(X, np.zeros(len(X)))
        for m in (ours, reference)
    )
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-6)


@pytest.mark.parametrize("name", ["LinearRegression", "Ridge", "ElasticNet", "Lasso"])
def test_coefficients_of_at_least_zero(name):
    X = _design("plain")
    y = CASES["ridge"].y(X)
    got = getattr(ours, name)(positive=True).fit(X, y)
    tight = {} if name == "LinearRegression" else {"tol": 1e-10}
    want = getattr(reference, name)(positive=True, **tight).fit(X, y)
    assert (got.coef_ >= 0).all()
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-5)


@pytest.mark.parametrize("name", ["LinearRegression", "ElasticNet", "Lasso"])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_several_targets(name, n_targets):
    X = _design("plain")
    y = CASES["ridge"].y(X)[:, None] + X[:, 4 : 4 + n_targets]
    tight = {} if name == "LinearRegression" else {"tol": 1e-12}
    got, want = getattr(ours, name)().fit(X, y), getattr(reference, name)(**tight).fit(X, y)
    assert got.coef_.shape == want.coef_.shape
    assert np.shape(got.intercept_) == np.shape(want.intercept_)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-4)
    np.testing.assert_allclose(got.predict(X), want.predict(X), atol=1e-3)


def test_rank_and_singular_values():
    for design, rank in (("plain", 8), ("collinear", 6)):
        X = _design(design)
        got, want = (m.LinearRegression().fit(X, X[:, 0]) for m in (ours, reference))
        assert got.rank_ == want.rank_ == rank
        np.testing.assert_allclose(got.singular_[:rank], want.singular_[:rank], rtol=1e-8)
        np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-8)


@pytest.mark.parametrize("name", ["ElasticNet", "Lasso"])
def test_warm_starts_and_sparse_coefficients(name):
    X = _design("wide")
    model = getattr(ours, name)(0.01, warm_start=True).fit(X, CASES["lasso"].y(X))
    first = model.n_iter_
    assert model.fit(X, CASES["lasso"].y(X)).n_iter_ < first
    np.testing.assert_array_equal(model.sparse_coef_.toarray()[0], model.coef_)
    assert model.dual_gap_ >= 0


def test_sparse_coefficients_predict_alike():
    X = _design("plain")
    model = ours.LogisticRegression(C=0.1, l1_ratio=1.0).fit(X, CASES["multinomial"].y(X))
    want = model.predict_proba(X), model.coef_
    assert sparse.issparse(model.sparsify().coef_)
    for rows in (X, sparse.csr_array(X), da.from_array(X, chunks=(100, 8))):
        np.testing.assert_allclose(np.asarray(model.predict_proba(rows)), want[0], atol=1e-12)
    np.testing.assert_array_equal(model.densify().coef_, want[1])


@pytest.mark.parametrize("name", ["poisson", "logistic l1"])
def test_a_warm_start_is_at_the_end_at_once(name):
    case = CASES[name]
    X = _design("plain")
    settings = case.model.get_params() | {"warm_start": True}
    model = type(case.model)(**settings).fit(X, case.y(X))
    assert np.all(model.n_iter_ > 0)
    assert np.all(model.fit(X, case.y(X)).n_iter_ == 0)


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("link", ["auto", "log", "identity"])
def test_tweedie_agrees_with_scikit_learn(power, link):
    if power < 0 and link != "log":
        pytest.skip("a mean that must be positive and is linear: the optimum is at the border")
    X = _design("plain")
    y = CASES["gamma"].y(X) + (3.0 if link == "identity" else 0.1)
    settings = {"power": power, "link": link, "alpha": 0.1}
    got = ours.TweedieRegressor(**settings, tol=1e-8).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = reference.TweedieRegressor(**settings, tol=1e-8, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-5)
    np.testing.assert_allclose(got.predict(X), want.predict(X), rtol=1e-5)
    if power >= 0:
        assert got.score(X, y) == pytest.approx(want.score(X, y), abs=1e-6)
        assert got.score(da.from_array(X, chunks=(70, 8)), y) == pytest.approx(got.score(X, y))


# -- worlds, cuts, passes ---------------------------------------------------------------------

EVERYWHERE = {
    **{k: CASES[k] for k in ("ols", "lasso", "elastic net", "poisson", "gamma", "tweedie")},
    **{k: CASES[k] for k in ("logistic l1", "multinomial elastic")},
    "lasso cv": Case(ours.LassoCV(alphas=10), "number"),
    "elastic net cv": Case(ours.ElasticNetCV(l1_ratio=[0.5, 1.0], alphas=5, cv=3), "number"),
    "ridge cv": Case(ours.RidgeCV(), "number"),
    "ridge cv folds": Case(ours.RidgeCV(cv=4), "number"),
    "ridge classifier": Case(ours.RidgeClassifier(class_weight="balanced"), "three"),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_world_gives_the_same_answer(world, name):
    case, X = EVERYWHERE[name], _design("plain")
    y = case.y(X)
    y = np.searchsorted(np.unique(y), y) if y.dtype.kind == "U" else y
    weight = np.random.default_rng(0).uniform(0.5, 3, len(X))
    make = type(case.model)
    settings = case.model.get_params() | ({"tol": 1e-9} if hasattr(case.model, "tol") else {})
    want = make(**settings).fit(X, y, sample_weight=weight)
    got = make(**settings)
    got.fit(world.X(X), world.column(y), sample_weight=world.column(weight))
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got.intercept_, want.intercept_, rtol=1e-6, atol=1e-8)
    answer = world.host(got.predict(world.X(X)))
    np.testing.assert_allclose(answer, want.predict(X), rtol=1e-6)
    if "strict" not in world.name:
        score = got.score(world.X(X), world.column(y))
        np.testing.assert_allclose(score, want.score(X, y), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=8),
    name=st.sampled_from(sorted(EVERYWHERE)),
)
def test_any_cut_gives_the_same_answer(cuts, name):
    case, X = EVERYWHERE[name], _design("plain", n_rows=200)
    y = case.y(X)
    edges = [0, *sorted(cuts), 200]
    rows = da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), 8))
    settings = case.model.get_params() | ({"tol": 1e-9} if hasattr(case.model, "tol") else {})
    want, got = (type(case.model)(**settings).fit(data, y) for data in (X, rows))
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-6, atol=1e-8)


PASSES = {
    "ols": 1, "ridge": 1, "lasso": 1, "elastic net": 1, "lasso cv": 1, "elastic net cv": 1,
    "ridge cv": 2, "ridge cv folds": 1,
}  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("name", PASSES)
def test_passes_of_least_squares(cluster_client, name, streamed, unknown):
    from skfleet import config_context

    case = (CASES | EVERYWHERE)[name]
    X = _design("plain", n_rows=1000)
    rows, y = da.from_array(X, chunks=(200, 8)), da.from_array(case.y(X), chunks=200)
    if unknown:
        every = da.ones(1000, chunks=200, dtype=bool)
        rows, y = rows[every], y[every]
    with (
        cluster_client.as_current(),
        config_context(keep_blocks=not streamed),
        counting() as counts,
    ):
        type(case.model)(**case.model.get_params()).fit(rows, y)
    assert counts.passes == PASSES[name]


@pytest.mark.parametrize("name", ["poisson", "gamma", "tweedie", "logistic", "logistic l1"])
@pytest.mark.parametrize("n_features", [5, 60])
def test_streamed_rows_are_passed_over_a_few_times(cluster_client, name, n_features):
    """At most four times after the pass that draws a sample, to a gap of a millionth."""
    from skfleet import config_context

    case = CASES[name]
    X = _design("plain", n_rows=60_000, n_features=n_features)
    y = case.y(X)
    rows, targets = da.from_array(X, chunks=(10_000, -1)), da.from_array(y, chunks=10_000)
    with cluster_client.as_current(), config_context(keep_blocks=False), counting() as counts:
        got = type(case.model)(**case.model.get_params()).fit(rows, targets)
    assert counts.passes <= 1 + 4
    best = type(case.model)(**case.model.get_params() | {"tol": 1e-10}).fit(X, y)
    weight = np.ones(len(X))
    gap = case.objective(got, X, y, weight) - case.objective(best, X, y, weight)
    assert gap <= 1e-6 * abs(case.loss(*case.null(X, y, weight), X, y, weight)[0])


# -- what cannot be ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (ours.LinearRegression(tol=-1), "tol must be"),
        (ours.LinearRegression(positive="no"), "positive must be"),
        (ours.ElasticNet(-1), "alpha must be"),
        (ours.ElasticNet(l1_ratio=2), "l1_ratio must be"),
        (ours.ElasticNet(precompute=np.eye(8)), "precompute must be"),
        (ours.Lasso(max_iter=0), "max_iter must be"),
        (ours.Lasso(selection="any"), "selection must be"),
        (ours.LassoCV(eps=0), "eps must be"),
        (ours.LassoCV(alphas=0), "alphas must be"),
        (ours.LassoCV(alphas=[1.0, -1.0]), "alphas must be"),
        (ours.ElasticNetCV(l1_ratio=[0.0, 0.5]), "l1_ratio must be above 0"),
        (ours.RidgeCV([0.0, 1.0]), "alphas must be a number"),
        (ours.RidgeCV(scoring="max_error"), "Use skfleet.model_selection.GridSearchCV"),
        (ours.RidgeCV(cv=3, store_cv_results=True), "store_cv_results must be False"),
        (ours.RidgeCV(cv=3, alpha_per_target=True), "alpha_per_target must be False"),
        (ours.RidgeClassifier(alpha=-1), "alpha must be"),
        (ours.RidgeClassifier(class_weight="even"), "class_weight must be"),
        (ours.PoissonRegressor(alpha=-1), "alpha must be"),
        (ours.PoissonRegressor(solver="newton"), "solver must be"),
        (ours.GammaRegressor(tol=0), "tol must be"),
        (ours.TweedieRegressor(power=0.5), "power must not be between 0 and 1"),
        (ours.TweedieRegressor(link="logit"), "link must be"),
    ],
    ids=str,
)
@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_bad_parameters_raise_before_any_pass(model, match, lazy):
    X = _design("plain", n_rows=60)
    rows = da.from_array(X, chunks=(20, 8)) if lazy else X
    with counting() as counts, pytest.raises(ValueError, match=match):
        model.fit(rows, np.arange(60) % 2)
    assert counts.tasks == 0


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
@pytest.mark.parametrize(
    ("model", "y"),
    [
        (ours.PoissonRegressor(), -1.0),
        (ours.GammaRegressor(), 0.0),
        (ours.TweedieRegressor(power=3), 0.0),
    ],
    ids=str,
)
def test_targets_out_of_range_are_named(model, y, lazy):
    X = _design("plain", n_rows=60)
    targets = np.ones(60)
    targets[7] = y
    rows = da.from_array(X, chunks=(20, 8)) if lazy else X
    with pytest.raises(ValueError, match=f"y must be .* Got {y:g} instead: some value"):
        model.fit(rows, targets)


def test_more_folds_than_rows():
    with pytest.raises(ValueError, match="cv must be at most the number of rows"):
        ours.LassoCV(cv=10).fit(np.eye(6), np.arange(6.0))


def test_groups_reach_the_splitter_by_routing():
    from sklearn import config_context
    from sklearn.model_selection import GroupKFold

    X = _design("plain")
    y, groups = CASES["lasso"].y(X), np.arange(300) % 7
    for name in ("LassoCV", "ElasticNetCV", "RidgeCV"):
        with pytest.raises(ValueError, match="enable_metadata_routing"):
            getattr(ours, name)(cv=3).fit(X, y, groups=groups)
        with config_context(enable_metadata_routing=True):
            got, want = (
                getattr(m, name)(cv=GroupKFold(3)).fit(X, y, groups=groups)
                for m in (ours, reference)
            )
        np.testing.assert_allclose(got.alpha_, want.alpha_)


def test_unfinished_solvers_warn():
    case = CASES["poisson"]
    X = _design("bad scale")
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        ours.PoissonRegressor(solver="lbfgs", max_iter=1, tol=1e-12).fit(X, case.y(X))


@pytest.mark.parametrize("name", ["LinearRegression", "Ridge", "ElasticNet", "Lasso"])
@pytest.mark.parametrize("lazy", [False, True])
def test_more_columns_than_their_products_have_room_for(name, lazy, monkeypatch):
    monkeypatch.setattr("skfleet.glm._normal_equations.MOST_SPARSE_COLUMNS", 20)
    X = _design("sparse", n_features=40)
    y = CASES["ridge"].y(X)
    weight = np.random.default_rng(3).uniform(0.5, 2, len(X))
    rows = sparse.csr_array(X)
    if lazy:
        rows = da.from_array(X, chunks=(70, -1)).map_blocks(sparse.csr_matrix)
    with counting() as counts:
        got = getattr(ours, name)(tol=1e-8).fit(rows, y, sample_weight=weight)
    assert counts.passes > 1
    tight = {} if name == "LinearRegression" else {"tol": 1e-12}
    want = getattr(reference, name)(**tight).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-5)
    np.testing.assert_allclose(got.intercept_, want.intercept_, atol=1e-5)
    for bad in ({"positive": True}, {"alpha": [1.0, 2.0]}):
        if name == "Ridge" or ("positive" in bad):
            with pytest.raises(ValueError, match="Leave columns out first"):
                getattr(ours, name)(**bad).fit(rows, np.column_stack([y, y]))
    with pytest.raises(ValueError, match="at most 20 columns for RidgeCV"):
        ours.RidgeCV().fit(rows, y)


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
def test_a_million_hashed_columns(l1_ratio):
    """Nothing is made dense but vectors as long as there are columns."""
    rng = np.random.default_rng(0)
    n_rows, n_features = 3000, 2**20
    places = (rng.zipf(1.3, size=(n_rows, 15)) * 7919 % n_features).astype(np.int32)
    rows = np.repeat(np.arange(n_rows, dtype=np.int32), 15)
    X = sparse.csr_matrix((np.ones(places.size), (rows, places.ravel())), (n_rows, n_features))
    known = np.unique(places)[::50]
    y = np.asarray(X[:, known].sum(axis=1)).ravel() + 0.3 * rng.normal(size=n_rows) > 1
    model = ours.LogisticRegression(C=0.1, l1_ratio=l1_ratio, tol=1e-4)
    with counting() as counts:
        model.fit(X, y)
    # every column that occurs, and no other: as a dense matrix, it takes another way
    used = np.unique(places)
    narrow = ours.LogisticRegression(C=0.1, l1_ratio=l1_ratio, tol=1e-6)
    narrow.fit(X[:, used].toarray(), y)
    np.testing.assert_allclose(model.coef_[:, used], narrow.coef_, atol=2e-3)
    assert not np.delete(model.coef_, used, axis=1).any()
    assert counts.passes <= 30
