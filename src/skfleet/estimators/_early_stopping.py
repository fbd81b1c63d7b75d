"""Stopping early: rows set aside, scored after every epoch, and when to stop for lack of gain."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from skfleet.blocks import Block, RowBlocks, open_block, take_block_rows
from skfleet.engine import Engine, Holdout, Reduction, map_reduce
from skfleet.metrics._reductions import host_values
from skfleet.metrics._scorers import ResponseScorer


def training_rows(block: Block, holdout: Holdout) -> Block:
    """Return the rows of a block to learn from."""
    return take_block_rows(block, ~holdout.mask(block))


def validation_rows(engine: Engine, rows: RowBlocks, holdout: Holdout) -> RowBlocks:
    """Take the validation rows out of all blocks, once; they stay in memory."""
    tasks = engine.map(partial(_set_aside, holdout), rows.blocks, name="set-validation-aside")
    blocks = tuple(Block(task, number=i) for i, task in enumerate(tasks))
    return replace(rows, blocks=blocks, lengths=None)


def _set_aside(holdout: Holdout, handle: Block) -> Block:
    """Return the validation rows of a block."""
    block = open_block(handle)
    return take_block_rows(block, holdout.mask(block)) if block.n_rows else block


def validation_score(engine: Engine, rows: RowBlocks, model: Any, scorer: ResponseScorer) -> float:
    """Score a model on the validation rows: their answers come home, the rows do not."""
    ask = Reduction(partial(_ask, scorer), _join)
    y, answer, weight = map_reduce(engine, ask, rows, model)
    return scorer.score(model, y, answer, weight)


def _ask(scorer: ResponseScorer, block: Block, model: Any) -> tuple[Any, ...]:
    """Return true values, answers and weights of a block's rows."""
    answer = scorer.ask(model, block.X)
    return _host(block.y), answer, _host(block.sample_weight)


def _host(values: Any) -> Any:
    """Return values on the host, None as it is."""
    return None if values is None else host_values(values)


def _join(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """Join the answers of two runs of rows."""
    return tuple(None if x is None else np.concatenate([x, y]) for x, y in zip(a, b, strict=True))


class Patience:
    """Counts epochs without a gain of at least `tol`, as scikit-learn's SGDClassifier does."""

    def __init__(self, n_epochs: int, tol: float) -> None:
        self.n_epochs, self.tol = n_epochs, tol
        self.best, self.n_without = -np.inf, 0

    def is_out(self, score: float) -> bool:
        """Take note of a score; say whether it is time to stop."""
        self.n_without = self.n_without + 1 if score < self.best + self.tol else 0
        self.best = max(self.best, score)
        return self.n_without >= self.n_epochs
