"""Fits inside another one: on prepared rows, in passes that they share or of their own."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from skfleet.blocks import Block, take_rows
from skfleet.engine import NamedCall, Passes, Reduction


class Preparation(Protocol):
    """Change of the rows before a fit inside another one."""

    def __call__(self, block: Block) -> Block | None:
        """Return a prepared block; None where no row remains."""

    def prepare_all(self, X: Any) -> Any:
        """Return a prepared Dask collection."""


class EstimatorFit(NamedTuple):
    """A request to fit an estimator, which makes passes of its own, on prepared rows."""

    estimator: Any
    preparations: tuple[Preparation, ...] = ()

    def run(self, X: Any, y: Any) -> Any:
        """Fit the estimator."""
        for preparation in self.preparations:
            X = preparation.prepare_all(X)
        return self.estimator.fit(X, y)


# Rows by whose transform a composition learns the kind, width and density of its parts.
HEAD_ROWS = 200


def head_of_rows() -> Reduction:
    """Return the reduction whose result is a few rows of the first block that has any."""
    return Reduction(_head, min, itemgetter(1))


def on_prepared_rows(passes: Passes, prepare: Preparation) -> Passes:
    """Return a fit on prepared rows: on a few of their columns, say."""
    result = None
    while True:
        try:
            request = passes.send(result)
        except StopIteration as end:
            return end.value
        if isinstance(request, EstimatorFit):
            preparations = (prepare, *request.preparations)
            result = yield request._replace(preparations=preparations)
        else:
            per_block = NamedCall(request.name, _reduce_prepared, prepare, request.per_block)
            result = yield Reduction(per_block, request.combine, request.finalize)


def _head(block: Block) -> _Head:
    rows = take_rows(block.X, np.arange(min(HEAD_ROWS, block.n_rows)))
    return _Head((block.number, rows))


class _Head(tuple):
    """Number and first rows of a block, ordered by the number."""

    __slots__ = ()

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return bool(self[0] < other[0])


def _reduce_prepared(prepare: Any, per_block: Any, block: Block) -> Any:
    prepared = prepare(block)
    return None if prepared is None else per_block(prepared)
