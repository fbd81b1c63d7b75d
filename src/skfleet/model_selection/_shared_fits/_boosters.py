"""XGBoost and LightGBM over the number of rounds, with what their public interfaces offer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sklearn.base import clone

from skfleet.model_selection._shared_fits._ensembles import Growing
from skfleet.model_selection._shared_fits._registry import register_shared_fit

__all__ = ["LightGBMRounds", "XGBoostRounds"]


class _Rounds(Growing):
    """Boosting whose first n rounds are the model of n rounds."""

    def __init__(self, known: str, asks: Mapping[str, tuple[Any, ...]]) -> None:
        super().__init__("n_estimators", known, "")
        self._allowed = dict(asks)

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: rounds that change earlier ones, that may stop early, or cannot be repeated."""
        for name, values in self._allowed.items():
            value = params.get(name, values[0])  # LightGBM takes more than its signature names
            if not any(value is one or value == one for one in values):
                return f"{name} must be {values[0]!r}. Got {value!r} instead"
        # Without a seed there is one that is always the same.
        seed = 0 if params["random_state"] is None else params["random_state"]
        size = 100 if params["n_estimators"] is None else params["n_estimators"]
        return super().refuses({**params, "random_state": seed, "n_estimators": size})


class XGBoostRounds(_Rounds):
    """XGBoost, whose booster can be sliced."""

    def _cut(self, largest: Any, size: int) -> Any:
        cut = clone(largest).set_params(n_estimators=size)
        cut.load_model(largest.get_booster()[:size].save_raw())
        return cut


class LightGBMRounds(_Rounds):
    """LightGBM, which predicts with the rounds up to its best one."""

    def _cut(self, largest: Any, size: int) -> Any:
        cut = copy.deepcopy(largest).set_params(n_estimators=size)
        cut.booster_.best_iteration = size
        return cut


_XGBOOST = XGBoostRounds(
    "base_score booster callbacks colsample_bylevel colsample_bynode colsample_bytree device "
    "early_stopping_rounds enable_categorical eval_metric feature_types feature_weights gamma "
    "grow_policy importance_type interaction_constraints learning_rate max_bin max_cat_threshold "
    "max_cat_to_onehot max_delta_step max_depth max_leaves min_child_weight missing "
    "monotone_constraints multi_strategy n_estimators n_jobs num_parallel_tree objective "
    "random_state reg_alpha reg_lambda sampling_method scale_pos_weight subsample tree_method "
    "validate_parameters verbosity",
    {
        "booster": ("gbtree", None),
        "callbacks": (None,),
        "early_stopping_rounds": (None,),
    },
)
_LIGHTGBM = LightGBMRounds(
    "boosting_type class_weight colsample_bytree importance_type learning_rate max_depth "
    "min_child_samples min_child_weight min_split_gain n_estimators n_jobs num_leaves objective "
    "random_state reg_alpha reg_lambda subsample subsample_for_bin subsample_freq "
    # of those it takes besides, what is printed, and what it prints less with
    "force_col_wise force_row_wise verbose verbosity",
    {"boosting_type": ("gbdt",)},
)

for _kind in ("Classifier", "Regressor"):
    register_shared_fit(f"xgboost.XGB{_kind}", _XGBOOST)
    register_shared_fit(f"lightgbm.LGBM{_kind}", _LIGHTGBM)
