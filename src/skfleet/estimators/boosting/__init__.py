"""Boosting by XGBoost and LightGBM, whose libraries are loaded with the first estimator."""

from __future__ import annotations

import importlib
from typing import Any

from skfleet._optional_dependencies import check_extra

# The library of each estimator; the extra that installs it has the same name.
LIBRARIES = {
    "LGBMClassifier": "lightgbm",
    "LGBMRanker": "lightgbm",
    "LGBMRegressor": "lightgbm",
    "XGBClassifier": "xgboost",
    "XGBRanker": "xgboost",
    "XGBRegressor": "xgboost",
}


def __getattr__(name: str) -> Any:
    """Import an estimator, or raise an ImportError for a missing library."""
    if name not in LIBRARIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = LIBRARIES[name]
    check_extra(name, library, library)
    return getattr(importlib.import_module(f"{__name__}._{library}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *LIBRARIES])
