"""Epochs of ``partial_fit``: order of the blocks, one training step, history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skfleet._captured_output import OutputEvent, capture_output
from skfleet._config import config_context
from skfleet._partial_fit import copy_learner, partial_fit
from skfleet._pipeline_steps import last_step
from skfleet.blocks import Block, BlockRef, RowBlocks, slice_rows
from skfleet.engine import (
    PicklableModel,
    TrainingBatch,
    accepts_device_arrays,
    attributes_to_host,
    check_picklable,
    check_sent,
)
from skfleet.estimators._early_stopping import EarlyStopping

# Bytes that a fit in one task reads in all its epochs.
SINGLE_TASK_BYTES = 32 * 2**20

_COLUMNS = ["epoch", "n_samples_seen", "loss", "score", "seconds"]


def epoch_record(*values: float) -> dict[str, float]:
    """Return the record of an epoch from its values, in the order of the columns of `history_`."""
    return dict(zip(_COLUMNS, values, strict=True))


def history_of(epochs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the records of epochs as a DataFrame, for `history_`."""
    return pd.DataFrame([*epochs], columns=_COLUMNS)


def epoch_batches(
    rows: RowBlocks, shuffle: Any, buffer_blocks: int, seed: int
) -> list[TrainingBatch]:
    """Return the training batches of an epoch, in order."""
    if not shuffle:
        return [TrainingBatch([block]) for block in rows.blocks]
    rng = np.random.default_rng(seed)
    n_blocks = len(rows.blocks)
    if shuffle == "blocks":
        return [TrainingBatch([rows.blocks[i]]) for i in rng.permutation(n_blocks)]
    # Each buffer takes one block of every stretch, so that sorted rows are mixed too.
    groups: list[list[BlockRef]] = [[] for _ in range(-(-n_blocks // buffer_blocks))]
    for low in range(0, n_blocks, len(groups)):
        stretch = rows.blocks[low : low + len(groups)]
        for block, k in zip(stretch, rng.permutation(len(groups)), strict=False):
            groups[k].append(block)
    return [TrainingBatch(group, int(rng.integers(2**31))) for group in groups]


class PartialFitState(NamedTuple):
    """A model, the number of rows it has seen, and its captured output of this epoch."""

    model: Any
    n_samples_seen: int
    notes: tuple[OutputEvent, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return PartialFitState, (PicklableModel(self.model), *self[1:])


class BestEpoch(NamedTuple):
    """The model after the epoch with the best validation score."""

    epoch: int
    model: Any
    n_samples_seen: int
    score: float


@dataclass
class FitState:
    """Progress of a fit: all that ``resume=True`` needs after a failure."""

    seeds: np.ndarray  # for the order of each epoch, and the holdout
    fit_params: dict[str, Any]  # of partial_fit, besides per-sample ones
    epoch: int = 0
    n_batches_done: int = 0  # of this epoch
    early_stopping: EarlyStopping | None = None
    has_validation_rows: bool = False  # of their own, whose best epoch is stored
    best: BestEpoch | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def record_score(self, model: Any, n_samples_seen: int, score: float) -> None:
        """Store the model of the best epoch so far, if the validation rows are of their own."""
        is_best = self.best is None or np.isnan(self.best.score) or score > self.best.score
        if self.has_validation_rows and is_best:
            self.best = BestEpoch(self.epoch, model, n_samples_seen, score)


def partial_fit_block(
    state: PartialFitState,
    block: Block,
    fit_params: dict[str, Any],
    batch_size: int | None,
    device_arrays: Any,
    device: str,
    origin: str,
) -> PartialFitState:
    """Return the state after ``partial_fit`` of a copy of the model on a block.

    `device` is that of models with ``device="auto"``.
    """
    model, n_samples_seen, previous_notes = state
    check_sent(model)
    # A copy: Dask may run the task again, on the same input.
    model = copy_learner(model)
    with config_context(device=device), capture_output(origin) as notes:
        uses_device_arrays = device_arrays is not None and accepts_device_arrays(model)
        if uses_device_arrays:
            block = block._replace(X=device_arrays.get(block.number, block.X))
        _partial_fit_batches(model, block, fit_params, batch_size or block.n_rows)
    if uses_device_arrays:
        attributes_to_host(model)
    # At once, as otherwise the model would fail to leave the worker after a whole epoch.
    if not n_samples_seen:
        check_picklable(model)
    return PartialFitState(model, n_samples_seen + block.n_rows, (*previous_notes, *notes))


def _partial_fit_batches(model: Any, block: Block, fit_params: dict[str, Any], size: int) -> None:
    """Call ``partial_fit`` on the rows of a block, `size` rows at a time."""
    per_row = {"sample_weight": block.sample_weight, **(block.per_sample or {})}
    for low in range(0, block.n_rows, size):
        high = min(low + size, block.n_rows)
        sliced = {k: slice_rows(v, low, high) for k, v in per_row.items() if v is not None}
        X, y = slice_rows(block.X, low, high), slice_rows(block.y, low, high)
        partial_fit(model, X, y, **fit_params, **sliced)


def mean_block_rows(rows: RowBlocks) -> int | None:
    """Return the mean number of rows in a block, None where it takes a pass to know."""
    return None if rows.n_rows is None else max(1, rows.n_rows // max(1, len(rows.blocks)))


def single_task_bytes(epochs: Any) -> float:
    """Return the bytes of rows up to which a fit of so many epochs may be one task.

    That is by the bytes which all of them read: a longer fit can be interrupted, and resumed.
    """
    return SINGLE_TASK_BYTES / epochs if isinstance(epochs, Integral) and epochs > 0 else 0.0


def loss_of(model: Any) -> float:
    """Return the `loss_` or `inertia_` of a model, NaN for neither."""
    learner = last_step(model)
    loss = getattr(learner, "loss_", getattr(learner, "inertia_", None))
    return float(loss) if isinstance(loss, Real) else np.nan


def print_epoch(epochs: list[dict[str, Any]]) -> None:
    """Print the statistics of the last epoch."""
    epoch = epochs[-1]
    previous = epochs[-2] if len(epochs) > 1 else {"n_samples_seen": 0, "seconds": 0.0}
    n_rows = epoch["n_samples_seen"] - previous["n_samples_seen"]
    rate = n_rows / max(epoch["seconds"] - previous["seconds"], 1e-9)
    parts = [f"epoch {epoch['epoch']}: {n_rows:,} rows", f"{rate:,.0f} rows/s"]
    parts += [f"{k} {epoch[k]:.6g}" for k in ("loss", "score") if not np.isnan(epoch[k])]
    print(*parts, sep=", ")
