"""scikit-learn's checks: each that the library's own class passes."""

from unittest import SkipTest

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.estimators import boosting

XGBOOST = {"n_estimators": 5, "n_jobs": 1}
LIGHTGBM = {"n_estimators": 10, "n_jobs": 1, "verbose": -1}
QUERY_ROWS = 10


def relevance_of(y):
    """Return finite numbers as whole ones from 0 to 3, and anything else as it is."""
    values = np.asarray(y)
    if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
        return y
    codes = np.unique(values, return_inverse=True)[1]
    return codes * 4 // (codes.max() + 1)


class QidRows:
    """Queries for rows that come without; weights are left out, which would be those of queries."""

    def fit(self, X, y, *, qid=None):
        if y is not None and qid is None:
            qid, y = np.arange(len(np.asarray(y))) // QUERY_ROWS, relevance_of(y)
        return super().fit(X, y, qid=qid)


class GroupRows:
    """Groups for rows that come without."""

    def fit(self, X, y, sample_weight=None, *, group=None):
        if y is not None and group is None:
            n_rows = len(np.asarray(y))
            group = np.diff([*range(0, n_rows, QUERY_ROWS), n_rows])
            y = relevance_of(y)
        return super().fit(X, y, sample_weight=sample_weight, group=group)


class XGBQidRanker(QidRows, boosting.XGBRanker):
    """XGBRanker on any rows."""


class LGBMGroupRanker(GroupRows, boosting.LGBMRanker):
    """LGBMRanker on any rows."""


class PlainQidRanker(QidRows, xgboost.XGBRanker):
    """XGBoost's own ranker on any rows."""


class PlainGroupRanker(GroupRows, lightgbm.LGBMRanker):
    """LightGBM's own ranker on any rows."""


ESTIMATORS = [
    *(cls(**XGBOOST) for cls in (boosting.XGBClassifier, boosting.XGBRegressor)),
    *(cls(**XGBOOST) for cls in (boosting.XGBRanker, XGBQidRanker)),
    *(cls(**LIGHTGBM) for cls in (boosting.LGBMClassifier, boosting.LGBMRegressor)),
    *(cls(**LIGHTGBM) for cls in (boosting.LGBMRanker, LGBMGroupRanker)),
]


def plain_of(estimator):
    """Return the library's own estimator, on any rows where ours is."""
    plain = estimator._plain()
    classes = {XGBQidRanker: PlainQidRanker, LGBMGroupRanker: PlainGroupRanker}
    return classes.get(type(estimator), type(plain))(**plain.get_params())


def failure_of(check, estimator):
    """Return the error that a check ends with, or None."""
    try:
        check(estimator)
    except SkipTest:
        raise
    except Exception as error:
        return error
    return None


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS)
def test_checks_that_the_librarys_class_passes(estimator, check):
    failure = failure_of(check, estimator)
    if failure is None:
        return
    if type(failure_of(check, plain_of(estimator))) is type(failure):
        pytest.xfail(f"the library's own class fails it alike: {failure!r:.100}")
    raise failure
