"""Model selection on a fleet: scikit-learn's searches, with their fits on the workers."""

from skfleet.model_selection._search import GridSearchCV, RandomizedSearchCV

__all__ = ["GridSearchCV", "RandomizedSearchCV"]
