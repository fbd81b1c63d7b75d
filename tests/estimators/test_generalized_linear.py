"""Generalised linear models: optima on hard designs, and what each model has of its own."""

import warnings

import dask.array as da
import numpy as np
import pytest
from linear_cases import CASES, DESIGNS, Case, make_design
from scipy import sparse
from sklearn import linear_model as reference
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import estimators as ours
from skfleet.engine import counting

SOLVED_DIRECTLY = "there are no iterations: n_iter_ is None, as for scikit-learn's direct solvers"


def _expected_failures(estimator):
    if isinstance(estimator, ours.RidgeClassifier):
        return {"check_non_transformer_estimators_n_iter": SOLVED_DIRECTLY}
    return {}


@pytest.mark.sampled(460)
@parametrize_with_checks(
    [
        ours.ElasticNet(),
        ours.ElasticNetCV(alphas=10, max_iter=100_000),
        ours.GammaRegressor(),
        ours.Lasso(),
        ours.LassoCV(alphas=10),
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


@pytest.mark.sampled(31)
@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("name", CASES)
def test_the_optimum_is_found_on_hard_designs(name, design):
    """Near scikit-learn's best by the objective, and the conditions of a minimum hold to tol."""
    case, X = CASES[name], make_design(design)
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


@pytest.mark.parametrize("class_weight", [None, "balanced", {"a": 3.0, "b": 0.5}])
@pytest.mark.parametrize("target", ["two", "three"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ridge_classifier_agrees_with_scikit_learn(class_weight, target, weighted):
    X = make_design("plain")
    y = Case(None, target).y(X)
    weight = np.random.default_rng(3).uniform(0.5, 2, len(X)) if weighted else None
    got = ours.RidgeClassifier(class_weight=class_weight).fit(X, y, weight)
    want = reference.RidgeClassifier(class_weight=class_weight).fit(X, y, weight)
    assert got.coef_.shape == want.coef_.shape
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-10)
    np.testing.assert_allclose(got.intercept_, want.intercept_, atol=1e-10)
    np.testing.assert_array_equal(got.predict(X), want.predict(X))
    np.testing.assert_allclose(got.decision_function(X), want.decision_function(X), atol=1e-9)


def test_ridge_classifier_of_several_labels():
    X = make_design("plain")
    y = (X[:, :3] > 0.3).astype(int)
    got, want = ours.RidgeClassifier().fit(X, y), reference.RidgeClassifier().fit(X, y)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-10)
    np.testing.assert_array_equal(got.predict(X), want.predict(X))
    rows, labels = da.from_array(X, chunks=(100, 8)), da.from_array(y, chunks=(70, 3))
    lazy = ours.RidgeClassifier().fit(rows, labels)
    np.testing.assert_array_equal(lazy.predict(rows).compute(), want.predict(X))


def test_a_class_that_only_some_blocks_have():
    X = make_design("plain")
    y = np.sort(Case(None, "three").y(X))
    rows, labels = da.from_array(X, chunks=(30, 8)), da.from_array(y, chunks=30)
    for name in ("RidgeClassifier", "LogisticRegression"):
        one, other = getattr(ours, name)().fit(rows, labels), getattr(ours, name)().fit(X, y)
        np.testing.assert_allclose(one.coef_, other.coef_, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"l1_ratio": 1.0}, {"solver": "lbfgs"}], ids=str)
@pytest.mark.parametrize("target", ["two", "three"])
def test_a_class_without_weight(settings, target):
    """It keeps its place among the classes, and next to no probability."""
    X = make_design("plain")
    y = Case(None, target).y(X)
    weight = (y != "c").astype(float)
    model = ours.LogisticRegression(**settings).fit(X, y, weight)
    if target == "three":
        assert model.predict_proba(X)[:, 2].max() < 1e-3
    assert set(model.predict(X)) == {"a", "b"}


def test_counts_that_are_all_zero():
    """Their logarithm has no end, which is said; without an intercept there is an optimum."""
    X = make_design("plain")
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
    X = make_design("plain")
    y = CASES["ridge"].y(X)
    got = getattr(ours, name)(positive=True).fit(X, y)
    tight = {} if name == "LinearRegression" else {"tol": 1e-10}
    want = getattr(reference, name)(positive=True, **tight).fit(X, y)
    assert (got.coef_ >= 0).all()
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-5)


@pytest.mark.parametrize("name", ["LinearRegression", "ElasticNet", "Lasso"])
@pytest.mark.parametrize("n_targets", [1, 3])
def test_several_targets(name, n_targets):
    X = make_design("plain")
    y = CASES["ridge"].y(X)[:, None] + X[:, 4 : 4 + n_targets]
    tight = {} if name == "LinearRegression" else {"tol": 1e-12}
    got, want = getattr(ours, name)().fit(X, y), getattr(reference, name)(**tight).fit(X, y)
    assert got.coef_.shape == want.coef_.shape
    assert np.shape(got.intercept_) == np.shape(want.intercept_)
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-4)
    np.testing.assert_allclose(got.predict(X), want.predict(X), atol=1e-3)


def test_rank_and_singular_values():
    for design, rank in (("plain", 8), ("collinear", 6)):
        X = make_design(design)
        got, want = (m.LinearRegression().fit(X, X[:, 0]) for m in (ours, reference))
        assert got.rank_ == want.rank_ == rank
        np.testing.assert_allclose(got.singular_[:rank], want.singular_[:rank], rtol=1e-8)
        np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-8)


@pytest.mark.parametrize("name", ["ElasticNet", "Lasso"])
def test_warm_starts_and_sparse_coefficients(name):
    X = make_design("wide")
    model = getattr(ours, name)(0.01, warm_start=True).fit(X, CASES["lasso"].y(X))
    first = model.n_iter_
    assert model.fit(X, CASES["lasso"].y(X)).n_iter_ < first
    np.testing.assert_array_equal(model.sparse_coef_.toarray()[0], model.coef_)
    assert model.dual_gap_ >= 0


def test_sparse_coefficients_predict_alike():
    X = make_design("plain")
    model = ours.LogisticRegression(C=0.1, l1_ratio=1.0).fit(X, CASES["multinomial"].y(X))
    want = model.predict_proba(X), model.coef_
    assert sparse.issparse(model.sparsify().coef_)
    for rows in (X, sparse.csr_array(X), da.from_array(X, chunks=(100, 8))):
        np.testing.assert_allclose(np.asarray(model.predict_proba(rows)), want[0], atol=1e-12)
    np.testing.assert_array_equal(model.densify().coef_, want[1])


@pytest.mark.parametrize("name", ["poisson", "logistic l1"])
def test_a_warm_start_is_at_the_end_at_once(name):
    case = CASES[name]
    X = make_design("plain")
    settings = case.model.get_params() | {"warm_start": True}
    model = type(case.model)(**settings).fit(X, case.y(X))
    assert np.all(model.n_iter_ > 0)
    assert np.all(model.fit(X, case.y(X)).n_iter_ == 0)


@pytest.mark.parametrize("power", [-1.0, 0.0, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("link", ["auto", "log", "identity"])
def test_tweedie_agrees_with_scikit_learn(power, link):
    if power < 0 and link != "log":
        pytest.skip("a mean that must be positive and is linear: the optimum is at the border")
    X = make_design("plain")
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


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (ours.LinearRegression(tol=-1), "tol must be"),
        (ours.LinearRegression(positive="no"), "positive must be"),
        (ours.ElasticNet(-1), "alpha must be"),
        (ours.ElasticNet(l1_ratio=2), "l1_ratio must be"),
        (ours.ElasticNet(precompute="yes"), "precompute must be"),
        (ours.Lasso(max_iter=0), "max_iter must be"),
        (ours.Lasso(selection="any"), "selection must be"),
        (ours.LassoCV(eps=0), "eps must be"),
        (ours.LassoCV(alphas=0), "alphas must be"),
        (ours.LassoCV(alphas=[1.0, -1.0]), r"alphas\[1\] == -1.0, must be >= 0.0"),
        (ours.ElasticNetCV(l1_ratio=[0.0, 0.5]), "l1_ratio must be above 0"),
        (ours.RidgeCV([0.0, 1.0]), r"alphas\[0\] == 0.0, must be > 0.0"),
        (ours.RidgeCV(scoring="max_error"), "scoring. parameter|scoring must be"),
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
    X = make_design("plain", n_rows=60)
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
    X = make_design("plain", n_rows=60)
    targets = np.ones(60)
    targets[7] = y
    rows = da.from_array(X, chunks=(20, 8)) if lazy else X
    with pytest.raises(ValueError, match=f"y must be .* Got {y:g} instead: some value"):
        model.fit(rows, targets)


def test_unfinished_solvers_warn():
    case = CASES["poisson"]
    X = make_design("bad scale")
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        ours.PoissonRegressor(solver="lbfgs", max_iter=1, tol=1e-12).fit(X, case.y(X))
