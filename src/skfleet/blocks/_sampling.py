"""Draws of rows by their global number: one seed, one answer, however the rows are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import asarray_like, is_not_numpy, namespace, to_host
from skfleet._linalg import is_sparse, vstack
from skfleet.blocks._block import Block
from skfleet.blocks._containers import stack_rows, take_rows
from skfleet.blocks._philox import philox_uniform_like


def row_uniform(seed: int, start: int, n_rows: int, X: Any = None) -> Any:
    """Return a uniform draw from [0, 1) for each of the rows start, start + 1, ...

    The draw of a row depends on the seed and its global number alone. Philox is a counter-based
    generator (Salmon et al., 2011): it can be set to any row at once, and gives four draws a count.
    Draws are on the host, or where X is.
    """
    if is_not_numpy(X):
        return philox_uniform_like(X, seed, start, n_rows)
    bits = np.random.Philox(key=seed)
    bits.advance(start // 4)
    skip = start % 4
    return np.random.Generator(bits).random(skip + n_rows)[skip:]


class SampledRows(NamedTuple):
    """Rows with the keys they were drawn by, in ascending order of (key, global number)."""

    keys: np.ndarray
    numbers: np.ndarray
    rows: Any


def k_smallest(keys: Any, start: int, X: Any, n: int) -> SampledRows:
    """Return the n rows of a block with the smallest finite keys; only they leave a device."""
    if is_not_numpy(keys):
        xp = namespace(keys)
        keys = xp.where(xp.isfinite(keys), keys, xp.full_like(keys, xp.inf))
        order = xp.argsort(keys, stable=True)[: min(n, keys.shape[0])]
        chosen, keys = to_host(order), to_host(xp.take(keys, order))
        chosen, keys = chosen[np.isfinite(keys)], keys[np.isfinite(keys)]
        return SampledRows(keys, start + chosen, take(X, chosen))
    finite = np.flatnonzero(np.isfinite(keys))
    if len(finite) > n:
        finite = finite[keys[finite] <= np.partition(keys[finite], n - 1)[n - 1]]
    chosen = finite[np.lexsort((finite, keys[finite]))][:n]
    return SampledRows(keys[chosen], start + chosen, take(X, chosen))


def combine_k_smallest(a: SampledRows, b: SampledRows, n: int) -> SampledRows:
    """Return the n rows with the smallest keys of two draws."""
    keys, numbers = np.concatenate([a.keys, b.keys]), np.concatenate([a.numbers, b.numbers])
    order = np.lexsort((numbers, keys))[:n]
    return SampledRows(keys[order], numbers[order], vstack([a.rows, b.rows])[order])


def take(X: Any, chosen: np.ndarray | Sequence[int]) -> Any:
    """Return chosen rows on the host, sparse rows as sparse ones."""
    if is_sparse(X) or isinstance(X, np.ndarray):
        return X[chosen]
    return to_host(namespace(X).take(X, asarray_like(np.asarray(chosen), X), axis=0))


def shuffle_rows(blocks: Sequence[Block], seed: int) -> Block:
    """Return the rows of several blocks as one block, in an order that the seed draws."""
    filled = [block for block in blocks if block.n_rows] or list(blocks[:1])
    order = np.random.default_rng(seed).permutation(sum(block.n_rows for block in filled))
    X, y, sample_weight = (
        _in_order(parts, order) for parts in zip(*(block[:3] for block in filled), strict=True)
    )
    more = filled[0].more and {
        name: _in_order([block.more[name] for block in filled if block.more], order)
        for name in filled[0].more
    }
    return Block(X, y, sample_weight, filled[0].number, more=more)


def concat_rows(blocks: Sequence[Block]) -> Block:
    """Return the rows of several blocks as one block."""
    filled = [block for block in blocks if block.n_rows] or list(blocks[:1])
    X, y, sample_weight = (
        stack_rows(parts) for parts in zip(*(b[:3] for b in filled), strict=True)
    )
    more = filled[0].more and {
        name: stack_rows([block.more[name] for block in filled if block.more])
        for name in filled[0].more
    }
    return Block(X, y, sample_weight, filled[0].number, more=more)


def _in_order(parts: Sequence[Any], order: np.ndarray) -> Any:
    """Put rows of several blocks into an order; arrays are copied once."""
    if not all(isinstance(part, np.ndarray) for part in parts):
        return take_rows(stack_rows(parts), order)
    ordered = np.empty((len(order), *parts[0].shape[1:]), dtype=np.result_type(*parts))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    low = 0
    for part in parts:
        ordered[place[low : low + len(part)]] = part
        low += len(part)
    return ordered


def take_block_rows(block: Block, chosen: np.ndarray) -> Block:
    """Return the rows of a block that a mask, or their places in it, choose."""
    where = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    return block._replace(
        X=take_rows(block.X, where),
        y=take_rows(block.y, where),
        sample_weight=take_rows(block.sample_weight, where),
        start=None,
        more=block.more and {name: take_rows(v, where) for name, v in block.more.items()},
    )
