"""Accuracies of ridge classifiers from two passes: cross products, and counts of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.multiclass import type_of_target

from skfleet.blocks import is_lazy
from skfleet.engine import Reduction
from skfleet.model_selection._closed_form._column_algebra import MAX_AMPLIFICATION
from skfleet.model_selection._closed_form._from_gram import (
    Models,
    ScoreOnly,
    SplitSolution,
    condition_of,
)
from skfleet.model_selection._closed_form._prepared_rows import (
    PipelineProducts,
    base_products,
    products_after,
)
from skfleet.model_selection._closed_form._ridge import RidgePath, SkfleetRidgePath
from skfleet.model_selection._closed_form._right_predictions import (
    combine_predictions,
    right_predictions,
)
from skfleet.model_selection._paths._registry import ParamSets, register_default

# Rounding errors of solutions and decision values, as multiples of those of a single operation.
_MAX_ROUNDING = 1e3 * np.finfo(float).eps


class RidgeClassifierPath(RidgePath):
    """Ridge classifiers over their penalty, with accuracies from sums over the rows.

    The first pass sums up products with targets of -1 and 1, the second counts right predictions.
    Where one is so close that rounding might change it, the classifiers are fitted.
    """

    def __init__(self) -> None:
        super().__init__("score", "accuracy", "balanced_accuracy")

    @staticmethod
    def targets(y: Any) -> np.ndarray:
        """Return targets of -1 and 1: a column for two classes, else one for each class."""
        if is_lazy(y) or type_of_target(y) not in ("binary", "multiclass"):
            raise NotImplementedError("y must be classes, in this process")
        targets: np.ndarray = LabelBinarizer(pos_label=1, neg_label=-1).fit_transform(y)
        return targets.astype(np.float64)

    def unscored_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject weights of classes."""
        is_weighted = params["class_weight"] is not None
        return "class_weight must be None to be scored from sums" if is_weighted else None

    def accepts_sparse(self, params: Mapping[str, Any]) -> bool:
        """Return whether fits on sparse rows have the same results to the last bits."""
        return self.is_skfleet

    def summarize(self, X: Any, y: Any, splits: Sequence[tuple[Any, Any]], n_slots: int) -> Any:
        """Compute the cross products of each fold, in one pass."""
        return products_after(base_products(X, y, splits, [[]], [self], n_slots), [], True)

    def score(
        self,
        summary: PipelineProducts,
        params: ParamSets,
        scorings: Sequence[str],
        *,
        train_scores: bool,
    ) -> np.ndarray:
        """Solve for each split and candidate, and count right predictions in another pass."""
        for reason in filter(None, map(self.unscored_reason, params)):
            raise NotImplementedError(reason)
        sizes = np.stack([[_class_sizes(s) for s in split[::-1]] for split in summary.splits], 1)
        if not (sizes[1] > 0).all():
            raise NotImplementedError("each class must be in every training set")
        if "balanced_accuracy" in scorings and not (sizes > 0).all():
            raise NotImplementedError("each class must be in every test set")
        models = Models.empty(summary.splits, len(params))
        roundings = np.empty((len(summary.splits), len(params)))
        for solution in self.solutions(summary.fitted, params):
            models.enter(solution)
            alpha = min(params[n]["alpha"] for n in solution.candidates)
            rounding = _rounding(summary, solution, alpha)
            roundings[solution.split, solution.candidates] = rounding
        reduction = Reduction(right_predictions, combine_predictions)
        counts = summary.reduce_models(reduction, *models, roundings, train_scores)
        if counts.n_close:
            raise NotImplementedError("predictions must not depend on rounding")
        scores = np.empty((2, len(scorings), len(summary.splits), len(params)))
        for n, scoring in enumerate(scorings):
            if scoring == "balanced_accuracy":
                scores[:, n] = (counts.n_right / sizes[..., None]).mean(axis=2)
            else:
                scores[:, n] = counts.n_right.sum(axis=2) / sizes.sum(axis=2)[..., None]
        return scores


def _class_sizes(products: Any) -> np.ndarray:
    """Return the number of rows of each class, from means of targets of -1 and 1."""
    sizes = np.rint((products.y_mean + 1) / 2 * products.weight)
    return np.append(products.weight - sizes, sizes) if len(sizes) == 1 else sizes


def _rounding(products: PipelineProducts, solution: SplitSolution, alpha: float) -> np.ndarray:
    """Return bounds of the rounding errors of decision values, for each candidate.

    Relative errors of coefficients, in units of the columns' deviations, are those of the products
    times the condition number.
    """
    fitted, coef = solution.fitted, abs(solution.coef)
    columns = products.columns[solution.split]
    sums, matrix = columns.sums, abs(columns.dense_matrix)
    system = fitted.gram + alpha * np.eye(len(fitted.gram))
    # Principal components are combined of columns that may have other scales.
    is_combined = not np.isfinite(columns.low).all()
    amplification = MAX_AMPLIFICATION if is_combined else columns.amplification
    tolerance = _MAX_ROUNDING * condition_of(system) * amplification
    # The largest deviation of a row from what the coefficients multiply, in units of deviations.
    largest = sums.largest_deviations
    deviation = matrix @ largest + abs(columns.mean - fitted.x_mean)
    unit = np.sqrt(np.diag(fitted.gram) / fitted.weight)
    length = np.linalg.norm(np.divide(deviation, unit, where=unit > 0, out=np.zeros_like(unit)))
    terms = (coef @ matrix) @ (largest + abs(sums.products.x_mean) + abs(sums.pivot))
    terms += coef @ abs(columns.offset) + abs(fitted.y_mean)[:, None]
    bounds = tolerance * length * np.linalg.norm(coef * unit, axis=-1) + _MAX_ROUNDING * terms
    return np.asarray(bounds.max(axis=0))


class SkfleetRidgeClassifierPath(ScoreOnly, RidgeClassifierPath):
    """Ridge classifiers of this library, which solve the normal equations with any `solver`."""

    is_skfleet = True
    known = SkfleetRidgePath.known

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject the same parameters as for scikit-learn's, but for the solver."""
        return super().unsupported_reason({**params, "solver": "auto"})


register_default("sklearn.linear_model.RidgeClassifier", RidgeClassifierPath())
register_default("skfleet.estimators.RidgeClassifier", SkfleetRidgeClassifierPath())
