"""Early stopping: holdout rows, their score after every epoch, and the stopping rule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from skfleet.blocks import Block, BlockRef, RowBlocks, is_lazy, open_block, take_block_rows
from skfleet.engine import Engine, Holdout, Reduction, map_reduce
from skfleet.metrics import ResponseScorer, host_values


def training_rows(block: Block, holdout: Holdout) -> Block:
    return take_block_rows(block, ~holdout.mask(block))


def check_validation_arguments(
    early_stopping: bool, X: Any, X_val: Any, y_val: Any, sample_weight_val: Any
) -> None:
    """Raise unless the validation rows of a ``fit`` are complete and it stops early by them."""
    values = {"X_val": X_val, "y_val": y_val, "sample_weight_val": sample_weight_val}
    passed = [name for name, value in values.items() if value is not None]
    if not passed:
        return
    if X_val is None or y_val is None:
        raise ValueError(
            f"X_val and y_val must come together. Got {' and '.join(passed)} alone instead. Pass "
            "both, or neither."
        )
    if not early_stopping:
        raise ValueError(
            "early_stopping must be True where X_val is passed. Got False instead. Set it, or "
            "leave X_val out."
        )
    if is_lazy(X_val) and not is_lazy(X):
        raise TypeError(
            "X_val must be in this process, as X is. Got a Dask collection instead. Compute it, or "
            "make X one too."
        )


def check_validation_labels(labels: np.ndarray, classes: np.ndarray) -> None:
    """Raise unless the labels of the validation rows are among the classes."""
    unknown = labels[~np.isin(labels, classes)]
    if len(unknown):
        raise ValueError(
            f"y_val must have labels of the training rows. Got {unknown[0]!r} instead. Leave its "
            "rows out."
        )


def check_best_epoch(best: Any) -> None:
    """Raise unless a fit with validation rows has stored its best epoch."""
    if best is None:
        raise ValueError(
            "restore_best_epoch must follow a fit with X_val. Got none instead. Pass X_val and "
            "y_val to fit."
        )


def validation_rows(engine: Engine, rows: RowBlocks, holdout: Holdout | None = None) -> RowBlocks:
    """Return the validation rows of all blocks, which are persisted; all without a holdout."""
    tasks = engine.map(partial(_holdout_rows, holdout), rows.blocks, name="set-validation-aside")
    blocks = tuple(Block(task, number=i) for i, task in enumerate(tasks))
    return replace(rows, blocks=blocks, lengths=None)


def _holdout_rows(holdout: Holdout | None, block_ref: BlockRef) -> Block:
    block = open_block(block_ref)
    if holdout is None or not block.n_rows:
        return block
    return take_block_rows(block, holdout.mask(block))


def validation_score(engine: Engine, rows: RowBlocks, model: Any, scorer: ResponseScorer) -> float:
    """Score a model on the validation rows; only responses and targets are gathered."""
    reduction = Reduction(partial(_responses, scorer), _concat_responses)
    y, response, weight = map_reduce(engine, reduction, rows, model)
    return scorer.score(model, y, response, weight)


def _responses(scorer: ResponseScorer, block: Block, model: Any) -> tuple[Any, ...]:
    """Return true values, responses and weights of the rows of a block."""
    response = scorer.response(model, block.X)
    return _host_or_none(block.y), response, _host_or_none(block.sample_weight)


def _host_or_none(values: Any) -> Any:
    return None if values is None else host_values(values)


def _concat_responses(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if x is None else np.concatenate([x, y]) for x, y in zip(a, b, strict=True))


class EarlyStopping:
    """Stops an output after `n_epochs` without an improvement of `tol`, as SGDClassifier does."""

    def __init__(self, n_epochs: int, tol: float, n_outputs: int = 1) -> None:
        self.n_epochs, self.tol = n_epochs, tol
        self.active = np.ones(n_outputs, dtype=bool)
        self.best, self.n_no_change = np.full(n_outputs, -np.inf), np.zeros(n_outputs, dtype=int)

    def update(self, score: Any) -> np.ndarray:
        """Record the scores of active outputs; return which outputs stop now."""
        active, best = self.active, self.best[self.active]
        # As in scikit-learn, a score of NaN is no reason to stop.
        self.n_no_change[active] = np.where(
            score < best + self.tol, self.n_no_change[active] + 1, 0
        )
        self.best[active] = np.fmax(best, score)
        stops = active & (self.n_no_change >= self.n_epochs)
        self.active = active & ~stops
        return stops

    def restart(self, outputs: np.ndarray) -> None:
        """Let outputs go on that have stopped, for `n_epochs` more at least."""
        self.n_no_change[outputs] = 0
        self.active = self.active | outputs
