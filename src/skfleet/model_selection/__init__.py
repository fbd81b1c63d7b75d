"""Model selection on a fleet: searches, cross-validation and curves, and splits of Dask rows."""

from skfleet.blocks import RowSet
from skfleet.model_selection._adaptive._search_halving import (
    ASHASearchCV,
    HyperbandSearchCV,
    SuccessiveHalvingSearchCV,
)
from skfleet.model_selection._adaptive._search_incremental import (
    IncrementalSearchCV,
    InverseDecaySearchCV,
)
from skfleet.model_selection._comparison._compare_models import compare_models
from skfleet.model_selection._comparison._model_comparison import ModelComparison
from skfleet.model_selection._curves import learning_curve, validation_curve
from skfleet.model_selection._paths import (  # noqa: F401
    _boosters,
    _components,
    _ensembles,
    _kernels,
    _logistic,
    _neighbors,
    _trees,
)
from skfleet.model_selection._paths._registry import (
    SharedFit,
    SharedFitUse,
    register_shared_fit,
)
from skfleet.model_selection._samplers._candidate_source import CandidateSource
from skfleet.model_selection._search import GridSearchCV, RandomizedSearchCV
from skfleet.model_selection._search_bayes import BayesSearchCV
from skfleet.model_selection._search_successive_halving import (
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
)
from skfleet.model_selection._splits._shuffle import shuffle_rows
from skfleet.model_selection._splits._splitters import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    LeaveOneGroupOut,
    LeaveOneOut,
    LeavePGroupsOut,
    LeavePOut,
    PredefinedSplit,
    RepeatedKFold,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
    TimeSeriesSplit,
    split_rows,
    train_test_split,
)
from skfleet.model_selection._validation import (
    cross_val_predict,
    cross_val_score,
    cross_validate,
    permutation_test_score,
)

__all__ = [
    "ASHASearchCV",
    "BayesSearchCV",
    "CandidateSource",
    "GridSearchCV",
    "GroupKFold",
    "GroupShuffleSplit",
    "HalvingGridSearchCV",
    "HalvingRandomSearchCV",
    "HyperbandSearchCV",
    "IncrementalSearchCV",
    "InverseDecaySearchCV",
    "KFold",
    "LeaveOneGroupOut",
    "LeaveOneOut",
    "LeavePGroupsOut",
    "LeavePOut",
    "ModelComparison",
    "PredefinedSplit",
    "RandomizedSearchCV",
    "RepeatedKFold",
    "RepeatedStratifiedKFold",
    "RowSet",
    "SharedFit",
    "SharedFitUse",
    "ShuffleSplit",
    "StratifiedGroupKFold",
    "StratifiedKFold",
    "StratifiedShuffleSplit",
    "SuccessiveHalvingSearchCV",
    "TimeSeriesSplit",
    "compare_models",
    "cross_val_predict",
    "cross_val_score",
    "cross_validate",
    "learning_curve",
    "permutation_test_score",
    "register_shared_fit",
    "shuffle_rows",
    "split_rows",
    "train_test_split",
    "validation_curve",
]
