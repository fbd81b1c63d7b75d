"""Samples and shuffles of rows by global row number, which do not depend on the partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from skfleet._array import asarray_like, is_not_numpy, namespace, to_host
from skfleet._linalg import is_sparse, vstack
from skfleet._typing import Matrix, RowsT
from skfleet.blocks._block import Block
from skfleet.blocks._containers import is_frame, stack_rows, take_rows
from skfleet.blocks._philox import philox_uniform_like


def row_uniform(seed: int, start: int, n_rows: int, X: Any = None) -> Any:
    """Return a uniform draw from [0, 1) for each of the rows start, start + 1, ...

    The draw of a row depends on the seed and its global number alone. Philox is a counter-based
    generator (Salmon et al., 2011), so any row can be drawn directly; each count has four draws.
    Draws are on the host, or on the device of X.
    """
    if is_not_numpy(X):
        return philox_uniform_like(X, seed, start, n_rows)
    bits = np.random.Philox(key=seed)
    bits.advance(start // 4)
    skip = start % 4
    return np.random.Generator(bits).random(skip + n_rows)[skip:]


class SampledRows(NamedTuple):
    """Rows of a sample and their random keys, in ascending order of (key, global number)."""

    keys: np.ndarray
    numbers: np.ndarray
    rows: Any


def k_smallest(keys: Any, start: int, X: Matrix, n: int) -> SampledRows:
    """Return the n rows of a block with the smallest finite keys, on the host."""
    if is_not_numpy(keys):
        xp = namespace(keys)
        keys = xp.where(xp.isfinite(keys), keys, xp.full_like(keys, xp.inf))
        # The array API has no partition, so all keys are sorted.
        order = xp.argsort(keys, stable=True)[: min(n, keys.shape[0])]
        chosen, keys = to_host(order), to_host(xp.take(keys, order))
        chosen, keys = chosen[np.isfinite(keys)], keys[np.isfinite(keys)]
        return SampledRows(keys, start + chosen, take_to_host(X, chosen))
    finite = np.flatnonzero(np.isfinite(keys))
    if len(finite) > n:
        finite = finite[keys[finite] <= np.partition(keys[finite], n - 1)[n - 1]]
    # Equal keys are in the order of their rows, so that all partitions draw the same sample.
    chosen = finite[np.lexsort((finite, keys[finite]))][:n]
    return SampledRows(keys[chosen], start + chosen, take_to_host(X, chosen))


def combine_k_smallest(a: SampledRows, b: SampledRows, n: int) -> SampledRows:
    """Return the n rows with the smallest keys of two samples."""
    keys, numbers = np.concatenate([a.keys, b.keys]), np.concatenate([a.numbers, b.numbers])
    order = np.lexsort((numbers, keys))[:n]
    return SampledRows(keys[order], numbers[order], vstack([a.rows, b.rows])[order])


def take_to_host(X: Matrix, indices: np.ndarray | Sequence[int]) -> Matrix:
    """Return the rows of X at given positions on the host, sparse rows as sparse ones."""
    if is_sparse(X) or isinstance(X, np.ndarray):
        return X[indices]
    return to_host(namespace(X).take(X, asarray_like(np.asarray(indices), X), axis=0))


def shuffle_rows(blocks: Sequence[Block], seed: int) -> Block:
    """Return the rows of several blocks as one block, in a random order."""
    order = np.random.default_rng(seed).permutation(sum(block.n_rows for block in blocks))
    return concat_rows(blocks, partial(_take_from_parts, order=order))


def concat_rows(
    blocks: Sequence[Block], concat: Callable[[Sequence[Any]], Any] = stack_rows
) -> Block:
    """Return the rows of several blocks as one block."""
    filled = [block for block in blocks if block.n_rows] or list(blocks[:1])
    X, y, sample_weight = map(concat, zip(*(block[:3] for block in filled), strict=True))
    per_sample = filled[0].per_sample and {
        name: concat([block.per_sample[name] for block in filled if block.per_sample])
        for name in filled[0].per_sample
    }
    return Block(X, y, sample_weight, filled[0].number, per_sample=per_sample)


def _take_from_parts(parts: Sequence[Any], order: np.ndarray) -> Any:
    """Return rows of several blocks in a given order; arrays are copied once."""
    # Frames, lists and sparse matrices cannot be written to row by row.
    if not all(isinstance(part, np.ndarray) for part in parts):
        return take_rows(stack_rows(parts), order)
    ordered = np.empty((len(order), *parts[0].shape[1:]), dtype=np.result_type(*parts))
    # The inverse permutation has the place of each row, so that no part is concatenated first.
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    low = 0
    for part in parts:
        ordered[position[low : low + len(part)]] = part
        low += len(part)
    return ordered


def take_block_rows(block: Block, indices: np.ndarray) -> Block:
    """Return the rows of a block at given positions, or those of a mask."""
    indices = np.flatnonzero(indices) if indices.dtype == bool else indices
    X, y, sample_weight = (take_rows(part, indices) for part in block[:3])
    per_sample = block.per_sample and {
        k: take_rows(v, indices) for k, v in block.per_sample.items()
    }
    return block._replace(
        X=X, y=y, sample_weight=sample_weight, row_offset=None, per_sample=per_sample
    )


def copy_block_rows(block: Block) -> Block:
    """Return a copy of a block, into which may be written.

    Rows of pandas at all positions share the memory of the frame.
    """
    taken = take_block_rows(block, np.arange(block.n_rows))
    X, y, sample_weight = map(_copied_frame, taken[:3])
    per_sample = taken.per_sample and {k: _copied_frame(v) for k, v in taken.per_sample.items()}
    return taken._replace(X=X, y=y, sample_weight=sample_weight, per_sample=per_sample)


def _copied_frame(values: RowsT | None) -> RowsT | None:
    return values.copy() if is_frame(values) else values
