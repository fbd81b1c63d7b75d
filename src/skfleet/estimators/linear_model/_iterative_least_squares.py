"""Iterative least squares for more columns than a Gram matrix allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from skfleet._warnings import warn
from skfleet.blocks import RowBlocks
from skfleet.estimators.linear_model._glm_fit import (
    GLMFit,
    GLMSpec,
    first_pass,
    fit_glm,
    null_model_from_targets,
    warm_start,
)
from skfleet.glm import ClassEncoding, SquaredError, max_gram_columns


def exceeds_gram_limit(rows: RowBlocks) -> bool:
    return rows.n_features > max_gram_columns(rows)


def check_gram_limit(rows: RowBlocks, name: str) -> None:
    """Raise for rows with too many columns for an estimator that needs a Gram matrix."""
    if exceeds_gram_limit(rows):
        raise ValueError(
            f"X must have at most {max_gram_columns(rows)} columns for {name}. Got "
            f"{rows.n_features} instead. Use Ridge or ElasticNet in GridSearchCV, or SGDRegressor "
            "in Incremental."
        )


def warn_unless_solved(converged: bool) -> None:
    """Warn of non-negative least squares that did not reach their minimum."""
    if not converged:
        warn(
            "Non-negative least squares did not reach their minimum. Increase max_iter, or scale "
            "the columns.",
            ConvergenceWarning,
        )


def fit_iteratively(
    rows: RowBlocks, estimator: Any, *, l1: float = 0.0, l2: float = 0.0, in_sums: bool = False
) -> GLMFit:
    """Minimise half the average squared error and penalties; `in_sums`, half the sum of squares."""
    intercept, max_iter = estimator.fit_intercept, getattr(estimator, "max_iter", None) or 1000
    with first_pass(rows, fit_intercept=intercept, use_sample=False, check=_accept_all) as data:
        start = warm_start(estimator, (rows.n_features,))
        loss = SquaredError(len(data.summary.targets.y))
        model = GLMSpec(loss, l1, l2, intercept, "auto", estimator.tol, max_iter, start)
        null, total = null_model_from_targets(model, data)
        if in_sums:
            model = replace(model, l1=l1 / total, l2=l2 / total)
        return fit_glm(data, model, null, total, ClassEncoding())


def _accept_all(y: Any) -> None:
    """Accept targets of any value."""
