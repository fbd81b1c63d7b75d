"""Functions that `DaskEngine` submits in place of a caller's, to limit threads and load blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from distributed import get_worker

from skfleet._exception_pickle import as_picklable
from skfleet.blocks import Block, BlockCache, BlockRef, open_block
from skfleet.engine._resources import ResourceRequest
from skfleet.engine._threadpools import limit_threadpools

T = TypeVar("T")
Arg = TypeVar("Arg")


def limit_threads(func: Callable[..., T], resources: ResourceRequest) -> Callable[..., T]:
    """Return a task's function with as many library threads as the CPUs that it requests.

    Without a request it has one: the worker's threads run other tasks.
    """
    n_threads = max(1, int(resources.as_dict().get("CPU", 1)))
    return partial(_run_with_threads, n_threads, func)


def _run_with_threads(n_threads: int, func: Callable[..., T], *args: object) -> T:
    try:
        with limit_threadpools(n_threads):
            return func(*args)
    except Exception as error:
        failure = as_picklable(error)
    try:
        raise failure  # not in the handler of the first one, of which it would be the context
    finally:
        del failure  # it holds this frame


def run_with_worker_threads(func: Callable[..., T], *args: object) -> T:
    """Run a task that starts as many threads as the worker has."""
    return func(*args, n_threads=get_worker().state.nthreads)


def call_after(func: Callable[[Arg], T], arg: Arg, *before: object) -> T:
    """Return func(arg), in a task that waited for the results before it."""
    return func(arg)


def load_block(block_ref: BlockRef) -> Block:
    """Load a block into the memory of the worker that runs this, with an empty cache."""
    return open_block(block_ref)._replace(cache=BlockCache())


def new_block_cache(parts: Sequence[object]) -> BlockCache:
    """Create a block's cache on the worker that has the parts of the block."""
    return BlockCache()
