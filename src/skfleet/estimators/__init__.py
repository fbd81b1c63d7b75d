"""Estimators on rows of any container and any size."""

from skfleet.estimators._incremental import Incremental
from skfleet.estimators._voting import BlockwiseVotingClassifier, BlockwiseVotingRegressor
from skfleet.estimators.cluster import KMeans
from skfleet.estimators.linear_model import (
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
)
from skfleet.estimators.wrappers import ParallelPostFit

__all__ = [
    "BlockwiseVotingClassifier",
    "BlockwiseVotingRegressor",
    "Incremental",
    "KMeans",
    "LinearRegression",
    "LogisticRegression",
    "ParallelPostFit",
    "Ridge",
    "RidgeClassifier",
]
