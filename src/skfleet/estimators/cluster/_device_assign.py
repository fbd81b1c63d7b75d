"""Rows on a device and their nearest centres: all stays there until a pass brings its sums home."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import device

from skfleet._array import FLOAT64, asarray_like, astype, dtype_of, namespace, to_device_of
from skfleet._linalg import rows_between
from skfleet.estimators.cluster import _cuda_kernel
from skfleet.estimators.cluster._cuda_kernel import Found

# Where there is no kernel: what may be made at once of the distances and copies of some rows.
TILE_BYTES = 2**28


def assign(
    centers: Any,
    X: Any,
    weight: Any = None,
    *,
    squared: bool = False,
    inertia: bool = False,
    sums: bool = False,
) -> Found:
    """Label rows on a device by their nearest centre, and find what else is asked for.

    Rows are as they come, their weights float64 and beside them. Sums are those of rows about the
    mean, with the sum of weights as a last column. Nothing is brought to the host.
    """
    wanted = {"squared": squared, "inertia": inertia, "sums": sums}
    # Rows are subtracted from their centres; what is no more than rounding counts as no distance.
    rounding = 3 * (8 * float(np.finfo(centers.dtype).eps)) ** 2
    near, norms = asarray_like(centers.values, X), asarray_like(centers.norms, X)
    mean = None if centers.mean is None else asarray_like(centers.mean, X)
    if _cuda_kernel.takes(X, len(centers)):
        return _cuda_kernel.assign(X, near, norms, mean, weight, rounding, **wanted)
    return _by_tiles(X, near, norms, mean, weight, rounding, **wanted)


def count(labels: Any, weight: Any, k: int, X: Any) -> Any:
    """Sum up the weights of rows by label, where the rows X are."""
    if _cuda_kernel.takes(X, k):
        return _cuda_kernel.count(dtype_of(X), weight, labels, k)
    xp, n, step = namespace(labels), labels.shape[0], max(1, TILE_BYTES // (16 * k))
    numbers = xp.arange(k, dtype=labels.dtype, device=device(labels))
    total = xp.zeros(k, dtype=xp.float64, device=device(labels))
    for low in range(0, n, step):
        part = slice(low, min(low + step, n))
        here = astype(labels[part][:, None] == numbers, FLOAT64)
        if weight is not None:
            here = here * weight[part][:, None]
        total = total + xp.sum(here, axis=0)
    return total


def _by_tiles(
    X: Any,
    near: Any,
    norms: Any,
    mean: Any,
    weight: Any,
    rounding: float,
    *,
    squared: bool,
    inertia: bool,
    sums: bool,
) -> Found:
    """Do what the kernel does by products of matrices, so many rows at once as are few bytes."""
    xp, there, double = namespace(X), device(X), FLOAT64
    (n, d), k = X.shape, near.shape[0]
    step = max(1, TILE_BYTES // (dtype_of(X).itemsize * (3 * k + 4 * d)))
    turned = -2 * near.T
    numbers = xp.arange(k, dtype=xp.int32, device=there)
    labels, distances = [], []
    kept = xp.zeros((), dtype=xp.float64, device=there)
    total = xp.zeros((k, d + 1), dtype=xp.float64, device=there)
    for low in range(0, n, step):
        high = min(low + step, n)
        rows = rows_between(X, low, high)
        rows = rows if mean is None else rows - mean
        w = None if weight is None else weight[low:high]
        nearest = xp.astype(xp.argmin(rows @ turned + norms, axis=1), xp.int32)
        labels.append(nearest)
        if squared or inertia:
            apart = rows - xp.take(near, nearest, axis=0)
            found = xp.sum(apart * apart, axis=1, dtype=xp.float64)
            least = rounding * astype(xp.take(norms, nearest, axis=0), double)
            found = xp.where(found <= least, xp.zeros_like(found), found)
            distances.append(found)
            kept = kept + xp.sum(found if w is None else w * found)
        if sums:
            here = astype(nearest[:, None] == numbers, dtype_of(X))
            if w is not None:
                here = here * astype(w, dtype_of(X))[:, None]
            weights = xp.sum(here, axis=0, dtype=xp.float64)
            added = astype(here.T @ rows, double)
            total = total + xp.concat([added, weights[:, None]], axis=1)
    return Found(
        xp.concat(labels),
        xp.concat(distances) if squared else None,
        kept if inertia else None,
        total if sums else None,
    )


def weight_beside(weight: Any, X: Any) -> Any:
    """Return the weights of rows, if there are any, in float64 where the rows are."""
    return None if weight is None else astype(to_device_of(weight, X), FLOAT64)
