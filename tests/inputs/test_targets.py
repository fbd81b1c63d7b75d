"""Targets of every kind of a pandas column are on Dask what scikit-learn takes them for."""

import warnings
from functools import partial

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import linear_model, naive_bayes, neighbors
from sklearn import metrics as reference_metrics
from sklearn import model_selection as reference_selection
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import SGDClassifier as PlainSGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from random_examples import n_examples
from skfleet import estimators, metrics, model_selection
from skfleet.engine import counting

N = 60
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("abc"))
CODES = ((FRAME["a"] + FRAME["b"] + 0.3 * RNG.normal(size=N)) > 0).astype(int)
TARGET = (2 * FRAME["a"] + FRAME["b"]).abs() + 0.1
TEXT = CODES.map({0: "no", 1: "yes"})

# The labels in a column of pandas, and the plain ones that they stand for.
LABELS = {
    "category of ints": (CODES.astype("category"), CODES),
    "category of floats": (CODES.astype(float).astype("category"), CODES.astype(float)),
    "category of booleans": (CODES.astype(bool).astype("category"), CODES.astype(bool)),
    "category of Int64": (CODES.astype("Int64").astype("category"), CODES),
    "category of text": (TEXT.astype("category"), TEXT),
    "Int64": (CODES.astype("Int64"), CODES.astype(float)),
    "boolean": (CODES.astype(bool).astype("boolean"), CODES.astype(float)),
    "Float64": (CODES.astype("Float64"), CODES.astype(float)),
    "Arrow's ints": (CODES.astype("int64[pyarrow]"), CODES.astype(float)),
    "string": (TEXT.astype("string"), TEXT),
}
CLASSIFIERS = [
    estimators.LogisticRegression(),
    estimators.RidgeClassifier(),
    estimators.SGDClassifier(random_state=0),
    estimators.KNeighborsClassifier(3),
    estimators.GaussianNB(),
    estimators.RandomForestClassifier(3, random_state=0),
    estimators.BlockwiseVotingClassifier(PlainSGDClassifier(random_state=0)),
]
# Estimators, and scikit-learn's where it takes the same rows.
COLUMN_ESTIMATORS = [
    (estimators.LogisticRegression(), linear_model.LogisticRegression(), "y"),
    (estimators.RidgeClassifier(), linear_model.RidgeClassifier(), "y"),
    (estimators.GaussianNB(), naive_bayes.GaussianNB(), "y"),
    (estimators.KNeighborsClassifier(), neighbors.KNeighborsClassifier(), "y"),
    (estimators.KNeighborsRegressor(), neighbors.KNeighborsRegressor(), "t"),
    (estimators.LinearRegression(), linear_model.LinearRegression(), "t"),
    (estimators.Ridge(), linear_model.Ridge(), "t"),
    (estimators.RidgeCV(), linear_model.RidgeCV(), "t"),
    (estimators.Lasso(0.01), linear_model.Lasso(0.01), "t"),
    (estimators.LassoCV(cv=3), linear_model.LassoCV(cv=3), "t"),
    (estimators.PoissonRegressor(), linear_model.PoissonRegressor(), "t"),
]


def lazy_columns(y, npartitions=3):
    frame = dd.from_pandas(FRAME.assign(y=y), npartitions=npartitions)
    return frame[["a", "b", "c"]], frame["y"]


def home(answer):
    return np.asarray(answer.compute() if hasattr(answer, "compute") else answer)


def caught_fit(model, X, y):
    """Return predictions for the rows of a fit, and the categories of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predictions = home(clone(model).fit(X, y).predict(X))
    return predictions, {warning.category for warning in caught}


@settings(max_examples=n_examples(3, 100), deadline=None)
@given(
    kind=st.sampled_from(sorted(LABELS)),
    model=st.sampled_from(CLASSIFIERS),
    is_known=st.booleans(),
    npartitions=st.integers(1, 4),
)
def test_classifiers_take_labels_of_any_column(cluster_client, kind, model, is_known, npartitions):
    labels, plain = LABELS[kind]
    X, y = lazy_columns(labels, npartitions)
    if not is_known and kind.startswith("category"):
        y = y.cat.as_unknown()
    with cluster_client.as_current():
        fitted = clone(model).fit(X, y)
        expected = clone(model).fit(*lazy_columns(plain, npartitions))
        assert fitted.classes_.tolist() == expected.classes_.tolist()
        np.testing.assert_array_equal(home(fitted.predict(X)), home(expected.predict(X)))
        assert fitted.score(X, y) == expected.score(X, lazy_columns(plain, npartitions)[1])


@settings(max_examples=n_examples(4, 100), deadline=None)
@given(
    kinds=st.sampled_from(
        [("category of ints", "Int64"), ("category of text", "string"), ("boolean", "Arrow's ints")]
    ),
    name=st.sampled_from(["accuracy_score", "confusion_matrix", "matthews_corrcoef"]),
    shift=st.integers(0, 5),
    is_home=st.booleans(),
)
def test_metrics_take_labels_of_any_column(cluster_client, kinds, name, shift, is_home):
    (true, plain), (predicted, _) = LABELS[kinds[0]], LABELS[kinds[1]]
    moved = pd.Series(np.roll(predicted.array, shift)).astype(predicted.dtype)
    y_pred = moved if is_home else lazy_columns(moved, 2)[1]
    _, y_true = lazy_columns(true)
    expected = getattr(reference_metrics, name)(plain, np.roll(plain, shift))
    with cluster_client.as_current():
        np.testing.assert_allclose(getattr(metrics, name)(y_true, y_pred), expected)


@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in ("category of ints", "Int64")
        else pytest.param(kind, marks=pytest.mark.slow)
        for kind in sorted(LABELS)
    ],
)
def test_splits_and_searches_take_labels_of_any_column(cluster_client, kind):
    labels, plain = LABELS[kind]
    X, y = lazy_columns(labels)
    options = {"stratify": plain, "random_state": 0}
    expected, *_ = reference_selection.train_test_split(FRAME, plain, **options)
    model = estimators.LogisticRegression()
    scores = reference_selection.cross_val_score(
        linear_model.LogisticRegression(tol=1e-8), FRAME, plain, cv=3
    )
    with cluster_client.as_current():
        train, *_ = model_selection.train_test_split(X, y, stratify=y, random_state=0)
        assert train.compute().index.tolist() == sorted(expected.index)
        actual = model_selection.cross_val_score(model, X, y, cv=3, error_score="raise")
        np.testing.assert_allclose(actual, scores)


@pytest.mark.parametrize("kind", ["category of ints", "Int64", "category of booleans", "boolean"])
def test_regressors_take_numbers_of_any_column(kind):
    labels, plain = LABELS[kind]
    X, y = lazy_columns(labels)
    expected = linear_model.Ridge().fit(FRAME, plain.astype(float))
    np.testing.assert_allclose(estimators.Ridge().fit(X, y).coef_, expected.coef_)
    unknown = lazy_columns(CODES.astype("category"))[1].cat.as_unknown()
    np.testing.assert_allclose(estimators.Ridge().fit(X, unknown).coef_, expected.coef_)


def test_several_targets_may_be_categories_under_any_names():
    targets = pd.DataFrame({0: CODES.astype("category"), 1: TARGET})
    lazy = dd.from_pandas(pd.concat([FRAME, targets], axis=1), npartitions=3)
    expected = linear_model.Ridge().fit(FRAME, targets.astype(float))
    model = estimators.Ridge().fit(lazy[["a", "b", "c"]], lazy[[0, 1]])
    np.testing.assert_allclose(model.coef_, expected.coef_)


@pytest.mark.parametrize("values", [[1, 2, None], [True, False, None]])
def test_gaps_in_categories_are_refused(values):
    labels = pd.Series(pd.Categorical(values * 20))
    X, y = lazy_columns(labels)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        estimators.LogisticRegression().fit(X, y)


@pytest.mark.parametrize(("model", "stock", "name"), COLUMN_ESTIMATORS, ids=str)
@pytest.mark.parametrize("is_frame", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_one_column_is_taken_as_in_scikit_learn(cluster_client, model, stock, name, is_frame):
    rows = FRAME.assign(y=CODES, t=TARGET)
    lazy = dd.from_pandas(rows, npartitions=3)
    X, y = lazy[["a", "b", "c"]], lazy[[name]]
    if not is_frame:
        X, y = da.from_array(FRAME.to_numpy(), chunks=(20, 3)), y.to_dask_array(lengths=True)
    with cluster_client.as_current():
        predictions, categories = caught_fit(model, X, y)
    expected, expected_categories = caught_fit(
        stock, FRAME if is_frame else FRAME.to_numpy(), rows[[name]]
    )
    assert categories == expected_categories
    assert predictions.shape == expected.shape
    np.testing.assert_allclose(predictions, expected, rtol=1e-3, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        estimators.SGDClassifier(random_state=0),
        estimators.RandomForestClassifier(3, random_state=0),
        estimators.BlockwiseVotingClassifier(PlainSGDClassifier(random_state=0)),
        estimators.BlockwiseVotingRegressor(linear_model.SGDRegressor(random_state=0)),
        estimators.Incremental(PlainSGDClassifier(random_state=0), random_state=0),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_frame", [True, False])
def test_one_column_is_what_the_vector_is(cluster_client, model, is_frame):
    X, y = lazy_columns(CODES)
    column = y.to_frame()
    if not is_frame:
        X, y = X.to_dask_array(lengths=True), y.to_dask_array(lengths=True)
        column = y.reshape(-1, 1)
    with cluster_client.as_current():
        predictions, categories = caught_fit(model, X, column)
        assert categories == {DataConversionWarning}
        np.testing.assert_array_equal(predictions, caught_fit(model, X, y)[0])


def test_one_column_of_labels_of_an_encoder_warns():
    X, y = lazy_columns(CODES)
    X = X[["a"]].round()
    encoder = estimators.TargetEncoder(target_type="binary")
    expected = clone(encoder).fit(X, y).encodings_
    with pytest.warns(DataConversionWarning):
        np.testing.assert_allclose(encoder.fit(X, y.to_frame()).encodings_, expected)
    with pytest.warns(DataConversionWarning):
        encoder.fit_transform(X, y.to_frame())


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
@pytest.mark.parametrize("kind", ["column", pytest.param("category", marks=pytest.mark.slow)])
def test_boosters_take_them(cluster_client, library, kind):
    pytest.importorskip(library)
    name = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}[library]
    model = getattr(estimators, name)(n_estimators=2, min_child_weight=0, verbosity=0)
    X, y = lazy_columns(CODES)
    target = y.to_frame() if kind == "column" else y.astype("category")
    with cluster_client.as_current():
        expected = home(clone(model).fit(X, y).predict(X))
        fitted = clone(model)
        if kind == "column":
            with pytest.warns(DataConversionWarning):
                fitted.fit(X, target, eval_set=[(X, target)])
        else:
            fitted.fit(X, target, eval_set=[(X, target)])
        np.testing.assert_array_equal(home(fitted.predict(X)), expected)


class Threshold(ClassifierMixin, BaseEstimator):
    """A classifier that learns nothing of the labels."""

    def fit(self, X, y=None):
        self.classes_ = np.array([0, 1])
        return self

    def predict(self, X):
        return (np.asarray(X)[:, 0] > 0).astype(int)


@pytest.mark.parametrize("model", [Threshold(), make_pipeline(StandardScaler(), Threshold())])
def test_estimators_that_need_no_target_get_none(model):
    X = FRAME.to_numpy()
    expected = reference_selection.cross_val_predict(model, X, cv=3)
    np.testing.assert_array_equal(model_selection.cross_val_predict(model, X, cv=3), expected)
    search = model_selection.GridSearchCV(model, {}, cv=3, scoring=lambda model, X, y=None: 1.0)
    assert search.fit(X).best_score_ == 1.0


@pytest.mark.parametrize("is_search", [True, False])
def test_estimators_that_need_a_target_are_refused_before_any_task(is_search):
    model = make_pipeline(StandardScaler(), linear_model.LogisticRegression())
    fit = model_selection.GridSearchCV(model, {}).fit
    if not is_search:
        fit = partial(model_selection.cross_val_predict, model)
    with counting() as counts, pytest.raises(ValueError, match="requires y to be passed"):
        fit(FRAME)
    assert counts.tasks == 0
