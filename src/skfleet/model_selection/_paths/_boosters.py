"""Shared fits of XGBoost and LightGBM over the number of boosting rounds, by public interfaces."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from skfleet.model_selection._paths._ensembles import StagedEnsemble
from skfleet.model_selection._paths._registry import register_shared_fit


class _BoostingRounds(StagedEnsemble):
    """Boosting libraries whose first n rounds are the model of n rounds."""

    def __init__(self, known: str, allowed: Mapping[str, tuple[Any, ...]]) -> None:
        super().__init__("n_estimators", known, "")
        self._allowed = dict(allowed)

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject dropout boosters, early stopping, and rounds that are not repeatable."""
        for name, values in self._allowed.items():
            value = params.get(name, values[0])  # LightGBM accepts more than its signature names
            if not any(value is allowed or value == allowed for allowed in values):
                return f"{name} must be {values[0]!r}. Got {value!r} instead"
        # The libraries' default seed is a constant.
        seed = 0 if params["random_state"] is None else params["random_state"]
        size = 100 if params["n_estimators"] is None else params["n_estimators"]
        return super().unsupported_reason({**params, "random_state": seed, "n_estimators": size})


class XGBoostRounds(_BoostingRounds):
    """XGBoost, by slices of its booster."""

    def _truncate(self, largest: Any, size: int) -> Any:
        model = clone(largest).set_params(n_estimators=size)
        model.load_model(largest.get_booster()[:size].save_raw())
        return model


class FleetXGBoostRounds(XGBoostRounds):
    """XGBoost's estimators of this library, whose labels are not in a saved booster."""

    def _truncate(self, largest: Any, size: int) -> Any:
        model = copy.copy(largest)
        vars(model).update(n_estimators=size, _Booster=largest.get_booster()[:size])
        return model


class LightGBMRounds(_BoostingRounds):
    """LightGBM, by the best iteration, up to which it predicts."""

    def _truncate(self, largest: Any, size: int) -> Any:
        model = copy.deepcopy(largest).set_params(n_estimators=size)
        model.booster_.best_iteration = size
        return model


_XGBOOST = (
    "base_score booster callbacks colsample_bylevel colsample_bynode colsample_bytree device "
    "early_stopping_rounds enable_categorical eval_metric feature_types feature_weights gamma "
    "grow_policy importance_type interaction_constraints learning_rate max_bin max_cat_threshold "
    "max_cat_to_onehot max_delta_step max_depth max_leaves min_child_weight missing "
    "monotone_constraints multi_strategy n_estimators n_jobs num_parallel_tree objective "
    "random_state reg_alpha reg_lambda sampling_method scale_pos_weight subsample tree_method "
    "validate_parameters verbosity"
)
_LIGHTGBM = (
    "boosting_type class_weight colsample_bytree importance_type learning_rate max_depth "
    "min_child_samples min_child_weight min_split_gain n_estimators n_jobs num_leaves objective "
    "random_state reg_alpha reg_lambda subsample subsample_for_bin subsample_freq "
    # accepted as keyword arguments: verbosity, and threading options that it warns without
    "force_col_wise force_row_wise verbose verbosity"
)
_OF_XGBOOST: dict[str, tuple[Any, ...]] = {
    "booster": ("gbtree", None),
    "callbacks": (None,),
    "early_stopping_rounds": (None,),
}
_OF_LIGHTGBM: dict[str, tuple[Any, ...]] = {"boosting_type": ("gbdt",)}
# Parameters of this library change no model; with a checkpoint fits on such rows raise.
_FLEET = " checkpoint checkpoint_interval max_retries timeout"

_SHARED_FITS = {
    "xgboost.XGB": XGBoostRounds(_XGBOOST, _OF_XGBOOST),
    "lightgbm.LGBM": LightGBMRounds(_LIGHTGBM, _OF_LIGHTGBM),
    # Not the package itself, which imports the library when a name is looked up in it.
    "skfleet.estimators.boosting._xgboost.XGB": FleetXGBoostRounds(_XGBOOST + _FLEET, _OF_XGBOOST),
    "skfleet.estimators.boosting._lightgbm.LGBM": LightGBMRounds(_LIGHTGBM + _FLEET, _OF_LIGHTGBM),
}
for _prefix, _shared_fit in _SHARED_FITS.items():
    for _kind in ("Classifier", "Regressor"):
        register_shared_fit(f"{_prefix}{_kind}", _shared_fit)
