"""Fits as generators of reductions, so that several estimators share the passes over their rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from operator import itemgetter
from sys import getsizeof
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from skfleet.blocks import Block, RowBlocks, take_rows, with_pandas_text
from skfleet.engine import Engine, Reduction, map_reduce


class Preparation(Protocol):
    """Change of the rows before a fit inside another one."""

    def __call__(self, block: Block) -> Block:
        """Return a prepared block."""

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


# A fit: it yields the statistic that it needs next, or a fit of an estimator, and receives it.
Passes: TypeAlias = Generator[Reduction | EstimatorFit, Any, Any]

# Rows by whose transform a composition learns the kind, width and density of its parts.
HEAD_ROWS = 200


def run_passes(
    passes: Passes,
    engine: Engine,
    rows: RowBlocks,
    fit: Callable[[EstimatorFit], Any] | None = None,
) -> Any:
    """Make a pass over the rows for each reduction of a fit; return what the fit returns.

    `fit` fits the estimators that it requests.
    """
    result = None
    while True:
        try:
            request = passes.send(result)
        except StopIteration as end:
            return end.value
        if isinstance(request, EstimatorFit):
            result = fit(request)
            continue
        # as an argument, which is sent to each worker once if it is large
        call = NamedCall(request.name, _call_on_block)
        shared = Reduction(call, request.combine, request.finalize)
        result = map_reduce(engine, shared, rows, request.per_block)


def share_passes(fits: Sequence[Passes], name: str) -> Passes:
    """Run several fits in as many passes as the longest takes.

    Return the list of their results, and the `head_of_rows` from the first pass, None without any.
    `name` is that of the tasks on the dashboard.
    """
    results: list[Any] = [None] * len(fits)
    running, head = dict(enumerate(fits)), None
    while True:
        requests: dict[int, Reduction] = {}
        for i, passes in list(running.items()):
            try:
                request = passes.send(results[i])
                while isinstance(request, EstimatorFit):
                    request = passes.send((yield request))
                requests[i] = request
            except StopIteration as end:
                results[i] = end.value
                del running[i]
        if not requests:
            return results, head
        is_first = head is None
        reductions = [*requests.values(), *([head_of_rows()] if is_first else [])]
        shared = yield join_reductions(reductions, name)
        if is_first:
            head = shared.pop()
        for i, result in zip(requests, shared, strict=True):
            results[i] = result


def join_reductions(reductions: Sequence[Reduction], name: str) -> Reduction:
    """Return the reduction whose result is the list of the results of several."""
    parts = tuple(reductions)
    return Reduction(
        NamedCall(name, _reduce_all, [r.per_block for r in parts]),
        NamedCall(name, _combine_each, [r.combine for r in parts]),
        lambda results: [r.finalize(x) for r, x in zip(parts, results, strict=True)],
    )


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


class NamedCall:
    """A function with its first arguments, which names the tasks that call it on the dashboard."""

    def __init__(self, name: str, func: Callable[..., Any], *args: Any) -> None:
        self.__name__, self.func, self.args = name, func, args

    def __call__(self, *args: Any) -> Any:
        return self.func(*self.args, *args)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(_n_bytes, self.args))


def _n_bytes(value: Any) -> int:
    """Return the size of the arrays in an argument, roughly."""
    if isinstance(value, tuple | list):
        return sum(map(_n_bytes, value))
    return int(getattr(value, "nbytes", 0)) + getsizeof(value)


def _call_on_block(block: Block, per_block: Callable[[Block], Any]) -> Any:
    return per_block(block._replace(X=with_pandas_text(block.X)))


def _reduce_all(functions: Sequence[Callable[..., Any]], block: Block) -> list[Any]:
    return [per_block(block) for per_block in functions]


def _combine_each(functions: Sequence[Callable[..., Any]], a: list[Any], b: list[Any]) -> list[Any]:
    return [combine(x, y) for combine, x, y in zip(functions, a, b, strict=True)]


def _head(block: Block) -> _Head:
    rows = take_rows(block.X, np.arange(min(HEAD_ROWS, block.n_rows)))
    return _Head((block.number, rows))


class _Head(tuple):
    """Number and first rows of a block, ordered by the number."""

    __slots__ = ()

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return bool(self[0] < other[0])


def _reduce_prepared(prepare: Any, per_block: Any, block: Block) -> Any:
    return per_block(prepare(block))
