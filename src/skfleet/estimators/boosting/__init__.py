"""Boosting by XGBoost and LightGBM, whose libraries are loaded with the first estimator."""

from __future__ import annotations

import importlib
from typing import Any

from skfleet._optional_dependencies import check_extra

_MODULES = {
    "LGBMClassifier": "lightgbm",
    "LGBMRanker": "lightgbm",
    "LGBMRegressor": "lightgbm",
    "XGBClassifier": "xgboost",
    "XGBRanker": "xgboost",
    "XGBRegressor": "xgboost",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import an estimator, or raise for a missing library."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = _MODULES[name]
    check_extra(name, library, library)
    return getattr(importlib.import_module(f"{__name__}._{library}"), name)
