"""Missing values of every dtype: a model does to blocks what it does to the same rows as a frame.

The right answer is scikit-learn's; where it refuses ``pandas.NA``, that for objects with NaN.
"""

import warnings

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_examples import n_examples
from scipy import sparse
from sklearn import compose, impute, linear_model, pipeline, preprocessing
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV as ReferenceSearch

from skfleet import estimators, metrics
from skfleet.blocks import artificial_rows, with_objects, with_pandas_text
from skfleet.model_selection import GridSearchCV, cross_validate

TEXT, NUMBERS, TRUTH = ("b", "a", "c"), (2, 1, 3), (True, False, True)
DAYS = tuple(pd.date_range("2026-01-01", periods=3).date)
# Of a kind of column: its values, its dtype, and whether it becomes one of categories.
TEXTS = {
    "string[pyarrow]": (TEXT, "string[pyarrow]", False),
    "string[python]": (TEXT, "string[python]", False),
    "str": (TEXT, pd.StringDtype("pyarrow", na_value=np.nan), False),
    "object": (TEXT, object, False),
    "large_string": (TEXT, pd.ArrowDtype(pa.large_string()), False),
    "categories of string": (TEXT, "string[pyarrow]", True),
    "categories of Arrow's": (TEXT, pd.ArrowDtype(pa.string()), True),
    "categories of objects": (TEXT, object, True),
    "date32": (DAYS, pd.ArrowDtype(pa.date32()), False),
}
KINDS_OF_NUMBERS = {
    "Int64": (NUMBERS, "Int64", False),
    "boolean": (TRUTH, "boolean", False),
    "Float64": (NUMBERS, "Float64", False),
    "int64[pyarrow]": (NUMBERS, pd.ArrowDtype(pa.int64()), False),
    "bool[pyarrow]": (TRUTH, pd.ArrowDtype(pa.bool_()), False),
    "float64": (NUMBERS, "float64", False),
    "categories of Int64": (NUMBERS, "Int64", True),
    "categories of boolean": (TRUTH, "boolean", True),
}
KINDS = TEXTS | KINDS_OF_NUMBERS


def column(kind, codes):
    """Return the values of a kind by number, missing ones for -1."""
    values, dtype, of_categories = KINDS[kind]
    gap = np.nan if dtype == "float64" else pd.NA
    chosen = [gap if code < 0 else values[code] for code in codes]
    series = pd.Series(chosen, dtype=object).astype(dtype)
    return series.astype("category") if of_categories else series


def as_objects(frame):
    """Return a frame as scikit-learn takes it: as objects, with NaN for every missing value."""
    return frame.astype(object).where(frame.notna(), np.nan)


def on_dask(values, n_partitions=2):
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(values, npartitions=n_partitions)


def values_of(result):
    """Return results as lists, in which a missing value is None."""
    if dask.is_dask_collection(result):
        result = result.compute(scheduler="synchronous")
    if sparse.issparse(result):
        result = result.toarray()
    values = np.asarray(result)
    values = values.round(9) if values.dtype.kind == "f" else values
    rows = values.reshape(len(values), -1).astype(object)
    return [[None if pd.isna(value) else value for value in row] for row in rows]


def answer(model, X):
    return values_of((model.predict if hasattr(model, "predict") else model.transform)(X))


def is_missing(X):
    """Return what a function of a user's sees of missing values: that they are not themselves."""
    return np.array([[value != value for value in row] for row in X.to_numpy().tolist()])


def one_hot(library):
    return library.OneHotEncoder(handle_unknown="ignore")


def ordinal(library):
    return library.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)


def most_frequent(library, **params):
    return library.SimpleImputer(strategy="most_frequent", **params)


CASES = {
    "one-hot": (one_hot(estimators), one_hot(preprocessing)),
    "ordinal": (ordinal(estimators), ordinal(preprocessing)),
    "target": (
        estimators.TargetEncoder(random_state=0),
        preprocessing.TargetEncoder(random_state=0),
    ),
    "most frequent": (most_frequent(estimators), most_frequent(impute)),
    "of NA": (
        most_frequent(estimators, missing_values=pd.NA),
        most_frequent(impute, missing_values=pd.NA),
    ),
    "constant": (
        estimators.SimpleImputer(strategy="constant"),
        impute.SimpleImputer(strategy="constant"),
    ),
    "indicator": (
        estimators.MissingIndicator(features="all"),
        impute.MissingIndicator(features="all"),
    ),
    "function": (
        estimators.FunctionTransformer(is_missing),
        preprocessing.FunctionTransformer(is_missing),
    ),
    "columns": (
        estimators.ColumnTransformer([("x", ordinal(preprocessing), ["x"])]),
        compose.ColumnTransformer([("x", ordinal(preprocessing), ["x"])]),
    ),
    "union": (
        estimators.FeatureUnion([("x", one_hot(estimators)), ("y", ordinal(estimators))]),
        pipeline.FeatureUnion([("x", one_hot(preprocessing)), ("y", ordinal(preprocessing))]),
    ),
    "pipeline": (
        pipeline.make_pipeline(one_hot(estimators), estimators.Ridge()),
        pipeline.make_pipeline(one_hot(preprocessing), linear_model.Ridge()),
    ),
    "wrapper": (
        estimators.ParallelPostFit(
            pipeline.make_pipeline(one_hot(preprocessing), linear_model.Ridge())
        ),
        pipeline.make_pipeline(one_hot(preprocessing), linear_model.Ridge()),
    ),
}
NUMERIC_CASES = {
    "mean": (estimators.SimpleImputer(), impute.SimpleImputer()),
    "scaler": (estimators.StandardScaler(), preprocessing.StandardScaler()),
    "model": (
        pipeline.make_pipeline(estimators.SimpleImputer(), estimators.Ridge()),
        pipeline.make_pipeline(impute.SimpleImputer(), linear_model.Ridge()),
    ),
}
CODES = st.lists(st.integers(-1, 2), min_size=6, max_size=16)


@st.composite
def cases(draw):
    """Draw an estimator with its reference, and rows of kinds that it takes, to fit and to ask."""
    name = draw(st.sampled_from(sorted(CASES | NUMERIC_CASES)))
    kinds = KINDS_OF_NUMBERS if name in NUMERIC_CASES else KINDS
    takes_several = name in ("most frequent", "constant", "indicator", "one-hot", "ordinal")
    n_columns = 1 + (takes_several and draw(st.booleans()))
    chosen = [draw(st.sampled_from(sorted(kinds))) for _ in range(n_columns)]
    has_gaps = draw(st.booleans())
    frames = []
    for part in (draw(CODES), draw(CODES)):
        part = part if has_gaps else [abs(code) for code in part]
        parts = [part[i:] + part[:i] for i in range(n_columns)]
        frames.append(pd.DataFrame(dict(zip("xz", map(column, chosen, parts), strict=False))))
    texts = [name for name, kind in zip("xz", chosen, strict=False) if kind in TEXTS]
    return (CASES | NUMERIC_CASES)[name], frames, texts


def reference_answer(reference, frames, texts, y):
    """Return scikit-learn's answer, of objects for text and where it refuses NA."""
    for names in (texts, list(frames[0])) if texts else ([],):
        train, test = (frame.assign(**as_objects(frame[names])) for frame in frames)
        try:
            return answer(clone(reference).fit(train, y), test)
        except (TypeError, ValueError) as error:
            refusal = error
    raise refusal


@pytest.mark.slow
@settings(max_examples=n_examples(150, 2000), deadline=None)
@given(cases(), st.sampled_from(["here", "Dask"]), st.sampled_from(["here", "Dask"]))
def test_frames_and_blocks_get_one_answer(case, fitted, asked):
    (ours, reference), (train, test), texts = case
    assume(not (isinstance(ours, estimators.ParallelPostFit) and fitted == "Dask"))
    y = np.arange(len(train)) ** 2 / 7
    X, target = (on_dask(train), on_dask(pd.Series(y))) if fitted == "Dask" else (train, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unknown categories, and columns without values
        try:
            expected = reference_answer(reference, (train, test), texts, y)
        except (TypeError, ValueError) as refusal:
            with pytest.raises(type(refusal)):
                answer(clone(ours).fit(X, target), on_dask(test) if asked == "Dask" else test)
            return
        model = clone(ours).fit(X, target)
        assert answer(model, on_dask(test) if asked == "Dask" else test) == expected
