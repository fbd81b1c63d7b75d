"""Model selection on a fleet: scikit-learn's searches, with their fits on the workers.

The functions are scikit-learn's own, and run on a fleet under the joblib backend ``"skfleet"``.
"""

from sklearn.model_selection import (
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    validation_curve,
)

from skfleet.model_selection._adaptive._candidates import CandidateSource
from skfleet.model_selection._adaptive._halving_searches import (
    ASHASearchCV,
    HyperbandSearchCV,
    SuccessiveHalvingSearchCV,
)
from skfleet.model_selection._adaptive._turn_searches import (
    IncrementalSearchCV,
    InverseDecaySearchCV,
)
from skfleet.model_selection._families import (  # noqa: F401
    _boosters,
    _ensembles,
    _kernels,
    _least_squares,
    _linear,
    _logistic,
    _neighbors,
    _prefixes,
    _trees,
)
from skfleet.model_selection._families._registry import Family, FamilyUse, register_family
from skfleet.model_selection._halving import HalvingGridSearchCV, HalvingRandomSearchCV
from skfleet.model_selection._plot import FitTime
from skfleet.model_selection._search import GridSearchCV, RandomizedSearchCV

__all__ = [
    "ASHASearchCV",
    "CandidateSource",
    "Family",
    "FamilyUse",
    "FitTime",
    "GridSearchCV",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "HyperbandSearchCV",
    "IncrementalSearchCV",
    "InverseDecaySearchCV",
    "RandomizedSearchCV",
    "SuccessiveHalvingSearchCV",
    "cross_val_predict",
    "cross_val_score",
    "cross_validate",
    "learning_curve",
    "register_family",
    "validation_curve",
]
