"""Steps behind other steps, inside compositions, on Dask text: like scikit-learn on all rows."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import compose as reference
from sklearn import feature_selection, impute, pipeline, preprocessing
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from random_examples import n_examples
from skfleet.engine import counting
from skfleet.estimators import TruncatedSVD, compose
from skfleet.estimators import preprocessing as ours

COLUMNS = {"texts": ["make", "city"], "numbers": ["miles", "doors"]}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "make": rng.choice(["Ford", "Chevy", "Tesla"], 90),
            "city": rng.choice(["Rome", "Oslo"], 90),
            "miles": rng.normal(size=90),
            "doors": rng.integers(2, 6, size=90),
        },
        index=rng.permutation(np.arange(100, 190)),
    )
    for name in ("make", "city", "miles"):
        frame[name] = frame[name].mask(rng.random(90) < 0.2)
    return frame


@pytest.fixture(scope="module")
def lazy(frame):
    return dd.from_pandas(frame, npartitions=3, sort=False)


def upper(X):
    """Text in capitals; what Dask makes up for columns of text is refused."""
    if X.isin(["foo", "a"]).any(axis=None):
        raise AssertionError("no row has this value")
    return X.map(lambda value: value.upper() if isinstance(value, str) else value)


def doubled(X):
    return X * 2


def function_of(func):
    return preprocessing.FunctionTransformer(func, feature_names_out="one-to-one")


def union_of(room):
    return compose.FeatureUnion if room is compose else pipeline.FeatureUnion


def encoder_of(draw):
    few = draw(st.sampled_from([None, 20]))
    if draw(st.booleans()):
        return preprocessing.OneHotEncoder(
            handle_unknown=draw(
                st.sampled_from(["error", "ignore", "infrequent_if_exist", "warn"])
            ),
            drop=draw(st.sampled_from([None, "first", "if_binary"])),
            min_frequency=few,
            sparse_output=draw(st.booleans()),
            dtype=draw(st.sampled_from([np.float64, np.float32, np.int32])),
        )
    options = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    return preprocessing.OrdinalEncoder(
        **draw(st.sampled_from([{}, options])),
        min_frequency=few,
        dtype=draw(st.sampled_from([np.float64, np.float32])),
    )


@st.composite
def steps(draw, kind):
    """Draw steps for columns of text or of numbers, behind an imputer."""
    func = upper if kind == "texts" else doubled
    constant = {"strategy": "constant", "fill_value": "none"}
    fill = constant if kind == "texts" else {"strategy": "median"}
    chosen = [
        draw(st.sampled_from([None, "passthrough", function_of(None), function_of(func)])),
        impute.SimpleImputer(**draw(st.sampled_from([{"strategy": "most_frequent"}, fill]))),
        draw(st.sampled_from([None, "passthrough"])),
    ]
    is_encoded = kind == "texts" or draw(st.booleans())
    chosen.append(encoder_of(draw) if is_encoded else None)
    is_sparse = getattr(chosen[-1], "sparse_output", False)
    last = [
        None,
        "passthrough",
        preprocessing.MaxAbsScaler(),
        preprocessing.StandardScaler(with_mean=not is_sparse),
        feature_selection.VarianceThreshold(),
        function_of(doubled),
    ]
    if not is_encoded:  # categories of equal counts have no first component
        last.append(TruncatedSVD(1, algorithm="arpack"))
    if not is_sparse:
        last.append(preprocessing.PolynomialFeatures(2))
    chosen = [step for step in [*chosen, draw(st.sampled_from(last))] if step is not None]
    return pipeline.make_pipeline(*chosen) if len(chosen) > 1 else chosen[0]


@st.composite
def compositions(draw):
    """Draw a function of a room that makes compositions of its classes, up to two deep."""
    parts = []
    for i in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["texts", "numbers"]))
        columns = draw(st.sampled_from([COLUMNS[kind], COLUMNS[kind][:1]]))
        around = draw(st.sampled_from(["nothing", "union", "columns", "pipeline"]))
        parts.append((f"part{i}", draw(steps(kind)), columns, around))
    threshold = draw(st.sampled_from([0.0, 0.3, 1.0]))

    def build(room):
        union, made = union_of(room), []
        for name, part, columns, around in parts:
            inner: object = part
            if around == "union":
                inner = union([("a", part), ("b", part)])
            elif around != "nothing":
                options = {"sparse_threshold": threshold}
                inner = room.ColumnTransformer([("inner", part, columns)], **options)
            if around == "pipeline":
                both = union([("as it is", "passthrough"), ("b", preprocessing.MaxAbsScaler())])
                inner = pipeline.make_pipeline(inner, both)
            made.append((name, inner, columns))
        return room.ColumnTransformer(made, sparse_threshold=threshold)

    return build


def check_like(lazy_rows, want):
    """What was announced is what comes, and that is what scikit-learn makes of all rows."""
    got = lazy_rows.compute()
    assert hasattr(got, "columns") == hasattr(want, "columns")
    if hasattr(got, "columns"):
        assert list(got.columns) == list(lazy_rows.columns) == list(want.columns)
        assert list(got.dtypes) == list(lazy_rows.dtypes)
        pd.testing.assert_index_equal(got.index, want.index)
    else:
        assert got.dtype == lazy_rows.dtype
        assert got.shape[1] == lazy_rows.shape[1]
        assert sparse.issparse(got) == sparse.issparse(lazy_rows._meta)
    got, want = (x.toarray() if sparse.issparse(x) else np.asarray(x, float) for x in (got, want))
    np.testing.assert_allclose(got, want, atol=1e-8)


@settings(max_examples=n_examples(4, 40), deadline=None)
@given(build=compositions(), container=st.sampled_from(["default", "pandas"]))
def test_steps_behind_steps(build, container, frame, lazy):
    model, theirs = (build(room).set_output(transform=container) for room in (compose, reference))
    try:
        want = theirs.fit_transform(frame)
    except ValueError as error:  # sparse output for pandas
        with pytest.raises(type(error)):
            model.fit_transform(lazy)
        return
    check_like(model.fit_transform(lazy), want)
    check_like(model.transform(lazy[lazy.columns[::-1]]), want)
    # of rows in this process nothing is known of the lazy ones
    check_like(model.fit(frame).transform(lazy), want)


def test_rows_of_a_fit_tell_the_output(frame, lazy):
    seen = set()
    noting = preprocessing.FunctionTransformer(lambda X: (seen.update(X["city"]), X)[1])
    model = compose.ColumnTransformer(
        [("text", ours.OrdinalEncoder(), ["make"]), ("noted", noting, ["city"])]
    ).fit(lazy)
    seen.clear()
    assert model.transform(lazy).dtype == object
    assert not seen
    for container in ("pandas", "default"):  # in another one of what the fit had
        model.set_output(transform=container).transform(lazy)


def test_no_row_is_loaded_to_tell_the_output(frame):
    loaded = []

    def part(i):
        loaded.append(i)
        return frame.iloc[i : i + 30]

    lazy = dd.from_map(part, [0, 30, 60], meta=frame.iloc[:0])
    steps = pipeline.make_pipeline(
        impute.SimpleImputer(strategy="most_frequent"),
        preprocessing.OneHotEncoder(),
        preprocessing.MaxAbsScaler(),
    )
    model = compose.ColumnTransformer([("text", steps, ["make", "city"])])
    with counting() as counts:
        model.fit(lazy)
    assert counts.passes == 3  # one for each step
    loaded.clear()
    for of_lazy in (model, compose.ColumnTransformer(model.transformers).fit(frame)):
        of_lazy.transform(lazy)
        of_lazy.set_output(transform="pandas")
    assert not loaded


def test_a_function_that_refuses_made_up_values_gets_rows(frame, lazy):
    model = compose.ColumnTransformer([("upper", function_of(upper), ["city"])])
    want = reference.ColumnTransformer(model.transformers).fit_transform(frame)
    for fitted in (model.fit(lazy), compose.ColumnTransformer(model.transformers).fit(frame)):
        got = fitted.transform(lazy).compute()
        pd.testing.assert_frame_equal(pd.DataFrame(got), pd.DataFrame(want))


def test_columns_that_are_missing_are_named_before_any_row_is_loaded(frame):
    model = compose.ColumnTransformer([("upper", function_of(upper), ["city"])]).fit(frame)
    lazy = dd.from_map(pytest.fail, ["loaded"], meta=frame[["make"]].iloc[:0])
    with pytest.raises(ValueError, match="columns are missing"):
        model.transform(lazy)


@pytest.mark.parametrize("union", [False, True])
def test_a_later_fit_in_this_process_is_told_apart(union, frame, lazy):
    encoder = preprocessing.OneHotEncoder(sparse_output=False)
    model = compose.ColumnTransformer([("text", encoder, ["city"])], remainder="drop")
    if union:
        model = compose.FeatureUnion([("text", encoder)])
    columns = ["city"]
    model.fit(lazy[columns].dropna())
    rows = frame[columns].fillna("none")
    want = model.fit(rows).transform(rows)
    got = model.transform(lazy[columns].fillna("none"))
    assert got.shape[1] == want.shape[1] == 3
    np.testing.assert_array_equal(got, want)


def test_nothing_is_warned_of_made_up_values(frame, lazy):
    steps = pipeline.make_pipeline(
        impute.SimpleImputer(strategy="most_frequent"),
        preprocessing.OneHotEncoder(handle_unknown="warn"),
    )
    frozen = FrozenEstimator(clone(steps).fit(frame[["make"]]))
    for part in (steps, frozen):
        compose.ColumnTransformer([("text", part, ["make"])]).fit_transform(lazy).compute()
