"""Scaling, encoding and expansion of columns on rows of any container."""

from skfleet.estimators.preprocessing._encoders import OneHotEncoder, OrdinalEncoder
from skfleet.estimators.preprocessing._label_encoders import (
    LabelBinarizer,
    LabelEncoder,
    MultiLabelBinarizer,
)
from skfleet.estimators.preprocessing._scalers import MaxAbsScaler, MinMaxScaler, StandardScaler
from skfleet.estimators.preprocessing._stateless import Binarizer, Normalizer
from skfleet.estimators.preprocessing._target_encoder import TargetEncoder

__all__ = [
    "Binarizer",
    "LabelBinarizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiLabelBinarizer",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "StandardScaler",
    "TargetEncoder",
]
