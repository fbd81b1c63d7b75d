"""Scores of ridge regression by any scorer, on predictions for rows that were left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv

from skfleet.blocks import RowBlocks, RowSet, is_lazy, separate_per_sample
from skfleet.engine import CountedRows
from skfleet.estimators.linear_model._linear_estimators import round_model
from skfleet.estimators.linear_model._ridge import Ridge
from skfleet.glm import Products, split_products
from skfleet.metrics import get_scorer


class LeaveOneOutModel(RegressorMixin, BaseEstimator):
    """A regressor of rows that are predictions already."""

    def predict(self, X: Any) -> Any:
        return X


def scorer_for(estimator: Any, X: Any) -> Callable[..., Any]:
    """Return the scorer of an estimator's `scoring` for rows in this process, or on Dask."""
    if is_lazy(X):
        return get_scorer(estimator.scoring or "r2")
    return check_scoring(estimator, scoring=estimator.scoring)


def loo_scores(
    scorer: Callable[..., Any],
    stored: Sequence[Any],
    params: dict[str, Any],
    *,
    column: bool,
    per_target: bool,
) -> np.ndarray:
    """Return the scores of alphas (and targets), from predictions and targets in order."""
    predicted = np.concatenate([part.values for part in stored])
    y = np.concatenate([part.y for part in stored])
    model, targets, alphas = LeaveOneOutModel(), range(y.shape[1]), range(predicted.shape[2])
    if per_target:
        columns = [(slice(None), j) for j in targets]
        scores = [
            [scorer(model, predicted[*c, i], y[c], **params) for c in columns] for i in alphas
        ]
    else:
        c = (slice(None), 0) if column else (slice(None), slice(None))
        scores = [scorer(model, predicted[*c, i], y[c], **params) for i in alphas]
    return np.array(scores, dtype=np.float64)


def fold_scores(
    estimator: Any,
    scorer: Callable[..., Any],
    rows: RowBlocks,
    X: Any,
    y: Any,
    score_params: dict[str, Any],
    split_params: dict[str, Any],
    alphas: np.ndarray,
) -> tuple[Products, np.ndarray]:
    """Return the cross products of all rows, and the mean scores of alphas over splits.

    The models of a split and its alphas follow from the same products, and predict for the scorer.
    """
    per_sample, options = separate_per_sample(score_params, X)
    counted = CountedRows([X, y, *per_sample.values()], ())
    data = (np.empty((counted.n_rows, 0)), None) if is_lazy(X) else (X, y)
    splits = list(check_cv(estimator.cv).split(*data, **split_params))
    options_of_fit = {"centred": estimator.fit_intercept, "alpha": alphas}
    products = split_products(rows, X, y, splits, {}, **options_of_fit)
    scores = np.empty((len(alphas), len(splits)))
    for j, ((_, test), train) in enumerate(zip(splits, products.fitted, strict=True)):
        train = train if estimator.fit_intercept else train.uncentered()
        chosen = RowSet.from_indices(test, counted.n_rows) if is_lazy(X) else test
        X_test, y_test, *values = counted.take(chosen)
        params = options | dict(zip(per_sample, values, strict=True))
        for i, alpha in enumerate(alphas):
            model = _fitted_ridge(estimator, train, float(alpha), rows, len(y_test.shape) == 1)
            scores[i, j] = scorer(model, X_test, y_test, **params)
    total = products.total if estimator.fit_intercept else products.total.uncentered()
    return total, scores.mean(axis=1)


def _fitted_ridge(
    estimator: Any, sums: Products, alpha: float, rows: RowBlocks, column: bool
) -> Ridge:
    """Return a fitted model of an alpha, with the feature names of the estimator."""
    model = Ridge(alpha, fit_intercept=estimator.fit_intercept)
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(estimator, name):
            setattr(model, name, getattr(estimator, name))
    coef, model.solver_, _ = sums.solve_ridge(alpha)
    model.n_iter_ = None
    coef, intercept = round_model(coef, sums, rows.dtype)
    model._set_coef(coef, intercept, rows, one_target=len(coef) == 1, column=column)
    return model
