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
from scipy import sparse
from sklearn import compose, impute, linear_model, pipeline, preprocessing
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV as ReferenceSearch
from sklearn.model_selection import cross_val_score

from random_examples import n_examples
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


def text_rows(n_rows=60):
    """Return text with gaps, as it comes from Dask, beside numbers, and targets."""
    rng = np.random.default_rng(0)
    number = rng.integers(-1, 3, n_rows)
    frame = pd.DataFrame({"x": column("string[pyarrow]", number), "z": rng.normal(size=n_rows)})
    return frame, pd.Series(3.0 * (number == 1) - (number < 0) + frame.z, name="y")


@pytest.mark.parametrize("name", ["one-hot", "ordinal", "target", "most frequent"])
def test_rows_of_dask_come_home_as_they_were_fitted(name):
    frame, y = text_rows()
    rows, lazy, (ours, reference) = frame[["x"]], on_dask(frame[["x"]]), CASES[name]
    expected = answer(clone(reference).fit(as_objects(rows), y), as_objects(rows))
    model = clone(ours).fit(lazy, on_dask(y))
    assert answer(model, lazy) == answer(model, lazy.compute()) == expected
    assert answer(model, lazy.head(7)) == expected[:7]
    assert answer(clone(ours).fit(lazy.compute(), y), lazy) == expected
    assert answer(clone(ours).fit(X=rows, y=y), rows) == expected


def test_passed_columns_have_one_dtype_and_the_index_of_the_rows():
    frame, _ = text_rows(12)
    frame.index = frame.index[::-1] + 5
    columns = estimators.ColumnTransformer([("x", "passthrough", ["x", "z"])])
    columns.set_output(transform="pandas")
    here = columns.fit_transform(frame)
    lazy = columns.fit(on_dask(frame)).transform(on_dask(frame)).compute()
    pd.testing.assert_frame_equal(here.sort_index(), lazy)
    assert here.index.equals(frame.index)
    assert here.isna().to_numpy().tolist() == frame.isna().to_numpy().tolist()
    assert frame.x.dtype == "string[pyarrow]"  # of the user's frame


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "Float64"])
def test_nullable_numbers_without_gaps_pass_through_blocks(dtype):
    frame = pd.DataFrame({"x": pd.array([1, 0, 1, 1], dtype=dtype)})
    columns = estimators.ColumnTransformer([("x", "passthrough", ["x"])]).fit(frame)
    expected = compose.ColumnTransformer([("x", "passthrough", ["x"])]).fit_transform(frame)
    assert values_of(columns.transform(on_dask(frame))) == values_of(expected)
    assert not artificial_rows(frame.iloc[:0]).isna().any(axis=None)


def test_rows_without_such_gaps_are_not_copied():
    frame = pd.DataFrame({kind: column(kind, [0, -1, 1, 2]) for kind in KINDS_OF_NUMBERS})
    frame["text"], frame["none"] = column("str", [0, -1, 1, 2]), [None, 1, "a", np.nan]
    frame["day"] = pd.to_datetime(["2026-01-01", None, "2026-01-02", None])
    numbers = np.array([[1, np.nan], ["a", None]], dtype=object)
    for rows in (frame, frame["text"], frame["none"], frame[["float64"]].to_numpy(), numbers):
        assert with_pandas_text(rows) is rows
    assert with_objects(frame[["Int64", "float64"]]).dtypes.tolist() == ["Int64", "float64"]


def test_names_that_occur_twice_keep_their_columns():
    columns = [column("string[python]", [0, -1]), column("Int64", [1, -1])]
    frame = pd.concat([*columns, columns[0]], axis=1, keys=["a", "a", "b"])
    converted = with_pandas_text(frame)
    assert list(converted.columns) == ["a", "a", "b"]
    assert [str(dtype) for dtype in converted.dtypes] == ["str", "Int64", "str"]
    assert converted.iloc[:, 0].tolist()[1] is np.nan
    assert frame.iloc[:, 0].tolist()[1] is pd.NA


@pytest.mark.parametrize("kind", ["string[pyarrow]", "categories of string", "object"])
def test_scorers_and_wrappers_read_frames_as_blocks(kind):
    frame, y = text_rows()
    rows = frame.assign(
        x=column(kind, frame.x.map({"b": 0, "a": 1, "c": 2}).fillna(-1).astype(int))
    )
    rows = rows[["x"]]
    reference = CASES["pipeline"][1]
    fitted = clone(reference).fit(as_objects(rows), y)
    expected, score = fitted.predict(as_objects(rows)), fitted.score(as_objects(rows), y)
    assert metrics.get_scorer("r2")(fitted, rows, y) == pytest.approx(score)
    for model in (
        estimators.ParallelPostFit(reference),
        estimators.BlockwiseVotingRegressor(reference),
        estimators.TransformedTargetRegressor(reference),
    ):
        model = clone(model).fit(rows, y)
        np.testing.assert_allclose(model.predict(rows), expected)
        np.testing.assert_allclose(model.predict(on_dask(rows)), expected)
        assert model.score(rows, y) == pytest.approx(score)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["scikit-learn", "ours"])
def test_searches_read_frames_as_blocks(library, cluster_client):
    frame, y = text_rows()
    rows, lazy = frame[["x"]], on_dask(frame[["x"]])
    ours, reference = CASES["pipeline"]
    model = reference if library == "scikit-learn" else ours
    candidates = {"ridge__alpha": [0.1, 10.0]}
    expected = ReferenceSearch(reference, candidates, cv=3).fit(as_objects(rows), y)
    with cluster_client.as_current():
        for X, targets in ((rows, y), (lazy, on_dask(y))):
            search = GridSearchCV(model, candidates, cv=3, error_score="raise").fit(X, targets)
            scores = search.cv_results_["mean_test_score"]
            np.testing.assert_allclose(scores, expected.cv_results_["mean_test_score"], rtol=1e-6)
            predicted = search.predict(rows)
            np.testing.assert_allclose(predicted, expected.predict(as_objects(rows)), rtol=1e-6)
            assert search.score(rows, y) == pytest.approx(expected.score(as_objects(rows), y))
        scores = cross_validate(model, rows, y, cv=3, error_score="raise")["test_score"]
    np.testing.assert_allclose(scores, cross_val_score(reference, as_objects(rows), y, cv=3))


@pytest.mark.slow
@settings(max_examples=n_examples(60, 300), deadline=None)
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


@pytest.mark.parametrize("order", ["C", "F", "every other", "none", "one value"])
def test_na_is_found_in_arrays_of_objects_of_any_layout(order):
    X = np.array([["a", pd.NA, None, 1], [pd.NaT, np.nan, pd.NA, "b"]], dtype=object)
    expected = [["a", np.nan, None, 1], [pd.NaT, np.nan, np.nan, "b"]]
    if order == "none":
        assert with_pandas_text(X[:0]).shape == (0, 4)
    elif order == "one value":
        assert np.isnan(with_pandas_text(np.array(pd.NA, dtype=object)).item())
    elif order == "every other":
        assert repr(with_pandas_text(X[:, ::2]).tolist()) == repr([row[::2] for row in expected])
    else:
        values = np.asarray(X, order=order)
        assert repr(with_pandas_text(values).tolist()) == repr(expected)
        assert values[0, 1] is pd.NA  # the caller's array keeps its own
