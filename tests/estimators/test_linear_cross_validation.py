"""Linear models with built-in cross-validation choose as scikit-learn does."""

import numpy as np
import pytest
from linear_cases import CASES, make_design
from scipy import sparse
from sklearn import linear_model as reference
from sklearn.model_selection import KFold, ShuffleSplit

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
