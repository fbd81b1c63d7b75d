"""scikit-learn's checks on the adaptive searches."""

import pytest
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import Ridge, SGDClassifier, SGDRegressor
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.model_selection import (
    ASHASearchCV,
    HyperbandSearchCV,
    IncrementalSearchCV,
    InverseDecaySearchCV,
    SuccessiveHalvingSearchCV,
)

ALPHAS = {"alpha": [1e-4, 1e-3, 1e-2]}
HOW = {"n_jobs": 1, "random_state": 0, "error_score": "raise"}


def sgd(kind):
    return kind(random_state=0)


_AS_STOCK = "scikit-learn's own searches have no fit_transform either"


def _expected_failures(search):
    if not hasattr(search.estimator, "transform"):
        return {}
    checks = ["check_transformer_data_not_an_array", "check_transformer_general"]
    return dict.fromkeys([*checks, "check_transformer_preserve_dtypes"], _AS_STOCK)


@pytest.mark.sampled(220)
@parametrize_with_checks(
    [
        SuccessiveHalvingSearchCV(sgd(SGDClassifier), ALPHAS, n_initial_parameters=3, **HOW),
        SuccessiveHalvingSearchCV(sgd(SGDRegressor), ALPHAS, n_initial_parameters=3, **HOW),
        SuccessiveHalvingSearchCV(
            MiniBatchKMeans(random_state=0), {"n_clusters": [2, 3]}, n_initial_parameters=2, **HOW
        ),
        HyperbandSearchCV(sgd(SGDClassifier), ALPHAS, max_iter=3, **HOW),
        ASHASearchCV(sgd(SGDClassifier), ALPHAS, n_initial_parameters=3, max_iter=3, **HOW),
        IncrementalSearchCV(sgd(SGDRegressor), ALPHAS, n_initial_parameters=2, max_iter=3, **HOW),
        InverseDecaySearchCV(sgd(SGDClassifier), ALPHAS, n_initial_parameters=2, max_iter=3, **HOW),
        SuccessiveHalvingSearchCV(
            Ridge(), {"alpha": [0.1, 1.0]}, resource="n_samples", n_initial_parameters=2, **HOW
        ),
        IncrementalSearchCV(
            DecisionTreeRegressor(random_state=0),
            {"min_samples_leaf": [1, 2]},
            resource="folds",
            cv=2,
            n_initial_parameters=2,
            **HOW,
        ),
    ],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
