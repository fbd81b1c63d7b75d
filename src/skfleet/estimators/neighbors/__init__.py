"""Estimators of nearest neighbours."""

from skfleet.estimators.neighbors._estimators import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestNeighbors,
)

__all__ = ["KNeighborsClassifier", "KNeighborsRegressor", "NearestNeighbors"]
