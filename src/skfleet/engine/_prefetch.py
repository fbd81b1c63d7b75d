"""Blocks loaded ahead: while one is worked on, the next one comes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from skfleet._device import CopyStream

__all__ = ["prefetch"]

T = TypeVar("T")


def prefetch(calls: Sequence[Callable[[], T]]) -> Generator[T]:
    """Yield what calls return, each called in a thread while what came before is worked on.

    On a GPU, copies to it run beside the kernels of whoever iterates.
    """
    if len(calls) < 2:
        yield from (call() for call in calls)
        return
    side = CopyStream()
    with ThreadPoolExecutor(1, thread_name_prefix="load-block") as pool:
        coming = pool.submit(side.run_after, side.record_event(), calls[0])
        for i in range(len(calls)):
            found = coming.result()
            if i + 1 < len(calls):
                # all that reads the block before this one has been queued
                coming = pool.submit(side.run_after, side.record_event(), calls[i + 1])
            yield found
