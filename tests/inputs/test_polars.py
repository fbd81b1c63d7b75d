"""Frames and series of polars are what they are for scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import compose, linear_model, preprocessing
from sklearn import metrics as reference_metrics
from sklearn import model_selection as reference_selection
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier as PlainSGDClassifier

from random_examples import n_examples
from skfleet import config_context, estimators, metrics, model_selection
from skfleet.blocks import slice_rows, stack_rows, take_rows

pl = pytest.importorskip("polars")

N = 60
RNG = np.random.default_rng(0)
X = pl.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N), "c": RNG.integers(0, 4, N)})
WORDS = pl.Series("word", np.array(["p", "q", "r"])[RNG.integers(0, 3, N)].tolist())
TARGET = (X["a"] * 2 + X["b"]).abs() + 0.1
CODES = (X["a"] + X["b"] > 0).cast(pl.Int64)
NAMES = pl.Series(np.where(CODES.to_numpy(), "yes", "no").tolist())
WEIGHTS = pl.Series(RNG.random(N))
GROUPS = pl.Series(np.arange(N) // 6)

REGRESSORS = [
    estimators.Ridge(),
    estimators.LinearRegression(),
    estimators.Lasso(0.01),
    estimators.ElasticNet(0.01),
    estimators.RidgeCV(),
    estimators.LassoCV(cv=3),
    estimators.PoissonRegressor(),
    estimators.SGDRegressor(random_state=0),
    estimators.KNeighborsRegressor(),
]
CLASSIFIERS = [
    estimators.LogisticRegression(),
    estimators.RidgeClassifier(),
    estimators.SGDClassifier(random_state=0),
    estimators.GaussianNB(),
    estimators.KNeighborsClassifier(),
    estimators.BlockwiseVotingClassifier(PlainSGDClassifier(random_state=0), n_blocks=2),
    estimators.Incremental(PlainSGDClassifier(random_state=0), random_state=0, batch_size=20),
]
NUMBERS = [pl.Float64, pl.Float32, pl.Int32, pl.UInt8, pl.Boolean]
LABELS = [CODES, NAMES, NAMES.cast(pl.Categorical), CODES.cast(pl.Boolean), CODES.cast(pl.Int8)]


def fitted(model, rows, y, weights):
    takes_weights = weights is not None and "KNeighbors" not in type(model).__name__
    return clone(model).fit(rows, y, **({"sample_weight": weights} if takes_weights else {}))


@settings(max_examples=n_examples(5, 150), deadline=None)
@given(
    model=st.sampled_from([*REGRESSORS, *CLASSIFIERS]),
    data=st.data(),
    is_weighted=st.booleans(),
    engine=st.sampled_from(["auto", "dask"]),
)
def test_estimators_take_series_and_frames(cluster_client, model, data, is_weighted, engine):
    if any(model is regressor for regressor in REGRESSORS):
        targets = [TARGET.ceil().cast(dtype) for dtype in NUMBERS]
        y = data.draw(st.sampled_from([y for y in targets if y.n_unique() > 1]))
    else:
        y = data.draw(st.sampled_from(LABELS))
    weights = WEIGHTS if is_weighted else None
    host_weights = None if weights is None else weights.to_numpy()
    with cluster_client.as_current(), config_context(engine=engine):
        actual = fitted(model, X, y, weights)
        expected = fitted(model, X.to_numpy(), y.to_numpy(), host_weights)
        np.testing.assert_allclose(actual.score(X, y), expected.score(X.to_numpy(), y.to_numpy()))
        if y.dtype != pl.Categorical and y.dtype != pl.String:
            np.testing.assert_allclose(actual.predict(X), expected.predict(X.to_numpy()))
    if hasattr(actual, "feature_names_in_"):
        assert actual.feature_names_in_.tolist() == X.columns


@pytest.mark.parametrize("y", [NAMES, pl.Series([None, "a"] * 30), pl.Series([[1]] * N)])
def test_targets_without_numbers_are_refused(y):
    with pytest.raises(ValueError, match=r"(?i)y must be numeric|could not convert|sequence"):
        estimators.Ridge().fit(X, y)


@pytest.mark.parametrize("container", ["polars", "pandas", "default"])
@pytest.mark.parametrize("name", ["StandardScaler", "MinMaxScaler", "OneHotEncoder"])
def test_transformers_return_the_container_that_is_set(container, name):
    options = {"sparse_output": False} if name == "OneHotEncoder" else {}
    rows = WORDS.to_frame() if options else X
    results = [
        getattr(library, name)(**options).set_output(transform=container).fit_transform(rows)
        for library in (estimators, preprocessing)
    ]
    _assert_equal(*results)


@pytest.mark.parametrize("container", ["polars", "default"])
def test_column_transformer_returns_the_container_that_is_set(container):
    rows = X.with_columns(WORDS)
    results = [
        rooms[0]
        .ColumnTransformer(
            [
                ("numbers", rooms[1].StandardScaler(), ["a", "b"]),
                ("text", rooms[1].OneHotEncoder(sparse_output=False), ["word"]),
            ]
        )
        .set_output(transform=container)
        .fit_transform(rows)
        for rooms in ((estimators, estimators), (compose, preprocessing))
    ]
    _assert_equal(*results)


def _assert_equal(actual, expected):
    assert type(actual) is type(expected)
    assert list(getattr(actual, "columns", [])) == list(getattr(expected, "columns", []))
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected))


@pytest.mark.parametrize("name", ["accuracy_score", "confusion_matrix", "f1_score"])
def test_metrics_take_series(name):
    moved = pl.Series(np.roll(CODES.to_numpy(), 3))
    options = {"sample_weight": WEIGHTS}
    expected = getattr(reference_metrics, name)(CODES, moved, **options)
    np.testing.assert_allclose(getattr(metrics, name)(CODES, moved, **options), expected)


def test_series_are_aligned_with_dask_rows():
    da = pytest.importorskip("dask.array")
    rows = da.from_array(X.to_numpy(), chunks=(25, 3))
    expected = linear_model.Ridge().fit(X.to_numpy(), TARGET, sample_weight=WEIGHTS)
    model = estimators.Ridge().fit(rows, TARGET, sample_weight=WEIGHTS)
    np.testing.assert_allclose(model.coef_, expected.coef_)
    score = metrics.r2_score(TARGET, model.predict(rows), sample_weight=WEIGHTS)
    np.testing.assert_allclose(score, expected.score(X.to_numpy(), TARGET, WEIGHTS))


def test_splits_take_frames_and_groups():
    actual = model_selection.train_test_split(X, NAMES, stratify=NAMES, random_state=0)
    expected = reference_selection.train_test_split(X, NAMES, stratify=NAMES, random_state=0)
    for part, wanted in zip(actual, expected, strict=True):
        assert type(part) is type(wanted)
        assert part.equals(wanted)
    (_, actual), *_ = model_selection.GroupKFold(3).split(X, CODES, GROUPS)
    (_, expected), *_ = reference_selection.GroupKFold(3).split(X, CODES, GROUPS)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("model", "grid", "y"),
    [
        (linear_model.Ridge(), {"alpha": [0.1, 1.0]}, TARGET),
        (estimators.Ridge(), {"alpha": [0.1, 1.0]}, TARGET),
        (linear_model.LogisticRegression(), {"C": [0.1, 1.0]}, NAMES),
    ],
    ids=str,
)
def test_searches_take_frames(cluster_client, model, grid, y):
    cv = {"cv": reference_selection.GroupKFold(3), "error_score": "raise"}
    expected = reference_selection.GridSearchCV(model, grid, **cv).fit(X, y, groups=GROUPS)
    with cluster_client.as_current():
        search = model_selection.GridSearchCV(model, grid, **cv).fit(X, y, groups=GROUPS)
        np.testing.assert_allclose(
            search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
        )
        assert search.feature_names_in_.tolist() == X.columns
        assert search.best_params_ == expected.best_params_


@pytest.mark.parametrize("rows", [X.with_columns(WORDS), WORDS])
def test_rows_are_cut_and_joined_as_they_are(rows):
    parts = [slice_rows(rows, 0, 20), slice_rows(rows, 20, N)]
    assert stack_rows(parts).equals(rows)
    assert take_rows(rows, np.array([3, 1])).equals(rows[[3, 1]])


def test_columns_of_text_are_named():
    with pytest.raises(ValueError, match="Column 'word' of X must be numeric"):
        estimators.Ridge().fit(X.with_columns(WORDS), TARGET)
