"""Ridge and LogisticRegression against scikit-learn, in every world, for any cut, and counted."""

import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.special import log_softmax
from sklearn import linear_model as reference
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.engine import counting
from skfleet.estimators import LogisticRegression, Ridge


def _expected_failures(estimator):
    if isinstance(estimator, Ridge):
        reason = "there are no iterations: n_iter_ is None, as for scikit-learn's direct solvers"
        return {"check_non_transformer_estimators_n_iter": reason}
    if estimator.solver == "lbfgs":
        reason = "the value's rounding hides differences of 1e-8 in the answer; the check asks 1e-9"
        return {
            "check_sample_weight_equivalence_on_dense_data": reason,
            "check_sample_weight_equivalence_on_sparse_data": reason,
        }
    return {}


@parametrize_with_checks(
    [Ridge(), LogisticRegression(), LogisticRegression(solver="lbfgs", tol=1e-12)],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def _columns(n_rows=800, n_features=8, *, badly_scaled=False, seed=0):
    X = np.random.default_rng(seed).normal(size=(n_rows, n_features))
    X[:, 1] += 0.5 * X[:, 0]
    return X * np.logspace(-4, 4, n_features) if badly_scaled else X


def _labels(X, names, seed=1):
    rng = np.random.default_rng(seed)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    scores = Z[:, : len(names)] + rng.gumbel(size=(len(X), len(names)))
    return np.array(names)[scores.argmax(axis=1)]


def _difference(ours, theirs, X):
    scale = X.std(axis=0)
    return np.linalg.norm((ours - theirs) * scale) / np.linalg.norm(theirs * scale)


# -- Ridge ------------------------------------------------------------------------------------


@pytest.mark.parametrize("badly_scaled", [False, True])
@pytest.mark.parametrize("alpha", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_targets", [None, 1, 3])
def test_ridge_agrees_with_scikit_learn(badly_scaled, alpha, fit_intercept, n_targets):
    X = _columns(badly_scaled=badly_scaled)
    rng = np.random.default_rng(2)
    y = (X / X.std(axis=0)) @ rng.normal(size=(8, n_targets or 1)) + 3 + rng.normal(size=(800, 1))
    y = y[:, 0] if n_targets is None else y
    weight = rng.uniform(0, 2, 800)
    given_to_both = {"alpha": alpha, "fit_intercept": fit_intercept}
    theirs = reference.Ridge(solver="cholesky", **given_to_both).fit(X, y, weight)
    ours = Ridge(**given_to_both).fit(X, y, weight)
    assert ours.coef_.shape == theirs.coef_.shape
    assert np.shape(ours.intercept_) == np.shape(theirs.intercept_)
    assert _difference(ours.coef_, theirs.coef_, X) < 1e-5
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5, atol=1e-9)
    assert ours.predict(X).shape == theirs.predict(X).shape
    np.testing.assert_allclose(ours.score(X, y), theirs.score(X, y), rtol=1e-8)


def test_ridge_penalises_each_target_by_its_own():
    X = _columns()
    y = X[:, :3] + 1
    alpha = [0.1, 100.0, 0.1]
    ours, theirs = Ridge(alpha).fit(X, y), reference.Ridge(alpha, solver="cholesky").fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-10)


@pytest.mark.parametrize("wide", [False, True])
def test_singular_products_give_the_shortest_solution(wide):
    X = _columns(5 if wide else 50, 8)
    X[:, 3] = X[:, 2]
    y = X[:, 0] - 2 * X[:, 2]
    ours, theirs = Ridge(0).fit(X, y), reference.LinearRegression().fit(X, y)
    assert ours.solver_ == "svd"
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)


def test_large_offsets_cost_no_digits():
    X = _columns()
    y = X @ np.arange(8.0)
    near, far = Ridge(1e-6).fit(X, y), Ridge(1e-6).fit(X + 1e7, y)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-6, atol=1e-7)


def test_ridge_passes_over_the_rows_once(cluster_client):
    X = da.from_array(_columns(), chunks=(40, 8))
    y = da.from_array(np.arange(800.0), chunks=100)
    for rows in (X, X.persist()):
        with cluster_client.as_current(), counting() as counts:
            Ridge([1.0]).fit(rows, y)
        assert counts.passes == 1
        assert counts.tasks <= 2 * 20


# -- LogisticRegression -----------------------------------------------------------------------


def _kkt(model, X, y, weight=None):
    """The largest entry of the average objective's gradient, for columns at unit deviation."""
    codes = np.searchsorted(model.classes_, y)
    eta = X @ model.coef_.T + model.intercept_
    if eta.shape[1] == 1:
        eta = np.hstack([np.zeros_like(eta), eta])
    slope = np.exp(log_softmax(eta, axis=1)) - np.eye(eta.shape[1])[codes]
    slope = slope if weight is None else slope * weight[:, None]
    total = len(X) if weight is None else weight.sum()
    slope = slope[:, -len(model.coef_) :]
    gradient = (slope.T @ X + model.coef_ / model.C) / total / X.std(axis=0)
    return max(np.abs(gradient).max(), np.abs(slope.sum(axis=0)).max() / total)


@pytest.mark.parametrize("names", [[0, 1], [-1, 1], [1, 2], ["no", "yes"], list("abcde")], ids=str)
@pytest.mark.parametrize("C", [1e-4, 1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("weighted", [False, True])
def test_logistic_regression_agrees_with_scikit_learn(names, C, weighted):
    X = _columns()
    y = _labels(X, names)
    weight = np.random.default_rng(3).uniform(0, 2, len(X)) if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs = reference.LogisticRegression(
            C=C, tol=1e-10, solver="newton-cholesky", max_iter=1000
        ).fit(X, y, weight)
    ours = LogisticRegression(C=C, tol=1e-10).fit(X, y, weight)
    assert _difference(ours.coef_, theirs.coef_, X) < 1e-5
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ours.classes_, theirs.classes_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    for method in ("decision_function", "predict_proba", "predict_log_proba"):
        got, want = getattr(ours, method)(X), getattr(theirs, method)(X)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", [[0, 1], list("abcde")], ids=str)
@pytest.mark.parametrize("C", [1e-4, 1e-2, 1.0, 1e2, 1e4])
def test_logistic_regression_on_badly_scaled_columns(names, C):
    """scikit-learn is the reference where it converges; elsewhere we must be nearer the optimum."""
    X = _columns(badly_scaled=True)
    y = _labels(X, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = reference.LogisticRegression(
            C=C, tol=1e-10, solver="newton-cholesky", max_iter=1000
        ).fit(X, y)
    ours = LogisticRegression(C=C, tol=1e-10).fit(X, y)
    assert _kkt(ours, X, y) < 1e-9
    if _kkt(theirs, X, y) < 1e-9:
        # Added to all classes alike, a number changes no probability; the penalty wants these to
        # add up to nothing, but on the widest columns that is lost in scikit-learn's rounding.
        theirs_centred = theirs.coef_ - (theirs.coef_.mean(axis=0) if len(names) > 2 else 0)
        assert _difference(ours.coef_, theirs_centred, X) < 1e-5
    else:
        assert _kkt(ours, X, y) < _kkt(theirs, X, y)


@pytest.mark.parametrize("solver", ["lbfgs", "newton-cholesky"])
@pytest.mark.parametrize("class_weight", ["balanced", {"a": 3.0, "b": 0.5}])
def test_class_weights(solver, class_weight):
    X = _columns()
    y = _labels(X, list("abc"))
    weight = np.random.default_rng(3).uniform(0, 2, len(X))
    given_to_both = {"class_weight": class_weight, "tol": 1e-10, "max_iter": 1000}
    theirs = reference.LogisticRegression(solver="newton-cholesky", **given_to_both)
    theirs.fit(X, y, weight)
    ours = LogisticRegression(solver=solver, **given_to_both).fit(X, y, weight)
    assert ours.solver_ == solver.split("-")[0]
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)


def test_without_penalty_or_intercept():
    X = _columns()
    y = _labels(X, [0, 1])
    given_to_both = {"C": np.inf, "tol": 1e-10, "fit_intercept": False}
    theirs = reference.LogisticRegression(**given_to_both, max_iter=1000).fit(X, y)
    ours = LogisticRegression(**given_to_both).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_array_equal(ours.intercept_, theirs.intercept_)


def test_wide_rows_run_lbfgs():
    X = _columns(200, 700)
    y = _labels(X, [0, 1])
    ours = LogisticRegression(tol=1e-8, max_iter=1000).fit(sparse.csr_array(X), y)
    theirs = reference.LogisticRegression(tol=1e-8, max_iter=1000).fit(X, y)
    assert ours.solver_ == "lbfgs"
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


def test_the_mean_probability_is_the_share_of_positives():
    """An intercept that were penalised would pull it to one half."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2000, 5)), (rng.random(2000) < 0.98).astype(int)
    model = LogisticRegression(C=1e-3, tol=1e-8).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1].mean(), y.mean(), atol=1e-6)


def test_few_passes(cluster_client):
    rng = da.random.default_rng(0)
    X = rng.normal(size=(200_000, 20), chunks=(10_000, 20))
    y = (X[:, 0] - X[:, 1] + rng.logistic(size=200_000, chunks=10_000) > 0).astype(int)
    with cluster_client.as_current(), counting() as counts:
        model = LogisticRegression(tol=1e-6).fit(X, y)
    assert counts.passes == 2 + model.n_iter_[0] <= 6
    # 20 blocks are loaded once, then two workers reduce them and one task merges
    assert counts.tasks <= 20 + 4 * counts.passes


@pytest.mark.parametrize("case", ["separable", "without penalty", "a rare class", "sparse"])
def test_a_start_from_a_sample_saves_passes_and_changes_nothing(case, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 5))
    noise = 0 if case == "separable" else rng.logistic(size=30_000)
    y = (X[:, 0] - X[:, 1] + noise > (9 if case == "a rare class" else 0)).astype(int)
    rows = sparse.csr_array(np.where(np.abs(X) > 1, X, 0)) if case == "sparse" else X
    given_to_both = {"C": np.inf if case == "without penalty" else 1.0}
    ours = LogisticRegression(**given_to_both, tol=1e-10).fit(rows, y)
    with counting() as quick:
        LogisticRegression(**given_to_both, tol=1e-6).fit(rows, y)
    monkeypatch.setattr("skfleet.estimators.linear_model._glm_fit.SAMPLE_ROWS", 10**6)
    from_null = LogisticRegression(**given_to_both, tol=1e-10).fit(rows, y)
    with counting() as slow:
        LogisticRegression(**given_to_both, tol=1e-6).fit(rows, y)
    np.testing.assert_allclose(ours.coef_, from_null.coef_, rtol=1e-6)
    # a sample that hardly knows a class is no start, and costs nothing
    assert quick.passes < slow.passes + (case == "a rare class")


def test_a_start_that_is_no_better_than_zero_is_given_up(monkeypatch):
    X = np.random.default_rng(0).normal(size=(30_000, 5))
    y = _labels(X, [0, 1])
    want = LogisticRegression(tol=1e-10).fit(X, y)
    monkeypatch.setattr(
        "skfleet.estimators.linear_model._glm_fit._warm_start_on_sample",
        lambda *args: np.full(6, 1e3),
    )
    got = LogisticRegression(tol=1e-10).fit(X, y)
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-6, atol=1e-9)


def test_warm_start_goes_on():
    X = _columns()
    y = _labels(X, list("abc"))
    model = LogisticRegression(warm_start=True, tol=1e-8).fit(X, y)
    assert model.fit(X, y).n_iter_[0] == 0
    # another number of classes: nothing to go on from
    assert model.fit(X, (y == "a").astype(int)).n_iter_[0] > 0


def test_unfinished_solvers_warn():
    X = _columns()
    for solver in ("lbfgs", "newton-cholesky"):
        with pytest.warns(ConvergenceWarning, match="max_iter=1"):
            LogisticRegression(solver=solver, max_iter=1, tol=1e-12).fit(X, _labels(X, [0, 1]))


# -- both -------------------------------------------------------------------------------------


def _fit(kind, X, y, weight=None):
    if kind == "ridge":
        return Ridge().fit(X, y, sample_weight=weight)
    return LogisticRegression(tol=1e-10).fit(X, y, sample_weight=weight)


def _target(kind, X):
    return X[:, 0] * 2 + 1 if kind == "ridge" else _labels(X, [0, 1, 2])


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_every_world_gives_the_same_answer(world, kind):
    X = _columns(300)
    y = _target(kind, X)
    weight = np.random.default_rng(0).uniform(0.5, 3, 300)
    want = _fit(kind, X, y, weight)
    got = _fit(kind, world.X(X), world.column(y), world.column(weight))
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(got.intercept_, want.intercept_, rtol=1e-8, atol=1e-12)
    answer = got.predict(world.X(X))
    np.testing.assert_allclose(world.host(answer), want.predict(X), rtol=1e-8)
    score = got.score(world.X(X), world.column(y)) if "strict" not in world.name else None
    if score is not None:
        np.testing.assert_allclose(score, want.score(X, y), rtol=1e-8)


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), min_size=0, max_size=16),
    kind=st.sampled_from(["ridge", "logistic"]),
    n_sample=st.sampled_from([15, 2000]),
)
def test_any_cut_gives_the_same_answer(cuts, kind, n_sample):
    X = _columns(200, badly_scaled=True)
    y = _target(kind, X)
    edges = [0, *sorted(cuts), 200]
    rows = da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skfleet.estimators.linear_model._glm_fit.SAMPLE_ROWS", n_sample)
        patch.setattr("skfleet.estimators.linear_model._glm_fit.SAMPLE_ROWS_PER_COLUMN", 1)
        want, got = _fit(kind, X, y), _fit(kind, rows, y)
    np.testing.assert_allclose(got.coef_ * X.std(axis=0), want.coef_ * X.std(axis=0), rtol=1e-8)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_single_precision_stays_single(kind):
    X = _columns()
    y = _target(kind, X)
    double, single = _fit(kind, X, y), Ridge() if kind == "ridge" else LogisticRegression()
    single.fit(X.astype(np.float32), y)
    assert single.coef_.dtype == np.float32
    np.testing.assert_allclose(single.coef_, double.coef_, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (Ridge(solver="newton"), "solver must be one of"),
        (Ridge(-1), "alpha must be"),
        (Ridge([[1, 2]]), "alpha must be"),
        (Ridge(np.nan), "alpha must be"),
        (Ridge([1.0, 2.0]), "one per target. Got 2 numbers for 1 targets"),
        (Ridge(positive=1), "positive must be"),
        (LogisticRegression(solver="newton"), "solver must be one of"),
        (LogisticRegression(C=0), "C must be"),
        (LogisticRegression(C=-1), "C must be"),
        (LogisticRegression(tol=-1), "tol must be"),
        (LogisticRegression(max_iter=-1), "max_iter must be"),
        (LogisticRegression(l1_ratio=1.5), "l1_ratio must be"),
        (LogisticRegression(dual=1), "dual must be"),
        (LogisticRegression(dual=True), "supports only dual=False, got dual=True"),
        (LogisticRegression(class_weight="even"), "class_weight must be"),
        (LogisticRegression(class_weight={0: -1}), "class_weight must"),
    ],
    ids=str,
)
def test_bad_parameters_raise_before_any_pass(model, match):
    X = _columns(60)
    for rows in (X, da.from_array(X, chunks=(20, 8))):
        with counting() as counts, pytest.raises(ValueError, match=match):
            model.fit(rows, np.arange(60) % 2)
        assert counts.tasks == 0


def _spoiled(X, value):
    X = X.copy()
    X[7, 2] = value
    return X


@pytest.mark.parametrize("model", [Ridge(), LogisticRegression()], ids=str)
@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
class TestBadRows:
    def _raises(self, model, lazy, match, X, y, weight=None, *, before_work=True):
        if lazy:
            X = da.from_array(X, chunks=(20, *X.shape[1:]))
        with counting() as counts, pytest.raises(ValueError, match=match):
            model.fit(X, y, sample_weight=weight)
        if before_work or not lazy:
            assert counts.tasks == 0

    def test_not_finite(self, model, lazy):
        X = _columns(60)
        y = _labels(X, [0, 1])
        self._raises(model, lazy, "NaN", _spoiled(X, np.nan), y, before_work=False)
        self._raises(model, lazy, "inf", _spoiled(X, np.inf), y, before_work=False)

    def test_lengths(self, model, lazy):
        X = _columns(60)
        self._raises(model, lazy, "inconsistent numbers|as many rows", X, np.arange(59) % 2)
        y = _labels(X, [0, 1])
        self._raises(model, lazy, "as many rows", X, y, np.ones(59))

    def test_types(self, model, lazy):
        X = _columns(60)
        y = _labels(X, [0, 1])
        self._raises(
            model, lazy, "numeric|could not convert", np.full(X.shape, "a", dtype=object), y
        )
        self._raises(model, lazy, "Complex", X.astype(complex), y)
        self._raises(model, lazy, "2D|two dim", X[:, 0], y)

    def test_empty(self, model, lazy):
        self._raises(model, lazy, "0 sample|one row", np.empty((0, 3)), np.empty(0))

    def test_negative_weights(self, model, lazy):
        X = _columns(60)
        y = _labels(X, [0, 1])
        self._raises(model, lazy, "non-negative", X, y, -np.ones(60), before_work=False)

    def test_width_and_fit(self, model, lazy):
        X = _columns(60)
        with pytest.raises(NotFittedError):
            type(model)().predict(X)
        model = type(model)().fit(X, _labels(X, [0, 1]))
        narrow = X[:, :5]
        with pytest.raises(ValueError, match="5 features"):
            model.predict(da.from_array(narrow) if lazy else narrow)


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_one_class(lazy):
    X, y = _columns(60), np.zeros(60)
    if lazy:
        X, y = da.from_array(X, chunks=(20, 8)), da.from_array(y, chunks=30)
    with pytest.raises(ValueError, match="one class"):
        LogisticRegression().fit(X, y)


def test_other_kinds_of_lazy_rows():
    X = _columns(60)
    rows = da.from_array(X, chunks=(20, 8))
    with pytest.raises(TypeError, match="Got Delayed"):
        Ridge().fit(dask.delayed(X), X[:, 0])
    with counting() as counts, pytest.raises(ValueError, match="y should be a 1d array"):
        LogisticRegression().fit(rows, rows[:, :2] > 0)
    assert counts.tasks == 0
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        got = LogisticRegression().fit(rows, rows[:, :1] > 0)
    want = LogisticRegression().fit(rows, rows[:, 0] > 0)
    np.testing.assert_array_equal(got.coef_, want.coef_)


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_continuous_labels(lazy):
    X = _columns(60)
    rows = da.from_array(X, chunks=(20, 8)) if lazy else X
    with pytest.raises(ValueError, match="Unknown label type"):
        LogisticRegression().fit(rows, X[:, 0])
