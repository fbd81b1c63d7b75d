"""Linear models with built-in cross-validation choose as scikit-learn does."""

import warnings

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_cases import CASES, make_design
from scipy import sparse
from sklearn import linear_model as reference
from sklearn.model_selection import KFold, LeaveOneOut, ShuffleSplit

from random_examples import n_examples
from skfleet import estimators as ours

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
    X = make_design("plain")
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


@pytest.mark.sampled(2)
@pytest.mark.parametrize("settings", SPLITS, ids=str)
def test_lasso_cv_chooses_as_scikit_learn_does(settings):
    X = make_design("wide")
    y = CASES["lasso"].y(X)
    got = ours.LassoCV(tol=1e-9, max_iter=100_000, **settings).fit(X, y)
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
    X = make_design(design)
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


def test_more_folds_than_rows():
    with pytest.raises(ValueError, match="cv must be at most the number of rows"):
        ours.LassoCV(cv=10).fit(np.eye(6), np.arange(6.0))


def test_groups_reach_the_splitter_by_routing():
    from sklearn import config_context
    from sklearn.model_selection import GroupKFold

    X = make_design("plain")
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


ITERATORS = {
    "generator": lambda splits: (split for split in splits),
    "iter": iter,
    "map": lambda splits: map(tuple, splits),
    "zip": lambda splits: zip(*zip(*splits, strict=True), strict=True),
}
CONTAINERS = {"array": lambda v: v, "dask": lambda v: da.from_array(v, chunks=(70, *v.shape[1:]))}


@pytest.mark.parametrize("container", list(CONTAINERS))
@pytest.mark.parametrize("form", list(ITERATORS))
@pytest.mark.parametrize("name", ["RidgeCV", "LassoCV", "ElasticNetCV"])
def test_an_iterator_of_splits_is_read_once(name, form, container):
    X = make_design("plain")
    y = CASES["lasso"].y(X)
    splits = list(KFold(4, shuffle=True, random_state=0).split(X))
    cv = ITERATORS[form](splits)
    model = getattr(ours, name)(cv=cv)
    rows = CONTAINERS[container](X), CONTAINERS[container](y)
    assert model.get_metadata_routing() is not None  # reads nothing
    model.fit(*rows)
    want = getattr(reference, name)(cv=splits).fit(X, y)
    assert model.alpha_ == pytest.approx(want.alpha_)
    assert model.cv is cv
    with pytest.raises(ValueError, match="cv must have splits"):
        model.fit(*rows)


@settings(max_examples=n_examples(3, 30), deadline=None)
@given(
    name=st.sampled_from(["RidgeCV", "LassoCV", "ElasticNetCV"]),
    container=st.sampled_from(list(CONTAINERS)),
    seed=st.integers(0, 1000),
    is_weighted=st.booleans(),
)
def test_rows_of_splits_count_as_often_as_they_are_drawn(name, container, seed, is_weighted):
    X = make_design("plain")
    y, rng = CASES["lasso"].y(X), np.random.default_rng(seed)
    splits = [(rng.integers(0, len(X), 250), rng.integers(0, len(X), 50)) for _ in range(3)]
    weight = rng.uniform(0.5, 2, len(X)) if is_weighted else None
    options = {"cv": splits, "alphas": [0.01, 1.0, 100.0]}
    want = getattr(reference, name)(**options).fit(X, y, sample_weight=weight)
    of = CONTAINERS[container]
    got = getattr(ours, name)(**options)
    got.fit(of(X), of(y), None if weight is None else of(weight))
    assert got.alpha_ == want.alpha_
    np.testing.assert_allclose(got.coef_, want.coef_, atol=1e-3)
    if name == "RidgeCV":
        np.testing.assert_allclose(got.best_score_, want.best_score_)
    else:
        np.testing.assert_allclose(got.mse_path_, want.mse_path_, rtol=1e-3)


def _fit_with_warnings(model, X, y, weight):
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        model.fit(X, y, weight)
    return {(r.category, str(r.message)[:50]) for r in records}


@pytest.mark.parametrize("container", list(CONTAINERS))
@pytest.mark.parametrize("scoring", [None, "neg_mean_squared_error"])
@pytest.mark.parametrize(
    "kind", ["one row", "some of one row", "constant", "no weight", "no training weight"]
)
def test_scores_of_degenerate_folds_are_those_of_scikit_learn(kind, scoring, container):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 3))
    y, weight, cv = X[:, 0] + rng.normal(size=12), None, KFold(3)
    if kind == "one row":
        cv = LeaveOneOut()
    elif kind == "some of one row":
        cv = [(np.arange(1, 12), [0]), (np.arange(6), np.arange(6, 12))]
    elif kind == "constant":
        y[:4] = 3.0
    else:
        weight = np.ones(12)
        weight[slice(0, 4) if kind == "no weight" else slice(4, 12)] = 0.0
    models = [
        module.RidgeCV([0.1, 1.0, 10.0], cv=cv, scoring=scoring) for module in (ours, reference)
    ]
    of = CONTAINERS[container]
    got = _fit_with_warnings(models[0], of(X), of(y), None if weight is None else of(weight))
    assert got == _fit_with_warnings(models[1], X, y, weight)
    np.testing.assert_allclose(models[0].best_score_, models[1].best_score_)
    assert models[0].alpha_ == models[1].alpha_
    np.testing.assert_allclose(models[0].coef_, models[1].coef_)
