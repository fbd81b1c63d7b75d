"""Cross products of rows and targets: normal equations and covariances in one pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device
from scipy import linalg

from skfleet import _cuda_gram
from skfleet._array import (
    FLOAT64,
    astype,
    dtype_of,
    is_not_numpy,
    namespace,
    to_device_of,
)
from skfleet._linalg import (
    add_outer,
    column_sums,
    gram,
    hstack,
    is_sparse,
    sums_down,
    transposed,
    weighted_gram,
)
from skfleet._typing import Array, Matrix
from skfleet.blocks import PIECE_BYTES, Block, RowBlocks
from skfleet.engine import Reduction, add, identity
from skfleet.glm._coordinate_descent import Quadratic
from skfleet.glm._dense_solvers import rows_with_gram, solve_positive, solve_ridge

# Size of the pieces of sparse rows whose Gram matrices are added up.
MAX_PRODUCT_PIECE_BYTES = 64 * 2**20
# A larger Gram matrix takes more than 3 GB, and hours to solve. That of sparse rows is dense, and
# takes longer than a few passes.
MAX_GRAM_COLUMNS, MAX_SPARSE_GRAM_COLUMNS = 20_000, 5_000
# Condition number up to which the rounding of the largest eigenvalue does not show in the least.
MAX_EIGH_CONDITION = 1e9
# Rows of a block on a device whose mean is taken off before the products.
SAMPLED_ROWS = 4096


def max_gram_columns(rows: RowBlocks) -> int:
    """Return the largest number of columns of which a matrix of all products is made."""
    return MAX_SPARSE_GRAM_COLUMNS if rows.is_sparse else MAX_GRAM_COLUMNS


def product_reduction(
    per_block: Callable[..., Any],
    rows: RowBlocks,
    combine: Callable[[Any, Any], Any] = add,
    takes_whole: Callable[..., bool] | None = None,
) -> Reduction:
    """Return a reduction whose partial results have products of all pairs of columns.

    `per_block` returns the result of a block, and `combine` combines two. Sparse rows are cut into
    pieces next to which a matrix of all products is small. `takes_whole` says of a block whether
    `per_block` makes no copies of its rows, so that it need not be cut.
    """
    gram_bytes, piece_bytes = 8 * rows.n_features**2, None
    if rows.is_sparse:
        piece_bytes = max(PIECE_BYTES, min(4 * gram_bytes, MAX_PRODUCT_PIECE_BYTES))
    return Reduction(per_block, combine, identity, piece_bytes, gram_bytes, takes_whole)


def products_take_whole(rows: RowBlocks) -> Callable[..., bool]:
    """Return a function that says of a block whether its products are made without copies of it.

    That is so where a kernel on a GPU reads the rows as they are.
    """
    return partial(_takes_whole, rows.dtype)


def _takes_whole(dtype: np.dtype | None, block: Block, *args: Any) -> bool:
    if not is_not_numpy(block.X) or dtype_of(block.X) != dtype:
        return False
    n_targets = 0 if block.y is None else 1 if len(block.y.shape) == 1 else block.y.shape[1]
    is_weighted = block.sample_weight is not None
    return _cuda_gram.supports(block.X, n_targets + 1, weighted=is_weighted)


class CrossProducts(NamedTuple):
    """Weighted sums of products of rows and targets about their means.

    `weight` is the sum of the weights, the number of rows without any. `x_mean` and `y_mean` are
    the means of columns and targets, `gram` the products of columns, `xy` the products of columns
    and targets, and `yy` the sum of squares of each target.
    """

    weight: Any
    x_mean: np.ndarray
    y_mean: np.ndarray
    gram: np.ndarray
    xy: np.ndarray
    yy: np.ndarray  # one number a target

    def uncentered(self) -> CrossProducts:
        """Return the cross products about zero, for a model without an intercept."""
        return self._replace(
            x_mean=np.zeros_like(self.x_mean),
            y_mean=np.zeros_like(self.y_mean),
            gram=self.gram + self.weight * np.outer(self.x_mean, self.x_mean),
            xy=self.xy + self.weight * np.outer(self.x_mean, self.y_mean),
            yy=self.yy + self.weight * self.y_mean**2,
        )

    def select_targets(self, chosen: list[int]) -> CrossProducts:
        """Return the cross products for some of the targets."""
        return self._replace(y_mean=self.y_mean[chosen], xy=self.xy[:, chosen], yy=self.yy[chosen])

    def place_targets(self, place: Matrix) -> CrossProducts:
        """Return the cross products for targets @ place."""
        return self._replace(y_mean=self.y_mean @ place, yy=self.yy @ place, xy=self.xy @ place)

    def scale_targets(self, factor: float, offset: float) -> CrossProducts:
        """Return the cross products for targets times a factor, plus an offset."""
        y_mean = factor * self.y_mean + offset
        return self._replace(y_mean=y_mean, xy=factor * self.xy, yy=factor**2 * self.yy)

    def quadratic(self, target: int = 0) -> Quadratic:
        """Return half the average squared error of a target, as a function of the coefficients."""
        weight, xy, yy = self.weight, self.xy[:, target], self.yy[target]
        return Quadratic(self.gram / weight, xy / weight, yy / weight)

    def squared_errors(self, coef: np.ndarray, fitted: CrossProducts) -> np.ndarray:
        """Return the average squared error of each target, for coefficients by target.

        The coefficients were fitted to the rows of `fitted`: the model goes through their means.
        """
        # Subtract first: means may be much larger than their differences.
        mean_error = (self.y_mean - fitted.y_mean) - coef @ (self.x_mean - fitted.x_mean)
        variance_error = self.yy - 2 * np.sum(coef * self.xy.T, axis=1)
        variance_error += np.sum((coef @ self.gram) * coef, axis=1)
        return mean_error**2 + np.maximum(variance_error, 0.0) / self.weight

    def solve_ridge(
        self, alpha: float | np.ndarray, *, tol: float = 0.0
    ) -> tuple[np.ndarray, str, int]:
        """Return coefficients by target, solver and rank, of least squares with an L2 penalty."""
        return solve_ridge(self.gram, self.xy, alpha, tol=tol)

    def solve_positive(
        self, alpha: float | np.ndarray, max_iter: int | None = None
    ) -> tuple[np.ndarray, bool]:
        """Return the same with coefficients of at least 0, and whether they converged."""
        return solve_positive(self.gram, self.xy, alpha, max_iter)

    def spectrum(self, alpha: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return eigenvalues and vectors of the products, and the products of these with xy.

        Eigenvalues far below the largest one are accurate where an L2 penalty `alpha` shows them.
        """
        values, vectors = linalg.eigh(self.gram)
        if values.max(initial=0.0) > MAX_EIGH_CONDITION * (values.min(initial=0.0) + alpha):
            # Of columns in different units; those of a factor have the square root of the spread.
            rows, _ = rows_with_gram(self.gram, self.xy[:, 0], 0.0)
            _, singular, right = linalg.svd(rows, full_matrices=False)
            values, vectors = singular**2, right.T
        return np.maximum(values, 0.0), vectors, vectors.T @ self.xy

    def singular_values(self) -> np.ndarray:
        """Return the singular values of the centred rows, largest first."""
        return np.sqrt(np.maximum(linalg.eigvalsh(self.gram)[::-1], 0.0))


def score_from_errors(
    scoring: str, squared: np.ndarray, absolute: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    """Return scores from mean squared errors, mean absolute errors and variances of the targets.

    `scoring` is a name of scikit-learn: "r2", "neg_mean_squared_error",
    "neg_root_mean_squared_error" or "neg_mean_absolute_error". Greater is better.
    """
    if scoring == "neg_mean_squared_error":
        return -squared
    if scoring == "neg_root_mean_squared_error":
        return -np.sqrt(squared)
    if scoring == "neg_mean_absolute_error":
        return -absolute
    # As in r2_score, constant targets score 1 for a perfect model and 0 for others.
    unexplained = squared / np.where(variance > 0, variance, 1.0)
    return np.where(variance > 0, 1 - unexplained, np.where(squared == 0, 1.0, 0.0))


def block_cross_products(block: Block) -> CrossProducts:
    """Return the cross products of the rows of a block, about its own means."""
    return cross_products(block, targets_of(block), weights_of(block))


def targets_of(block: Block) -> Array:
    """Return the targets of a block in float64, of shape (n_rows, n_targets), on the device of X.

    A block without targets has none: the second length is 0.
    """
    y = np.empty((block.n_rows, 0)) if block.y is None else block.y
    y = astype(to_device_of(y, block.X), FLOAT64)
    return y if len(y.shape) == 2 else y[:, None]


def weights_of(block: Block) -> Array | None:
    """Return the sample weights of a block in float64, on the device of X, or None."""
    weight = block.sample_weight
    return None if weight is None else astype(to_device_of(weight, block.X), FLOAT64)


def cross_products(block: Block, y: Array, w: Array | None) -> CrossProducts:
    """Return the cross products of the rows of a block with targets and weights."""
    X, xp, dtype = block.X, namespace(y), dtype_of(block.X)
    weight = float(block.n_rows) if w is None else xp.sum(w)
    divisor = nonzero_weight(weight)
    sampled = X
    if is_not_numpy(X) and w is None:
        # Another read would find the mean of all rows, and nothing that `correction` does not. Far
        # from it the mean of a sample is only by an outlier, which the products have as well.
        sampled = X[:: block.n_rows // SAMPLED_ROWS | 1, ...]
    x_mean = column_sums(sampled, None if w is None else astype(w, dtype))
    x_mean = x_mean / (sampled.shape[0] if w is None else divisor)
    total = column_sums if is_not_numpy(X) else sums_down
    y_mean: Any = (total(y) if w is None else w @ y) / divisor
    # Products about zero lose the digits by which means exceed deviations.
    y = y - y_mean
    wy: Any = y if w is None else y * w[:, None]
    yy = total(wy * y)
    if is_sparse(X):
        # Centring would fill sparse rows, so the means are taken off their product.
        product = add_outer(gram(X, w), -weight, x_mean, x_mean)
        # Weighted deviations of y sum to 0, so X need not be centred.
        xy = np.asarray(transposed(X) @ wy.astype(dtype))
        return CrossProducts(weight, x_mean, y_mean, product, xy, yy)
    # With roots of the weights on both factors, the Gram matrix is one symmetric product.
    root = None if w is None else xp.sqrt(w)
    ones = xp.ones((block.n_rows, 1), dtype=y.dtype, device=device(y))
    factors = hstack([y, ones])
    factors = factors if root is None else factors * root[:, None]
    root = None if root is None else astype(root, dtype)
    shift = astype(x_mean, dtype)
    product, cross = weighted_gram(X, shift, root, astype(factors, dtype))
    # What rounding has left of the mean, of a column of 1e6 in single precision a part of 1.
    correction = cross[:, -1] / divisor
    product = add_outer(product, -weight, correction, correction)
    x_mean = astype(shift, FLOAT64) + correction
    return CrossProducts(weight, x_mean, y_mean, product, cross[:, :-1], yy)


def nonzero_weight(weight: float | Array) -> float | Array:
    """Return a total weight as a divisor: 1 instead of 0, for which all sums are 0."""
    if not is_not_numpy(weight):
        return weight or 1.0
    xp = namespace(weight)
    return xp.where(weight == 0, xp.ones_like(weight), weight)


def combine_products(a: CrossProducts, b: CrossProducts) -> CrossProducts:
    """Return the cross products of the rows of two blocks (Chan, Golub and LeVeque, 1983)."""
    weight = a.weight + b.weight
    fraction = b.weight / nonzero_weight(weight)
    dx, dy = b.x_mean - a.x_mean, b.y_mean - a.y_mean
    factor = a.weight * fraction
    return CrossProducts(
        weight,
        a.x_mean + fraction * dx,
        a.y_mean + fraction * dy,
        add_outer(a.gram + b.gram, factor, dx, dx),
        a.xy + b.xy + factor * dx[:, None] * dy[None, :],
        a.yy + b.yy + factor * dy**2,
    )
