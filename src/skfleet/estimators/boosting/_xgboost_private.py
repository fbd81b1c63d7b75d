"""Names of XGBoost that are not public: how it calls users' objectives."""

from xgboost.sklearn import _objective_decorator as wrap_objective

__all__ = ["wrap_objective"]
