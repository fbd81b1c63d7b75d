"""Transformers of several columns or of the target, put together."""

from sklearn.compose import make_column_selector

from skfleet.estimators.compose._column_transformer import (
    ColumnTransformer,
    make_column_transformer,
)
from skfleet.estimators.compose._feature_union import FeatureUnion, make_union
from skfleet.estimators.compose._target import TransformedTargetRegressor

__all__ = [
    "ColumnTransformer",
    "FeatureUnion",
    "TransformedTargetRegressor",
    "make_column_selector",
    "make_column_transformer",
    "make_union",
]
