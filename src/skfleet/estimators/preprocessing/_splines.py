"""Splines of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.interpolate import BSpline
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils.validation import check_array, validate_data

from skfleet._validation import check_total_weight
from skfleet.blocks import Block
from skfleet.engine import Passes
from skfleet.estimators._blockwise import (
    BlockwiseTransformer,
    blockwise,
    learned_attributes,
    stock_estimator,
)
from skfleet.estimators.preprocessing._row_weights import weights_of_rows
from skfleet.quantiles import quantiles_after, summary_reduction


@blockwise
class SplineTransformer(BlockwiseTransformer, preprocessing.SplineTransformer):
    """On Dask rows ``fit`` is one pass for uniform knots, and two for exact quantiles.

    Where the knots are an array, the pass only checks the rows.
    """

    @property
    def _is_repeated(self) -> bool:
        return isinstance(self.knots, str) and self.knots == "quantile"

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        if "bsplines_" in vars(self):
            self.bsplines_ = [_aligned(spline) for spline in self.bsplines_]

    def _columns(self, block: Block) -> tuple[Any, Any]:
        try:
            X = validate_data(self, block.X, ensure_all_finite=self.handle_missing != "zeros")
        except ValueError:
            stock_estimator(self).fit(block.X)  # its own error
            raise
        return X, weights_of_rows(block, X)

    def _fit_passes(self, meta: Any) -> Passes:
        name, columns_of = f"fit-{type(self).__name__}", clone(self)._columns
        fitted = stock_estimator(self)
        knots = self.knots if isinstance(self.knots, str) else "array"
        if knots == "array":
            fitted.fit(np.zeros((2, self.n_features_in_)))  # raises for invalid knots
        summary = yield summary_reduction(name, columns_of)
        few_rows = np.zeros((min(summary.n_rows, 2), self.n_features_in_))
        check_array(few_rows, ensure_min_samples=2, estimator=self)
        is_weighted = summary.sample.weight is not None
        if is_weighted:
            check_total_weight(summary.n_weighted_rows)
        if knots == "quantile":
            levels = 100 * np.linspace(0, 1, self.n_knots)
            method = "inverted_cdf" if is_weighted else "linear"
            rows = yield from quantiles_after(name, columns_of, summary, levels, method)
            # the weighted quantiles of as many rows are these rows
            fitted.fit(rows, sample_weight=np.ones(self.n_knots))
        elif knots == "uniform":
            fitted.fit(np.stack([summary.low, summary.high]))
        vars(self).update(learned_attributes(fitted))


def _aligned(spline: BSpline) -> BSpline:
    """Return a spline of aligned arrays: SciPy refuses others, which come with messages."""
    t, c = (np.require(values, requirements="A") for values in (spline.t, spline.c))
    return BSpline.construct_fast(t, c, spline.k, spline.extrapolate, spline.axis)
