"""Estimators on rows of any container and any size.

Those of `skfleet.estimators.boosting` are here too, but not among the names that ``import *``
imports: their libraries are optional.
"""

from typing import Any

from skfleet.estimators import boosting
from skfleet.estimators.cluster import KMeans, MiniBatchKMeans, SpectralClustering
from skfleet.estimators.compose import ColumnTransformer, FeatureUnion, TransformedTargetRegressor
from skfleet.estimators.decomposition import PCA, IncrementalPCA, TruncatedSVD
from skfleet.estimators.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from skfleet.estimators.feature_extraction import DictVectorizer, FeatureHasher
from skfleet.estimators.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from skfleet.estimators.feature_selection import (
    GenericUnivariateSelect,
    SelectFdr,
    SelectFpr,
    SelectFwe,
    SelectKBest,
    SelectPercentile,
    VarianceThreshold,
)
from skfleet.estimators.impute import MissingIndicator, SimpleImputer
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
from skfleet.estimators.mixture import GaussianMixture
from skfleet.estimators.naive_bayes import (
    BernoulliNB,
    CategoricalNB,
    ComplementNB,
    GaussianNB,
    MultinomialNB,
)
from skfleet.estimators.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestNeighbors,
)
from skfleet.estimators.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    LabelBinarizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiLabelBinarizer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

__all__ = [
    "PCA",
    "BernoulliNB",
    "Binarizer",
    "BlockwiseVotingClassifier",
    "BlockwiseVotingRegressor",
    "CategoricalNB",
    "ColumnTransformer",
    "ComplementNB",
    "CountVectorizer",
    "DictVectorizer",
    "ElasticNet",
    "ElasticNetCV",
    "ExtraTreesClassifier",
    "ExtraTreesRegressor",
    "FeatureHasher",
    "FeatureUnion",
    "FunctionTransformer",
    "GammaRegressor",
    "GaussianMixture",
    "GaussianNB",
    "GenericUnivariateSelect",
    "HashingVectorizer",
    "Incremental",
    "IncrementalPCA",
    "KBinsDiscretizer",
    "KMeans",
    "KNeighborsClassifier",
    "KNeighborsRegressor",
    "LabelBinarizer",
    "LabelEncoder",
    "Lasso",
    "LassoCV",
    "LinearRegression",
    "LogisticRegression",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MiniBatchKMeans",
    "MissingIndicator",
    "MultiLabelBinarizer",
    "MultinomialNB",
    "NearestNeighbors",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "ParallelPostFit",
    "PoissonRegressor",
    "PolynomialFeatures",
    "PowerTransformer",
    "QuantileTransformer",
    "RandomForestClassifier",
    "RandomForestRegressor",
    "Ridge",
    "RidgeCV",
    "RidgeClassifier",
    "RobustScaler",
    "SGDClassifier",
    "SGDRegressor",
    "SelectFdr",
    "SelectFpr",
    "SelectFwe",
    "SelectKBest",
    "SelectPercentile",
    "SimpleImputer",
    "SpectralClustering",
    "SplineTransformer",
    "StandardScaler",
    "TargetEncoder",
    "TfidfTransformer",
    "TfidfVectorizer",
    "TransformedTargetRegressor",
    "TruncatedSVD",
    "TweedieRegressor",
    "VarianceThreshold",
]


def __getattr__(name: str) -> Any:
    """Import an estimator of an optional library."""
    if name not in boosting.LIBRARIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(boosting, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *boosting.LIBRARIES])
