"""Reductions of k-means: sums by cluster, farthest rows, rows sampled by weight or distance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import dtype_of, is_not_numpy, namespace, to_host
from skfleet._linalg import group_sums
from skfleet.blocks import (
    Block,
    SampledRows,
    combine_k_smallest,
    k_smallest,
    row_uniform,
    take_to_host,
)
from skfleet.engine import Reduction
from skfleet.estimators.cluster import _cuda_kernel
from skfleet.estimators.cluster._device_assign import assign, count, weight_on_device
from skfleet.estimators.cluster._distances import Bounds, Centers

# Rows of a slice for each cluster from which on sums by cluster are cached with its bounds.
MIN_ROWS_PER_CLUSTER = 100


class LloydStep(NamedTuple):
    """Centres of an iteration, and the requested outputs."""

    centers: Centers
    init_number: int = 0  # which of several initialisations this belongs to
    center_movement: np.ndarray | None = None  # margins used up, per centre; None: no bounds
    final: bool = False  # also compute inertia and counts, and cache the labels
    with_sums: bool = True
    is_deterministic: bool = False  # sums are of all rows, not changed by those that have moved


class LloydSums(NamedTuple):
    """Requested sums of an iteration: rows and weights by cluster, inertia, cluster sizes.

    `weight` and `n_rows` are those of all rows.
    """

    weight: Any
    n_rows: int
    sums: Any = 0
    weights: Any = 0
    inertia: Any = 0.0
    n_members: Any = 0


def lloyd(block: Block, step: LloydStep) -> LloydSums:
    """Assign the rows of a block to their nearest centres and sum them up."""
    if is_not_numpy(block.X):
        return _lloyd_on_device(block, step)
    weight = None if block.sample_weight is None else host_weights(block)
    parts = LloydSums(float(block.n_rows if weight is None else weight.sum()), block.n_rows)
    labels, sums = labels_and_sums(block, step, weight)
    if step.final and block.cache is not None:
        block.cache["labels", block.row_offset] = labels
    if step.with_sums:
        parts = parts._replace(sums=sums.sums, weights=sums.weights)
    if step.final:
        squared = step.centers.squared(step.centers.about_mean(block.X), labels)
        parts = parts._replace(
            inertia=float(squared.sum() if weight is None else weight @ squared),
            n_members=np.bincount(labels, minlength=len(step.centers)),
        )
    return parts


def _lloyd_on_device(block: Block, step: LloydStep) -> LloydSums:
    """Assign and sum the rows of a block on a device."""
    weight = weight_on_device(block.sample_weight, block.X)
    assignment = assign(step.centers, block.X, weight, sums=step.with_sums, inertia=step.final)
    if block.cache is not None:
        # The start's distances take room on the device: those of all pieces, which it has had.
        for key in [key for key, v in block.cache.items() if isinstance(v, NearestCandidate)]:
            del block.cache[key]
    if step.final and block.cache is not None:
        block.cache["labels", block.row_offset] = assignment.labels
    total = float(block.n_rows) if weight is None else namespace(weight).sum(weight)
    parts = LloydSums(total, block.n_rows)
    if step.with_sums:
        parts = parts._replace(sums=assignment.sums[:, :-1], weights=assignment.sums[:, -1])
    if step.final:
        # Without sample weights, the weights of clusters are the numbers of their rows.
        members = parts.weights
        if weight is not None or not step.with_sums:
            members = count(assignment.labels, None, len(step.centers), block.X)
        parts = parts._replace(inertia=assignment.inertia, n_members=members)
    return parts


def _takes_whole(block: Block, step: LloydStep) -> bool:
    """Return whether the kernel takes the rows of a block on a device as they are."""
    is_matrix = is_not_numpy(block.X) and dtype_of(block.X) == step.centers.dtype
    return is_matrix and _cuda_kernel.supports(block.X, len(step.centers))


def _check_complete(sums: LloydSums) -> LloydSums:
    """Return sums in which every row counts once; raise for others."""
    for counted, expected in ((sums.weights, sums.weight), (sums.n_members, sums.n_rows)):
        total = np.sum(counted)
        if np.ndim(counted) and not np.isclose(total, expected, rtol=1e-5):
            raise RuntimeError(
                f"Every row must count once in its cluster. Got {total:g} instead of {expected:g} "
                "in all. The device, or a kernel on it, does not work."
            )
    return sums._replace(inertia=float(sums.inertia))


LLOYD = Reduction(lloyd, finalize=_check_complete, takes_whole=_takes_whole)


class ClusterSums(NamedTuple):
    """Sums and weights of the rows of each cluster."""

    sums: np.ndarray
    weights: np.ndarray


def sums_by_cluster(rows: Any, labels: Any, weight: np.ndarray | None, k: int) -> ClusterSums:
    """Return the sums of host rows by label, and their weights."""
    weights = np.bincount(labels, weight, k).astype(np.float64, copy=False)
    return ClusterSums(group_sums(rows, labels, weight, k), weights)


def labels_and_sums(
    block: Block, step: LloydStep, weight: np.ndarray | None
) -> tuple[np.ndarray, ClusterSums | None]:
    """Return labels of host rows, and requested sums of the rows about the mean.

    With cached bounds, rows whose labels are certain are not looked at, and the last sums are
    changed by the rows whose labels have changed.
    """
    bounds = cached_bounds(block, step)
    if bounds is None:
        rows = step.centers.about_mean(block.X)
        labels = step.centers.labels(rows)
        sums = sums_by_cluster(rows, labels, weight, len(step.centers)) if step.with_sums else None
        return labels, sums
    assert step.center_movement is not None
    # Until they are computed there are none: what fails in between is done again.
    sums, bounds.sums = bounds.sums, None
    changes, k = bounds.update(block.X, step.centers, step.center_movement), len(step.centers)
    if not step.with_sums:
        return bounds.labels, None
    if changes is None or sums is None:
        rows = step.centers.about_mean(block.X)
        result = sums_by_cluster(rows, bounds.labels, weight, k)
    else:
        # The weight of an empty cluster must be 0, so it is not a difference.
        weights = np.bincount(bounds.labels, weight, k).astype(np.float64, copy=False)
        sums = _changed_sums(block, step, weight, bounds.labels, sums, *changes)
        result = ClusterSums(sums, weights)
    # Sums of many clusters have about as many bytes as the rows.
    if MIN_ROWS_PER_CLUSTER * k <= block.n_rows and not step.is_deterministic:
        bounds.sums = result.sums
    return bounds.labels, result


def _changed_sums(
    block: Block,
    step: LloydStep,
    weight: np.ndarray | None,
    labels: np.ndarray,
    sums: np.ndarray,
    indices: np.ndarray,
    before: np.ndarray,
) -> np.ndarray:
    """Return the sums by cluster after some rows have got other labels."""
    has_changed = labels[indices] != before
    if not has_changed.any():
        return sums
    indices, before, k = indices[has_changed], before[has_changed], len(step.centers)
    rows = step.centers.about_mean(block.X[indices])
    weight = None if weight is None else weight[indices]
    added = group_sums(rows, labels[indices], weight, k)
    return sums + (added - group_sums(rows, before, weight, k))


def cached_bounds(block: Block, step: LloydStep) -> Bounds | None:
    """Return the bounds of host rows, new ones where none are cached; None without them."""
    if step.center_movement is None or block.cache is None:
        return None
    bounds = block.cache.get(block.row_offset)
    if not isinstance(bounds, Bounds) or bounds.init_number != step.init_number:
        bounds = block.cache[block.row_offset] = Bounds(step.init_number, block.n_rows)
    return bounds


def host_weights(block: Block) -> np.ndarray:
    if block.sample_weight is None:
        return np.ones(block.n_rows)
    return to_host(block.sample_weight).astype(np.float64)


class FarthestRows(NamedTuple):
    """Rows farthest from their centres, with these and the rows' weights, farthest first."""

    drawn: SampledRows
    labels: np.ndarray
    weights: np.ndarray


def farthest(block: Block, step: LloydStep, n: int) -> FarthestRows:
    """Return the n rows of a block farthest from their centres."""
    if is_not_numpy(block.X):
        assignment = assign(step.centers, block.X, squared=True)
        labels, squared = assignment.labels, assignment.squared
    else:
        labels, _ = labels_and_sums(block, step._replace(with_sums=False), None)
        squared = step.centers.squared(step.centers.about_mean(block.X), labels)
    drawn = k_smallest(-squared, block.row_offset, block.X, n)
    positions = drawn.numbers - block.row_offset
    return FarthestRows(drawn, take_to_host(labels, positions), host_weights(block)[positions])


def combine_farthest(a: FarthestRows, b: FarthestRows, n: int) -> FarthestRows:
    """Return the n rows farthest from their centres of two blocks."""
    drawn = combine_k_smallest(a.drawn, b.drawn, n)
    numbers = np.concatenate([a.drawn.numbers, b.drawn.numbers])
    order = np.argsort(numbers)
    order = order[np.searchsorted(numbers, drawn.numbers, sorter=order)]
    labels = np.concatenate([a.labels, b.labels])[order]
    return FarthestRows(drawn, labels, np.concatenate([a.weights, b.weights])[order])


class Candidates(NamedTuple):
    """Candidate centres; the block cache may hold distances to the first `n_compared`."""

    all: Centers
    n_compared: int
    new: Centers
    init_number: int


class NearestCandidate(NamedTuple):
    """Cache entry of a slice of rows: the nearest of the first candidates, and its distance."""

    init_number: int
    n_candidates: int
    labels: Any
    squared: Any


def nearest_candidate(block: Block, candidates: Candidates) -> NearestCandidate:
    """Return the nearest candidates of rows; only new ones are compared where others are cached."""
    cached = None if block.cache is None else block.cache.get(block.row_offset)
    n, number, n_cached = len(candidates.all), candidates.init_number, None
    if isinstance(cached, NearestCandidate) and cached.init_number == number:
        n_cached = cached.n_candidates
    if n_cached == n:
        return cached
    if n_cached == candidates.n_compared:
        labels, squared = _nearest(block, candidates.new)
        xp, closer = namespace(squared), squared < cached.squared
        labels = xp.where(closer, labels + candidates.n_compared, cached.labels)
        squared = xp.where(closer, squared, cached.squared)
    else:
        labels, squared = _nearest(block, candidates.all)
    nearest = NearestCandidate(number, n, labels, squared)
    if block.cache is not None:
        block.cache[block.row_offset] = nearest
    return nearest


def _nearest(block: Block, centers: Centers) -> tuple[Any, Any]:
    """Return labels and squared distances of rows, on their device."""
    if is_not_numpy(block.X):
        assignment = assign(centers, block.X, squared=True)
        return assignment.labels, assignment.squared
    rows = centers.about_mean(block.X)
    labels = centers.labels(rows)
    return labels, centers.squared(rows, labels)


def candidate_weights(block: Block, candidates: Candidates) -> np.ndarray:
    """Return the weight of the rows nearest to each candidate."""
    labels, k = nearest_candidate(block, candidates).labels, len(candidates.all)
    if is_not_numpy(block.X):
        return count(labels, weight_on_device(block.sample_weight, block.X), k, block.X)
    return np.bincount(labels, host_weights(block), k)


def sample_by_weight(block: Block, n: int, seed: int) -> SampledRows:
    """Draw n rows of a block, without replacement, with probabilities in proportion to weight.

    These are the rows with the smallest exponential variates (Efraimidis and Spirakis, 2006),
    which needs no sum over all blocks.
    """
    return _exponential_sample(block, n, seed, 1.0)


def sample_by_distance(block: Block, n: int, seed: int, candidates: Candidates) -> SampledRows:
    """Draw n rows by weight times squared distance to the nearest candidate."""
    return _exponential_sample(block, n, seed, nearest_candidate(block, candidates).squared)


def _exponential_sample(block: Block, n: int, seed: int, rate: Any) -> SampledRows:
    """Sample the rows with the smallest exponential variates, of rate weight times `rate`."""
    draws = row_uniform(seed, block.row_offset, block.n_rows, block.X)
    xp = namespace(draws)
    weight = weight_on_device(block.sample_weight, block.X)
    rate = xp.ones_like(draws) * rate if weight is None else weight * rate
    # Rows of rate 0 (without weight, or on a candidate) get infinite keys and are not drawn.
    with np.errstate(divide="ignore", invalid="ignore"):
        keys = -xp.log1p(-draws) / rate
    keys = xp.where(rate > 0, keys, xp.full_like(keys, xp.inf))
    return k_smallest(keys, block.row_offset, block.X, n)
