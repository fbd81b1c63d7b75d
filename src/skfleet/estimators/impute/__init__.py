"""Imputation of missing values on rows of any container."""

from skfleet.estimators.impute._imputers import MissingIndicator, SimpleImputer

__all__ = ["MissingIndicator", "SimpleImputer"]
