"""What estimators around another one have of it: learned attributes, methods, and why not."""

import copy
import pickle

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from skfleet.estimators import BlockwiseVotingClassifier, Incremental, ParallelPostFit
from skfleet.metrics import accuracy_score
from skfleet.model_selection import GridSearchCV, IncrementalSearchCV

X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (ParallelPostFit(LogisticRegression()), ["coef_", "intercept_", "classes_", "n_iter_"]),
        (Incremental(SGDClassifier(random_state=0)), ["coef_", "t_", "classes_"]),
        (Incremental(MiniBatchKMeans(2, n_init=1)), ["cluster_centers_", "labels_", "inertia_"]),
        (ParallelPostFit(StandardScaler()), ["mean_", "scale_", "n_samples_seen_"]),
    ],
    ids=["logistic", "descent", "clusters", "scaler"],
)
def test_learned_attributes_are_readable(model, names):
    for name in (*names, "n_features_in_"):
        with pytest.raises(AttributeError, match="is not fitted yet"):
            getattr(clone(model), name)
    model.fit(X, Y)
    for fitted in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        for name in (*names, "n_features_in_"):
            np.testing.assert_array_equal(getattr(fitted, name), getattr(model.estimator_, name))
    assert not hasattr(model, "feature_names_in_")
    with pytest.raises(AttributeError, match=f"'{type(model.estimator).__name__}'.*'unheard_of_'"):
        _ = model.unheard_of_
    for name in ("unheard_of", "_private_", "__array__", "__name__"):
        with pytest.raises(AttributeError, match=f"'{type(model).__name__}' object has no"):
            getattr(model, name)


def test_its_own_attributes_come_first():
    model = Incremental(SGDClassifier(random_state=0), epochs=3).fit(X, Y)
    assert (model.n_iter_, model.estimator_.n_iter_) == (3, 1)
    fitted = ParallelPostFit(LogisticRegression().fit(X, Y))
    np.testing.assert_array_equal(fitted.coef_, fitted.estimator.coef_)
    assert not hasattr(fitted, "estimator_")


@pytest.mark.parametrize(
    ("model", "name", "match"),
    [
        (
            ParallelPostFit(LinearRegression()),
            "predict_proba",
            "estimator must have predict_proba. Got LinearRegression instead",
        ),
        (
            Incremental(SGDClassifier(loss="hinge")),
            "predict_proba",
            "Got SGDClassifier instead: .*predict_proba",
        ),
        (ParallelPostFit(StandardScaler()), "score", "must have score. Got StandardScaler instead"),
        (
            IncrementalSearchCV(SGDClassifier(), {"alpha": [1.0]}),
            "transform",
            "must have transform. Got SGDClassifier instead",
        ),
        (
            BlockwiseVotingClassifier(LinearSVC()),
            "predict_proba",
            "voting must be 'soft' for predict_proba. Got 'hard' instead",
        ),
    ],
    ids=["regression", "hinge", "score", "search", "votes"],
)
def test_a_missing_method_says_who_lacks_it(model, name, match):
    assert not hasattr(model, name)
    for _ in range(2):
        with pytest.raises(AttributeError, match=match):
            getattr(model, name)


def test_methods_that_are_there_are_bound():
    model = BlockwiseVotingClassifier(DecisionTreeClassifier(), voting="soft").fit(X, Y)
    assert model.predict_proba(X).shape == (60, 2)
    assert BlockwiseVotingClassifier.predict_proba(model, X).shape == (60, 2)
    assert "members" in BlockwiseVotingClassifier.predict_proba.__doc__


def _fail(block):
    pytest.fail("work before it is due")


@pytest.mark.parametrize("metric", [accuracy_score, "sklearn"])
def test_a_metric_is_no_scorer_and_refused_before_any_work(metric):
    from sklearn.metrics import accuracy_score as theirs
    from sklearn.metrics import make_scorer

    metric = theirs if metric == "sklearn" else metric
    rows = da.from_array(X, chunks=20).map_blocks(_fail, dtype=float, meta=X[:0])
    space = {"alpha": [1e-4]}
    for model in (
        ParallelPostFit(LogisticRegression(), scoring=metric),
        Incremental(SGDClassifier(), scoring=metric),
        Incremental(SGDClassifier(), scoring=metric, early_stopping=True),
        GridSearchCV(SGDClassifier(), space, scoring=metric),
        IncrementalSearchCV(SGDClassifier(), space, scoring=metric),
        IncrementalSearchCV(SGDClassifier(), space, scoring={"one": metric}, refit="one"),
    ):
        with pytest.raises(ValueError, match="Got the metric function accuracy_score instead"):
            model.fit(X if isinstance(model, GridSearchCV) else rows, Y)
    scored = ParallelPostFit(LogisticRegression(), scoring=make_scorer(theirs)).fit(X, Y)
    assert scored.score(X, Y) > 0.9
    with pytest.raises(ValueError, match="scoring must be one of"):
        ParallelPostFit(LogisticRegression(), scoring="accurate").fit(X, Y)
