"""Pipelines with sample weights whose scores follow from sums over the rows."""

import warnings

import dask.array as da
import numpy as np
import pytest
import sklearn
import sklearn.model_selection as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_search import assert_same_split_scores, compare
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, Ridge, RidgeClassifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, PolynomialFeatures, StandardScaler

from random_examples import n_examples
from skfleet import estimators
from skfleet.engine import counting
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.usefixtures("one_thread")

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4)) * [1, 10, 0.1, 1] + [0, 100, 3, 0]
y = X @ [1, -0.2, 5, 0] + (X[:, 0] > 0) * X[:, 3] + rng.normal(size=300)
w = rng.exponential(size=300) * (rng.random(300) < 0.9)
LABELS = (y > y.mean()).astype(int)


def is_scored(search):
    """Return whether all scores are from sums: there was no fit to be timed."""
    return search.timeline_.empty


def reason_of(search):
    (use,) = [use for use in search.shared_fits_ if use.estimator == "Pipeline"]
    return use.refused


@pytest.mark.parametrize("names", [["model"], ["scale"], ["scale", "model"]], ids=str)
@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (Ridge(), {"alpha": [0.1, 10.0]}),
        (Ridge(fit_intercept=False), {"alpha": [0.1, 10.0]}),
        (LinearRegression(), {"fit_intercept": [True, False]}),
        (Lasso(tol=1e-10), {"alpha": [0.01, 0.1]}),
        (ElasticNet(tol=1e-10), {"alpha": [0.01, 0.1]}),
        (RidgeClassifier(), {"alpha": [0.1, 10.0]}),
        (estimators.Ridge(), {"alpha": [0.1, 10.0]}),
    ],
    ids=["ridge", "no intercept", "ols", "lasso", "elastic net", "classifier", "own"],
)
def test_weights_of_steps(names, model, grid):
    pipeline = Pipeline(
        [
            ("scale", StandardScaler()),
            ("poly", PolynomialFeatures(include_bias=False)),
            ("model", model),
        ]
    )
    grid = {f"model__{name}": values for name, values in grid.items()}
    params = {f"{name}__sample_weight": w for name in names}
    labels = LABELS if isinstance(model, RidgeClassifier) else y
    search = compare(pipeline, grid, X, labels, rtol=1e-8, fit_params=params)
    assert is_scored(search), search.shared_fits_


@pytest.mark.parametrize("scoring", ["neg_mean_absolute_error", "r2"])
def test_routed_weights(scoring):
    rows = np.column_stack([X, np.arange(300) % 3])
    grid = {"ridge__alpha": [0.1, 10.0]}
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = get_scorer(scoring).set_score_request(sample_weight=False)
        columns = make_column_transformer(
            (StandardScaler().set_fit_request(sample_weight=True), [0, 1]),
            (StandardScaler().set_fit_request(sample_weight=False), [2]),
            (OneHotEncoder(sparse_output=False), [4]),
            remainder=MinMaxScaler(),
        )
        for request in (True, False):
            pipeline = make_pipeline(columns, Ridge().set_fit_request(sample_weight=request))
            options = {"rtol": 1e-9, "fit_params": {"sample_weight": w}, "scoring": scorer}
            assert is_scored(compare(pipeline, grid, rows, y, **options))
        # as long as neither is chosen, scikit-learn raises
        options = {"cv": 3, "refit": False, "scoring": scorer, "error_score": "raise"}
        search = GridSearchCV(make_pipeline(StandardScaler(), Ridge()), grid, **options)
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError):
            search.fit(rows, y, sample_weight=w)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"ridge__sample_weight": w, "scale__sample_weight": 2 * w}, "one sample_weight"),
        ({"scale__sample_weight": w, "ridge__sample_weight": None}, None),
        ({"ridge__sample_weight": 2.0}, "one sample_weight"),
    ],
)
def test_which_weights(params, reason):
    pipeline = Pipeline([("scale", StandardScaler()), ("ridge", Ridge())])
    grid = {"ridge__alpha": [0.1, 10.0]}
    search = compare(pipeline, grid, X, y, rtol=1e-9, fit_params=params)
    assert is_scored(search) == (reason is None)
    assert reason is None or reason in reason_of(search)


@pytest.mark.filterwarnings("ignore")
def test_weights_that_are_negative():
    pipeline = Pipeline([("scale", StandardScaler()), ("ridge", Ridge())])
    search = GridSearchCV(pipeline, {"ridge__alpha": [0.1, 10.0]}, cv=3, refit=False)
    with pytest.raises(ValueError, match="fits failed"):
        search.fit(X, y, ridge__sample_weight=-w)


def test_weighted_dask_rows(cluster_client):
    pipeline = make_pipeline(estimators.StandardScaler(), estimators.Ridge())
    grid, params = {"ridge__alpha": [0.1, 100.0]}, {"ridge__sample_weight": w}
    expected = reference.GridSearchCV(make_pipeline(StandardScaler(), Ridge()), grid, cv=3)
    expected.fit(X, y, **params)
    X_lazy, y_lazy = da.from_array(X, chunks=((0, 150, 1, 149), 4)), da.from_array(y, chunks=100)
    for weights in (w, da.from_array(w, chunks=70)):
        with cluster_client.as_current(), counting() as counts:
            search = GridSearchCV(pipeline, grid, cv=3, refit=False)
            search.fit(X_lazy, y_lazy, ridge__sample_weight=weights)
        assert is_scored(search)
        assert counts.passes == 1
        assert_same_split_scores(search, expected, 1e-10)


@settings(max_examples=n_examples(15, 200), deadline=None)
@given(
    steps=st.lists(
        st.sampled_from([StandardScaler(), MinMaxScaler(), PCA(3), PolynomialFeatures(2)]),
        max_size=3,
        unique_by=type,
    ),
    model=st.sampled_from(
        [(Ridge(), 1e-10), (LinearRegression(), 1e-9), (Lasso(0.1, tol=1e-12), 1e-7)]
    ),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    shift=st.sampled_from([0.0, 1e3]),
    zeros=st.sampled_from([0.0, 0.5]),
    spread=st.sampled_from([0.0, 1.0, 5.0]),
    is_step_weighted=st.booleans(),
    cv=st.sampled_from([KFold(3), ShuffleSplit(2, random_state=0)]),
    seed=st.integers(0, 1000),
)
def test_weights_at_random(steps, model, scale, shift, zeros, spread, is_step_weighted, cv, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(120, 4)) * np.logspace(0, np.log10(scale), 4) + shift
    targets = rows @ rng.normal(size=4) + scale * rng.normal(size=120)
    weights = np.exp(spread * rng.normal(size=120)) * (rng.random(120) >= zeros)
    last, tolerance = model
    pipeline = Pipeline([*((type(step).__name__, step) for step in steps), ("model", last)])
    params = {"model__sample_weight": weights}
    if is_step_weighted and "StandardScaler" in pipeline.named_steps:
        params["StandardScaler__sample_weight"] = weights
    options = {"cv": cv, "refit": False, "scoring": "neg_mean_squared_error"}
    grid = {"model__fit_intercept": [True, False]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(pipeline, grid, **options).fit(rows, targets, **params)
        expected = reference.GridSearchCV(pipeline, grid, **options).fit(rows, targets, **params)
    if not is_scored(search):  # fits may differ too, as of components with equal variances
        assert reason_of(search)
        return
    left, right = (s.cv_results_["mean_test_score"] for s in (search, expected))
    np.testing.assert_allclose(left, right, rtol=tolerance)
