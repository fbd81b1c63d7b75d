"""scikit-learn's checks of estimators, which the encoders pass as scikit-learn's do."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.estimators.preprocessing import OneHotEncoder, OrdinalEncoder, TargetEncoder

ENCODERS = [
    OneHotEncoder(),
    OneHotEncoder(drop="first"),
    OrdinalEncoder(),
    TargetEncoder(),
]


@pytest.mark.filterwarnings("ignore:`TargetEncoder.shuffle`:FutureWarning")
@parametrize_with_checks(ENCODERS)
def test_encoders(estimator, check):
    check(estimator)
