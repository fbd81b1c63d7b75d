"""Missing categories of Dask's text in scores from sums, and rows that these do not take."""

import logging

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import compose, impute, linear_model, preprocessing
from sklearn.model_selection import GridSearchCV as ReferenceSearch
from sklearn.pipeline import make_pipeline

from random_examples import n_examples
from skfleet import estimators
from skfleet.model_selection import GridSearchCV

ALPHAS = {"ridge__alpha": [0.1, 10.0]}
DTYPES = ("string[pyarrow]", "string[python]", "object", "category", "Int64", "boolean")


def rows_of(dtype, seed=0, n_rows=90):
    """Return categories with gaps beside numbers, and their targets."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, 2, n_rows)
    values = {"Int64": [3, 5], "boolean": [False, True]}.get(dtype, ["a", "b"])
    column = pd.Series([pd.NA if code < 0 else values[code] for code in codes], dtype=object)
    column = column.astype("string[pyarrow]" if dtype == "category" else dtype).astype(dtype)
    frame = pd.DataFrame({"x": column, "z": rng.normal(size=n_rows)})
    return frame, frame.z + 2.0 * codes + rng.normal(scale=0.5, size=n_rows)


def on_dask(frame, y):
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(frame, npartitions=3), dd.from_pandas(y.rename("y"), npartitions=3)


def pipeline_of(encoders, imputers, columns, models, strategy):
    imputer = imputers.SimpleImputer(strategy=strategy)
    encoder = encoders.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    steps = [("x", make_pipeline(imputer, encoder), ["x"]), ("z", "passthrough", ["z"])]
    return make_pipeline(columns.ColumnTransformer(steps), models.Ridge())


def ours(strategy="most_frequent"):
    return pipeline_of(*[estimators] * 4, strategy)


def scores_of(search):
    return search.cv_results_["mean_test_score"]


@pytest.mark.slow
@settings(max_examples=n_examples(3, 40), deadline=None)
@given(st.sampled_from(DTYPES), st.sampled_from(["most_frequent", "constant"]), st.integers(0, 99))
def test_gaps_of_every_dtype_are_scored_from_sums(dtype, strategy, seed):
    frame, y = rows_of(dtype, seed)
    reference = pipeline_of(preprocessing, impute, compose, linear_model, strategy)
    objects = frame.x.astype(object).where(frame.x.notna(), np.nan)
    rows = frame if dtype in ("Int64", "boolean") else frame.assign(x=objects)
    expected = scores_of(ReferenceSearch(reference, ALPHAS, cv=3).fit(rows, y))
    for X, target in ((frame, y), on_dask(frame, y)):
        search = GridSearchCV(ours(strategy), ALPHAS, cv=3, error_score="raise").fit(X, target)
        (use,) = [use for use in search.shared_fits_ if use.estimator == "Pipeline"]
        assert use.refused is None
        np.testing.assert_allclose(scores_of(search), expected, rtol=1e-6)


def test_rows_that_sums_do_not_take_fail_no_task(cluster_client, caplog):
    frame, y = rows_of("object")
    frame["x"] = frame.x.astype(object).where(frame.x.notna(), None)  # a category of its own
    encoder = estimators.OneHotEncoder(handle_unknown="ignore")
    model = make_pipeline(estimators.ColumnTransformer([("x", encoder, ["x"])]), estimators.Ridge())
    reference = make_pipeline(
        compose.ColumnTransformer(
            [("x", preprocessing.OneHotEncoder(handle_unknown="ignore"), ["x"])]
        ),
        linear_model.Ridge(),
    )
    expected = scores_of(ReferenceSearch(reference, ALPHAS, cv=3).fit(frame, y))
    with cluster_client.as_current(), caplog.at_level(logging.WARNING):
        search = GridSearchCV(model, ALPHAS, cv=3).fit(*on_dask(frame, y))
    assert search.shared_fits_[0].refused == "missing categories must be NaN or NA"
    np.testing.assert_allclose(scores_of(search), expected, rtol=1e-6)
    assert not [line for line in caplog.messages if line.startswith("Compute Failed")]
