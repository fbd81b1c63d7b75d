"""Scaling, encoding and expansion of columns on rows of any container."""

from skfleet.estimators.preprocessing._bins import KBinsDiscretizer
from skfleet.estimators.preprocessing._power import PowerTransformer
from skfleet.estimators.preprocessing._quantile_transformer import QuantileTransformer
from skfleet.estimators.preprocessing._robust_scaler import RobustScaler
from skfleet.estimators.preprocessing._scalers import MaxAbsScaler, MinMaxScaler, StandardScaler
from skfleet.estimators.preprocessing._splines import SplineTransformer
from skfleet.estimators.preprocessing._stateless import Binarizer, Normalizer

__all__ = [
    "Binarizer",
    "KBinsDiscretizer",
    "MaxAbsScaler",
    "MinMaxScaler",
    "Normalizer",
    "PowerTransformer",
    "QuantileTransformer",
    "RobustScaler",
    "SplineTransformer",
    "StandardScaler",
]
