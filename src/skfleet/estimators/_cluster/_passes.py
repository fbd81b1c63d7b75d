"""What passes over rows find out for k-means: sums by centre, rows far away, rows drawn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skfleet._array import is_foreign, like, namespace, to_host
from skfleet._linalg import sums_by_label, tdot
from skfleet.blocks import Block, DrawnRows, merge_smallest, row_uniforms, smallest
from skfleet.estimators._cluster._nearest import Bounds, Centers


class Step(NamedTuple):
    """What an iteration sends to the rows."""

    centers: Centers
    start: int = 0  # which of several starts this belongs to
    used: np.ndarray | None = None  # what centres have used of their rows' margins; None: no bounds
    final: bool = False  # find the inertia and count the rows, and leave labels in the notes
    with_sums: bool = True


class Lloyd(NamedTuple):
    """What was asked for: sums of rows and weights per centre; inertia, and numbers of rows."""

    sums: Any = 0
    weights: Any = 0
    inertia: float = 0.0
    n_members: Any = 0


def lloyd(block: Block, step: Step) -> Lloyd:
    """Assign the rows of a block to their nearest centres and sum them up."""
    rows, k = step.centers.about_mean(block.X), len(step.centers)
    labels = assign(block, rows, step)
    if step.final and block.notes is not None:
        block.notes["labels", block.start] = labels
    weight = None if block.sample_weight is None else weights_of(block)
    found = Lloyd()
    if step.with_sums:
        found = found._replace(**sums_of(rows, labels, weight, k))
    if step.final:
        squared = step.centers.squared(rows, labels)
        found = found._replace(
            inertia=float(squared.sum() if weight is None else weight @ squared),
            n_members=np.bincount(to_host(labels), minlength=k),
        )
    return found


def sums_of(rows: Any, labels: Any, weight: np.ndarray | None, k: int) -> dict[str, np.ndarray]:
    """Return the sums of rows that share a label, and their weights, on the host."""
    if not is_foreign(rows):
        return {
            "sums": sums_by_label(rows, labels, weight, k),
            "weights": np.bincount(labels, weight, k).astype(np.float64, copy=False),
        }
    xp = namespace(rows)
    here = xp.astype(labels[:, None] == like(np.arange(k), labels), rows.dtype)
    if weight is not None:
        here = here * like(weight, rows)[:, None]
    return {
        "sums": to_host(tdot(here, rows)).astype(np.float64),
        "weights": to_host(xp.sum(here, axis=0, dtype=xp.float64)),
    }


def assign(block: Block, rows: Any, step: Step) -> Any:
    """Return the labels of a block's rows (about the mean), from bounds where there are any."""
    if step.used is None or block.notes is None or is_foreign(rows):
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

    drawn: DrawnRows
    labels: np.ndarray
    weights: np.ndarray


def farthest(block: Block, step: Step, n: int) -> Far:
    """Return the n rows of a block farthest from their centres."""
    rows = step.centers.about_mean(block.X)
    labels = assign(block, rows, step)
    drawn = smallest(-step.centers.squared(rows, labels), block.start, block.X, n)
    here = drawn.numbers - block.start
    return Far(drawn, to_host(labels)[here], weights_of(block)[here])


def merge_farthest(a: Far, b: Far, n: int) -> Far:
    """Return the n rows farthest from their centres of two blocks."""
    drawn = merge_smallest(a.drawn, b.drawn, n)
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
    squared: np.ndarray


def nearest_candidate(block: Block, candidates: Candidates) -> NearestCandidate:
    """Compare rows with candidates: with the new ones only, where notes know of the others."""
    known = None if block.notes is None else block.notes.get(block.start)
    n = len(candidates.all)
    if isinstance(known, NearestCandidate) and known.start == candidates.start:
        if known.n_candidates == n:
            return known
        if known.n_candidates == candidates.n_known:
            rows = candidates.new.about_mean(block.X)
            labels = to_host(candidates.new.labels(rows))
            squared = candidates.new.squared(rows, labels)
            closer = squared < known.squared
            labels = np.where(closer, labels + np.int32(candidates.n_known), known.labels)
            squared = np.where(closer, squared, known.squared)
            return _note(block, NearestCandidate(candidates.start, n, labels, squared))
    rows = candidates.all.about_mean(block.X)
    labels = to_host(candidates.all.labels(rows))
    squared = candidates.all.squared(rows, labels)
    return _note(block, NearestCandidate(candidates.start, n, labels, squared))


def _note(block: Block, nearest: NearestCandidate) -> NearestCandidate:
    """Keep what is known of a piece in its notes, if it has any."""
    if block.notes is not None:
        block.notes[block.start] = nearest
    return nearest


def candidate_weights(block: Block, candidates: Candidates) -> np.ndarray:
    """Return the weight of the rows of a block that are nearest to each candidate."""
    labels = nearest_candidate(block, candidates).labels
    return np.bincount(labels, weights_of(block), len(candidates.all))


def drawn_by_weight(block: Block, n: int, seed: int) -> DrawnRows:
    """Draw n rows of a block, without replacement, with probabilities in proportion to weight.

    These are the rows with the smallest exponential variates (Efraimidis and Spirakis, 2006),
    which needs no sum over all blocks.
    """
    return _drawn(block, n, seed, weights_of(block))


def drawn_by_distance(block: Block, n: int, seed: int, candidates: Candidates) -> DrawnRows:
    """Draw n rows by weight times squared distance to the nearest candidate."""
    squared = nearest_candidate(block, candidates).squared
    return _drawn(block, n, seed, weights_of(block) * squared)


def _drawn(block: Block, n: int, seed: int, rate: np.ndarray) -> DrawnRows:
    """Draw the rows of which an exponential variate of the given rate is smallest."""
    with np.errstate(divide="ignore"):
        keys = -np.log1p(-row_uniforms(seed, block.start, block.n_rows)) / rate
    return smallest(np.where(rate > 0, keys, np.inf), block.start, block.X, n)
