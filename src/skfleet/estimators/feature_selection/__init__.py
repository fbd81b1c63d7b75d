"""Selection of columns by their variance, and by tests of each column against the target."""

from sklearn.feature_selection import chi2, f_classif, f_regression, r_regression

from skfleet.estimators.feature_selection._univariate import (
    GenericUnivariateSelect,
    SelectFdr,
    SelectFpr,
    SelectFwe,
    SelectKBest,
    SelectPercentile,
)
from skfleet.estimators.feature_selection._variance import VarianceThreshold

__all__ = [
    "GenericUnivariateSelect",
    "SelectFdr",
    "SelectFpr",
    "SelectFwe",
    "SelectKBest",
    "SelectPercentile",
    "VarianceThreshold",
    "chi2",
    "f_classif",
    "f_regression",
    "r_regression",
]
