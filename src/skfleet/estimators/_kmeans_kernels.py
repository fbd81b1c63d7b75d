"""What a block adds to k-means: nearest centres, sums about them, rows far from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from skfleet._array import is_foreign, like, namespace, to_host
from skfleet._linalg import dense_rows, dot, is_sparse, row_norms, tdot
from skfleet.blocks import Block

# Rows whose distances to all centres are held at once: they should stay in the processor's cache.
ROWS_AT_ONCE = 512


def centred(X: Any, mean: np.ndarray) -> Any:
    """Return X about the mean, which makes small distances exact; sparse rows stay as they are."""
    return X if is_sparse(X) else X - like(mean, X)


def _slices(X: Any, mean: np.ndarray) -> Iterator[tuple[int, int, Any]]:
    """Cut rows so that distances stay in the cache; rows on a device stay whole."""
    n_rows = int(X.shape[0])
    step = n_rows if is_foreign(X) else ROWS_AT_ONCE
    for low in range(0, n_rows, step):
        high = min(low + step, n_rows)
        yield low, high, centred(X[low:high] if step < n_rows else X, mean)


def nearest(
    X: Any, centers: np.ndarray, mean: np.ndarray
) -> Iterator[tuple[int, int, Any, Any, Any]]:
    """Yield (low, high, rows about the mean, labels, squared distances) for slices of X.

    Centres are about the mean too. Labels and distances are where X is; distances are at least 0.
    """
    doubled = np.ascontiguousarray(-2 * centers.T)
    norms = np.einsum("ij,ij->i", centers, centers)
    for low, high, rows in _slices(X, mean):
        xp = namespace(rows)
        scores = dot(rows, doubled)
        scores += like(norms, scores)
        labels = xp.argmin(scores, axis=1)
        if isinstance(scores, np.ndarray):
            least = scores[np.arange(high - low), labels]
        else:
            least = xp.min(scores, axis=1)
        squared = least + row_norms(rows)
        yield low, high, rows, labels, xp.where(squared > 0, squared, xp.zeros_like(squared))


class Lloyd(NamedTuple):
    """What an iteration needs of a block: sums of rows and weights per centre, and the inertia."""

    sums: np.ndarray
    weights: np.ndarray
    inertia: float
    n_members: np.ndarray


def lloyd(block: Block, centers: np.ndarray, mean: np.ndarray) -> Lloyd:
    """Assign the rows of a block to their nearest centres and sum them up."""
    k = len(centers)
    sums, weights, members = np.zeros(centers.shape), np.zeros(k), np.zeros(k)
    inertia = 0.0
    for low, high, rows, labels, squared in nearest(block.X, centers, mean):
        weight = None if block.sample_weight is None else block.sample_weight[low:high]
        if is_foreign(rows):
            xp = namespace(rows)
            here = xp.astype(labels[:, None] == like(np.arange(k), labels), rows.dtype)
            members += to_host(xp.sum(here, axis=0, dtype=xp.float64))
            if weight is not None:
                weight = like(to_host(weight), rows, dtype=rows.dtype)
                here, squared = here * weight[:, None], squared * weight
            sums += to_host(tdot(here, rows))
            weights += to_host(xp.sum(here, axis=0, dtype=xp.float64))
            inertia += float(xp.sum(squared, dtype=xp.float64))
            continue
        ones = np.ones(high - low)
        values = ones if weight is None else np.asarray(weight, dtype=np.float64)
        which = sparse.csr_array((values, labels, np.arange(high - low + 1)), (high - low, k))
        product = which.T @ rows
        sums += product.toarray() if sparse.issparse(product) else product
        members += np.bincount(labels, minlength=k)
        weights += np.bincount(labels, weights=values, minlength=k)
        inertia += float(values @ squared)
    return Lloyd(sums, weights, inertia, members)


def candidate_weights(block: Block, centers: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the weight of the rows of a block that are nearest to each candidate."""
    return lloyd(block, centers, mean).weights


def squared_distances(
    block: Block, centers: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's squared distance to, and number of, its nearest centre, on the host.

    Distances that are nothing but rounding count as none.
    """
    squared, labels = np.empty(block.n_rows), np.empty(block.n_rows, dtype=np.intp)
    eps = np.finfo(np.float32 if str(block.X.dtype).endswith("float32") else np.float64).eps
    largest = np.einsum("ij,ij->i", centers, centers).max(initial=0.0)
    for low, high, rows, near, far in nearest(block.X, centers, mean):
        size = to_host(row_norms(rows)) + largest
        distance = to_host(far).astype(np.float64)
        squared[low:high] = np.where(distance > 8 * eps * size, distance, 0.0)
        labels[low:high] = to_host(near)
    return squared, labels


def weights_of(block: Block) -> np.ndarray:
    """Return the weights of a block's rows, on the host."""
    if block.sample_weight is None:
        return np.ones(block.n_rows)
    return to_host(block.sample_weight).astype(np.float64)


def distances(model: tuple[np.ndarray, np.ndarray], X: Any) -> Any:
    """Return the distances of rows to all centres, where X is."""
    centers, mean = model
    rows = centred(X, mean)
    xp = namespace(rows)
    squared = dot(rows, -2 * centers.T) + like(np.einsum("ij,ij->i", centers, centers), rows)
    squared = squared + row_norms(rows)[:, None]
    return xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)))


def labels_of(model: tuple[np.ndarray, np.ndarray], X: Any) -> Any:
    """Return the numbers of the nearest centres, where X is."""
    xp = namespace(X)
    parts = [xp.astype(near, xp.int32) for _, _, _, near, _ in nearest(X, *model)]
    return parts[0] if len(parts) == 1 else xp.concat(parts)


def as_dense(X: Any) -> np.ndarray:
    """Return rows on the host in float64."""
    return dense_rows(X).astype(np.float64, copy=False)
