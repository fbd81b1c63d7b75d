"""Scores of least-squares models from cross products, without fitted models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from skfleet._array import FLOAT64
from skfleet.blocks import RowBlocks, is_lazy, row_blocks
from skfleet.engine import Reduction
from skfleet.glm import (
    CrossProducts,
    Products,
    SplitProducts,
    combine_residuals,
    equilibrate,
    residuals_by_split,
    score_from_errors,
    split_cross_products,
)
from skfleet.model_selection._paths._registry import ParamSets, SharedFit

# Scorers that follow from the cross products, and those that take a second pass for the residuals.
_FROM_SUMS = ("score", "r2", "neg_mean_squared_error", "neg_root_mean_squared_error")
_FROM_ERRORS = ("neg_mean_absolute_error", "neg_max_error")
SCORINGS = _FROM_SUMS + _FROM_ERRORS

# Beyond this condition number rounding is visible in the scores, as scikit-learn sums up the
# products in another order.
MAX_CONDITION = 1e6

# relative to the variance of the targets, or to the squared errors
_MAX_ROUNDING_ERROR = 1e-10

# Sending a column to a worker takes as long as multiplying it by so many other columns.
_COLUMNS_PER_TRANSFER = 400

# Larger systems are solved by workers, one per split.
MAX_UNKNOWNS = 2000


class SplitSolution(NamedTuple):
    """Models of some candidates on a split, and the cross products that they were fitted to."""

    split: int
    candidates: list[int]
    fitted: CrossProducts
    coef: np.ndarray  # of shape (n_targets, n_candidates, n_features)

    @property
    def intercept(self) -> np.ndarray:
        """Intercepts of shape (n_targets, n_candidates)."""
        return self.fitted.y_mean[:, None] - self.coef @ self.fitted.x_mean


class Models(NamedTuple):
    """Linear models of all splits and candidates.

    Coefficients are of shape (n_splits, n_targets, n_candidates, n_features), intercepts without
    the last.
    """

    coefs: np.ndarray
    intercepts: np.ndarray

    @classmethod
    def empty(cls, splits: Sequence[tuple[CrossProducts, Any]], n_candidates: int) -> Models:
        """Return models to be entered."""
        n_features, n_targets = splits[0][0].xy.shape
        shape = len(splits), n_targets, n_candidates
        return cls(np.empty((*shape, n_features)), np.empty(shape))

    def enter(self, solution: SplitSolution) -> None:
        """Enter the models of some candidates on a split."""
        self.coefs[solution.split][:, solution.candidates] = solution.coef
        self.intercepts[solution.split][:, solution.candidates] = solution.intercept


class ScoredFromGram(SharedFit):
    """Least squares scored from cross products, which one pass computes for all splits.

    The sums are in float64. Scores of scikit-learn's fits in float32 have a rounding of their own,
    so only this library's estimators are scored this way on float32 rows.
    """

    is_skfleet = False

    @staticmethod
    def targets(y: Any) -> Any:
        """Return targets as an array of numbers, or raise."""
        targets = y if is_lazy(y) else np.asarray(y)
        if targets.dtype.kind not in "biuf" or targets.ndim not in (1, 2):
            raise NotImplementedError("y must be numbers")
        return targets

    def unscored_reason(self, params: Mapping[str, Any]) -> str | None:
        """Return why candidates must be fitted that fits may be shared for, or None."""
        return None

    @abstractmethod
    def coefficients(self, fitted: CrossProducts, params: ParamSets) -> np.ndarray:
        """Return coefficients of shape (n_targets, n_candidates, n_features)."""

    def summarize(
        self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int
    ) -> SplitProducts:
        """Compute the cross products of each fold.

        Those of a training set are sums over the folds outside of its test set, so no row is
        multiplied twice.
        """
        rows = row_blocks(X, self.targets(y))
        self.check_rows(rows, rows.n_features, len(splits), n_slots)
        rows = replace(rows, dtype=FLOAT64)
        products = split_cross_products(rows, X, y, splits)
        check_lengths(products.splits)
        return products

    def accepts_sparse(self, params: Mapping[str, Any]) -> bool:
        """Return whether fits on sparse rows have the same results."""
        return self.is_skfleet

    def check_rows(self, rows: RowBlocks, n_columns: int, n_splits: int, n_slots: int) -> None:
        """Raise for rows that workers must fit, or would have fitted sooner."""
        if rows.is_sparse or not (rows.dtype in (None, np.float64) or self.is_skfleet):
            raise NotImplementedError("rows must be dense, and not of single precision")
        if n_columns > MAX_UNKNOWNS:
            raise NotImplementedError(f"columns must be at most {MAX_UNKNOWNS}")
        if not rows.on_dask and n_columns * (1 - n_splits / n_slots) > _COLUMNS_PER_TRANSFER:
            raise NotImplementedError("workers would have it sooner")

    def solutions(
        self, fitted_products: Sequence[CrossProducts], params: ParamSets
    ) -> Iterator[SplitSolution]:
        """Yield the models of candidates on each split, those with an intercept in one go."""
        has_intercept = [bool(candidate["fit_intercept"]) for candidate in params]
        for j, train in enumerate(fitted_products):
            for centre in set(has_intercept):
                group = [n for n, value in enumerate(has_intercept) if value == centre]
                fitted = train if centre else train.uncentered()
                coef = self.coefficients(fitted, [params[n] for n in group])
                yield SplitSolution(j, group, fitted, coef)

    def score(
        self,
        summary: Any,
        params: ParamSets,
        scorings: Sequence[str],
        *,
        train_scores: bool,
    ) -> np.ndarray:
        """Solve and score for each split and candidate.

        Squared errors are quadratic forms of the cross products; absolute errors take another pass.
        """
        squared = [n for n, scoring in enumerate(scorings) if scoring in _FROM_SUMS]
        names = [scorings[n] for n in squared]
        models = Models.empty(summary.splits, len(params))
        scores = np.full((2, len(scorings), len(summary.splits), len(params)), np.nan)
        for solution in self.solutions(summary.fitted, params):
            models.enter(solution)
            j, group, fitted, coef = solution
            for side, tested in enumerate(summary.splits[j][::-1][: 1 + train_scores]):
                values = _scores(tested, fitted, coef, names)
                scores[side][np.ix_(squared, [j], group)] = values[:, None]
        if "neg_max_error" in scorings and models.coefs.shape[1] > 1:
            raise NotImplementedError("y must have one column for its largest error")
        if len(squared) < len(scorings):
            reduction = Reduction(residuals_by_split, combine_residuals)
            errors = summary.reduce_models(reduction, *models, train_scores)
            weights = np.array([(test.weight, train.weight) for train, test in summary.splits])
            means = errors.total / weights.T[:, :, None, None]
            kinds = {"neg_mean_absolute_error": -means, "neg_max_error": -errors.largest}
            for n, scoring in enumerate(scorings):
                if scoring in kinds:
                    scores[:, n] = kinds[scoring].mean(axis=2)
        return scores


class ScoreOnly(SharedFit):
    """Shared fit that only scores candidates; workers fit each of them by itself."""

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Raise NotImplementedError: each candidate is fitted by itself."""
        raise NotImplementedError("scores must follow from sums of products over the rows")


def check_lengths(splits: Sequence[tuple[Products, Products]]) -> None:
    """Raise unless every training set has more rows than columns, and every test set two."""
    if any(train.weight <= len(train.gram) or test.weight < 2 for train, test in splits):
        raise NotImplementedError("splits must have more rows than there are columns")


def _scores(
    tested: CrossProducts, fitted: CrossProducts, coefs: np.ndarray, scorings: Sequence[str]
) -> np.ndarray:
    """Return scores of shape (n_scorings, n_candidates), averaged over targets."""
    scores = np.zeros((len(scorings), coefs.shape[1]))
    lengths = np.sqrt(np.diag(tested.gram))
    for k, coef in enumerate(coefs):
        target = tested.select_targets([k])
        errors = target.squared_errors(coef, fitted.select_targets([k]))
        variance = target.yy / target.weight
        terms = (np.abs(coef) @ lengths) ** 2 / target.weight + variance
        for n, scoring in enumerate(scorings):
            is_r2 = scoring in ("score", "r2")
            scale = variance if is_r2 else errors
            if not (np.finfo(float).eps * terms < _MAX_ROUNDING_ERROR * scale).all():
                raise NotImplementedError("errors must not be lost in rounding")
            name = "r2" if is_r2 else scoring
            scores[n] += score_from_errors(name, errors, errors, variance) / len(coefs)
    return scores


def condition_of(system: np.ndarray) -> float:
    """Return the condition number of a system, whatever the scales of its columns.

    The scales affect neither a Cholesky factorisation nor coordinate descent.
    """
    unit, _ = equilibrate(system)
    eigenvalues = linalg.eigvalsh(unit, check_finite=False)
    return float(eigenvalues[-1] / eigenvalues[0]) if eigenvalues[0] > 0 else np.inf


def check_condition(system: np.ndarray, max_condition: float = MAX_CONDITION) -> None:
    """Raise for an ill-conditioned system."""
    if not condition_of(system) < max_condition:
        raise NotImplementedError("rows must be better conditioned, or the penalty larger")
