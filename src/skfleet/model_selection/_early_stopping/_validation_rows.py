"""Validation rows for the fits of a search, and the iterations at which fits stop on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GroupShuffleSplit, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.metadata_routing import get_routing_for_object

from skfleet._method_override import override_method, restore_method
from skfleet._pipeline_steps import last_step
from skfleet._sklearn_private import take_rows
from skfleet._validation import check_in_interval
from skfleet.model_selection._early_stopping._libraries import Booster, booster_of

# Parameters of ``fit`` that are validation rows.
_VALIDATION_PARAMETERS = frozenset(
    ["X_val", "y_val", "sample_weight_val", "eval_set", "eval_X", "eval_y", "eval_names"]
    + ["sample_weight_eval_set", "base_margin_eval_set", "eval_sample_weight"]
    + ["eval_class_weight", "eval_init_score"]
)


@dataclass(frozen=True, eq=False)
class ValidationRows:
    """The validation rows of a search's fits.

    They are a fraction of the rows that a split trains on, or with None the rows that it tests on.
    ``params`` are those of the search's ``fit``.
    """

    fraction: float | None
    random_state: int
    is_stratified: bool
    keeps_order: bool
    params: Mapping[str, Any]

    @classmethod
    def of(cls, search: Any, params: Mapping[str, Any], *, is_lazy: bool) -> ValidationRows | None:
        """Return the validation rows of a search by its parameters; None without any."""
        if search.early_stopping is None:
            return None
        seed = getattr(last_step(search.estimator), "random_state", None)
        return cls(
            None if search.early_stopping == "test" else search.early_stopping,
            int(seed) if isinstance(seed, Integral) else 0,
            is_classifier(search.estimator),
            is_lazy,
            params,
        )

    def split(self, train: Any, test: Any, y: Any) -> tuple[Any, Any, Any]:
        """Return the rows of a split to fit on, to test on, and to validate on.

        The validation rows are drawn by scikit-learn: entire groups if there are any, else by class
        for a classifier.
        """
        if self.fraction is None:
            return train, test, test
        train = np.asarray(train)
        train = np.flatnonzero(train) if train.dtype == bool else train
        groups = self.params.get("groups")
        try:
            if groups is not None:
                splitter = GroupShuffleSplit(
                    1, test_size=self.fraction, random_state=self.random_state
                )
                parts = next(splitter.split(train, groups=take_rows(groups, train)))
                fit, validation = (train[part] for part in parts)
            else:
                fit, validation = train_test_split(
                    train,
                    test_size=self.fraction,
                    random_state=self.random_state,
                    stratify=take_rows(y, train) if self.is_stratified else None,
                )
        except ValueError as error:
            raise ValueError(
                "early_stopping must be a fraction that can be drawn of the training rows of each "
                f"split. Got {self.fraction:g} of {len(train)} rows instead: {error} Choose "
                "another fraction, or fewer splits."
            ) from error
        if self.keeps_order:
            fit, validation = np.sort(fit), np.sort(validation)
        return fit, test, validation


def fit_and_score(
    function: Callable[..., dict[str, Any]],
    estimator: Any,
    X: Any,
    y: Any,
    validation: Any,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Fit and score by scikit-learn's function, which gets the options.

    With rows of X and y to validate on, the fit stops on them, and the result has the
    ``best_iteration``, which is NaN if the fit fails.
    """
    added: dict[str, Any] = {}
    if validation is not None:
        added["best_iteration"] = np.nan
        fit_params = options.get("fit_params") or {}
        fit = _ValidatedFit(estimator, X, y, validation, fit_params, added)
        override_method(estimator, "fit", fit)
    return function(estimator, X, y, **options) | added


class _ValidatedFit:
    """Replacement of an estimator's next ``fit``, whose last step stops on validation rows.

    They pass through the first steps as fitted by this very fit.
    """

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        rows: Any,
        fit_params: Mapping[str, Any],
        result: dict[str, Any],
    ) -> None:
        self._estimator, self._X, self._y, self._rows = estimator, X, y, rows
        self._fit_params, self._result = fit_params, result

    def __call__(self, X: Any, y: Any, **params: Any) -> Any:
        restore_method(self._estimator, "fit")
        last = last_step(self._estimator)  # only now: it may be a parameter of the candidate
        override_method(last, "fit", self._fit_last)
        try:
            return self._estimator.fit(X, y, **params)
        finally:
            restore_method(last, "fit")

    def _fit_last(self, X: Any, y: Any, **params: Any) -> Any:
        last = last_step(self._estimator)
        restore_method(last, "fit")
        X_val, y_val = take_rows(self._X, self._rows), take_rows(self._y, self._rows)
        if isinstance(self._estimator, Pipeline):
            for _, step in self._estimator.steps[:-1]:
                X_val = step.transform(X_val) if hasattr(step, "transform") else X_val
        weight = None
        if params.get("sample_weight") is not None:
            weight = take_rows(self._all_weights(last), self._rows)
        booster = booster_of(last)
        assert booster is not None  # the search has checked it
        booster.fit(X, y, X_val, y_val, weight, params)
        self._result["best_iteration"] = booster.best_iteration
        return last

    def _all_weights(self, last: Any) -> Any:
        """Return the ``sample_weight`` of all rows that the last step gets a part of."""
        # with metadata routing the last step may have it by another name, unless it is a router
        routing = get_routing_for_object(last)
        names = [routing.fit.requests.get("sample_weight")] if hasattr(routing, "fit") else []
        if isinstance(self._estimator, Pipeline):
            names.append(f"{self._estimator.steps[-1][0]}__sample_weight")
        names.append("sample_weight")
        return next(self._fit_params[name] for name in names if name in self._fit_params)


# -- checks before any fit -----------------------------------------------------------------------


def check_early_stopping(search: Any, y: Any, params: Iterable[str]) -> None:
    """Raise for a search whose ``early_stopping`` cannot be, and for validation rows besides."""
    value, estimator = search.early_stopping, search.estimator
    if value is None:
        return
    if isinstance(value, str):
        if value != "test":
            raise ValueError(
                f"early_stopping must be a fraction of the training rows, 'test' or None. Got "
                f"{value!r} instead."
            )
    else:
        check_in_interval("early_stopping", value, 0, 1, open="lr")
    for name in params:
        if name.rpartition("__")[2] in _VALIDATION_PARAMETERS:
            raise ValueError(
                f"{name} must be left out where the search has early_stopping. Got it with "
                f"early_stopping={value!r} instead. Each fit gets validation rows of its own split."
            )
    if y is None:
        raise ValueError(
            "early_stopping must be None without targets. Got y=None with "
            f"early_stopping={value!r} instead. Pass y."
        )
    grids = search.param_grid if hasattr(search, "param_grid") else search.param_distributions
    grids = grids if isinstance(grids, (list, tuple)) else [grids]
    names = [name for grid in grids if isinstance(grid, Mapping) for name in grid]
    if not _replaces_last_step(estimator, names):
        _booster_or_raise(value, estimator)


def check_candidates(search: Any, candidates: Sequence[Mapping[str, Any]], params: Any) -> None:
    """Raise for a candidate whose last step cannot stop early, as it is or with its parameters.

    ``params`` are those of ``fit``.
    """
    steps = getattr(search.estimator, "steps", None)
    prefix = f"{steps[-1][0]}__" if steps else ""
    callbacks = params.get(f"{prefix}callbacks", params.get("callbacks"))
    base = None
    for candidate in candidates:
        if _replaces_last_step(search.estimator, candidate):
            estimator = clone(search.estimator).set_params(**clone(candidate, safe=False))
            booster = _booster_or_raise(search.early_stopping, estimator)
        else:
            booster = base = base or _booster_or_raise(search.early_stopping, search.estimator)
        names = (name for name in candidate if name.startswith(prefix))
        own = {name.removeprefix(prefix): candidate[name] for name in names}
        booster.check({**booster.estimator.get_params(), **own}, callbacks)


def _replaces_last_step(estimator: Any, names: Iterable[str]) -> bool:
    """Return whether parameters of these names put another last step into a pipeline."""
    if not isinstance(estimator, Pipeline):
        return False
    return not {"steps", estimator.steps[-1][0]}.isdisjoint(names)


def _booster_or_raise(value: Any, estimator: Any) -> Booster:
    last = last_step(estimator)
    booster = booster_of(last)
    if booster is None:
        name = type(last).__name__ if hasattr(last, "fit") else repr(last)
        raise ValueError(
            f"early_stopping must be None for an estimator without X_val. Got {value!r} for {name} "
            "instead. Search over HistGradientBoosting, XGBoost's or LightGBM's classifiers or "
            "regressors, or this library's SGDClassifier, SGDRegressor or Incremental, by "
            "themselves or as the last step of a Pipeline."
        )
    if get_tags(estimator).input_tags.pairwise:
        raise ValueError(
            "early_stopping must be None for rows of distances or kernels. Got "
            f"{value!r} for a pairwise {type(estimator).__name__} instead."
        )
    return booster


# -- results -------------------------------------------------------------------------------------


def best_iterations(fits: Sequence[Mapping[str, Any]], n_splits: int) -> dict[str, np.ndarray]:
    """Return the columns of ``cv_results_`` on best iterations, from the results of all fits.

    ``best_iteration`` is the median over the splits. Fits that failed or were skipped have NaN.
    """
    values = np.array([fit["best_iteration"] for fit in fits], float).reshape(-1, n_splits)
    columns = {f"split{n}_best_iteration": values[:, n] for n in range(n_splits)}
    finite = [row[np.isfinite(row)] for row in values]
    columns["best_iteration"] = np.array(
        [np.rint(np.median(v)) if len(v) else np.nan for v in finite]
    )
    return {
        name: column.astype(int) if np.isfinite(column).all() else column
        for name, column in columns.items()
    }


def set_iterations(estimator: Any, n_iterations: float) -> None:
    """Make an estimator iterate so often without validation rows; as often as it may if NaN."""
    booster = booster_of(last_step(estimator))
    assert booster is not None  # the search has checked it
    booster.set_iterations(None if np.isnan(n_iterations) else int(n_iterations))
