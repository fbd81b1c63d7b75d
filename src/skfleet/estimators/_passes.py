"""Fits as generators of reductions, so that several estimators share the passes over their rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from sys import getsizeof
from typing import Any, TypeAlias

from skfleet.blocks import Block, RowBlocks
from skfleet.engine import Engine, Reduction, map_reduce

# A fit: it yields the statistic that it needs next, and receives it.
Passes: TypeAlias = Generator[Reduction, Any, Any]


def run_passes(passes: Passes, engine: Engine, rows: RowBlocks) -> Any:
    """Make a pass over the rows for each reduction of a fit; return what the fit returns."""
    result = None
    while True:
        try:
            reduction = passes.send(result)
        except StopIteration as end:
            return end.value
        # as an argument, which is sent to each worker once if it is large
        call = NamedCall(reduction.name, _call_on_block)
        shared = Reduction(call, reduction.combine, reduction.finalize)
        result = map_reduce(engine, shared, rows, reduction.per_block)


def share_passes(fits: Sequence[Passes], name: str) -> Passes:
    """Run several fits in as many passes as the longest takes; return the list of their results.

    `name` is that of the tasks on the dashboard.
    """
    results: list[Any] = [None] * len(fits)
    running = dict(enumerate(fits))
    while True:
        requests: dict[int, Reduction] = {}
        for i, passes in list(running.items()):
            try:
                requests[i] = passes.send(results[i])
            except StopIteration as end:
                results[i] = end.value
                del running[i]
        if not requests:
            return results
        shared = yield join_reductions(list(requests.values()), name)
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


def on_prepared_rows(passes: Passes, prepare: Callable[[Block], Block]) -> Passes:
    """Return a fit on what `prepare` makes of each block: some of its columns, say."""
    result = None
    while True:
        try:
            reduction = passes.send(result)
        except StopIteration as end:
            return end.value
        per_block = NamedCall(reduction.name, _reduce_prepared, prepare, reduction.per_block)
        result = yield Reduction(per_block, reduction.combine, reduction.finalize)


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
    return per_block(block)


def _reduce_all(functions: Sequence[Callable[..., Any]], block: Block) -> list[Any]:
    return [per_block(block) for per_block in functions]


def _combine_each(functions: Sequence[Callable[..., Any]], a: list[Any], b: list[Any]) -> list[Any]:
    return [combine(x, y) for combine, x, y in zip(functions, a, b, strict=True)]


def _reduce_prepared(prepare: Any, per_block: Any, block: Block) -> Any:
    return per_block(prepare(block))
