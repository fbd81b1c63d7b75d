"""Linear models: which there are."""

from skfleet.estimators._elastic_net import ElasticNet, Lasso
from skfleet.estimators._elastic_net_cv import ElasticNetCV, LassoCV
from skfleet.estimators._glm_regression import GammaRegressor, PoissonRegressor, TweedieRegressor
from skfleet.estimators._logistic import LogisticRegression
from skfleet.estimators._ordinary import LinearRegression
from skfleet.estimators._ridge import Ridge, RidgeClassifier
from skfleet.estimators._ridge_cv import RidgeCV

__all__ = [
    "ElasticNet",
    "ElasticNetCV",
    "GammaRegressor",
    "Lasso",
    "LassoCV",
    "LinearRegression",
    "LogisticRegression",
    "PoissonRegressor",
    "Ridge",
    "RidgeCV",
    "RidgeClassifier",
    "TweedieRegressor",
]
