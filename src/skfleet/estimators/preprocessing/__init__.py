"""Scaling, encoding and expansion of columns on rows of any container."""

from skfleet.estimators.preprocessing._quantile_transformer import QuantileTransformer
from skfleet.estimators.preprocessing._robust_scaler import RobustScaler
from skfleet.estimators.preprocessing._scalers import MaxAbsScaler, MinMaxScaler, StandardScaler
from skfleet.estimators.preprocessing._stateless import (
    Binarizer,
    FunctionTransformer,
    Normalizer,
    PolynomialFeatures,
)

__all__ = [
    "Binarizer",
    "FunctionTransformer",
    "MaxAbsScaler",
    "MinMaxScaler",
    "Normalizer",
    "PolynomialFeatures",
    "QuantileTransformer",
    "RobustScaler",
    "StandardScaler",
]
