"""The last fit of a search over pipelines on Dask rows, begun while the candidates are scored."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import Pipeline, make_pipeline

from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import (
    PCA,
    ColumnTransformer,
    MinMaxScaler,
    OneHotEncoder,
    Ridge,
    SimpleImputer,
    StandardScaler,
)
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV

rng = np.random.default_rng(0)
N_ROWS = 400
FRAME = pd.DataFrame(
    {
        "far": rng.normal(size=N_ROWS) + 1e4,
        "gaps": np.where(rng.random(N_ROWS) < 0.1, np.nan, rng.random(N_ROWS)),
        "kind": rng.choice(["a", "b", "c"], N_ROWS),
        "target": rng.normal(size=N_ROWS),
    },
    index=np.arange(N_ROWS)[::-1] % 50,
)
ALPHAS = {"ridge__alpha": [0.1, 1.0, 10.0]}


@pytest.fixture
def rows(cluster_client):
    """Yield rows on Dask, of unknown lengths, and their targets."""
    lazy = dd.from_pandas(FRAME, npartitions=5, sort=False)
    lazy = lazy[lazy["far"] > 9_998.5]
    with cluster_client.as_current():
        yield lazy[["far", "gaps", "kind"]], lazy["target"]


def mixed(**scaler_params):
    """Return transformers of the three columns."""
    numeric = make_pipeline(SimpleImputer(), StandardScaler(**scaler_params))
    return ColumnTransformer(
        [("numeric", numeric, ["far", "gaps"]), ("kind", OneHotEncoder(), ["kind"])]
    )


@pytest.fixture(autouse=True)
def fixed_order():
    """Sum blocks in a fixed order: the search has loaded its rows, the fit by itself has not."""
    with config_context(deterministic=True):
        yield


def assert_as_fitted(search, X, y, params=None):
    """Check that the best estimator is that of a fit by itself."""
    expected = search.estimator.set_params(**search.best_params_).fit(X, y, **(params or {}))
    for (_, step), (name, other) in zip(search.best_estimator_.steps, expected.steps, strict=True):
        assert type(step) is type(other)
        assert vars(step).keys() == vars(other).keys(), name
    for fitted in (search.best_estimator_, expected):
        assert list(fitted[:-1].get_feature_names_out()) == list(
            expected[:-1].get_feature_names_out()
        )
    np.testing.assert_array_equal(search.best_estimator_[-1].coef_, expected[-1].coef_)
    predictions = search.predict(X).compute()
    np.testing.assert_array_equal(predictions, expected.predict(X).compute())


def test_scaler_and_ridge_take_two_passes(cluster_client):
    X, y = FRAME[["far"]].to_numpy(), FRAME["target"].to_numpy()
    lazy = da.from_array(X, chunks=90), da.from_array(y, chunks=90)
    pipeline = make_pipeline(StandardScaler(), Ridge())
    with cluster_client.as_current():
        with counting() as counts:
            search = GridSearchCV(pipeline, ALPHAS, cv=3).fit(*lazy)
        assert counts.passes == 2
        assert_as_fitted(search, *lazy)


@pytest.mark.parametrize(
    ("steps", "grid", "n_passes"),
    [
        # one pass that scores, one of the scaler behind the imputer, one of Ridge
        ([("columns", mixed())], ALPHAS, 3),
        (
            [("columns", mixed())],
            ALPHAS | {"columns__numeric__standardscaler__with_mean": [True, False]},
            3,
        ),
        ([("columns", mixed()), ("pca", PCA(2))], ALPHAS, 4),
    ],
    ids=["columns", "parameters", "components"],
)
def test_first_pass_is_shared(rows, steps, grid, n_passes):
    X, y = rows
    with counting() as counts:
        search = GridSearchCV(Pipeline([*steps, ("ridge", Ridge())]), grid, cv=3).fit(X, y)
    assert_as_fitted(search, X, y)
    assert counts.passes == n_passes
    assert search.timeline_.empty


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weights", "verbose", "many"])
def test_other_refits_are_whole(rows, kind):
    X, y = rows[0][["far"]], rows[1]
    pipeline = make_pipeline(StandardScaler(), Ridge())
    grid, params = dict(ALPHAS), {}
    if kind == "weights":
        params = {"ridge__sample_weight": y**2}
    elif kind == "verbose":
        pipeline.verbose = True
    else:
        grid["standardscaler"] = [MinMaxScaler(feature_range=(0, high)) for high in range(1, 5)] + [
            StandardScaler()
        ]
    search = GridSearchCV(pipeline, grid, cv=3).fit(X, y, **params)
    assert_as_fitted(search, X, y, params)


def test_halving_refits_on_all_rows(rows):
    X, y = rows[0][["far"]], rows[1]
    pipeline = make_pipeline(StandardScaler(), Ridge())
    search = HalvingGridSearchCV(pipeline, ALPHAS, cv=3, min_resources=60).fit(X, y)
    assert_as_fitted(search, X, y)
