"""Selectors of columns by tests of each against the target."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import feature_selection

from skfleet.blocks import Block, as_collection, check_rows
from skfleet.engine import Passes
from skfleet.estimators._blockwise import BlockwiseTransformer, blockwise, stock_estimator
from skfleet.estimators.feature_selection._array_api_selection import select_on_device
from skfleet.estimators.feature_selection._univariate_tests import univariate_test


class UnivariateSelector(BlockwiseTransformer):
    # The docstring of each selector.
    """On Dask rows ``fit`` is one pass, for `f_classif`, `f_regression`, `r_regression`, `chi2`.

    The sums that the test is made of come to the driver: a few numbers per column, and class.
    Labels may be of any type, and for `chi2` a matrix of several. Any other ``score_func`` needs
    its rows in this process. Dask arrays of CuPy's are reduced, and selected from, on their device.
    """

    score_func: Any
    _device_methods = frozenset(["fit", "transform"])

    def _device_result(self, method: str, X: Any) -> Any:
        return select_on_device(self, X)

    def _fit_on_blocks(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        check_rows(X=X, y=y)
        X = as_collection(X)
        if y is None and len(X.shape) == 2:
            univariate_test(self.score_func)
            stock_estimator(self).fit(np.zeros((2, X.shape[1])))  # scikit-learn's error
        return super()._fit_on_blocks(X, y)

    def _fit_passes(self, meta: Any) -> Passes:
        test = univariate_test(self.score_func)
        statistics = yield self._reduction("_test_statistics", combine=test.combine)
        scores = test.finalize(statistics)
        # scikit-learn's own fit, on rows of which it has these scores
        n_columns = meta.shape[1]
        fitted = stock_estimator(self, score_func=lambda X, y: scores)
        fitted.fit(np.zeros((2, n_columns)), [0, 1])
        self.scores_, self.pvalues_ = fitted.scores_, fitted.pvalues_

    def _test_statistics(self, block: Block) -> Any:
        """Return the statistics of a block; without a target, scikit-learn raises."""
        if block.y is None:
            return stock_estimator(self).fit(block.X)
        return univariate_test(self.score_func).reduce(self, block)


@blockwise
class SelectKBest(UnivariateSelector, feature_selection.SelectKBest):
    pass


@blockwise
class SelectPercentile(UnivariateSelector, feature_selection.SelectPercentile):
    pass


@blockwise
class SelectFpr(UnivariateSelector, feature_selection.SelectFpr):
    pass


@blockwise
class SelectFdr(UnivariateSelector, feature_selection.SelectFdr):
    pass


@blockwise
class SelectFwe(UnivariateSelector, feature_selection.SelectFwe):
    pass


@blockwise
class GenericUnivariateSelect(UnivariateSelector, feature_selection.GenericUnivariateSelect):
    pass
