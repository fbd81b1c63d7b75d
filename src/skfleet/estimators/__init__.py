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
from skfleet.estimators.meta import (
    BlockwiseVotingClassifier,
    BlockwiseVotingRegressor,
    Incremental,
    ParallelPostFit,
)

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
