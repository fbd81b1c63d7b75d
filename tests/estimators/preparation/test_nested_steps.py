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

from random_examples import n_examples
from skfleet.estimators import TruncatedSVD, compose

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
    """Text in capitals; made-up text that Dask has for columns is refused."""
    if X.isin(["foo", "a"]).any(axis=None):
        raise AssertionError("no row has this value")
    return X.map(lambda value: value.upper() if isinstance(value, str) else value)


def doubled(X):
    return X * 2


def as_objects(X):
    return np.asarray(X, dtype=object)


def union_of(room):
    return compose.FeatureUnion if room is compose else pipeline.FeatureUnion


def imputers(kind):
    text = [
        impute.SimpleImputer(strategy="most_frequent"),
        impute.SimpleImputer(strategy="constant", fill_value="none"),
    ]
    return text if kind == "texts" else [*text[:1], impute.SimpleImputer(strategy="median")]


def encoders(draw):
    unknown = draw(st.sampled_from(["error", "ignore", "infrequent_if_exist", "warn"]))
    few = draw(st.sampled_from([None, 20]))
    if draw(st.booleans()):
        return preprocessing.OneHotEncoder(
            handle_unknown=unknown,
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
    """Steps of a pipeline for columns of text or of numbers."""
    before = [
        None,
        "passthrough",
        preprocessing.FunctionTransformer(feature_names_out="one-to-one"),
    ]
    if kind == "texts":
        before.append(preprocessing.FunctionTransformer(upper, feature_names_out="one-to-one"))
    else:
        before.append(preprocessing.FunctionTransformer(doubled, feature_names_out="one-to-one"))
    first = draw(st.sampled_from(before))
    chosen = [] if first is None else [first]
    chosen.append(draw(st.sampled_from(imputers(kind))))
    if draw(st.integers(0, 3)) == 0:
        chosen.append("passthrough")
    encoder = encoders(draw) if kind == "texts" or draw(st.booleans()) else None
    if encoder is not None:
        chosen.append(encoder)
    is_sparse = getattr(encoder, "sparse_output", False)
    last = [
        None,
        "passthrough",
        preprocessing.MaxAbsScaler(),
        preprocessing.StandardScaler(with_mean=not is_sparse),
        feature_selection.VarianceThreshold(),
        TruncatedSVD(1, algorithm="arpack"),
        preprocessing.FunctionTransformer(doubled, feature_names_out="one-to-one"),
    ]
    if not is_sparse:
        last += [
            preprocessing.KBinsDiscretizer(
                2, encode="onehot", quantile_method="averaged_inverted_cdf"
            ),
            preprocessing.PolynomialFeatures(2),
        ]
    chosen.append(draw(st.sampled_from(last)))
    chosen = [step for step in chosen if step is not None]
    return pipeline.make_pipeline(*chosen) if len(chosen) > 1 else chosen[0]


@st.composite
def compositions(draw, depth=2):
    """A function of a room, that has its compositions of the same steps."""
    parts = []
    for i in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["texts", "numbers"]))
        columns = draw(st.sampled_from([COLUMNS[kind], COLUMNS[kind][:1]]))
        wrap = draw(
            st.sampled_from(["none", "union", "columns", "pipeline"] if depth else ["none"])
        )
        part = draw(steps(kind))
        parts.append((f"part{i}", part, columns, wrap))
    remainder = draw(
        st.sampled_from(["drop", "drop", impute.SimpleImputer(strategy="most_frequent")])
    )
    threshold = draw(st.sampled_from([0.0, 0.3, 1.0]))
    if not isinstance(remainder, str):
        parts = [(n, p, COLUMNS["texts"] if "make" in c else c, w) for n, p, c, w in parts]
        if not any("make" in c for _, _, c, _ in parts):
            remainder = "drop"

    def build(room):
        made = []
        for name, part, columns, wrap in parts:
            inner = part
            if wrap == "union":
                inner = union_of(room)([("a", part), ("b", part)])
            elif wrap == "columns":
                inner = room.ColumnTransformer([("inner", part, columns)])
            elif wrap == "pipeline":
                inner = pipeline.make_pipeline(
                    room.ColumnTransformer([("inner", part, columns)], sparse_threshold=threshold),
                    union_of(room)(
                        [("as it is", "passthrough"), ("b", preprocessing.MaxAbsScaler())]
                    ),
                )
            made.append((name, inner, columns))
        return room.ColumnTransformer(made, remainder=remainder, sparse_threshold=threshold)

    return build


def dense(rows):
    return np.asarray(rows.toarray() if sparse.issparse(rows) else rows, dtype=float)


def check_types(lazy_rows):
    """What was announced is what comes, in every partition."""
    got = lazy_rows.compute()
    if hasattr(got, "columns"):
        assert list(got.columns) == list(lazy_rows.columns)
        assert list(got.dtypes) == list(lazy_rows.dtypes)
    else:
        assert got.dtype == lazy_rows.dtype
        assert got.shape[1] == lazy_rows.shape[1]
        assert sparse.issparse(got) == sparse.issparse(lazy_rows._meta)
    return got


@pytest.mark.filterwarnings("ignore:Found unknown categories")
@settings(max_examples=n_examples(15, 200), deadline=None)
@given(data=st.data())
def test_steps_behind_steps(data, frame, lazy):
    build = data.draw(compositions())
    ours, theirs = build(compose), build(reference)
    to_pandas = data.draw(st.booleans())
    if to_pandas:
        ours.set_output(transform="pandas")
        theirs.set_output(transform="pandas")
    try:
        want = theirs.fit_transform(frame)
    except ValueError as error:
        with pytest.raises(type(error)):
            ours.fit_transform(lazy).compute()
        return
    for got in (ours.fit_transform(lazy), ours.transform(lazy[lazy.columns[::-1]])):
        values = check_types(got)
        assert hasattr(values, "columns") == hasattr(want, "columns")
        if to_pandas:
            assert list(values.columns) == list(want.columns)
            pd.testing.assert_index_equal(values.index, want.index)
        np.testing.assert_allclose(dense(values), dense(want), atol=1e-8)
    theirs.fit(frame)
    of_local = build(compose)
    if to_pandas:
        of_local.set_output(transform="pandas")
    of_local.fit(frame)
    np.testing.assert_allclose(dense(check_types(of_local.transform(lazy))), dense(want), atol=1e-8)
