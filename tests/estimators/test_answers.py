"""Types and names of lazy answers: what is announced of our own estimators is what comes."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier as PlainForest
from sklearn.linear_model import LogisticRegression as PlainLogisticRegression

from skfleet import estimators
from skfleet.estimators import (
    PCA,
    BlockwiseVotingClassifier,
    ElasticNet,
    GaussianMixture,
    IncrementalPCA,
    KMeans,
    KNeighborsClassifier,
    KNeighborsRegressor,
    LogisticRegression,
    MiniBatchKMeans,
    ParallelPostFit,
    PoissonRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
    TruncatedSVD,
)

METHODS = (
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "transform",
    "inverse_transform",
    "score_samples",
)
_rng = np.random.default_rng(0)
X = _rng.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


@pytest.mark.sampled(27)
@pytest.mark.filterwarnings("ignore:divide by zero encountered in log")  # of trees
@pytest.mark.parametrize("asked", [np.float32, np.float64])
@pytest.mark.parametrize("fitted", [np.float32, np.float64])
@pytest.mark.parametrize(
    "estimator",
    [
        ElasticNet(),
        GaussianMixture(2, random_state=0),
        IncrementalPCA(3),
        KMeans(2, random_state=0),
        KNeighborsClassifier(),
        KNeighborsRegressor(weights="distance"),
        LogisticRegression(),
        MiniBatchKMeans(2, random_state=0),
        PCA(3),
        PoissonRegressor(),
        RandomForestClassifier(3),
        RandomForestRegressor(3),
        Ridge(),
        RidgeClassifier(),
        SGDClassifier(loss="log_loss", random_state=0),
        TruncatedSVD(2),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_the_type_announced_is_that_which_comes(estimator, fitted, asked):
    model = estimator.fit(X.astype(fitted), Y)
    for method in METHODS:
        if not hasattr(model, method):
            continue
        values = X.astype(asked)
        if method == "inverse_transform":
            values = np.asarray(model.transform(X)).astype(asked)
        home = getattr(model, method)(values)
        lazy = getattr(model, method)(da.from_array(values, chunks=(40, 3)))
        assert home.dtype == lazy.dtype == lazy.compute().dtype
        frame = dd.from_pandas(pd.DataFrame(values), npartitions=2)
        answer = getattr(model, method)(frame)
        came = answer.compute()
        kinds = [{home.dtype}, set(np.atleast_1d(answer.dtypes)), set(np.atleast_1d(came.dtypes))]
        assert kinds[0] == kinds[1] == kinds[2]


def test_labels_that_are_numbers_keep_their_type():
    labels = Y.astype(np.float32)
    model = LogisticRegression().fit(X, labels)
    answer = model.predict(da.from_array(X, chunks=(40, 3)))
    assert answer.dtype == answer.compute().dtype == model.predict(X).dtype == np.float32


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        (KNeighborsClassifier(), ["predict_proba"]),
        (LogisticRegression(), ["predict_proba", "predict_log_proba"]),
        (RandomForestClassifier(3), ["predict_proba"]),
        (SGDClassifier(loss="log_loss"), ["predict_proba", "predict_log_proba"]),
        (ParallelPostFit(PlainLogisticRegression()), ["predict_proba", "predict_log_proba"]),
        (BlockwiseVotingClassifier(PlainLogisticRegression(), voting="soft"), ["predict_proba"]),
    ],
    ids=["neighbors", "ours", "forest", "descent", "any", "committee"],
)
@pytest.mark.parametrize("labels", [Y, Y > 0, Y.astype(str)], ids=["int", "bool", "text"])
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask, to pandas
def test_probabilities_of_frames_are_written_to_parquet(model, methods, labels, tmp_path):
    frame = pd.DataFrame(X, columns=list("abc"))
    model.fit(frame, labels)
    for method in methods:
        answer = getattr(model, method)(dd.from_pandas(frame, npartitions=2))
        assert list(answer.columns) == [str(label) for label in np.unique(labels)]
        answer.to_parquet(tmp_path / method)
        back = pd.read_parquet(tmp_path / method)
        np.testing.assert_allclose(back, getattr(model, method)(frame), rtol=1e-6)


def test_every_output_has_columns_by_its_classes():
    frame = pd.DataFrame(X, columns=list("abc"))
    model = ParallelPostFit(PlainForest(3)).fit(frame, np.column_stack([Y, 2 * Y]))
    answers = model.predict_proba(dd.from_pandas(frame, npartitions=2))
    assert [list(answer.columns) for answer in answers] == [["0", "1"], ["0", "2"]]


class Namesakes(BaseEstimator):
    """Knows two labels that are written alike."""

    classes_ = np.array([1, "1"], dtype=object)

    def predict_proba(self, X):
        return np.full((len(X), 2), 0.5)


def test_labels_that_are_written_alike_raise_for_a_frame_alone():
    model = ParallelPostFit(Namesakes())
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=2)
    with pytest.raises(ValueError, match=r"classes_ must differ as text.* Got '1' more than once"):
        model.predict_proba(frame)
    assert model.predict_proba(frame.to_dask_array(lengths=True)).shape == (60, 2)


def test_an_estimator_without_classes_has_numbers_for_names():
    frame = pd.DataFrame(X)
    model = ParallelPostFit(DummyClassifier()).fit(frame, Y)
    del model.estimator_.classes_
    meta = np.empty((0, 2))
    model.set_params(predict_proba_meta=meta)
    assert list(model.predict_proba(dd.from_pandas(frame, npartitions=2)).columns) == [0, 1]


@pytest.mark.parametrize("name", ["LogisticRegression", "RidgeClassifier", "SGDClassifier"])
def test_labels_whose_kind_differs_between_blocks_are_named(name):
    X = da.from_array(np.random.default_rng(0).normal(size=(40, 3)), chunks=(20, 3))
    y = da.from_array(np.array([1] * 20 + ["a"] * 20, dtype=object), chunks=20)
    with pytest.raises(ValueError, match=r"labels of one kind\. Got int and str"):
        getattr(estimators, name)().fit(X, y)
