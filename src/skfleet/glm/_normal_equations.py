"""Sums of products of rows and targets: all that least squares and covariances need."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, astype, dtype_of, is_not_numpy, namespace, to_device_of
from skfleet._linalg import column_sums, gram, is_sparse, is_sparse_kind, weighted_gram
from skfleet._validation import check_total_weight
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Reduction, engine_for, map_reduce
from skfleet.glm._coordinate_descent import Quadratic

# Products of more columns than these take more than 3 GB, and hours to solve; of sparse rows they
# are dense, and take longer than a few passes long before that.
MOST_COLUMNS, MOST_SPARSE_COLUMNS = 20_000, 5_000


def max_gram_columns(X: Any) -> int:
    """Return for how many columns there may be products of all with all."""
    return MOST_SPARSE_COLUMNS if is_sparse_kind(X) else MOST_COLUMNS


class CrossProducts(NamedTuple):
    """Weighted sums of products of rows and targets about their means."""

    weight: Any
    x_mean: np.ndarray
    y_mean: np.ndarray
    gram: np.ndarray
    xy: np.ndarray
    yy: np.ndarray  # one number a target

    def about_zero(self) -> CrossProducts:
        """Return the sums of products about zero, for a model without an intercept."""
        return self._replace(
            x_mean=np.zeros_like(self.x_mean),
            y_mean=np.zeros_like(self.y_mean),
            gram=self.gram + self.weight * np.outer(self.x_mean, self.x_mean),
            xy=self.xy + self.weight * np.outer(self.x_mean, self.y_mean),
            yy=self.yy + self.weight * self.y_mean**2,
        )

    def of_targets(self, chosen: list[int]) -> CrossProducts:
        """Return the sums of some of the targets."""
        return self._replace(y_mean=self.y_mean[chosen], xy=self.xy[:, chosen], yy=self.yy[chosen])

    def quadratic(self, target: int = 0) -> Quadratic:
        """Return half the average squared error of a target, as a function of the coefficients."""
        weight, xy, yy = self.weight, self.xy[:, target], self.yy[target]
        return Quadratic(self.gram / weight, xy / weight, yy / weight)

    def squared_errors(self, coef: np.ndarray, fitted: CrossProducts) -> np.ndarray:
        """Return the average squared error of each target, for coefficients by target.

        They were fitted to other rows, and lead through the means of those.
        """
        # Differences first: means may be much larger than what they differ by.
        off = (self.y_mean - fitted.y_mean) - coef @ (self.x_mean - fitted.x_mean)
        about = self.yy - 2 * np.sum(coef * self.xy.T, axis=1)
        about += np.sum((coef @ self.gram) * coef, axis=1)
        return off**2 + np.maximum(about, 0.0) / self.weight


def score_from_errors(scoring: str, squared: Any, absolute: Any, variance: Any) -> np.ndarray:
    """Return scores from mean squared and absolute errors and the variance of the targets."""
    if scoring == "neg_mean_squared_error":
        return -squared
    if scoring == "neg_root_mean_squared_error":
        return -np.sqrt(squared)
    if scoring == "neg_mean_absolute_error":
        return -absolute
    # Of targets that do not vary, all is explained by a perfect model and nothing by others.
    unexplained = squared / np.where(variance > 0, variance, 1.0)
    return np.where(variance > 0, 1 - unexplained, np.where(squared == 0, 1.0, 0.0))


def products(block: Block) -> CrossProducts:
    """Return a block's sums of products about its own means."""
    return block_cross_products_with(block, targets_of(block), weights_of(block))


def targets_of(block: Block) -> Any:
    """Return the targets of a block, of shape (n_rows, n_targets), where its rows are."""
    y = np.empty((block.n_rows, 0)) if block.y is None else block.y
    y = astype(to_device_of(y, block.X), FLOAT64)
    return y if len(y.shape) == 2 else y[:, None]


def weights_of(block: Block) -> Any:
    """Return the weights of a block's rows, where these are."""
    weight = block.sample_weight
    return None if weight is None else astype(to_device_of(weight, block.X), FLOAT64)


def block_cross_products_with(block: Block, y: Any, w: Any) -> CrossProducts:
    """Return sums of products of a block's rows and targets of shape (n_rows, n_targets)."""
    X, xp, dtype = block.X, namespace(y), dtype_of(block.X)
    weight = float(block.n_rows) if w is None else xp.sum(w)
    divisor = _or_one(weight)
    x_mean = column_sums(X, None if w is None else astype(w, dtype)) / divisor
    y_mean = (xp.sum(y, axis=0) if w is None else w @ y) / divisor
    y = y - y_mean
    wy = y if w is None else y * w[:, None]
    yy = xp.sum(wy * y, axis=0)
    if is_sparse(X):
        product = gram(X, w) - weight * np.outer(x_mean, x_mean)
        # Weighted deviations of y add up to nothing, so X need not be about its mean.
        xy = np.asarray(X.T @ wy.astype(dtype))
        return CrossProducts(weight, x_mean, y_mean, product, xy, yy)
    root = None if w is None else xp.sqrt(w)
    y = astype(y if root is None else y * root[:, None], dtype)
    root = None if root is None else astype(root, dtype)
    return CrossProducts(weight, x_mean, y_mean, *weighted_gram(X, x_mean, root, y), yy)


def _or_one(weight: Any) -> Any:
    """Return a total weight to divide by: of rows without any, sums are 0 anyway."""
    if not is_not_numpy(weight):
        return weight or 1.0
    xp = namespace(weight)
    return xp.where(weight == 0, xp.ones_like(weight), weight)


def combine_products(a: CrossProducts, b: CrossProducts) -> CrossProducts:
    """Merge the sums of two blocks (Chan, Golub and LeVeque, 1983)."""
    weight = a.weight + b.weight
    share = b.weight / _or_one(weight)
    dx, dy = b.x_mean - a.x_mean, b.y_mean - a.y_mean
    factor = a.weight * share
    return CrossProducts(
        weight,
        a.x_mean + share * dx,
        a.y_mean + share * dy,
        a.gram + b.gram + factor * dx[:, None] * dx[None, :],
        a.xy + b.xy + factor * dx[:, None] * dy[None, :],
        a.yy + b.yy + factor * dy**2,
    )


def compute_cross_products(rows: RowBlocks) -> CrossProducts:
    """Return the sums of products of all rows, from one pass."""
    sums = map_reduce(engine_for(rows), Reduction(products, combine_products), rows)
    check_total_weight(sums.weight)
    return sums
