"""Affinities between rows of any container and few rows on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import sklearn
from sklearn.metrics.pairwise import kernel_metrics, pairwise_kernels

from skfleet._array import FLOAT64, asarray_like, astype, is_not_numpy, namespace
from skfleet._linalg import dot, row_norms, rows_between, with_int32_indices
from skfleet.blocks import RowBlocks

# Affinities that need all rows at once, of which scikit-learn's own estimator makes a graph.
GRAPH_AFFINITIES = ("nearest_neighbors", "precomputed", "precomputed_nearest_neighbors")
# Kernels with an expression in arrays of any library, and those without one for sparse rows.
DEVICE_KERNELS = ("linear", "poly", "polynomial", "rbf", "sigmoid")
DENSE_KERNELS = ("additive_chi2", "chi2")
# Size of the affinities of a piece of rows: one that a cache holds, and on a device a large one.
PIECE_BYTES, DEVICE_PIECE_BYTES, MIN_PIECE_ROWS = 2**21, 2**28, 64


class Affinity(NamedTuple):
    """A kernel of scikit-learn by name, or a function of two rows, with its parameters."""

    metric: str | Callable[..., float]
    params: dict[str, Any]

    def __call__(self, X: Any, points: Any) -> Any:
        """Return the affinities of rows to points on the host, on the device of the rows."""
        X, points = astype(X, FLOAT64), astype(points, FLOAT64)
        if is_not_numpy(X):
            return self._on_device(X, points)
        # Blocks are checked when they are opened.
        with sklearn.config_context(assume_finite=True):
            X, points = with_int32_indices(X), with_int32_indices(points)
            options = {"metric": self.metric, "filter_params": True, "n_jobs": 1}
            return pairwise_kernels(X, points, **options, **self.params)

    def _on_device(self, X: Any, points: np.ndarray) -> Any:
        products, gamma, xp = dot(X, points.T), self.params["gamma"], namespace(X)
        if self.metric == "linear":
            return products
        if self.metric == "rbf":
            squared = row_norms(X)[:, None] + asarray_like(row_norms(points), X) - 2 * products
            return xp.exp(-gamma * xp.where(squared > 0, squared, xp.zeros_like(squared)))
        products = gamma * products + self.params["coef0"]
        return xp.tanh(products) if self.metric == "sigmoid" else products ** self.params["degree"]


def check_affinity(metric: Any) -> None:
    """Raise unless a parameter is a function, or the name of an affinity."""
    names = (*kernel_metrics(), *GRAPH_AFFINITIES)
    if not callable(metric) and not (isinstance(metric, str) and metric in names):
        raise ValueError(
            f"affinity must be one of {', '.join(map(repr, names))} or a function of two rows. "
            f"Got {metric!r} instead."
        )


def check_takes_rows(metric: Any, rows: RowBlocks, *, on_device: bool) -> None:
    """Raise where an affinity is not defined for rows on Dask, on a device, or sparse ones."""
    where = "on Dask" if rows.on_dask else "on a device" if on_device else None
    if metric in GRAPH_AFFINITIES and where:
        raise ValueError(
            f"affinity must be a kernel for rows {where}. Got {metric!r} instead, for which all "
            "rows must be in this process. Take 'rbf', or rows that fit into memory."
        )
    if on_device and metric not in DEVICE_KERNELS:
        raise ValueError(
            f"affinity must be one of {', '.join(map(repr, DEVICE_KERNELS))} for rows on a device. "
            f"Got {metric!r} instead. Take one of them, or copy the rows to the host."
        )
    if rows.is_sparse and metric in DENSE_KERNELS:
        raise ValueError(
            f"affinity must be another than {metric!r} for sparse rows. Take 'rbf', or make X "
            "dense."
        )


def row_pieces(X: Any, n_points: int) -> Iterator[Any]:
    """Yield consecutive rows, few enough for the memory that their affinities to points take."""
    n_bytes = DEVICE_PIECE_BYTES if is_not_numpy(X) else PIECE_BYTES
    step = max(MIN_PIECE_ROWS, n_bytes // (8 * n_points))
    for low in range(0, X.shape[0], step):
        yield rows_between(X, low, min(low + step, X.shape[0]))
