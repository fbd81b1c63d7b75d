"""Few rows with the products of many: the triangular factor of all rows, in one pass."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import FLOAT64, astype, namespace
from skfleet._linalg import (
    SLICE_ELEMENTS,
    column_sums,
    hstack,
    qr_r,
    rows_between,
    to_dense,
    vstack,
)
from skfleet._typing import Array, ArrayT, Matrix
from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce
from skfleet.glm._coordinate_descent import RowQuadratic
from skfleet.glm._dense_solvers import solve_positive_rows, solve_ridge_rows
from skfleet.glm._normal_equations import nonzero_weight, targets_of, weights_of


class RowFactor(NamedTuple):
    """Means, and a few rows that have the products of all centred rows.

    These are at most twice as many as there are columns, targets included, which are the last
    columns of `rows`. Products square the condition number of rows, and so lose the digits that a
    factor keeps (Björck, 1996, section 2.2). Rows are only put one below the other while they are
    few. The methods are those of `CrossProducts`.
    """

    weight: Any
    x_mean: np.ndarray
    y_mean: np.ndarray
    rows: np.ndarray

    @property
    def design(self) -> np.ndarray:
        """The columns of X, of shape (n_rows, n_features)."""
        return self.rows[:, : len(self.x_mean)]

    @property
    def target(self) -> np.ndarray:
        """The targets, of shape (n_rows, n_targets)."""
        return self.rows[:, len(self.x_mean) :]

    @property
    def gram(self) -> np.ndarray:
        """The products of columns."""
        return self.design.T @ self.design

    @property
    def xy(self) -> np.ndarray:
        """The products of columns and targets."""
        return self.design.T @ self.target

    @property
    def yy(self) -> np.ndarray:
        """The sum of squares of each target."""
        return np.sum(self.target**2, axis=0)

    def uncentered(self) -> RowFactor:
        """Return the factor of the rows about zero, for a model without an intercept."""
        mean = np.append(self.x_mean, self.y_mean)
        return RowFactor(
            self.weight,
            np.zeros_like(self.x_mean),
            np.zeros_like(self.y_mean),
            np.vstack([self.rows, np.sqrt(self.weight) * mean]),
        )

    def select_targets(self, chosen: list[int]) -> RowFactor:
        """Return the factor for some of the targets."""
        rows = np.hstack([self.design, self.target[:, chosen]])
        return self._replace(y_mean=self.y_mean[chosen], rows=rows)

    def place_targets(self, place: Matrix) -> RowFactor:
        """Return the factor for targets @ place."""
        n = self.x_mean.shape[0]
        rows = hstack([self.rows[:, :n], self.rows[:, n:] @ place])
        return self._replace(y_mean=self.y_mean @ place, rows=rows)

    def scale_targets(self, factor: float, offset: float) -> RowFactor:
        """Return the factor for targets times a factor, plus an offset."""
        rows = np.hstack([self.design, factor * self.target])
        return self._replace(y_mean=factor * self.y_mean + offset, rows=rows)

    def quadratic(self, target: int = 0) -> RowQuadratic:
        """Return half the average squared error of a target, as a function of the coefficients."""
        root = np.sqrt(self.weight)
        return RowQuadratic(np.asfortranarray(self.design / root), self.target[:, target] / root)

    def squared_errors(self, coef: np.ndarray, fitted: RowFactor) -> np.ndarray:
        """Return the average squared error of each target, for coefficients by target.

        The coefficients were fitted to the rows of `fitted`: the model goes through their means.
        """
        mean_error = (self.y_mean - fitted.y_mean) - coef @ (self.x_mean - fitted.x_mean)
        residual = self.target - self.design @ coef.T
        return mean_error**2 + np.sum(residual**2, axis=0) / self.weight

    def solve_ridge(
        self, alpha: float | np.ndarray, *, tol: float = 0.0
    ) -> tuple[np.ndarray, str, int]:
        """Return coefficients by target, solver and rank, of least squares with an L2 penalty."""
        return solve_ridge_rows(self.design, self.target, alpha, tol=tol)

    def solve_positive(
        self, alpha: float | np.ndarray, max_iter: int | None = None
    ) -> tuple[np.ndarray, bool]:
        """Return the same with coefficients of at least 0, and whether they converged."""
        return solve_positive_rows(self.design, self.target, alpha, max_iter)

    def spectrum(self, alpha: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return eigenvalues and vectors of the products, and the products of these with xy.

        They are accurate whatever the penalty `alpha`.
        """
        left, values, right = np.linalg.svd(self.design, full_matrices=False)
        return values**2, right.T, values[:, None] * (left.T @ self.target)

    def singular_values(self) -> np.ndarray:
        """Return the singular values of the centred rows, largest first."""
        return np.linalg.svd(self.design, compute_uv=False)


def block_row_factor(block: Block) -> RowFactor:
    """Return a few rows with the products of the rows of a block, about its own means."""
    return row_factor(block, targets_of(block), weights_of(block))


def row_factor(block: Block, y: Array, w: Array | None) -> RowFactor:
    """Return the factor of the rows of a block with targets and weights, a few rows at a time."""
    n_rows, n_columns = block.n_rows, block.X.shape[1] + y.shape[1]
    step = max(SLICE_ELEMENTS // n_columns, 4 * n_columns)
    bounds = ((low, min(low + step, n_rows)) for low in range(0, max(n_rows, 1), step))
    return reduce(combine_row_factors, (_slice_factor(block.X, y, w, *pair) for pair in bounds))


def _slice_factor(X: Matrix, y: Array, w: Array | None, low: int, high: int) -> RowFactor:
    """Return the factor of the rows low to high."""
    x = astype(to_dense(rows_between(X, low, high)), FLOAT64)
    rows, root = hstack([x, y[low:high, ...]]), None
    weight: Any = float(high - low)
    if w is not None:
        w = w[low:high, ...]
        weight, root = namespace(w).sum(w), namespace(w).sqrt(w)
    mean = column_sums(rows, w) / nonzero_weight(weight)
    rows = rows - mean
    # The mean has lost the digits by which it exceeds the deviations.
    correction = column_sums(rows, w) / nonzero_weight(weight)
    rows, mean = rows - correction, mean + correction
    rows = rows if root is None else rows * root[:, None]
    n = X.shape[1]
    return RowFactor(weight, mean[:n], mean[n:], _reduced(rows))


def combine_row_factors(a: RowFactor, b: RowFactor) -> RowFactor:
    """Return the factor of the rows of two blocks; the difference of their means adds one row."""
    weight = a.weight + b.weight
    fraction = b.weight / nonzero_weight(weight)
    dx, dy = b.x_mean - a.x_mean, b.y_mean - a.y_mean
    between = (a.weight * fraction) ** 0.5 * hstack([dx[None, :], dy[None, :]])
    rows = _reduced(vstack([a.rows, b.rows, between]))
    return RowFactor(weight, a.x_mean + fraction * dx, a.y_mean + fraction * dy, rows)


def _reduced(rows: ArrayT) -> ArrayT:
    """Return the triangular factor of rows, or the rows while they are few."""
    return rows if rows.shape[0] <= 2 * rows.shape[1] else qr_r(rows)


def compute_row_factor(engine: Engine, rows: RowBlocks) -> RowFactor:
    """Return few rows with the products of all rows, in one pass (Demmel et al., 2012).

    They are at most twice as many as there are columns, targets included.
    """
    return map_reduce(engine, Reduction(block_row_factor, combine_row_factors), rows)
