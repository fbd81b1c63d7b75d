"""Scorers by name give on Dask collections what scikit-learn's give on the whole."""

import warnings

import dask.array as da
import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification, make_multilabel_classification, make_regression
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier

from skfleet.engine import counting
from skfleet.estimators import ParallelPostFit
from skfleet.metrics import check_scoring, get_scorer, get_scorer_names
from skfleet.metrics._scorers import SCORERS

WEIGHT = np.random.default_rng(0).uniform(size=300)


def _classes(n, words=False):
    X, y = make_classification(300, 8, n_informative=5, n_classes=n, random_state=0)
    return X, np.array(["a", "b", "c"])[y] if words else y


def _regression(positive=False):
    X, y = make_regression(300, 5, noise=10, random_state=0)
    return X, np.exp(y / 100) if positive else y


WORLDS = {
    "binary": (LogisticRegression(), _classes(2)),
    "binary-words": (LogisticRegression(), _classes(2, words=True)),
    "three": (LogisticRegression(), _classes(3)),
    "three-words": (LogisticRegression(), _classes(3, words=True)),
    "regression": (LinearRegression(), _regression()),
    "positive": (PoissonRegressor(), _regression(positive=True)),
    "multilabel": (KNeighborsClassifier(), make_multilabel_classification(300, random_state=0)),
}


def _lazy(X, y):
    return da.from_array(X, chunks=(70, X.shape[1])), da.from_array(
        y, chunks=(50, *y.shape[1:]) if y.ndim == 2 else 50
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@pytest.mark.parametrize("name", WORLDS)
def test_every_scorer_equals_scikit_learns(name, weight):
    estimator, (X, y) = WORLDS[name]
    model = ParallelPostFit(estimator).fit(X, y)
    told = {} if weight is None else {"sample_weight": weight}
    n_compared = 0
    for scoring in get_scorer_names():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                want = reference.get_scorer(scoring)(model.estimator_, X, y, **told)
            except Exception:
                continue  # not for this kind of targets
            if np.isnan(want):
                continue
            if name == "multilabel" and SCORERS[scoring].responses != ("predict",):
                with pytest.raises(ValueError, match="one column"):
                    get_scorer(scoring)(model, *_lazy(X, y), **told)
                continue
            got = get_scorer(scoring)(model, *_lazy(X, y), **told)
        np.testing.assert_allclose(got, want, rtol=1e-12, err_msg=scoring)
        n_compared += 1
    assert n_compared >= 5


def test_names_are_scikit_learns():
    assert set(get_scorer_names()) < set(reference.get_scorer_names())


def test_several_metrics_share_one_pass():
    estimator, (X, y) = WORLDS["three"]
    model = ParallelPostFit(estimator).fit(X, y)
    names = ["accuracy", "f1_macro", "recall_weighted", "balanced_accuracy"]
    with counting() as counts:
        got = check_scoring(scoring=names)(model, *_lazy(X, y))
    assert counts.passes == 1
    assert got == {
        n: pytest.approx(reference.get_scorer(n)(model.estimator_, X, y), rel=1e-12) for n in names
    }


def test_without_scoring_the_estimator_decides():
    assert repr(check_scoring(LogisticRegression())) == "get_scorer('accuracy')"
    assert repr(check_scoring(LinearRegression())) == "get_scorer('r2')"
    with pytest.raises(TypeError, match="must be a classifier or a regressor"):
        check_scoring(KMeans())


def test_named_metrics_keep_their_names():
    estimator, (X, y) = WORLDS["binary"]
    scorer = check_scoring(scoring={"right": "accuracy", "area": "roc_auc"})
    assert set(scorer(estimator.fit(X, y), X, y)) == {"right", "area"}


@pytest.mark.parametrize("scoring", ["nope", ["accuracy", "nope"], [], 3])
def test_unknown_scoring_is_refused(scoring):
    with pytest.raises((ValueError, TypeError)):
        check_scoring(scoring=scoring)


def test_a_scorer_serves_scikit_learns_search():
    _, (X, y) = WORLDS["binary"]
    grid = {"C": [0.1, 1.0]}
    got = GridSearchCV(LogisticRegression(), grid, scoring=get_scorer("roc_auc")).fit(X, y)
    want = GridSearchCV(LogisticRegression(), grid, scoring="roc_auc").fit(X, y)
    assert got.best_score_ == want.best_score_
