"""XGBoost's and LightGBM's estimators in the wrappers."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_classifier
from sklearn.datasets import make_classification
from sklearn.model_selection import cross_val_score

from skfleet.estimators import (
    BlockwiseVotingClassifier,
    BlockwiseVotingRegressor,
    Incremental,
    ParallelPostFit,
)


def _boosters():
    """Give what is installed."""
    found = []
    try:
        import lightgbm
    except ImportError:
        pass
    else:
        quick = {"n_estimators": 5, "verbose": -1, "n_jobs": 1}
        found += [lightgbm.LGBMClassifier(**quick), lightgbm.LGBMRegressor(**quick)]
    try:
        import xgboost
    except ImportError:
        pass
    else:
        quick = {"n_estimators": 5, "n_jobs": 1, "enable_categorical": True}
        found += [xgboost.XGBClassifier(**quick), xgboost.XGBRegressor(**quick)]
    return found


BOOSTERS = _boosters()
if not BOOSTERS:
    pytest.skip("neither XGBoost nor LightGBM is installed", allow_module_level=True)

each_booster = pytest.mark.parametrize("booster", BOOSTERS, ids=lambda b: type(b).__name__)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(300, 6, n_informative=4, n_classes=3, random_state=0)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    frame["kind"] = pd.Categorical(np.array(list("xyz"))[np.arange(300) % 3])
    return X, frame, y


@each_booster
def test_predictions(booster, data):
    X, frame, y = data
    for train, rows in (
        (X, da.from_array(X, chunks=((100, 0, 1, 199), 4))),
        (frame, dd.from_pandas(frame, npartitions=4)),
    ):
        model = ParallelPostFit(booster).fit(train, y)
        for method in ("predict", "predict_proba"):
            if not hasattr(booster, method):
                continue
            announced = getattr(model, method)(rows)
            got, want = announced.compute(), getattr(model.estimator_, method)(train)
            np.testing.assert_allclose(got, want, rtol=1e-6)
            if isinstance(announced, da.Array):
                assert (announced.dtype, announced.shape[1:]) == (got.dtype, got.shape[1:])
        labels = da.from_array(y, chunks=70)
        if isinstance(rows, da.Array):
            want = model.estimator_.score(train, y)
            assert abs(model.score(rows, labels) - want) < 1e-6


@each_booster
def test_committees_and_searches(booster, data):
    X, _, y = data
    voting = BlockwiseVotingClassifier if is_classifier(booster) else BlockwiseVotingRegressor
    rows, labels = da.from_array(X, chunks=(100, 6)), da.from_array(y, chunks=100)
    committee = voting(booster).fit(rows, labels)
    assert len(committee.estimators_) == 3
    assert committee.score(rows, labels) > 0.2
    ours = cross_val_score(ParallelPostFit(booster), X, y, cv=3)
    np.testing.assert_allclose(ours, cross_val_score(booster, X, y, cv=3))


@each_booster
def test_they_do_not_learn_incrementally(booster, data):
    X, _, y = data
    with pytest.raises(TypeError, match="estimator must have partial_fit"):
        Incremental(booster).fit(X, y)
