"""Shared fits of ensembles over the number of members: the largest one, truncated."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from skfleet._sklearn_private import truncate_hist_boosting
from skfleet.model_selection._paths._checks import invalid_seed, invalid_size, name_set
from skfleet.model_selection._paths._registry import ParamSets, SharedFit, register_shared_fit


class StagedEnsemble(SharedFit):
    """Ensembles whose first n members are the ensemble of size n.

    ``size`` is the parameter for the number of members, ``attributes`` are the fitted ones with one
    entry per member, and ``required`` are the values that other parameters must have.
    """

    def __init__(
        self, size: str, known: str, attributes: str, required: Mapping[str, Any] | None = None
    ) -> None:
        self.parameters = (size,)
        self.known = name_set(known)
        self._attributes = attributes.split()
        self._required = dict(required or {})

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject early stopping, and random states whose draws are not repeatable."""
        for name, value in self._required.items():
            if params.get(name, value) is not value and params[name] != value:
                return f"{name} must be {value!r}. Got {params[name]!r} instead"
        (name,) = self.parameters
        return invalid_seed(params["random_state"]) or invalid_size(name, params[name])

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Fit the largest ensemble, and return it truncated to each size."""
        (name,) = self.parameters
        sizes = [candidate[name] for candidate in candidates]
        largest = estimator.set_params(**{name: max(sizes)}).fit(X, y, **fit_params)
        return [self._truncate(largest, size) for size in sizes]

    def _truncate(self, largest: Any, size: int) -> Any:
        """Return the ensemble of the first `size` members."""
        model = copy.copy(largest)
        vars(model)[self.parameters[0]] = size
        for name in self._attributes:
            if hasattr(model, name):
                setattr(model, name, getattr(model, name)[:size])
        return model


class GradientBoosting(StagedEnsemble):
    """Gradient boosting, which has its size in a fitted attribute too."""

    def _truncate(self, largest: Any, size: int) -> Any:
        model = super()._truncate(largest, size)
        model.n_estimators_ = size
        if hasattr(model, "oob_scores_"):
            model.oob_score_ = model.oob_scores_[-1]
        return model


class HistGradientBoosting(StagedEnsemble):
    """Histogram gradient boosting, whose members are a private attribute."""

    def _truncate(self, largest: Any, size: int) -> Any:
        return truncate_hist_boosting(super()._truncate(largest, size), size)


_TREE = (
    "ccp_alpha criterion max_depth max_features max_leaf_nodes min_impurity_decrease "
    "min_samples_leaf min_samples_split min_weight_fraction_leaf n_estimators random_state "
    "verbose warm_start "
)
_COLD_START = {"warm_start": False}

_FOREST = StagedEnsemble(
    "n_estimators",
    _TREE + "bootstrap class_weight max_samples monotonic_cst n_jobs oob_score",
    "estimators_",
    {**_COLD_START, "oob_score": False},
)
_BAGGING = StagedEnsemble(
    "n_estimators",
    "bootstrap bootstrap_features estimator max_features max_samples n_estimators n_jobs "
    "oob_score random_state verbose warm_start",
    "estimators_ estimators_features_",
    {**_COLD_START, "oob_score": False},
)
_ADABOOST = StagedEnsemble(
    "n_estimators",
    "estimator learning_rate loss n_estimators random_state",
    "estimators_ estimator_weights_ estimator_errors_",
)
_GRADIENT_BOOSTING = GradientBoosting(
    "n_estimators",
    _TREE + "alpha init learning_rate loss n_iter_no_change subsample tol validation_fraction",
    "estimators_ train_score_ oob_improvement_ oob_scores_",
    {**_COLD_START, "n_iter_no_change": None, "init": None},
)
_HIST_GRADIENT_BOOSTING = HistGradientBoosting(
    "max_iter",
    "categorical_features class_weight early_stopping interaction_cst l2_regularization "
    "learning_rate loss max_bins max_depth max_features max_iter max_leaf_nodes min_samples_leaf "
    "monotonic_cst n_iter_no_change quantile random_state scoring tol validation_fraction verbose "
    "warm_start",
    "",
    {**_COLD_START, "early_stopping": False},
)

for _name, _shared_fit in {
    "AdaBoost": _ADABOOST,
    "Bagging": _BAGGING,
    "ExtraTrees": _FOREST,
    "GradientBoosting": _GRADIENT_BOOSTING,
    "HistGradientBoosting": _HIST_GRADIENT_BOOSTING,
    "RandomForest": _FOREST,
}.items():
    for _kind in ("Classifier", "Regressor"):
        register_shared_fit(f"sklearn.ensemble.{_name}{_kind}", _shared_fit)
