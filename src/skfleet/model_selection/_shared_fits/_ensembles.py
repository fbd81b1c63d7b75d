"""Ensembles that grow by one member at a time: each one begins with all smaller ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from skfleet._sklearn_private import truncate_hist_boosting
from skfleet.model_selection._shared_fits._checks import seed_problem, size_problem
from skfleet.model_selection._shared_fits._registry import SharedFit, register_shared_fit

__all__ = ["Growing"]


class Growing(SharedFit):
    """Ensembles whose first n members are the ensemble of n: the largest is fitted, and cut.

    Parameters
    ----------
    size : str
        The parameter that says how many members there are.
    known : str
        Names of all parameters, separated by spaces.
    attributes : str
        Names of the fitted attributes that have one entry a member.
    asks : mapping of str to object, default={}
        Values that other parameters must have.
    """

    def __init__(
        self, size: str, known: str, attributes: str, asks: Mapping[str, Any] | None = None
    ) -> None:
        self.parameters = (size,)
        self.known = frozenset(known.split())
        self._attributes = attributes.split()
        self._asks = dict(asks or {})

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: an ensemble that may stop early, or whose draws cannot be repeated."""
        for name, wanted in self._asks.items():
            if params.get(name, wanted) is not wanted and params[name] != wanted:
                return f"{name} must be {wanted!r}. Got {params[name]!r} instead"
        (name,) = self.parameters
        return seed_problem(params["random_state"]) or size_problem(name, params[name])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Fit the largest, and give it cut to each size."""
        (name,) = self.parameters
        sizes = [candidate[name] for candidate in candidates]
        largest = estimator.set_params(**{name: max(sizes)}).fit(X, y, **fit_params)
        return [self._cut(largest, size) for size in sizes]

    def _cut(self, largest: Any, size: int) -> Any:
        """Give the ensemble of the first members."""
        cut = copy.copy(largest)
        vars(cut)[self.parameters[0]] = size
        for name in self._attributes:
            if hasattr(cut, name):
                setattr(cut, name, getattr(cut, name)[:size])
        return cut


class GradientBoosting(Growing):
    """Gradient boosting, that counts its members itself."""

    def _cut(self, largest: Any, size: int) -> Any:
        cut = super()._cut(largest, size)
        cut.n_estimators_ = size
        if hasattr(cut, "oob_scores_"):
            cut.oob_score_ = cut.oob_scores_[-1]
        return cut


class HistGradientBoosting(Growing):
    """Gradient boosting on histograms, whose members are not public."""

    def _cut(self, largest: Any, size: int) -> Any:
        return truncate_hist_boosting(super()._cut(largest, size), size)


_TREE = (
    "ccp_alpha criterion max_depth max_features max_leaf_nodes min_impurity_decrease "
    "min_samples_leaf min_samples_split min_weight_fraction_leaf n_estimators random_state "
    "verbose warm_start "
)
_ONCE = {"warm_start": False}

_FOREST = Growing(
    "n_estimators",
    _TREE + "bootstrap class_weight max_samples monotonic_cst n_jobs oob_score",
    "estimators_",
    {**_ONCE, "oob_score": False},
)
_BAGGING = Growing(
    "n_estimators",
    "bootstrap bootstrap_features estimator max_features max_samples n_estimators n_jobs "
    "oob_score random_state verbose warm_start",
    "estimators_ estimators_features_",
    {**_ONCE, "oob_score": False},
)
_ADABOOST = Growing(
    "n_estimators",
    "estimator learning_rate loss n_estimators random_state",
    "estimators_ estimator_weights_ estimator_errors_",
)
_GRADIENT_BOOSTING = GradientBoosting(
    "n_estimators",
    _TREE + "alpha init learning_rate loss n_iter_no_change subsample tol validation_fraction",
    "estimators_ train_score_ oob_improvement_ oob_scores_",
    {**_ONCE, "n_iter_no_change": None, "init": None},
)
_HIST_GRADIENT_BOOSTING = HistGradientBoosting(
    "max_iter",
    "categorical_features class_weight early_stopping interaction_cst l2_regularization "
    "learning_rate loss max_bins max_depth max_features max_iter max_leaf_nodes min_samples_leaf "
    "monotonic_cst n_iter_no_change quantile random_state scoring tol validation_fraction verbose "
    "warm_start",
    "",
    {**_ONCE, "early_stopping": False},
)

for _name, _family in {
    "AdaBoost": _ADABOOST,
    "Bagging": _BAGGING,
    "ExtraTrees": _FOREST,
    "GradientBoosting": _GRADIENT_BOOSTING,
    "HistGradientBoosting": _HIST_GRADIENT_BOOSTING,
    "RandomForest": _FOREST,
}.items():
    for _kind in ("Classifier", "Regressor"):
        register_shared_fit(f"sklearn.ensemble.{_name}{_kind}", _family)
