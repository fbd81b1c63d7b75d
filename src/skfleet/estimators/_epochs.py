"""An epoch of an estimator that learns in parts: what it learns at once, and how it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from skfleet._config import config_context
from skfleet._partial_fit import copy_learner, partial_fit
from skfleet.blocks import Block, RowBlocks, slice_rows
from skfleet.engine import Lesson, check_travels, leave_device
from skfleet.engine._gpu_models import takes_device_rows


def history_of(epochs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return what is known of epochs as a frame: what `history_` is."""
    columns = ["epoch", "n_samples_seen", "loss", "score", "seconds"]
    return pd.DataFrame([*epochs], columns=columns)


def lessons_of(rows: RowBlocks, shuffle: Any, buffer_blocks: int, seed: int) -> list[Lesson]:
    """Return what is learned at once, in the order of an epoch."""
    if not shuffle:
        return [Lesson([block]) for block in rows.blocks]
    rng = np.random.default_rng(seed)
    n_blocks = len(rows.blocks)
    if shuffle == "blocks":
        return [Lesson([rows.blocks[i]]) for i in rng.permutation(n_blocks)]
    # One block from each stretch of the rows: of rows that are sorted, every buffer has all.
    groups: list[list[Block]] = [[] for _ in range(-(-n_blocks // buffer_blocks))]
    for low in range(0, n_blocks, len(groups)):
        stretch = rows.blocks[low : low + len(groups)]
        for block, k in zip(stretch, rng.permutation(len(groups)), strict=False):
            groups[k].append(block)
    return [Lesson(group, int(rng.integers(2**31))) for group in groups]


def learn_block(
    state: tuple[Any, int],
    block: Block,
    told: dict[str, Any],
    batch_size: int | None,
    copies: Any,
    device: str,
) -> tuple[Any, int]:
    """Learn a block, leaving the model given as it was; `device` is for one that leaves it open."""
    model, seen = state
    model = copy_learner(model)
    with config_context(device=device):
        goes_up = copies is not None and takes_device_rows(model)
        if goes_up:
            block = block._replace(X=copies.give(block.number, block.X))
        _learn(model, block, told, batch_size or block.n_rows)
    if goes_up:
        leave_device(model)
    if not seen:
        check_travels(model)
    return model, seen + block.n_rows


def _learn(model: Any, block: Block, told: dict[str, Any], size: int) -> None:
    """Let a model learn the rows of a block, so many at once."""
    per_row = {"sample_weight": block.sample_weight, **(block.more or {})}
    for low in range(0, block.n_rows, size):
        high = min(low + size, block.n_rows)
        cut = {k: slice_rows(v, low, high) for k, v in per_row.items() if v is not None}
        X, y = slice_rows(block.X, low, high), slice_rows(block.y, low, high)
        partial_fit(model, X, y, **told, **cut)
