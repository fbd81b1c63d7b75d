"""What passes over rows find out for k-means: sums by centre, rows far away, rows drawn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import is_not_numpy, namespace, to_host
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
from skfleet.estimators.cluster._device_assign import assign, count, weight_beside
from skfleet.estimators.cluster._distances import Bounds, Centers


class Step(NamedTuple):
    """What an iteration sends to the rows."""

    centers: Centers
    start: int = 0  # which of several starts this belongs to
    used: np.ndarray | None = None  # what centres have used of their rows' margins; None: no bounds
    final: bool = False  # find the inertia and count the rows, and leave labels in the notes
    with_sums: bool = True


class Lloyd(NamedTuple):
    """What was asked for: sums of rows and weights per centre; inertia, and numbers of rows.

    With the weight and the number of all rows.
    """

    weight: Any
    n_rows: int
    sums: Any = 0
    weights: Any = 0
    inertia: Any = 0.0
    n_members: Any = 0


def lloyd(block: Block, step: Step) -> Lloyd:
    """Assign the rows of a block to their nearest centres and sum them up."""
    if is_not_numpy(block.X):
        return _lloyd_there(block, step)
    rows, k = step.centers.about_mean(block.X), len(step.centers)
    labels = labels_by_bounds(block, rows, step)
    if step.final and block.notes is not None:
        block.notes["labels", block.start] = labels
    weight = None if block.sample_weight is None else weights_of(block)
    found = Lloyd(float(block.n_rows if weight is None else weight.sum()), block.n_rows)
    if step.with_sums:
        found = found._replace(**sums_of(rows, labels, weight, k))
    if step.final:
        squared = step.centers.squared(rows, labels)
        found = found._replace(
            inertia=float(squared.sum() if weight is None else weight @ squared),
            n_members=np.bincount(labels, minlength=k),
        )
    return found


def _lloyd_there(block: Block, step: Step) -> Lloyd:
    """Do the same on a device."""
    weight = weight_beside(block.sample_weight, block.X)
    found = assign(step.centers, block.X, weight, sums=step.with_sums, inertia=step.final)
    if block.notes is not None:
        block.notes.pop(block.start, None)  # the start's distances take room on the device
    if step.final and block.notes is not None:
        block.notes["labels", block.start] = found.labels
    total = float(block.n_rows) if weight is None else namespace(weight).sum(weight)
    parts = Lloyd(total, block.n_rows)
    if step.with_sums:
        parts = parts._replace(sums=found.sums[:, :-1], weights=found.sums[:, -1])
    if step.final:
        members = parts.weights
        if weight is not None or not step.with_sums:
            members = count(found.labels, None, len(step.centers), block.X)
        parts = parts._replace(inertia=found.inertia, n_members=members)
    return parts


def _complete(found: Lloyd) -> Lloyd:
    """Return what was found if every row is in it, or raise."""
    for counted, wanted in ((found.weights, found.weight), (found.n_members, found.n_rows)):
        total = np.sum(counted)
        if np.ndim(counted) and not np.isclose(total, wanted, rtol=1e-5):
            raise RuntimeError(
                f"Every row must count once in its cluster. Got {total:g} instead of {wanted:g} in "
                "all. The device, or a kernel on it, does not work."
            )
    return found._replace(inertia=float(found.inertia))


LLOYD = Reduction(lloyd, finalize=_complete)


def sums_of(rows: Any, labels: Any, weight: np.ndarray | None, k: int) -> dict[str, np.ndarray]:
    """Return the sums of host rows that share a label, and their weights."""
    return {
        "sums": group_sums(rows, labels, weight, k),
        "weights": np.bincount(labels, weight, k).astype(np.float64, copy=False),
    }


def labels_by_bounds(block: Block, rows: Any, step: Step) -> Any:
    """Return the labels of a block's host rows (about the mean), from bounds if there are any."""
    if step.used is None or block.notes is None:
        return step.centers.labels(rows)
    bounds = block.notes.get(block.start)
    if not isinstance(bounds, Bounds) or bounds.start != step.start:
        bounds = block.notes[block.start] = Bounds(step.start, block.n_rows)
    return bounds.update(rows, step.centers, step.used)


def weights_of(block: Block) -> np.ndarray:
    """Return the weights of a block's rows, on the host."""
    if block.sample_weight is None:
        return np.ones(block.n_rows)
    return to_host(block.sample_weight).astype(np.float64)


class Far(NamedTuple):
    """Rows farthest from their centres, with these and the rows' weights, farthest first."""

    drawn: SampledRows
    labels: np.ndarray
    weights: np.ndarray


def farthest(block: Block, step: Step, n: int) -> Far:
    """Return the n rows of a block farthest from their centres."""
    if is_not_numpy(block.X):
        found = assign(step.centers, block.X, squared=True)
        labels, squared = found.labels, found.squared
    else:
        rows = step.centers.about_mean(block.X)
        labels = labels_by_bounds(block, rows, step)
        squared = step.centers.squared(rows, labels)
    drawn = k_smallest(-squared, block.start, block.X, n)
    here = drawn.numbers - block.start
    return Far(drawn, take_to_host(labels, here), weights_of(block)[here])


def merge_farthest(a: Far, b: Far, n: int) -> Far:
    """Return the n rows farthest from their centres of two blocks."""
    drawn = combine_k_smallest(a.drawn, b.drawn, n)
    numbers = np.concatenate([a.drawn.numbers, b.drawn.numbers])
    order = np.argsort(numbers)
    order = order[np.searchsorted(numbers, drawn.numbers, sorter=order)]
    labels = np.concatenate([a.labels, b.labels])[order]
    return Far(drawn, labels, np.concatenate([a.weights, b.weights])[order])


class Candidates(NamedTuple):
    """Candidates for centres, of which the rows' notes may know the first ones."""

    all: Centers
    n_known: int
    new: Centers
    start: int


class NearestCandidate(NamedTuple):
    """What notes say of the rows of a piece: the nearest of so many candidates, and how far."""

    start: int
    n_candidates: int
    labels: Any
    squared: Any


def nearest_candidate(block: Block, candidates: Candidates) -> NearestCandidate:
    """Compare rows with candidates: with the new ones only, where notes know of the others."""
    known = None if block.notes is None else block.notes.get(block.start)
    n = len(candidates.all)
    if isinstance(known, NearestCandidate) and known.start == candidates.start:
        if known.n_candidates == n:
            return known
        if known.n_candidates == candidates.n_known:
            labels, squared = _nearest(block, candidates.new)
            xp, closer = namespace(squared), squared < known.squared
            labels = xp.where(closer, labels + candidates.n_known, known.labels)
            squared = xp.where(closer, squared, known.squared)
            return _note(block, NearestCandidate(candidates.start, n, labels, squared))
    return _note(block, NearestCandidate(candidates.start, n, *_nearest(block, candidates.all)))


def _nearest(block: Block, centers: Centers) -> tuple[Any, Any]:
    """Return labels and squared distances of rows, where they are."""
    if is_not_numpy(block.X):
        found = assign(centers, block.X, squared=True)
        return found.labels, found.squared
    rows = centers.about_mean(block.X)
    labels = centers.labels(rows)
    return labels, centers.squared(rows, labels)


def _note(block: Block, nearest: NearestCandidate) -> NearestCandidate:
    """Keep what is known of a piece in its notes, if it has any."""
    if block.notes is not None:
        block.notes[block.start] = nearest
    return nearest


def candidate_weights(block: Block, candidates: Candidates) -> np.ndarray:
    """Return the weight of the rows of a block that are nearest to each candidate."""
    labels, k = nearest_candidate(block, candidates).labels, len(candidates.all)
    if is_not_numpy(block.X):
        return count(labels, weight_beside(block.sample_weight, block.X), k, block.X)
    return np.bincount(labels, weights_of(block), k)


def drawn_by_weight(block: Block, n: int, seed: int) -> SampledRows:
    """Draw n rows of a block, without replacement, with probabilities in proportion to weight.

    These are the rows with the smallest exponential variates (Efraimidis and Spirakis, 2006),
    which needs no sum over all blocks.
    """
    return _drawn(block, n, seed, 1.0)


def drawn_by_distance(block: Block, n: int, seed: int, candidates: Candidates) -> SampledRows:
    """Draw n rows by weight times squared distance to the nearest candidate."""
    return _drawn(block, n, seed, nearest_candidate(block, candidates).squared)


def _drawn(block: Block, n: int, seed: int, rate: Any) -> SampledRows:
    """Draw the rows of which an exponential variate of weight times a rate is smallest."""
    draws = row_uniform(seed, block.start, block.n_rows, block.X)
    xp = namespace(draws)
    weight = weight_beside(block.sample_weight, block.X)
    rate = xp.ones_like(draws) * rate if weight is None else weight * rate
    with np.errstate(divide="ignore", invalid="ignore"):
        keys = -xp.log1p(-draws) / rate
    return k_smallest(xp.where(rate > 0, keys, xp.full_like(keys, xp.inf)), block.start, block.X, n)
