"""ParallelPostFit: any estimator, its methods, attributes and scores on Dask collections."""

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from lazy_containers import LAZY, compare, make_frame
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.estimators import BlockwiseVotingClassifier, Incremental, ParallelPostFit
from skfleet.estimators import Ridge as FleetRidge
from skfleet.model_selection import GridSearchCV as FleetGridSearchCV


@parametrize_with_checks([ParallelPostFit(LogisticRegression()), ParallelPostFit(Ridge())])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    return make_classification(120, 6, n_informative=4, n_classes=3, random_state=0)


class Particular(BaseEstimator):
    """Refuses to run on anything but tens."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        if (np.asarray(X) % 10).any():
            raise ValueError("no tens")
        return np.asarray(X)[:, :2].astype(np.int16)


def test_an_estimator_that_refuses_made_up_rows_is_asked_a_real_one():
    rows = da.full((20, 3), 10.0, chunks=((0, 20), 3))
    model = ParallelPostFit(Particular()).fit(None)
    answer = model.transform(rows)
    assert (answer.shape, answer.dtype) == ((20, 2), np.int16)
    told = ParallelPostFit(Particular(), transform_meta=np.empty((0, 2), np.int16)).fit(None)
    with dask.config.set(scheduler=lambda *args, **kwargs: pytest.fail("work before it is due")):
        assert told.transform(rows).dtype == np.int16


def test_methods_are_offered_when_the_estimator_has_them():
    assert not hasattr(ParallelPostFit(LinearRegression()), "predict_proba")
    assert not hasattr(ParallelPostFit(LinearRegression()), "transform")
    assert hasattr(ParallelPostFit(SVC(probability=False)), "decision_function")
    assert hasattr(ParallelPostFit(PCA()), "inverse_transform")
    assert not hasattr(ParallelPostFit(PCA()), "predict")
    assert not hasattr(ParallelPostFit(SGDClassifier(loss="hinge")), "predict_proba")
    assert hasattr(ParallelPostFit(SGDClassifier(loss="log_loss")), "predict_proba")


class Elsewhere(np.ndarray):
    """Stands for the arrays of another library, on a device."""


class Doubler(BaseEstimator):
    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return 2 * X[:, :1] if len(X) else X[:, :1]

    def predict(self, X):
        return X[:, 0]


def test_answers_stay_in_the_library_of_the_rows(data):
    rows = LAZY["rows"](data[0]).map_blocks(lambda block: block.view(Elsewhere))
    model = ParallelPostFit(Doubler()).fit(None)
    for answer in (model.transform(rows), model.predict(rows)):
        assert type(answer._meta) is Elsewhere
        assert {type(block.compute(scheduler="synchronous")) for block in answer.blocks} == {
            Elsewhere
        }


def test_only_the_first_rows_are_looked_at():
    looked = []

    def load(i):
        looked.append(i)
        return pd.DataFrame({"kind": ["x", "y"] * 50})

    frame = dd.from_map(load, range(5), meta=pd.DataFrame({"kind": ["x"]}).iloc[:0])
    model = make_pipeline(OneHotEncoder(), LogisticRegression())
    model.fit(pd.DataFrame({"kind": ["x", "y"]}), [0, 1])  # no "a", of artificial rows
    ParallelPostFit(model).predict(frame)
    assert looked == [0]


class ListMaker(BaseEstimator):
    """Predicts lists, and words of the length of the row's number."""

    def fit(self, X, y=None):
        self.classes_ = np.array(["a", "aaaa"])
        return self

    def predict(self, X):
        return ["aaaa" if row[0] > 1 else "a" for row in X]

    def score_samples(self, X):
        return [float(row[0]) for row in X]


class Oracle:
    """Predicts, and that is all."""

    def predict(self, X):
        return np.asarray(X)[:, 0]


class Pupil(BaseEstimator):
    """Learns, but not by fit."""

    def partial_fit(self, X, y=None):
        self.seen_ = len(X)
        return self

    predict = Oracle.predict


def test_estimators_without_fit(data):
    rows = LAZY["rows"](data[0])
    compare(ParallelPostFit(Oracle()).predict(rows), data[0][:, 0], rows)
    assert not is_classifier(ParallelPostFit(Oracle()))
    with pytest.raises(NotFittedError, match="This ParallelPostFit instance is not fitted"):
        ParallelPostFit(Pupil()).predict(rows)
    with pytest.raises(NotFittedError):
        Incremental(Pupil()).predict(rows)
    for model in (ParallelPostFit(Pupil().partial_fit([])), Incremental(Pupil()).fit(rows)):
        compare(model.predict(rows), data[0][:, 0], rows)


def test_lists_become_arrays():
    rows = da.from_array(np.arange(10.0)[:, None], chunks=3)
    model = ParallelPostFit(ListMaker()).fit(None)
    assert model.predict(rows).compute().tolist() == ["a"] * 2 + ["aaaa"] * 8
    scores = model.score_samples(rows)
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, np.arange(10.0))


def test_set_output(data):
    X, _ = data
    model = ParallelPostFit(StandardScaler()).set_output(transform="pandas").fit(make_frame(X))
    assert isinstance(model.transform(make_frame(X)), pd.DataFrame)
    assert model.set_output(transform="default") is model
    assert isinstance(model.transform(make_frame(X)), np.ndarray)
    assert not hasattr(ParallelPostFit(SVC()), "set_output")


@pytest.mark.parametrize("wrapper", [ParallelPostFit, Incremental, BlockwiseVotingClassifier])
def test_how_it_looks(wrapper):
    model = wrapper(SGDClassifier(alpha=0.5))
    assert repr(model) == f"{wrapper.__name__}(estimator=SGDClassifier(alpha=0.5))"
    html = model._repr_html_()
    assert wrapper.__name__ in html
    assert "SGDClassifier" in html


def test_inverse_transform(data):
    X, _ = data
    model = ParallelPostFit(PCA(6)).fit(X)
    rows = LAZY["rows"](X)
    compare(model.inverse_transform(model.transform(rows)), X, rows)


def test_what_it_is_shows_through():
    assert is_classifier(ParallelPostFit(LogisticRegression()))
    assert is_classifier(Incremental(SGDClassifier()))
    assert is_classifier(ParallelPostFit(make_pipeline(StandardScaler(), SVC())))
    assert is_regressor(ParallelPostFit(Ridge()))
    assert not is_classifier(ParallelPostFit(PCA()))


def test_the_users_estimator_is_never_changed(data):
    X, y = data
    mine = LogisticRegression()
    ParallelPostFit(mine).fit(X, y)
    assert not hasattr(mine, "coef_")
    mine.fit(X, y)
    coef = mine.coef_.copy()
    wrapper = ParallelPostFit(mine)
    np.testing.assert_array_equal(wrapper.predict(X), mine.predict(X))
    wrapper.fit(X, y == 0)
    np.testing.assert_array_equal(mine.coef_, coef)


def test_it_lives_among_scikit_learns(data):
    X, y = data
    wrapper = ParallelPostFit(make_pipeline(StandardScaler(), LogisticRegression()))
    assert wrapper.get_params()["estimator__logisticregression__C"] == 1.0
    assert clone(wrapper).set_params(estimator__logisticregression__C=3.0) is not wrapper
    scores = cross_val_score(wrapper, X, y)
    np.testing.assert_array_equal(scores, cross_val_score(wrapper.estimator, X, y))
    search = GridSearchCV(wrapper, {"estimator__logisticregression__C": [0.1, 1]}).fit(X, y)
    around = ParallelPostFit(search.best_estimator_)
    np.testing.assert_array_equal(around.predict(LAZY["rows"](X)).compute(), search.predict(X))
    again = pickle.loads(pickle.dumps(around))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))
    assert "LogisticRegression" in repr(wrapper)


def test_pipelines_of_wrappers_stay_lazy(data):
    X, y = data
    wrapped = make_pipeline(
        ParallelPostFit(StandardScaler()), ParallelPostFit(PCA(3)), ParallelPostFit(SVC())
    ).fit(X, y)
    plain = make_pipeline(StandardScaler(), PCA(3), SVC()).fit(X, y)
    for container in ("rows", "unknown"):
        rows = LAZY[container](X)
        compare(wrapped.predict(rows), plain.predict(X), rows)


@pytest.mark.parametrize("search", [GridSearchCV, FleetGridSearchCV])
def test_searches_around_and_inside(search, data):
    X, y = data
    for wrapper, inner in (
        (ParallelPostFit, LogisticRegression()),
        (Incremental, SGDClassifier(random_state=0)),
        (BlockwiseVotingClassifier, SVC()),
    ):
        name = "estimator__C" if hasattr(inner, "C") else "estimator__alpha"
        found = search(wrapper(inner), {name: [1e-3, 1.0]}, cv=3).fit(X, y)
        assert np.isfinite(found.cv_results_["mean_test_score"]).all()
        assert found.best_estimator_.predict(X).shape == y.shape
    around = ParallelPostFit(search(SVC(), {"C": [0.1, 1.0]}, cv=3)).fit(X, y)
    rows = LAZY["rows"](X)
    compare(around.predict(rows), around.estimator_.predict(X), rows)


def test_scores_without_gathering(data):
    X, y = data
    model = ParallelPostFit(LogisticRegression()).fit(X, y)
    rows, labels = LAZY["rows"](X), da.from_array(y, chunks=33)
    assert model.score(rows, labels) == model.score(X, y) == model.estimator_.score(X, y)
    weight = np.arange(120.0)
    np.testing.assert_allclose(
        model.score(rows, labels, sample_weight=weight),
        model.estimator_.score(X, y, sample_weight=weight),
    )
    regression = ParallelPostFit(Ridge()).fit(X, y)
    np.testing.assert_allclose(regression.score(rows, labels), regression.score(X, y))
    with pytest.raises(TypeError, match="classifier or a regressor"):
        ParallelPostFit(PCA(2)).fit(X).score(rows)


def test_bad_use(data):
    X, y = data
    with pytest.raises(NotFittedError):
        ParallelPostFit(LogisticRegression()).predict(LAZY["rows"](X))
    with pytest.raises(TypeError, match="must be in this process"):
        ParallelPostFit(LogisticRegression()).fit(LAZY["rows"](X), y)
    ParallelPostFit(FleetRidge()).fit(LAZY["rows"](X), y)  # this one trains on blocks
    model = ParallelPostFit(LogisticRegression()).fit(X, y)
    with dask.config.set(scheduler=lambda *args, **kwargs: pytest.fail("work before it is due")):
        with pytest.raises(ValueError, match="5 features"):
            model.predict(da.from_array(X[:, :5], chunks=(50, 5)))
        model.fit(make_frame(X), y)
        with pytest.raises(ValueError, match="unseen at fit time"):
            model.predict(dd.from_pandas(make_frame(X).rename(columns={"c1": "d"}), npartitions=2))
