"""Parameters of linear models that scikit-learn's users pass, with scikit-learn's answers."""

import warnings

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import linear_model as reference
from sklearn.callback.tests._utils import RecordingCallback
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import make_scorer, median_absolute_error

from random_examples import n_examples
from skfleet import estimators as ours

RNG = np.random.RandomState(0)
X = RNG.randn(40, 4)
Y = X[:, :2] * 2 + RNG.randn(40, 2)
WEIGHT = RNG.rand(40) + 0.1
LABELS = (Y[:, 0] > 0).astype(int)


def error_of(estimator, X, y, sample_weight=None):
    return -float(np.quantile(np.abs(estimator.predict(X) - y), 0.7))


def lazy(values):
    return da.from_array(values, chunks=(15, *values.shape[1:]))


@settings(max_examples=n_examples(8, 60), deadline=None)
@given(data=st.data())
def test_ridge_cv_takes_any_scorer(data):
    draw = data.draw
    scorers = ["explained_variance", "neg_mean_absolute_error", "neg_median_absolute_error", "r2"]
    scorers += [None, "neg_mean_squared_error"]
    on_dask = draw(st.booleans())
    if not on_dask:
        scorers += [error_of, make_scorer(median_absolute_error, greater_is_better=False)]
    settings = {
        "scoring": draw(st.sampled_from(scorers)),
        "cv": draw(st.sampled_from([None, 3, 5])),
        "fit_intercept": draw(st.booleans()),
    }
    y = draw(st.sampled_from([Y[:, 0], Y[:, :1], Y]))
    if settings["cv"] is None and y.shape[1:] == (2,):
        settings["alpha_per_target"] = draw(st.booleans())
    weight = draw(st.sampled_from([None, WEIGHT]))
    alphas = draw(st.sampled_from([(0.1, 1.0, 100.0), [1, 10], np.array([0.5, 5.0])]))
    theirs = reference.RidgeCV(alphas, **settings).fit(X, y, weight)
    rows = [v if v is None or not on_dask else lazy(v) for v in (X, y, weight)]
    model = ours.RidgeCV(alphas, **settings).fit(*rows)
    np.testing.assert_allclose(model.alpha_, theirs.alpha_)
    np.testing.assert_allclose(model.best_score_, theirs.best_score_)
    np.testing.assert_allclose(model.coef_, theirs.coef_)
    assert type(model.alpha_) is type(theirs.alpha_)
    assert type(model.best_score_) is type(theirs.best_score_)


@pytest.mark.parametrize("name", ["RidgeCV", "LassoCV", "ElasticNetCV"])
@pytest.mark.parametrize("alphas", [["a", 1], [1, "a"], [1, -1], [1, None]])
def test_invalid_alphas_raise_as_in_scikit_learn(name, alphas):
    with pytest.raises((TypeError, ValueError)) as theirs:
        getattr(reference, name)(alphas=alphas).fit(X, Y[:, 0])
    with pytest.raises(theirs.type, match=r"alphas\[\d\]") as error:
        getattr(ours, name)(alphas=alphas).fit(X, Y[:, 0])
    assert str(error.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("name", "alphas"),
    [("RidgeCV", []), ("LassoCV", np.array([])), ("LassoCV", 5.5), ("ElasticNetCV", 0)],
)
def test_numbers_of_alphas(name, alphas):
    with pytest.raises(ValueError, match="alphas must"):
        getattr(ours, name)(alphas=alphas).fit(X, Y[:, 0])


def test_a_gcv_mode_that_sparse_rows_do_not_have_warns():
    model = ours.RidgeCV(gcv_mode="svd")
    with pytest.warns(FutureWarning, match="The 'svd' mode is not supported for sparse X"):
        model.fit(sparse.csr_matrix(X), Y)


@pytest.mark.parametrize("settings", [{}, {"class_weight": "balanced"}])
def test_ridge_classifier_of_one_class(settings):
    y = np.full(40, "only")
    theirs = reference.RidgeClassifier(**settings).fit(X, y)
    for rows in ((X, y), (lazy(X), lazy(y))):
        model = ours.RidgeClassifier(**settings).fit(*rows)
        np.testing.assert_array_equal(model.predict(X), theirs.predict(X))
        np.testing.assert_allclose(model.coef_, theirs.coef_)
        np.testing.assert_allclose(model.intercept_, theirs.intercept_)


def test_dual_is_a_request_of_liblinear_alone():
    model = ours.LogisticRegression().fit(X, LABELS)
    dual = ours.LogisticRegression(dual=True, solver="liblinear").fit(X, LABELS)
    np.testing.assert_array_equal(dual.coef_, model.coef_)
    for solver in ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga"):
        with pytest.raises(ValueError, match=f"Solver {solver} supports only dual=False, got dual"):
            ours.LogisticRegression(dual=True, solver=solver).fit(X, LABELS)
    with pytest.raises(ValueError, match="dual must be False with an L1 penalty"):
        ours.LogisticRegression(dual=True, solver="liblinear", l1_ratio=1).fit(X, LABELS)


def test_intercept_scaling_has_no_effect():
    model = ours.LogisticRegression(intercept_scaling=1e4).fit(X, LABELS)
    np.testing.assert_array_equal(model.coef_, ours.LogisticRegression().fit(X, LABELS).coef_)
    with pytest.raises(ValueError, match="intercept_scaling must be"):
        ours.LogisticRegression(intercept_scaling=0).fit(X, LABELS)


@pytest.mark.parametrize("l1_ratio", [0, 0.5])
@pytest.mark.parametrize("solver", ["auto", "lbfgs", "newton-cg"])
def test_no_iterations_leave_the_shares_of_the_classes(solver, l1_ratio):
    model = ours.LogisticRegression(solver=solver, l1_ratio=l1_ratio, max_iter=0)
    with pytest.warns(ConvergenceWarning):
        model.fit(lazy(X), lazy(LABELS))
    assert model.n_iter_ == 0
    np.testing.assert_array_equal(model.coef_, 0)
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], LABELS.mean())


@pytest.mark.parametrize("max_iter", [0, 3, 1000])
def test_callbacks_see_each_iteration(max_iter):
    labels = np.digitize(Y[:, 0], [-1, 1])
    callback = RecordingCallback()
    model = ours.LogisticRegression(solver="lbfgs", max_iter=max_iter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_callbacks(callback).fit(lazy(X), lazy(labels))
        early = ours.LogisticRegression(solver="lbfgs", max_iter=2).fit(X, labels)
    for hook in ("on_fit_task_begin", "on_fit_task_end"):
        assert callback.count_hooks(hook) == 1 + max(int(model.n_iter_[0]), 1) + 1
    assert callback.count_hooks("setup") == callback.count_hooks("teardown") == 1
    if max_iter:
        ends = [r for r in callback.record if r["name"] == "on_fit_task_end"]
        second = ends[1]["kwargs"]["fitted_estimator"]
        np.testing.assert_allclose(second.coef_, early.coef_)
        np.testing.assert_array_equal(second.predict(X), early.predict(X))


def test_callbacks_of_other_solvers_warn():
    with pytest.warns(UserWarning, match="Callbacks are only supported in LogisticRegression for"):
        ours.LogisticRegression().set_callbacks(RecordingCallback())


def test_a_failed_fit_tears_its_callbacks_down():
    callback = RecordingCallback()
    model = ours.LogisticRegression(solver="lbfgs", C=-1).set_callbacks(callback)
    with pytest.raises(ValueError, match="C must be"):
        model.fit(X, LABELS)
    assert callback.count_hooks("setup") == callback.count_hooks("teardown") == 0


@pytest.mark.parametrize("model", [ours.ElasticNet(0.1), ours.Lasso(0.1)])
def test_a_gram_matrix_is_checked_and_changes_nothing(model):
    centred = X - X.mean(axis=0)
    expected = model.fit(centred, Y[:, 0], check_input=False).coef_
    model.precompute = centred.T @ centred
    np.testing.assert_array_equal(model.fit(centred, Y[:, 0]).coef_, expected)
    with pytest.warns(UserWarning, match="Gram matrix was provided but X was centered"):
        model.fit(X, Y[:, 0])
    model.precompute = np.eye(4)
    with pytest.raises(ValueError, match="did not pass validation"):
        model.fit(lazy(centred), lazy(Y[:, 0]))
