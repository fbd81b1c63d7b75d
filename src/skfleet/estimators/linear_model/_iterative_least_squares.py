"""Iterative least squares for more columns than a Gram matrix allows."""

from __future__ import annotations

from typing import Any

from skfleet._validation import check_total_weight
from skfleet.blocks import RowBlocks
from skfleet.estimators.linear_model._glm_fit import (
    GLMFit,
    GLMSpec,
    first_pass,
    fit_glm,
    null_model_from_targets,
    report_convergence,
)
from skfleet.glm import ClassEncoding, SquaredError, max_gram_columns


def exceeds_gram_limit(rows: RowBlocks) -> bool:
    """Return whether rows have too many columns for a Gram matrix."""
    return rows.n_features > max_gram_columns(rows)


def check_gram_limit(rows: RowBlocks, name: str) -> None:
    """Raise for rows with too many columns for an estimator that needs a Gram matrix."""
    if exceeds_gram_limit(rows):
        raise ValueError(
            f"X must have at most {max_gram_columns(rows)} columns for {name}. Got "
            f"{rows.n_features} instead. Use Ridge or ElasticNet in GridSearchCV, or SGDRegressor "
            "in Incremental."
        )


def fit_iteratively(
    rows: RowBlocks,
    *,
    l1: float,
    l2: float,
    in_sums: bool = False,
    fit_intercept: bool,
    tol: float,
    max_iter: int,
    start: Any = None,
) -> GLMFit:
    """Minimise half the average squared error and penalties; `in_sums`, half the sum of squares."""
    with first_pass(rows, fit_intercept=fit_intercept, use_sample=False, check=_accept_all) as data:
        sums = data.summary.targets
        check_total_weight(sums.weight)
        loss = SquaredError(len(sums.y))
        null, total = null_model_from_targets(loss, sums, data.scaling, fit_intercept=fit_intercept)
        model = GLMSpec(
            loss,
            l1=l1 / total if in_sums else l1,
            l2=l2 / total if in_sums else l2,
            fit_intercept=fit_intercept,
            solver="auto",
            tol=tol,
            max_iter=max_iter,
            start=start,
        )
        fitted = fit_glm(data, model, null, total, ClassEncoding())
    report_convergence(fitted, model, 0)
    return fitted


def _accept_all(y: Any) -> None:
    """Accept targets of any value."""
