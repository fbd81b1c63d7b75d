"""Least squares, penalised or not, whose scores follow from sums of products over the rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import linalg

from skfleet._array import FLOAT64
from skfleet._linalg import is_sparse_kind
from skfleet.blocks import is_lazy, row_blocks
from skfleet.glm import (
    CrossProducts,
    SplitProducts,
    equilibrate,
    score_from_errors,
    split_products,
    split_residuals,
)
from skfleet.model_selection._shared_fits._registry import SharedFit

__all__ = ["SCORINGS", "WORST_OF_SUMS", "ScoreOnly", "ScoredFromGram", "check_condition"]

# What can be scored from sums over rows, and from their errors in a second pass.
_FROM_SUMS = ("score", "r2", "neg_mean_squared_error", "neg_root_mean_squared_error")
_FROM_ERRORS = ("neg_mean_absolute_error", "neg_max_error")
SCORINGS = _FROM_SUMS + _FROM_ERRORS

# With a condition number beyond this, rounding would show in the scores: scikit-learn works with
# other products.
WORST_OF_SUMS = 1e6

# How far scores may be off, relative to the spread of the targets or to the errors, where they
# follow from sums.
_MOST_ROUNDING = 1e-10

# A column of rows is sent to a worker in the time in which it is multiplied by so many others.
_COLUMNS_PER_SENT = 400

# Systems of more unknowns than these are left to workers, each its own.
_MOST_UNKNOWNS = 2000


class ScoredFromGram(SharedFit):
    """Least squares whose scores follow from sums of products, made in one pass for all splits.

    The sums are of doubles. Scores of fits in single precision would be others, if only by their
    rounding, which an estimator of this library may leave out.
    """

    is_ours = False

    @abstractmethod
    def coefficients(
        self, fitted: CrossProducts, params: Sequence[Mapping[str, Any]]
    ) -> np.ndarray:
        """Give coefficients by target and candidate, of shape (n_targets, n_candidates, p)."""

    def prepare(
        self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int
    ) -> SplitProducts:
        """Sum up the products of each part of the rows.

        The rows that a split trains on are the parts that it does not test on: their products are
        sums of products, and no row is multiplied twice.
        """
        rows = row_blocks(X, _numbers(y))
        n_columns = rows.n_features
        if is_sparse_kind(X) or not (rows.dtype == np.float64 or self.is_ours):
            raise NotImplementedError("rows must be dense, and not of single precision")
        rows = replace(rows, dtype=FLOAT64)
        if n_columns > _MOST_UNKNOWNS:
            raise NotImplementedError(f"columns must be at most {_MOST_UNKNOWNS}")
        if not rows.on_dask and n_columns * (1 - len(splits) / n_slots) > _COLUMNS_PER_SENT:
            raise NotImplementedError("workers would have it sooner")
        found = split_products(rows, X, y, splits, {})
        if any(train.weight <= n_columns or test.weight < 2 for train, test in found.splits):
            raise NotImplementedError("splits must have more rows than there are columns")
        return found

    def score(
        self,
        prepared: SplitProducts,
        params: Sequence[Mapping[str, Any]],
        scorings: Sequence[str],
        *,
        train_scores: bool,
    ) -> np.ndarray:
        """Solve for each split and penalty.

        Squared errors are quadratic forms of the products; for absolute ones there is another pass.
        """
        n_splits, (train, _) = len(prepared.splits), prepared.splits[0]
        shape = (n_splits, train.xy.shape[1], len(params))
        coefs, intercepts = np.empty((*shape, len(train.gram))), np.empty(shape)
        scores = np.full((2, len(scorings), n_splits, len(params)), np.nan)
        squared = [n for n, one in enumerate(scorings) if one in _FROM_SUMS]
        for j, (train, test) in enumerate(prepared.splits):
            for centres in {bool(one["fit_intercept"]) for one in params}:
                chosen = [n for n, one in enumerate(params) if one["fit_intercept"] == centres]
                fitted = train if centres else train.uncentered()
                found = self.coefficients(fitted, [params[n] for n in chosen])
                coefs[j][:, chosen] = found
                intercepts[j][:, chosen] = fitted.y_mean[:, None] - found @ fitted.x_mean
                for side, tested in enumerate((test, train)[: 1 + train_scores]):
                    known = _scores(tested, fitted, found, [scorings[n] for n in squared])
                    scores[side][np.ix_(squared, [j], chosen)] = known[:, None]
        if "neg_max_error" in scorings and shape[1] > 1:
            raise NotImplementedError("y must have one column for its largest error")
        if len(squared) < len(scorings):
            errors = split_residuals(prepared, coefs, intercepts, both=train_scores)
            weights = np.array([(test.weight, train.weight) for train, test in prepared.splits])
            kinds = {
                "neg_mean_absolute_error": -errors.total / weights.T[:, :, None, None],
                "neg_max_error": -errors.largest,
            }
            for n, scoring in enumerate(scorings):
                if scoring in kinds:
                    scores[:, n] = kinds[scoring].mean(axis=2)
        return scores


class ScoreOnly(SharedFit):
    """A family whose fits have nothing in common but the pass that scores them."""

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Leave it to each fit."""
        raise NotImplementedError("scores must follow from sums of products over the rows")


def _numbers(y: Any) -> Any:
    """Give targets as an array, or raise."""
    targets = y if is_lazy(y) else np.asarray(y)
    if targets.dtype.kind not in "biuf" or targets.ndim not in (1, 2):
        raise NotImplementedError("y must be numbers")
    return targets


def _scores(
    tested: CrossProducts, fitted: CrossProducts, coefs: np.ndarray, scorings: Sequence[str]
) -> np.ndarray:
    """Give the scores on some rows, of shape (n_scorings, n_alphas), averaged over targets."""
    scores = np.zeros((len(scorings), coefs.shape[1]))
    lengths = np.sqrt(np.diag(tested.gram))
    for k, coef in enumerate(coefs):
        target = tested.select_targets([k])
        errors = target.squared_errors(coef, fitted.select_targets([k]))
        variance = target.yy / target.weight
        terms = (np.abs(coef) @ lengths) ** 2 / target.weight + variance
        for n, scoring in enumerate(scorings):
            is_share = scoring in ("score", "r2")
            scale = variance if is_share else errors
            if not (np.finfo(float).eps * terms < _MOST_ROUNDING * scale).all():
                raise NotImplementedError("errors must not be lost in rounding")
            name = "r2" if is_share else scoring
            scores[n] += score_from_errors(name, errors, errors, variance) / len(coefs)
    return scores


def check_condition(system: np.ndarray, worst: float = WORST_OF_SUMS) -> None:
    """Raise for a system that is as good as singular.

    The scale of a column does not matter, neither to a Cholesky factorisation nor to coordinate
    descent.
    """
    unit, _ = equilibrate(system)
    lengths = linalg.eigvalsh(unit, check_finite=False)
    if not lengths[-1] < worst * lengths[0]:
        raise NotImplementedError("rows must be better conditioned, or the penalty larger")
