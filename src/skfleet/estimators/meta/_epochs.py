"""An epoch of an estimator that learns in parts: what it learns at once, and how it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skfleet._captured_output import OutputEvent, capture_output
from skfleet._config import config_context
from skfleet._partial_fit import copy_learner, learner_of, partial_fit
from skfleet.blocks import Block, RowBlocks, slice_rows
from skfleet.engine import TrainingBatch, accepts_device_arrays, attributes_to_host, check_picklable


def history_of(epochs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return what is known of epochs as a frame: what `history_` is."""
    columns = ["epoch", "n_samples_seen", "loss", "score", "seconds"]
    return pd.DataFrame([*epochs], columns=columns)


def lessons_of(rows: RowBlocks, shuffle: Any, buffer_blocks: int, seed: int) -> list[TrainingBatch]:
    """Return what is learned at once, in the order of an epoch."""
    if not shuffle:
        return [TrainingBatch([block]) for block in rows.blocks]
    rng = np.random.default_rng(seed)
    n_blocks = len(rows.blocks)
    if shuffle == "blocks":
        return [TrainingBatch([rows.blocks[i]]) for i in rng.permutation(n_blocks)]
    # One block from each stretch of the rows: of rows that are sorted, every buffer has all.
    groups: list[list[Block]] = [[] for _ in range(-(-n_blocks // buffer_blocks))]
    for low in range(0, n_blocks, len(groups)):
        stretch = rows.blocks[low : low + len(groups)]
        for block, k in zip(stretch, rng.permutation(len(groups)), strict=False):
            groups[k].append(block)
    return [TrainingBatch(group, int(rng.integers(2**31))) for group in groups]


class Learned(NamedTuple):
    """A model, how many rows it has learned, and what it printed and warned of in this epoch."""

    model: Any
    n_samples_seen: int
    notes: tuple[OutputEvent, ...] = ()


def learn_block(
    state: Learned,
    block: Block,
    told: dict[str, Any],
    batch_size: int | None,
    copies: Any,
    device: str,
    origin: str,
) -> Learned:
    """Learn a block, leaving the model given as it was; `device` is for one that leaves it open."""
    model, seen, earlier = state
    model = copy_learner(model)
    with config_context(device=device), capture_output(origin) as notes:
        goes_up = copies is not None and accepts_device_arrays(model)
        if goes_up:
            block = block._replace(X=copies.get(block.number, block.X))
        _learn(model, block, told, batch_size or block.n_rows)
    if goes_up:
        attributes_to_host(model)
    if not seen:
        check_picklable(model)
    return Learned(model, seen + block.n_rows, (*earlier, *notes))


def _learn(model: Any, block: Block, told: dict[str, Any], size: int) -> None:
    """Let a model learn the rows of a block, so many at once."""
    per_row = {"sample_weight": block.sample_weight, **(block.more or {})}
    for low in range(0, block.n_rows, size):
        high = min(low + size, block.n_rows)
        cut = {k: slice_rows(v, low, high) for k, v in per_row.items() if v is not None}
        X, y = slice_rows(block.X, low, high), slice_rows(block.y, low, high)
        partial_fit(model, X, y, **told, **cut)


def loss_of(model: Any) -> float:
    """Return the loss that a model knows of itself, NaN where it knows none."""
    learner = learner_of(model)
    loss = getattr(learner, "loss_", getattr(learner, "inertia_", None))
    return float(loss) if isinstance(loss, Real) else np.nan


def print_epoch(epochs: list[dict[str, Any]]) -> None:
    """Print how the last epoch went."""
    epoch = epochs[-1]
    began = epochs[-2] if len(epochs) > 1 else {"n_samples_seen": 0, "seconds": 0.0}
    n_rows = epoch["n_samples_seen"] - began["n_samples_seen"]
    rate = n_rows / max(epoch["seconds"] - began["seconds"], 1e-9)
    told = [f"epoch {epoch['epoch']}: {n_rows:,} rows", f"{rate:,.0f} rows/s"]
    told += [f"{k} {epoch[k]:.6g}" for k in ("loss", "score") if not np.isnan(epoch[k])]
    print(*told, sep=", ")
