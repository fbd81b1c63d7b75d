"""Load the next block in a background thread while the current one is processed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from skfleet._device import CopyStream

T = TypeVar("T")


def prefetch(calls: Sequence[Callable[[], T]]) -> Generator[T]:
    """Yield the results of calls, each run in a thread while the previous result is processed.

    On a GPU, copies to it run on a stream of their own, concurrently with the consumer's kernels.
    """
    if len(calls) < 2:
        yield from (call() for call in calls)
        return
    stream = CopyStream()
    with ThreadPoolExecutor(1, thread_name_prefix="load-block") as pool:
        pending = pool.submit(stream.run_after, stream.record_event(), calls[0])
        for i in range(len(calls)):
            block = pending.result()
            if i + 1 < len(calls):
                # All kernels that read the previous block are queued before its memory is reused.
                pending = pool.submit(stream.run_after, stream.record_event(), calls[i + 1])
            yield block
