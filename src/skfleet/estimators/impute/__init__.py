"""Imputation of missing values on rows of any container."""

from skfleet.estimators.impute._base import MissingIndicator, SimpleImputer

__all__ = ["MissingIndicator", "SimpleImputer"]
