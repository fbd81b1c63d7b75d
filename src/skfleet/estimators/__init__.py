"""Estimators on rows of any container and any size."""

from skfleet.estimators._incremental import Incremental
from skfleet.estimators._voting import BlockwiseVotingClassifier, BlockwiseVotingRegressor
from skfleet.estimators.cluster import KMeans
from skfleet.estimators.linear_model import (
    ElasticNet,
    ElasticNetCV,
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
    RidgeCV,
)
from skfleet.estimators.wrappers import ParallelPostFit

__all__ = [
    "BlockwiseVotingClassifier",
    "BlockwiseVotingRegressor",
    "ElasticNet",
    "ElasticNetCV",
    "Incremental",
    "KMeans",
    "Lasso",
    "LassoCV",
    "LinearRegression",
    "LogisticRegression",
    "ParallelPostFit",
    "Ridge",
    "RidgeCV",
    "RidgeClassifier",
]
