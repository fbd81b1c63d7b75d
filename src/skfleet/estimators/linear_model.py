"""Linear models: which there are."""

from skfleet.estimators._logistic import LogisticRegression
from skfleet.estimators._ridge import Ridge

__all__ = ["LogisticRegression", "Ridge"]
