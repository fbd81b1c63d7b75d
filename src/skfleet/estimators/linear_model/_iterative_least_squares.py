"""Least squares of more columns than a matrix of their products has room for, by iteration."""

from __future__ import annotations

from typing import Any

from skfleet._validation import check_total_weight
from skfleet.blocks import RowBlocks
from skfleet.estimators.linear_model._glm_fit import (
    Fitted,
    Model,
    fit_glm,
    null_of_targets,
    report,
    surveyed,
)
from skfleet.glm import Labels, SquaredError
from skfleet.glm._normal_equations import max_gram_columns


def is_wide(rows: RowBlocks, X: Any) -> bool:
    """Say whether rows have too many columns for the products of all with all."""
    return rows.n_features > max_gram_columns(X)


def check_width(rows: RowBlocks, X: Any, name: str) -> None:
    """Raise if rows are too wide for an estimator that knows no other way."""
    if is_wide(rows, X):
        raise ValueError(
            f"X must have at most {max_gram_columns(X)} columns for {name}. Got {rows.n_features} "
            "instead. Use Ridge or ElasticNet in GridSearchCV, or SGDRegressor in Incremental."
        )


def fit_wide(
    rows: RowBlocks,
    X: Any,
    *,
    l1: float,
    l2: float,
    in_sums: bool = False,
    fit_intercept: bool,
    tol: float,
    max_iter: int,
    start: Any = None,
) -> Fitted:
    """Minimise half the average squared error and penalties; `in_sums`, half the sum of squares."""
    with surveyed(rows, X, fit_intercept=fit_intercept, draw=False, check=_anything) as data:
        sums = data.found.targets
        check_total_weight(sums.weight)
        loss = SquaredError(len(sums.y))
        null, total = null_of_targets(loss, sums, data.scaling, fit_intercept=fit_intercept)
        model = Model(
            loss,
            l1=l1 / total if in_sums else l1,
            l2=l2 / total if in_sums else l2,
            fit_intercept=fit_intercept,
            solver="auto",
            tol=tol,
            max_iter=max_iter,
            start=start,
        )
        found = fit_glm(data, model, null, total, Labels())
    report(found, model, 0)
    return found


def _anything(y: Any) -> None:
    """Take any targets."""
