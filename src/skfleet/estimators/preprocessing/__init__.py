"""Scaling, encoding and expansion of columns on rows of any container."""

from skfleet.estimators.preprocessing._bins import KBinsDiscretizer
from skfleet.estimators.preprocessing._encoders import OneHotEncoder, OrdinalEncoder
from skfleet.estimators.preprocessing._label_encoders import (
    LabelBinarizer,
    LabelEncoder,
    MultiLabelBinarizer,
)
from skfleet.estimators.preprocessing._power import PowerTransformer
from skfleet.estimators.preprocessing._quantile_transformer import QuantileTransformer
from skfleet.estimators.preprocessing._robust_scaler import RobustScaler
from skfleet.estimators.preprocessing._scalers import MaxAbsScaler, MinMaxScaler, StandardScaler
from skfleet.estimators.preprocessing._splines import SplineTransformer
from skfleet.estimators.preprocessing._stateless import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    PolynomialFeatures,
)
from skfleet.estimators.preprocessing._target_encoder import TargetEncoder

__all__ = [
    "Binarizer",
    "FunctionTransformer",
    "KBinsDiscretizer",
    "LabelBinarizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiLabelBinarizer",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "PolynomialFeatures",
    "PowerTransformer",
    "QuantileTransformer",
    "RobustScaler",
    "SplineTransformer",
    "StandardScaler",
    "TargetEncoder",
]
