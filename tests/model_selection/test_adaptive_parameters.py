"""What adaptive searches take and tell: labels in any form, columns of parameters, metadata."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy.stats import loguniform, randint
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.model_selection import RandomizedSearchCV

from skfleet.estimators import KMeans, LassoCV, LogisticRegression, MiniBatchKMeans
from skfleet.estimators import PoissonRegressor as FleetPoisson
from skfleet.estimators import SGDClassifier as FleetSGD
from skfleet.model_selection import (
    ASHASearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
    InverseDecaySearchCV,
    SuccessiveHalvingSearchCV,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
Y = (X[:, 0] > 0).astype(int)


def search(**params):
    how = {"n_initial_parameters": 2, "max_iter": 3, "random_state": 0, "test_size": 0.25}
    return IncrementalSearchCV(SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-3]}, **how)


def _lazy(kind):
    rows, labels = da.from_array(X, chunks=(40, 3)), da.from_array(Y, chunks=40)
    if kind == "unknown":
        keep = da.from_array(np.ones(120, dtype=bool), chunks=40)
        return rows[keep], labels[keep]
    if kind == "frame":
        frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")).assign(y=Y), npartitions=3)
        return frame[["a", "b", "c"]], frame["y"]
    return rows, labels


@pytest.mark.parametrize("kind", ["known", "unknown", "frame"])
def test_labels_are_taken_in_any_form(kind, cluster_client):
    with cluster_client.as_current():
        rows, labels = _lazy(kind)
        want = search().fit(rows, labels).best_estimator_.coef_
        future = cluster_client.submit(np.unique, Y)
        unique = labels.unique() if kind == "frame" else da.unique(labels)
        for classes in ([0, 1], np.array([0, 1]), unique, future):
            found = search().fit(rows, labels, classes=classes)
            np.testing.assert_array_equal(found.best_estimator_.coef_, want)
            np.testing.assert_array_equal(found.classes_, [0, 1])


SPACE = {"alpha": loguniform(1e-5, 1e-1), "n_iter_no_change": randint(2, 9), "penalty": ["l1"]}


def test_columns_of_parameters_have_scikit_learns_types():
    space = SPACE | {"average": [True, False], "class_weight": [None, {0: 2.0}]}
    theirs = RandomizedSearchCV(SGDClassifier(), space, n_iter=4, random_state=0).fit(X, Y)
    ours = IncrementalSearchCV(
        SGDClassifier(), space, n_initial_parameters=4, max_iter=1, n_jobs=1, random_state=0
    ).fit(X, Y)
    for name in space:
        column = f"param_{name}"
        assert ours.cv_results_[column].dtype == theirs.cv_results_[column].dtype
    # a parameter that only some candidates have
    some = [{"alpha": [1e-4, 1e-3]}, {"eta0": [0.1], "learning_rate": ["constant"]}]
    found = IncrementalSearchCV(
        SGDClassifier(), some, n_initial_parameters="grid", max_iter=1, n_jobs=1
    ).fit(X, Y)
    assert found.cv_results_["param_alpha"].dtype == np.float64
    np.testing.assert_array_equal(found.cv_results_["param_eta0"].mask, [True, True, False])


@pytest.mark.parametrize(
    "search",
    [
        HyperbandSearchCV(SGDClassifier(random_state=0), SPACE, max_iter=9),
        SuccessiveHalvingSearchCV(SGDClassifier(random_state=0), SPACE, n_initial_parameters=9),
        ASHASearchCV(SGDClassifier(random_state=0), SPACE, n_initial_parameters=9, max_iter=9),
        IncrementalSearchCV(SGDClassifier(), SPACE, n_initial_parameters=4, max_iter=5),
        InverseDecaySearchCV(SGDClassifier(), SPACE, n_initial_parameters=5, max_iter=5),
    ],
    ids=lambda search: type(search).__name__,
)
def test_what_was_done_is_what_was_planned(search):
    search.set_params(n_jobs=1, random_state=0).fit(X, Y)
    assert search.metadata_ == search.metadata
    assert search.search_time_ > 0


def _fail(block):
    pytest.fail("work before it is due")


@pytest.mark.parametrize("verbose", [-1, 1.2, "1", None])
@pytest.mark.parametrize(
    "model",
    [
        IncrementalSearchCV(SGDRegressor(), {"alpha": [1.0]}),
        KMeans(2),
        MiniBatchKMeans(2),
        LassoCV(),
        LogisticRegression(),
        FleetPoisson(),
        FleetSGD(),
    ],
    ids=lambda model: type(model).__name__,
)
def test_verbose_is_checked(model, verbose):
    model.set_params(verbose=verbose)
    rows = da.from_array(X, chunks=40).map_blocks(_fail, dtype=float, meta=X[:0])
    with pytest.raises(ValueError, match="verbose must be a whole number of at least 0"):
        model.fit(rows, da.from_array(Y, chunks=40))
