"""Names of LightGBM that are not public: aliases of parameters, and the state of an estimator.

Without `MetricAdapter` metrics have names only, without another one there is no fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.preprocessing import LabelEncoder

from skfleet._private_names import PrivateNames

private_names = PrivateNames("lightgbm")

with private_names:
    from lightgbm.basic import _choose_param_value as choose_parameter
    from lightgbm.basic import _ConfigAliases

MetricAdapter: Any = private_names.optional(
    "lightgbm.sklearn", "_EvalFunctionWrapper", "metrics that are functions"
)

__all__ = [
    "MetricAdapter",
    "aliases_of",
    "choose_parameter",
    "class_weight_of",
    "number_by_label",
    "parameter_names",
    "set_booster",
    "set_labels",
    "training_parameters",
]


def aliases_of(*names: str) -> set[str]:
    """Return all names of parameters."""
    return _ConfigAliases.get(*names)


def parameter_names() -> set[str]:
    """Return the names of all parameters."""
    return {name for names in _ConfigAliases._get_all_param_aliases().values() for name in names}


def set_labels(model: Any, labels: np.ndarray) -> None:
    """Set what an estimator knows of its labels when it begins to fit."""
    model._le = LabelEncoder().fit(labels)
    model._classes = model._le.classes_
    model._n_classes = len(labels)
    model._class_map = dict(zip(labels, range(len(labels)), strict=True))
    if isinstance(model.class_weight, dict):
        model._class_weight = {model._class_map[k]: v for k, v in model.class_weight.items()}
    if model.objective is None:
        model._objective = None


def number_by_label(model: Any) -> dict[Any, int] | None:
    """Return the numbers of the labels of an estimator; None before they are set."""
    numbers: dict[Any, int] | None = model._class_map
    return numbers


def class_weight_of(model: Any) -> Any:
    """Return the weights of the numbers of the labels, or what the parameter says."""
    return model.class_weight if model._class_weight is None else model._class_weight


def training_parameters(model: Any, eval_at: Any = None) -> dict[str, Any]:
    """Return the parameters that an estimator trains with; `eval_at` is that of a ranker."""
    if eval_at is not None:
        model._eval_at = eval_at
    parameters: dict[str, Any] = model._process_params("fit")
    return parameters


def set_booster(
    model: Any, booster: Any, n_features_in: int, *, has_names: bool, class_weight: Any, scores: Any
) -> None:
    """Set what an estimator has learned; `scores` are those of the evaluation sets by round."""
    model._Booster = booster
    model._class_weight = class_weight
    model._n_features = booster.num_feature()
    model._n_features_in = n_features_in
    model._fitted_with_feature_names = has_names
    model._evals_result = scores
    model._best_iteration, model._best_score = booster.best_iteration, booster.best_score
    model.fitted_ = True


private_names.decorate_functions(globals())
