"""Estimators on rows of any container and any size."""

from skfleet.estimators.cluster import KMeans, MiniBatchKMeans
from skfleet.estimators.decomposition import PCA, IncrementalPCA, TruncatedSVD
from skfleet.estimators.linear_model import (
    ElasticNet,
    ElasticNetCV,
    GammaRegressor,
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from skfleet.estimators.meta._blockwise_voting import (
    BlockwiseVotingClassifier,
    BlockwiseVotingRegressor,
)
from skfleet.estimators.meta._incremental import Incremental
from skfleet.estimators.meta._parallel_post_fit import ParallelPostFit

__all__ = [
    "PCA",
    "BlockwiseVotingClassifier",
    "BlockwiseVotingRegressor",
    "ElasticNet",
    "ElasticNetCV",
    "GammaRegressor",
    "Incremental",
    "IncrementalPCA",
    "KMeans",
    "Lasso",
    "LassoCV",
    "LinearRegression",
    "LogisticRegression",
    "MiniBatchKMeans",
    "ParallelPostFit",
    "PoissonRegressor",
    "Ridge",
    "RidgeCV",
    "RidgeClassifier",
    "SGDClassifier",
    "SGDRegressor",
    "TruncatedSVD",
    "TweedieRegressor",
]
