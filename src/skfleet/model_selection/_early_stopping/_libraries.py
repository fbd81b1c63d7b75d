"""The ways in which libraries take validation rows, and return the best iteration."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.utils.validation import has_fit_parameter

from skfleet._method_override import override_method, restore_method
from skfleet._sklearn_private import truncate_hist_boosting


class Booster(ABC):
    """An estimator whose iterations stop on validation rows."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    @abstractmethod
    def check(self, params: Mapping[str, Any], callbacks: Any) -> None:
        """Raise where the estimator would not stop with these parameters and callbacks of fit."""

    @abstractmethod
    def fit(
        self, X: Any, y: Any, X_val: Any, y_val: Any, weight_val: Any, params: dict[str, Any]
    ) -> None:
        """Fit until the score of the validation rows gets no better."""

    @property
    @abstractmethod
    def best_iteration(self) -> int:
        """Number of iterations up to the best score, with which the fitted estimator predicts."""

    @abstractmethod
    def set_iterations(self, n_iterations: int | None) -> None:
        """Make the next fit have so many iterations, if not None, and no validation rows."""


class _Scikit(Booster):
    """Validation rows are ``X_val`` and ``y_val``, as scikit-learn calls them."""

    def check(self, params: Mapping[str, Any], callbacks: Any) -> None:
        if params.get("early_stopping") is False:
            raise ValueError(
                f"early_stopping of {type(self.estimator).__name__} must be 'auto' or True where "
                "the search has early_stopping. Got False instead."
            )

    def fit(
        self, X: Any, y: Any, X_val: Any, y_val: Any, weight_val: Any, params: dict[str, Any]
    ) -> None:
        if "early_stopping" in self.estimator.get_params():
            self.estimator.set_params(early_stopping=True)
        if weight_val is not None:
            params = {**params, "sample_weight_val": weight_val}
        self.estimator.fit(X, y, X_val=X_val, y_val=y_val, **params)

    @property
    def best_iteration(self) -> int:
        return int(self.estimator.n_iter_)

    def set_iterations(self, n_iterations: int | None) -> None:
        if "early_stopping" in self.estimator.get_params():
            self.estimator.set_params(early_stopping=False)
        if n_iterations is not None:
            self.estimator.set_params(max_iter=n_iterations)


class _Epochs(_Scikit):
    """Epochs of this library's estimators, with the model after the best one."""

    def check(self, params: Mapping[str, Any], callbacks: Any) -> None:
        name = type(self.estimator).__name__
        if params["tol"] is None:
            raise ValueError(
                f"tol of {name} must be a number where the search has early_stopping. Got None "
                "instead. Try tol=1e-3."
            )
        if params.get("learning_rate") == "adaptive":
            raise ValueError(
                f"learning_rate of {name} must not be 'adaptive' where the search has "
                "early_stopping: it falls when epochs would stop, which they do not in the refit. "
                "Got 'adaptive' instead. Try 'invscaling' or 'optimal'."
            )

    def fit(self, *args: Any) -> None:
        super().fit(*args)
        self.estimator.restore_best_epoch()

    def set_iterations(self, n_iterations: int | None) -> None:
        descends = "max_iter" in self.estimator.get_params(deep=False)
        # without validation rows the objective would stop a descent
        values: dict[str, Any] = {"tol": None} if descends else {}
        if n_iterations is not None:
            values["max_iter" if descends else "epochs"] = n_iterations
        self.estimator.set_params(early_stopping=False, **values)


class _HistGradientBoosting(_Scikit):
    """As scikit-learn's, without the iterations after the best one, as in the other libraries."""

    def fit(
        self, X: Any, y: Any, X_val: Any, y_val: Any, weight_val: Any, params: dict[str, Any]
    ) -> None:
        super().fit(X, y, X_val, y_val, weight_val, params)
        # the first score is that before any iteration
        best = max(1, int(np.argmax(self.estimator.validation_score_)))
        try:
            truncate_hist_boosting(self.estimator, best)
        except ImportError:  # of the private name by which it has its iterations
            self.set_iterations(best)
            self.estimator.fit(X, y, **params)


class _XGBoost(Booster):
    """Validation rows are an ``eval_set``; `early_stopping_rounds` is a parameter."""

    def check(self, params: Mapping[str, Any], callbacks: Any) -> None:
        if not params.get("early_stopping_rounds"):
            raise ValueError(
                f"early_stopping_rounds of {type(self.estimator).__name__} must be a number of "
                "rounds where the search has early_stopping. Got "
                f"{params.get('early_stopping_rounds')!r} instead. Try early_stopping_rounds=10."
            )

    def fit(
        self, X: Any, y: Any, X_val: Any, y_val: Any, weight_val: Any, params: dict[str, Any]
    ) -> None:
        if weight_val is not None:
            params = {**params, "sample_weight_eval_set": [weight_val]}
        self.estimator.fit(X, y, eval_set=[(X_val, y_val)], **{"verbose": False, **params})

    @property
    def best_iteration(self) -> int:
        return int(self.estimator.best_iteration) + 1

    def set_iterations(self, n_iterations: int | None) -> None:
        self.estimator.set_params(early_stopping_rounds=None)
        if n_iterations is not None:
            self.estimator.set_params(n_estimators=n_iterations)


# LightGBM's own names of two of its parameters, from its documentation.
_PATIENCE = ("early_stopping_round", "early_stopping_rounds", "early_stopping", "n_iter_no_change")
_ROUNDS = (
    *("n_estimators", "num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees"),
    *("num_round", "num_rounds", "nrounds", "num_boost_round", "max_iter"),
)


class _LightGBM(Booster):
    """Validation rows are an ``eval_set``; a parameter or a callback stops."""

    def check(self, params: Mapping[str, Any], callbacks: Any) -> None:
        values = [params[name] for name in _PATIENCE if params.get(name) is not None]
        if (values and values[0] > 0) or any(map(_stops_early, callbacks or ())):
            return
        raise ValueError(
            f"early_stopping_round of {type(self.estimator).__name__} must be a number of rounds "
            f"where the search has early_stopping. Got {values[0] if values else None!r} instead. "
            "Try early_stopping_round=10, or pass callbacks=[lightgbm.early_stopping(10)] to fit."
        )

    def fit(
        self, X: Any, y: Any, X_val: Any, y_val: Any, weight_val: Any, params: dict[str, Any]
    ) -> None:
        if weight_val is not None:
            params = {**params, "eval_sample_weight": [weight_val]}
        if has_fit_parameter(self.estimator, "X_val"):  # of this library
            self.estimator.fit(X, y, X_val=X_val, y_val=y_val, **params)
        elif has_fit_parameter(self.estimator, "eval_X") and not self._encodes(y):
            self.estimator.fit(X, y, eval_X=X_val, eval_y=y_val, **params)
        else:
            with warnings.catch_warnings():
                # since 4.7 it is deprecated, but the other way does not encode labels
                warnings.filterwarnings("ignore", "The argument 'eval_set' is deprecated")
                self.estimator.fit(X, y, eval_set=[(X_val, y_val)], **params)

    def _encodes(self, y: Any) -> bool:
        """Return whether labels are not the numbers from 0 on."""
        if not is_classifier(self.estimator):
            return False
        classes = np.unique(y)
        return not np.array_equal(classes, np.arange(len(classes)))

    @property
    def best_iteration(self) -> int:
        return int(self.estimator.n_estimators_)  # LightGBM drops those after the best one

    def set_iterations(self, n_iterations: int | None) -> None:
        params = self.estimator.get_params()
        values: dict[str, Any] = {name: None for name in _PATIENCE if name in params}
        if n_iterations is not None:
            values |= {name: n_iterations for name in _ROUNDS if name in params}
        self.estimator.set_params(**values)
        override_method(self.estimator, "fit", _FitWithoutStopping(self.estimator))


class _FitWithoutStopping:
    """The next ``fit`` of an estimator, without the callbacks that need validation rows."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def __call__(self, *args: Any, callbacks: Sequence[Any] | None = None, **params: Any) -> Any:
        restore_method(self._estimator, "fit")
        remaining = [c for c in callbacks or () if not _stops_early(c)]
        return self._estimator.fit(*args, callbacks=remaining or None, **params)


def _stops_early(callback: Any) -> bool:
    """Return whether a callback is one of LightGBM's that stop early."""
    return isinstance(callback, type(sys.modules["lightgbm"].early_stopping(1, verbose=False)))


def booster_of(estimator: Any) -> Booster | None:
    """Return an estimator as one that stops on validation rows; None if it takes none."""
    if isinstance(estimator, (HistGradientBoostingClassifier, HistGradientBoostingRegressor)):
        return _HistGradientBoosting(estimator)
    for library, model, booster in _LIBRARIES:
        kind = getattr(sys.modules.get(library), model, None)
        if kind is not None and isinstance(estimator, kind):
            # rows of a ranker are in groups
            is_ranker = not (is_classifier(estimator) or is_regressor(estimator))
            return None if is_ranker else booster(estimator)
    takes_rows = hasattr(estimator, "fit") and has_fit_parameter(estimator, "X_val")
    if takes_rows and hasattr(estimator, "restore_best_epoch"):
        has_score = is_classifier(estimator) or is_regressor(estimator)
        return _Epochs(estimator) if has_score else None
    has_iterations = takes_rows and "max_iter" in estimator.get_params()
    return _Scikit(estimator) if has_iterations else None


_LIBRARIES = (("xgboost", "XGBModel", _XGBoost), ("lightgbm", "LGBMModel", _LightGBM))
