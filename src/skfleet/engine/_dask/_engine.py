"""The engine on a Dask cluster: tasks are futures, and a pass goes to where the blocks are."""

from __future__ import annotations

import math
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import dask
import psutil
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from distributed import Client, Future, get_worker
from distributed.system import MEMORY_LIMIT

from skfleet._config import get_config
from skfleet.blocks import Block, BlockCache, LazyBlock, RowBlocks, open_block
from skfleet.engine._counters import add_counts
from skfleet.engine._dask._client import check_workers, scheduler_workers, seceded, wait_for_workers
from skfleet.engine._dask._disk_blocks import caches, held_block, split_mapped, store_block
from skfleet.engine._dask._graph import (
    UniqueTask,
    as_delayed,
    func_with_summary,
    iter_pending,
    needs_graph,
    to_graph_node,
    with_sources,
)
from skfleet.engine._dask._scatter import ScatteredObject
from skfleet.engine._dask._serialize import Pickled
from skfleet.engine._dask._task_events import DaskCompletionQueue
from skfleet.engine._dask._wait import completed, gather
from skfleet.engine._disk_cache import disk_limit, is_cached, reads_of
from skfleet.engine._protocol import Call, Probe, Task
from skfleet.engine._reduce import identity, reduce_group
from skfleet.engine._resources import ANY_WORKER, ResourceRequest, check_satisfiable
from skfleet.engine._threadpools import limit_threadpools

# For so many seconds workers are taken for what they were.
MOMENT = 0.3
# Arguments larger than this cross to a worker once, not with every task.
SCATTER_THRESHOLD = 2**16


class DaskEngine:
    """A Dask cluster, through a client; `resources` says where tasks run that ask for nothing."""

    is_here = False

    def __init__(self, client: Client, resources: ResourceRequest = ANY_WORKER) -> None:
        self.client = client
        self.resources = resources
        self._seen: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._begin = time.time()
        self._registered = {ANY_WORKER}  # placements that some worker has offered
        self._seen = time.monotonic(), wait_for_workers(client)
        check_workers(client, self._workers())

    def _workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers, or knew a moment ago."""
        now = time.monotonic()
        if now - self._seen[0] > MOMENT:
            self._seen = now, scheduler_workers(self.client)
        return self._seen[1]

    @property
    def n_slots(self) -> int:
        """How many tasks run at once."""
        return max(1, sum(self.client.nthreads().values()))

    def run_on_all(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """Run func(*args) on every worker, and return the answers."""
        return list(self.client.run(func, *args).values())

    @property
    def offers(self) -> dict[str, dict[str, float]]:
        """The resources that each worker offers; none of an unlabelled one."""
        return {a: dict(w.get("resources") or {}) for a, w in self._workers().items()}

    def check(self, resources: ResourceRequest) -> None:
        """Raise unless a worker offers what a task with this placement asks for, or has offered it.

        One that died is started again, and its tasks wait for it.
        """
        if resources not in self._registered:
            check_satisfiable(resources, self.offers)
            self._registered.add(resources)

    def submit(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        name: str = "",
        priority: int = 0,
        resources: ResourceRequest = ANY_WORKER,
    ) -> Task:
        """Start func(*args); futures among or inside the arguments arrive as their values."""
        settings = self._settings(resources, priority)
        add_counts(tasks=1, **reads_of(args))
        args = _sent(args)
        key = _key(name)
        call = _limit_threads(func, resources)
        if needs_graph(args):
            source, args = with_sources(args)
            add_counts(tasks=source)
            task = dask.delayed(call, pure=False)(*args, dask_key_name=key)
            with _no_large_graph_warning():
                return self.client.compute(task, optimize_graph=False, **settings)
        with _no_large_graph_warning():
            return self.client.submit(call, *args, key=key, pure=False, **settings)

    def submit_all(
        self, calls: Sequence[Call], *, priority: int = 0, resources: ResourceRequest = ANY_WORKER
    ) -> list[Task]:
        """Start several calls, in one message.

        What is submitted a moment after something else waits 10 ms for company.
        """
        if any(needs_graph(call.args) for call in calls):
            tasks: dict[int, Task] = {}
            for call in calls:
                args = (tasks[id(a)] if isinstance(a, Call) else a for a in call.args)
                tasks[id(call)] = self.submit(
                    func_with_summary(call),
                    *args,
                    name=call.name,
                    priority=priority,
                    resources=resources,
                )
            return [tasks[id(call)] for call in calls]
        kept = {id(share): share for call in calls for share in iter_pending(call.args)}
        holds = {key: share.as_call() for key, share in kept.items()}
        keys = {id(call): _key(call.name) for call in [*holds.values(), *calls]}
        keys |= {key: keys[id(call)] for key, call in holds.items()}
        add_counts(tasks=len(holds) + len(calls))
        for call in calls:
            add_counts(**reads_of(call.args))
        graph = {
            keys[id(call)]: UniqueTask(
                keys[id(call)],
                _limit_threads(func_with_summary(call), resources),
                *(to_graph_node(arg, keys) for arg in call.args),
            )
            for call in [*holds.values(), *calls]
        }
        with _no_large_graph_warning():
            found: list[Task] = self.client.get(
                graph, list(graph), sync=False, **self._settings(resources, priority)
            )
        for share, task in zip(kept.values(), found, strict=False):
            share.future = task
        return found[len(holds) :]

    def map(
        self,
        func: Callable[..., Any],
        items: Iterable[Any],
        *args: Any,
        name: str = "",
        resources: ResourceRequest = ANY_WORKER,
    ) -> list[Task]:
        """Start func(item, *args) for every item, in one message where the items share a source."""
        each = list(items)
        if len(each) > 1:
            args = tuple(
                self.scatter_small(arg) if sizeof(arg) > SCATTER_THRESHOLD else arg for arg in args
            )
        if not needs_graph(each):
            return [
                self.submit(
                    _use_all_worker_threads(func, item), item, *args, name=name, resources=resources
                )
                for item in each
            ]
        source, each = with_sources(each)
        add_counts(tasks=source + len(each), **reads_of(each))
        args = tuple(as_delayed(arg) if isinstance(arg, Future) else arg for arg in args)
        call = dask.delayed(partial(_on_worker, func), pure=False)
        tasks = [call(item, *args, dask_key_name=_key(name)) for item in each]
        with _no_large_graph_warning():
            return self.client.compute(tasks, optimize_graph=False, **self._settings(resources, 0))

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results in order; after a failure the other tasks are given up."""
        try:
            with seceded():
                return gather(self.client, tasks, self._has_workers, since=self._begin)
        except BaseException:
            self.cancel(tasks)
            raise

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks as they end."""
        with seceded():
            yield from completed(self.client, tasks, self._has_workers)

    def completion_queue(self) -> DaskCompletionQueue:
        """Return something to wait with for tasks that are still being submitted."""
        return DaskCompletionQueue(self.client)

    def _has_workers(self, workers: dict[str, Any]) -> bool:
        """Say whether any of these workers may run what is placed as most tasks are."""
        asked = self.resources.as_dict()
        return any(_has_resources(worker, asked) for worker in workers.values())

    def has_failed(self, task: Task) -> bool:
        """Say whether a task that has ended raised."""
        return bool(task.status in ("error", "cancelled", "lost"))

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Give up what has not ended."""
        self.client.cancel(list(tasks), force=True)

    def scatter_small(self, value: Any) -> Task:
        """Send a value to the cluster once; workers pass it on among themselves.

        It is the result of a task, so that it is made again if its only holder dies.
        """
        return self.submit(identity, value, name="share")

    def scatter(self, value: Any) -> ScatteredObject:
        """Send a large value once: to the worker that asks first, who passes it on."""
        parcel, room = Pickled.dumps(value), self.memory_limit
        if parcel.nbytes > room:
            raise ValueError(
                "Rows that a worker is to have as a whole must fit into its memory. Got "
                f"{parcel.nbytes / 1e6:.0f} MB for {room / 1e6:.0f} MB instead. Let workers read "
                "them: make X a Dask array or DataFrame of files."
            )
        return ScatteredObject(self.client, parcel, is_kept=True, resources=self.resources)

    def rescatter(self, kept: ScatteredObject) -> None:
        """Send a kept value again if it was lost with the workers that held it."""
        kept.rescatter()

    def release(self, held: ScatteredObject | Future) -> None:
        """Let go of a kept value or a task, though the frames of an error still refer to it."""
        if isinstance(held, ScatteredObject):
            held.release()
        else:
            held.release()

    def count_slots(self, resources: ResourceRequest) -> int:
        """How many tasks with a placement run at once."""
        asked = (self.resources if resources == ANY_WORKER else resources).as_dict()
        total = 0
        for worker in self._workers().values():
            offer = worker.get("resources") or {}
            shares = [int(offer.get(name, 0) / amount) for name, amount in asked.items()]
            total += min([worker["nthreads"], *shares])
        return total

    def group_by_worker(self, blocks: Sequence[Block]) -> list[list[Block]]:
        """Group blocks by the worker that has most of each; those that none has stay alone.

        Blocks in memory are one group; those on the disk one for each thread, which maps one at a
        time.
        """
        here = [block for block in blocks if _is_placed(block)]
        alone = [[block] for block in blocks if not _is_placed(block)]
        if not here:
            return alone
        futures = {f.key: f for block in here for f in _futures_of(block)}
        holders = self.client.who_has(list(futures.values()))
        n_threads = self.client.nthreads()
        groups: dict[str, list[Block]] = {address: [] for address in n_threads}
        lost = []
        for block in here:
            votes: dict[str, int] = defaultdict(int)
            for future in _futures_of(block):
                for address in holders.get(future.key, ()):
                    votes[address] += address in groups
            if not any(votes.values()):
                lost.append(block)
                continue
            address = max(votes, key=lambda a: (votes[a], -len(groups[a])))
            groups[address].append(block)
        for block in lost:  # being made again somewhere after a worker's death
            if groups:
                min(groups.values(), key=len).append(block)
            else:
                alone.append([block])
        parts = [part for a, group in groups.items() for part in split_mapped(group, n_threads[a])]
        return parts + alone

    @contextmanager
    def persist(self, rows: RowBlocks) -> Iterator[RowBlocks]:
        """Load the blocks into the workers' memory, where that is wanted and they fit.

        Those that do not fit are written to the workers' disks, where that is wanted and pays.
        """
        away = [block for block in rows.blocks if not _is_kept(block)]
        if not away:
            yield rows
            return
        probe = Probe(self, replace(rows, blocks=tuple(away)))
        keeps = self._is_wanted(probe)
        if not keeps and not caches(self, probe, needs_graph(away)):
            yield rows
            return
        load = _load if keeps else partial(store_block, dtype=rows.dtype, limit=disk_limit())
        tasks = self.map(load, away, name="load-block")
        try:
            for _ in self.as_completed(tasks):
                pass  # all are in memory or on the disk, or have failed
            if failed := [task for task in tasks if self.has_failed(task)]:
                self.gather(failed[:1])
            handles = iter(tasks)
            blocks = tuple(
                b if _is_kept(b) else held_block(b, next(handles), keeps) for b in rows.blocks
            )
            yield replace(rows, blocks=blocks)
        finally:
            for task in tasks:
                task.release()

    @contextmanager
    def persist_sources(self, blocks: Sequence[Block]) -> Iterator[list[Block]]:
        """Keep what several blocks are made of (a shuffle, say) in the workers' memory."""
        sources = {id(b.X.source): b.X.source for b in blocks if getattr(b.X, "shared", ())}
        futures: dict[Any, Future] = {}
        for source in sources.values():
            add_counts(tasks=len(source.graph))
            graph = HighLevelGraph.from_collections("shared", source.graph, dependencies=())
            values = [Delayed(key, graph, layer="shared") for key in source.outputs]
            with _no_large_graph_warning():
                held = self.client.compute(values, optimize_graph=False)
            futures |= dict(zip(source.outputs, held, strict=True))
        try:
            yield [
                b._replace(X=b.X.with_shared(futures)) if getattr(b.X, "shared", ()) else b
                for b in blocks
            ]
        finally:
            for future in futures.values():
                future.release()

    def with_block_cache(self, rows: RowBlocks) -> RowBlocks:
        """Return the same rows with room for notes beside every block that is in memory.

        Notes come with a block that was loaded. Other blocks get theirs from a task of which they
        are an argument, so that they are where the block is, and go when the last handle does.
        """
        bare = [block for block in rows.blocks if _is_resident(block) and block.notes is None]
        notes = self.map(_new_block_cache, [_futures_of(block) for block in bare], name="notes")
        beside = dict(zip((block.number for block in bare), notes, strict=True))
        blocks = (
            block._replace(notes=beside.get(block.number, block.notes)) for block in rows.blocks
        )
        return replace(rows, blocks=tuple(blocks))

    def is_out_of_core(self, rows: RowBlocks) -> bool:
        """Say whether a pass loads any blocks."""
        return not all(map(_is_resident, rows.blocks))

    def _is_wanted(self, probe: Probe) -> bool:
        """Decide whether to keep rows in memory: what was asked for, or whether they fit."""
        wanted = get_config().keep_blocks
        if wanted != "auto":
            return bool(wanted)
        return probe.n_bytes <= self._free_bytes()

    def _free_bytes(self) -> float:
        """Return what the workers may still hold before they begin to spill, with room to work."""
        free = 0.0
        asked = self.resources.as_dict()
        for worker in scheduler_workers(self.client).values():
            if not _has_resources(worker, asked):
                continue
            limit, used = worker["memory_limit"] or MEMORY_LIMIT, worker["metrics"].get("memory", 0)
            if "GPU" in asked and worker.get("gpu"):  # where NVML tells
                limit = worker["gpu"]["memory-total"]
                used = worker["metrics"].get("gpu", {}).get("memory-used", 0)
            free += max(0.0, 0.5 * limit - used)
        return free

    @property
    def memory_limit(self) -> int:
        """Bytes that every worker that tasks are for, and this process, may hold."""
        asked = self.resources.as_dict()
        limits = [
            worker["memory_limit"] or MEMORY_LIMIT
            for worker in self._workers().values()
            if _has_resources(worker, asked)
        ]
        return int(min([*limits, psutil.virtual_memory().available]))

    def _settings(self, resources: ResourceRequest, priority: int) -> dict[str, Any]:
        """Return what the scheduler is told of a task, having checked that a worker can run it."""
        if resources == ANY_WORKER:
            resources = self.resources
        elif resources != self.resources:
            self.check(resources)
        settings: dict[str, Any] = {"priority": priority}
        if resources != ANY_WORKER:
            settings["resources"] = resources.as_dict()
        return settings


def _has_resources(worker: dict[str, Any], asked: dict[str, float]) -> bool:
    """Say whether a worker offers all that is asked for."""
    offer = worker.get("resources") or {}
    return all(offer.get(name, 0) >= amount for name, amount in asked.items())


def _key(name: str) -> str:
    """Make a task's key: what the dashboard shows, and a part that no other task has."""
    return f"{name or 'task'}-{uuid.uuid4().hex}"


@contextmanager
def _no_large_graph_warning() -> Iterator[None]:
    """Send large values without Dask's warning about it: here that is what was meant."""
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
        yield


def _use_all_worker_threads(func: Callable[..., Any], group: Any) -> Callable[..., Any]:
    """Let the task that reduces a worker's own blocks use all of that worker's threads."""
    if isinstance(func, partial) and func.func is reduce_group and all(map(_is_resident, group)):
        return partial(_with_worker_threads, func)
    return func


def _with_worker_threads(func: Callable[..., Any], *args: Any) -> Any:
    """Reduce a group with as many threads as the worker has."""
    return func(*args, n_threads=get_worker().state.nthreads)


def _on_worker(func: Callable[..., Any], *args: Any) -> Any:
    """Run a task with one library thread: the worker's threads are there for its tasks."""
    with limit_threadpools(1):
        return func(*args)


def _sent(value: Any) -> Any:
    """Return arguments with futures for what is kept."""
    if isinstance(value, ScatteredObject):
        return value.task
    if isinstance(value, Block) and isinstance(value.X, ScatteredObject):
        return value._replace(X=value.X.task)
    if type(value) in (list, tuple):
        return type(value)(map(_sent, value))
    return value


def _limit_threads(func: Callable[..., Any], resources: ResourceRequest) -> Callable[..., Any]:
    """Limit the library threads of a task: who asks for several CPUs wants to use them."""
    n_threads = int(resources.as_dict().get("CPU", 1))
    return (
        partial(_on_worker, func) if n_threads <= 1 else partial(_run_with_threads, n_threads, func)
    )


def _run_with_threads(n_threads: int, func: Callable[..., Any], *args: Any) -> Any:
    """Run a task that asked for several CPUs with as many library threads."""
    with limit_threadpools(n_threads):
        return func(*args)


def _load(handle: Block) -> Block:
    """Bring a block into the memory of the worker that runs this, with room for notes."""
    return open_block(handle)._replace(notes=BlockCache())


def _new_block_cache(parts: Sequence[Any]) -> BlockCache:
    """Make room for notes where the parts of a block are."""
    return BlockCache()


def _is_resident(block: Block) -> bool:
    """Say whether a block, or all its parts, are in some worker's memory, where they are wanted."""
    if block.to_device:
        return False
    return isinstance(block.X, Future) or getattr(block.X, "is_resident", False)


def _is_placed(block: Block) -> bool:
    """Say whether some worker has a block, in memory or on its disk."""
    return _is_resident(block) or is_cached(block)


def _is_kept(block: Block) -> bool:
    """Say whether there is nothing to bring into some worker's memory, or to its disk."""
    return _is_placed(block) or not (block.to_device or isinstance(block.X, LazyBlock))


def _futures_of(block: Block) -> list[Future]:
    """Return the futures that a block consists of which some worker has."""
    if is_cached(block):
        return [block.X.stored]
    if isinstance(block.X, Future):
        parts = (*block[:3], *(block.more or {}).values())
        return [part for part in parts if part is not None]
    return list(block.X.inputs.values())
