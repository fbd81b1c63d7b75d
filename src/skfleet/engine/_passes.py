"""Computations as generators of reductions, so that several share the passes over their rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from sys import getsizeof
from typing import Any, TypeAlias, TypeVar

from skfleet.blocks import Block, RowBlocks
from skfleet.engine._protocol import Engine
from skfleet.engine._reduce import Reduction, checked_result, combine_all, identity, map_reduce

T = TypeVar("T")

# A computation: it yields the reduction that it needs next, and receives the result. It may yield
# requests of other kinds, which `run_passes` has answered.
Passes: TypeAlias = Generator[Any, Any, Any]


def run_passes(
    passes: Passes,
    engine: Engine,
    rows: RowBlocks,
    convert: Callable[[Block], Block] = identity,
    answer: Callable[[Any], object] | None = None,
) -> Any:
    """Make a pass over the converted rows for each reduction; return what the generator returns.

    `answer` returns what the generator receives for a request of another kind.
    """
    result = None
    while True:
        try:
            request = passes.send(result)
        except StopIteration as end:
            return end.value
        if answer is not None and not isinstance(request, Reduction):
            result = answer(request)
            continue
        # as an argument, which is sent to each worker once if it is large
        call = NamedCall(request.name, _call_on_block, convert)
        shared = Reduction(call, request.combine, request.finalize)
        result = map_reduce(engine, shared, rows, request.per_block)


def share_passes(
    computations: Sequence[Passes], name: str, first: Reduction | None = None
) -> Passes:
    """Run several computations in as many passes as the longest takes.

    Return the list of their results, and the result of another reduction, `first`, in the first
    pass; None where no computation takes one. `name` is that of the tasks on the dashboard.
    """
    results: list[Any] = [None] * len(computations)
    running, is_first, first_result = dict(enumerate(computations)), True, None
    while True:
        requests: dict[int, Reduction] = {}
        for i, passes in list(running.items()):
            try:
                request = passes.send(results[i])
                while not isinstance(request, Reduction):
                    request = passes.send((yield request))
                requests[i] = request
            except StopIteration as end:
                results[i] = end.value
                del running[i]
        if not requests:
            return results, first_result
        extra = [first] if is_first and first is not None else []
        shared = yield join_reductions([*requests.values(), *extra], name)
        if extra:
            first_result = shared.pop()
        is_first = False
        for i, result in zip(requests, shared, strict=True):
            results[i] = result


def join_reductions(reductions: Sequence[Reduction], name: str) -> Reduction:
    """Return the reduction whose result is the list of the results of several."""
    parts = tuple(reductions)
    return Reduction(
        NamedCall(name, _reduce_all, [r.per_block for r in parts]),
        NamedCall(name, _combine_each, [r.combine for r in parts]),
        lambda results: [
            r.finalize(checked_result(x)) for r, x in zip(parts, results, strict=True)
        ],
    )


class NamedCall:
    """A function with its first arguments, which names the tasks that call it on the dashboard."""

    def __init__(self, name: str, func: Callable[..., object], *args: object) -> None:
        self.__name__, self.func, self.args = name, func, args

    def __call__(self, *args: object) -> object:
        return self.func(*self.args, *args)

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + sum(map(_n_bytes, self.args))


def _n_bytes(value: object) -> int:
    """Return the size of the arrays in an argument, roughly."""
    if isinstance(value, tuple | list):
        return sum(map(_n_bytes, value))
    return int(getattr(value, "nbytes", 0)) + getsizeof(value)


def _call_on_block(
    convert: Callable[[Block], Block], block: Block, per_block: Callable[[Block], T]
) -> T:
    return per_block(convert(block))


def _reduce_all(functions: Sequence[Callable[..., T]], block: Block, *args: object) -> list[T]:
    return [per_block(block, *args) for per_block in functions]


def _combine_each(
    functions: Sequence[Callable[[T, T], T]], a: list[T | None], b: list[T | None]
) -> list[T | None]:
    return [combine_all(combine, xy) for combine, *xy in zip(functions, a, b, strict=True)]
