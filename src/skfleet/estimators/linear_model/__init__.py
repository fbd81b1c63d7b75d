"""Linear models."""

from skfleet.estimators.linear_model._elastic_net import ElasticNet, Lasso
from skfleet.estimators.linear_model._elastic_net_cv import ElasticNetCV, LassoCV
from skfleet.estimators.linear_model._glm_estimators import (
    GammaRegressor,
    PoissonRegressor,
    TweedieRegressor,
)
from skfleet.estimators.linear_model._linear_regression import LinearRegression
from skfleet.estimators.linear_model._logistic import LogisticRegression
from skfleet.estimators.linear_model._ridge import Ridge, RidgeClassifier
from skfleet.estimators.linear_model._ridge_cv import RidgeCV
from skfleet.estimators.linear_model._sgd_classifier import SGDClassifier
from skfleet.estimators.linear_model._sgd_regressor import SGDRegressor

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
    "SGDClassifier",
    "SGDRegressor",
    "TweedieRegressor",
]
