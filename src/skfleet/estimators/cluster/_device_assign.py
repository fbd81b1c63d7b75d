"""Nearest centres of rows on a device, without copies to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import device

from skfleet._array import FLOAT64, astype, dtype_of, namespace, to_device_of
from skfleet._linalg import rows_between, sums_down
from skfleet.estimators.cluster import _cuda_kernel
from skfleet.estimators.cluster._cuda_kernel import Assignment

# Distances and copies of a tile of rows, where the CUDA kernel is not used.
TILE_BYTES = 2**28


def assign(centers: Any, X: Any, weight: Any = None, **outputs: bool) -> Assignment:
    """Label rows on a device by their nearest centre, and compute the requested outputs.

    These may be `squared`, `inertia` and `sums`: of rows about the mean, with the sum of weights as
    last column. Weights are float64 on the device of the rows. All outputs stay on the device.
    """
    # Rows are subtracted from their centres; what is no more than rounding counts as no distance.
    rounding = 3 * (8 * float(np.finfo(centers.dtype).eps)) ** 2
    values, norms, mean = centers.on_device_of(X)
    compute = _cuda_kernel.assign if _cuda_kernel.supports(X, len(centers)) else _by_tiles
    return compute(X, values, norms, mean, weight, rounding, **outputs)


def count(labels: Any, weight: Any, k: int, X: Any) -> Any:
    """Sum the weights of rows by label, on the device of X."""
    if _cuda_kernel.supports(X, k):
        return _cuda_kernel.count(dtype_of(X), weight, labels, k)
    xp, n, step = namespace(labels), labels.shape[0], max(1, TILE_BYTES // (16 * k))
    numbers = xp.arange(k, dtype=labels.dtype, device=device(labels))
    total_sums = xp.zeros(k, dtype=xp.float64, device=device(labels))
    for low in range(0, n, step):
        part = slice(low, min(low + step, n))
        one_hot = astype(labels[part][:, None] == numbers, FLOAT64)
        if weight is not None:
            one_hot = one_hot * weight[part][:, None]
        total_sums = total_sums + sums_down(one_hot)
    return total_sums


def _by_tiles(
    X: Any,
    centers: Any,
    norms: Any,
    mean: Any,
    weight: Any,
    rounding: float,
    *,
    squared: bool = False,
    inertia: bool = False,
    sums: bool = False,
) -> Assignment:
    """Compute the outputs of the kernel by matrix products, a tile of rows at a time."""
    xp, on_device, double = namespace(X), device(X), FLOAT64
    (n, d), k = X.shape, centers.shape[0]
    # Rows in a tile: as many as have room with their distances to all centres and their copies.
    step = max(1, TILE_BYTES // (dtype_of(X).itemsize * (3 * k + 4 * d)))
    minus_2_centers = -2 * centers.T
    # Sums stay on the device until the end: to fetch one would wait for the tile.
    numbers = xp.arange(k, dtype=xp.int32, device=on_device)
    labels, distances = [], []
    total_inertia = xp.zeros((), dtype=xp.float64, device=on_device)
    total_sums = xp.zeros((k, d + 1), dtype=xp.float64, device=on_device)
    for low in range(0, n, step):
        high = min(low + step, n)
        rows = rows_between(X, low, high)
        rows = rows if mean is None else rows - mean
        w = None if weight is None else weight[low:high]
        # The rows' own norms do not change which centre is nearest.
        nearest = xp.astype(xp.argmin(rows @ minus_2_centers + norms, axis=1), xp.int32)
        labels.append(nearest)
        if squared or inertia:
            # Subtracted, as the expanded square would lose the digits of small distances.
            diff = rows - xp.take(centers, nearest, axis=0)
            distance = xp.sum(diff * diff, axis=1, dtype=xp.float64)
            rounding_error = rounding * astype(xp.take(norms, nearest, axis=0), double)
            distance = xp.where(distance <= rounding_error, xp.zeros_like(distance), distance)
            distances.append(distance)
            total_inertia = total_inertia + xp.sum(distance if w is None else w * distance)
        if sums:
            # A product with indicators sums by label: the array API has no scatter-add.
            one_hot = astype(nearest[:, None] == numbers, dtype_of(X))
            if w is not None:
                one_hot = one_hot * astype(w, dtype_of(X))[:, None]
            weights = sums_down(one_hot)
            sums_of_rows = astype(one_hot.T @ rows, double)
            total_sums = total_sums + xp.concat([sums_of_rows, weights[:, None]], axis=1)
    return Assignment(
        xp.concat(labels),
        xp.concat(distances) if squared else None,
        total_inertia if inertia else None,
        total_sums if sums else None,
    )


def weight_on_device(weight: Any, X: Any) -> Any:
    """Return sample weights in float64 on the device of X, None for none."""
    return None if weight is None else astype(to_device_of(weight, X), FLOAT64)
