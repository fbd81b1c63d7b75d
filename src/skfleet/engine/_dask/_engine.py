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
from skfleet.blocks import Block, Loadable, Notes, RowBlocks, open_block
from skfleet.engine._counters import count
from skfleet.engine._dask._client import check_workers, slot_released, wait_for_workers, workers_of
from skfleet.engine._dask._disk_blocks import caches, held_block, split_mapped, store_block
from skfleet.engine._dask._graph import (
    OwnTask,
    as_delayed,
    as_node,
    needs_graph,
    told_func,
    unsent,
    with_sources,
)
from skfleet.engine._dask._scatter import Share
from skfleet.engine._dask._serialize import Parcel
from skfleet.engine._dask._task_events import DaskWatch
from skfleet.engine._dask._wait import completed, gather
from skfleet.engine._disk_cache import disk_limit, is_cached, reads_of
from skfleet.engine._protocol import Call, Probe, Task
from skfleet.engine._reduce import identity, reduce_group
from skfleet.engine._resources import ANYWHERE, Placement, check_satisfiable
from skfleet.engine._threadpools import library_threads

# For so many seconds workers are taken for what they were.
MOMENT = 0.3
# Arguments larger than this cross to a worker once, not with every task.
SHARED_BYTES = 2**16


class DaskEngine:
    """A Dask cluster, through a client; `placement` says where tasks run that ask for nothing."""

    is_here = False

    def __init__(self, client: Client, placement: Placement = ANYWHERE) -> None:
        self.client = client
        self.placement = placement
        self._seen: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._begin = time.time()
        self._offered = {ANYWHERE}  # placements that some worker has offered
        self._seen = time.monotonic(), wait_for_workers(client)
        check_workers(client, self._workers())

    def _workers(self) -> dict[str, Any]:
        """Return what the scheduler knows of its workers, or knew a moment ago."""
        now = time.monotonic()
        if now - self._seen[0] > MOMENT:
            self._seen = now, workers_of(self.client)
        return self._seen[1]

    @property
    def n_slots(self) -> int:
        """How many tasks run at once."""
        return max(1, sum(self.client.nthreads().values()))

    def ask_all(self, func: Callable[..., Any], *args: Any) -> list[Any]:
        """Run func(*args) on every worker, and return the answers."""
        return list(self.client.run(func, *args).values())

    @property
    def offers(self) -> dict[str, dict[str, float]]:
        """The resources that each worker offers; none of an unlabelled one."""
        return {a: dict(w.get("resources") or {}) for a, w in self._workers().items()}

    def check(self, placement: Placement) -> None:
        """Raise unless a worker offers what a task with this placement asks for, or has offered it.

        One that died is started again, and its tasks wait for it.
        """
        if placement not in self._offered:
            check_satisfiable(placement, self.offers)
            self._offered.add(placement)

    def submit(
        self,
        func: Callable[..., Any],
        /,
        *args: Any,
        name: str = "",
        priority: int = 0,
        placement: Placement = ANYWHERE,
    ) -> Task:
        """Start func(*args); futures among or inside the arguments arrive as their values."""
        settings = self._settings(placement, priority)
        count(tasks=1, **reads_of(args))
        args = _sent(args)
        key = _key(name)
        call = _limited(func, placement)
        if needs_graph(args):
            source, args = with_sources(args)
            count(tasks=source)
            task = dask.delayed(call, pure=False)(*args, dask_key_name=key)
            with _quiet():
                return self.client.compute(task, optimize_graph=False, **settings)
        with _quiet():
            return self.client.submit(call, *args, key=key, pure=False, **settings)

    def submit_all(
        self, calls: Sequence[Call], *, priority: int = 0, placement: Placement = ANYWHERE
    ) -> list[Task]:
        """Start several calls, in one message.

        What is submitted a moment after something else waits 10 ms for company.
        """
        if any(needs_graph(call.args) for call in calls):
            tasks: dict[int, Task] = {}
            for call in calls:
                args = (tasks[id(a)] if isinstance(a, Call) else a for a in call.args)
                tasks[id(call)] = self.submit(
                    told_func(call), *args, name=call.name, priority=priority, placement=placement
                )
            return [tasks[id(call)] for call in calls]
        kept = {id(share): share for call in calls for share in unsent(call.args)}
        holds = {key: share.as_call() for key, share in kept.items()}
        keys = {id(call): _key(call.name) for call in [*holds.values(), *calls]}
        keys |= {key: keys[id(call)] for key, call in holds.items()}
        count(tasks=len(holds) + len(calls))
        for call in calls:
            count(**reads_of(call.args))
        graph = {
            keys[id(call)]: OwnTask(
                keys[id(call)],
                _limited(told_func(call), placement),
                *(as_node(arg, keys) for arg in call.args),
            )
            for call in [*holds.values(), *calls]
        }
        with _quiet():
            found: list[Task] = self.client.get(
                graph, list(graph), sync=False, **self._settings(placement, priority)
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
        placement: Placement = ANYWHERE,
    ) -> list[Task]:
        """Start func(item, *args) for every item, in one message where the items share a source."""
        each = list(items)
        if len(each) > 1:
            args = tuple(self.share(arg) if sizeof(arg) > SHARED_BYTES else arg for arg in args)
        if not needs_graph(each):
            return [
                self.submit(_threaded(func, item), item, *args, name=name, placement=placement)
                for item in each
            ]
        source, each = with_sources(each)
        count(tasks=source + len(each), **reads_of(each))
        args = tuple(as_delayed(arg) if isinstance(arg, Future) else arg for arg in args)
        call = dask.delayed(partial(_on_worker, func), pure=False)
        tasks = [call(item, *args, dask_key_name=_key(name)) for item in each]
        with _quiet():
            return self.client.compute(tasks, optimize_graph=False, **self._settings(placement, 0))

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results in order; after a failure the other tasks are given up."""
        try:
            with slot_released():
                return gather(self.client, tasks, self._has_workers, since=self._begin)
        except BaseException:
            self.cancel(tasks)
            raise

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yield the tasks as they end."""
        with slot_released():
            yield from completed(self.client, tasks, self._has_workers)

    def watch(self) -> DaskWatch:
        """Return something to wait with for tasks that are still being submitted."""
        return DaskWatch(self.client)

    def _has_workers(self, workers: dict[str, Any]) -> bool:
        """Say whether any of these workers may run what is placed as most tasks are."""
        asked = self.placement.as_dict()
        return any(_offers(worker, asked) for worker in workers.values())

    def has_failed(self, task: Task) -> bool:
        """Say whether a task that has ended raised."""
        return bool(task.status in ("error", "cancelled", "lost"))

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Give up what has not ended."""
        self.client.cancel(list(tasks), force=True)

    def share(self, value: Any) -> Task:
        """Send a value to the cluster once; workers pass it on among themselves.

        It is the result of a task, so that it is made again if its only holder dies.
        """
        return self.submit(identity, value, name="share")

    def keep(self, value: Any) -> Share:
        """Send a large value once: to the worker that asks first, who passes it on."""
        parcel, room = Parcel.pack(value), self.room
        if parcel.nbytes > room:
            raise ValueError(
                "Rows that a worker is to have as a whole must fit into its memory. Got "
                f"{parcel.nbytes / 1e6:.0f} MB for {room / 1e6:.0f} MB instead. Let workers read "
                "them: make X a Dask array or DataFrame of files."
            )
        return Share(self.client, parcel, is_kept=True, placement=self.placement)

    def mend(self, kept: Share) -> None:
        """Send a kept value again if it was lost with the workers that held it."""
        kept.mend()

    def drop(self, held: Share | Future) -> None:
        """Let go of a kept value or a task, though the frames of an error still refer to it."""
        if isinstance(held, Share):
            held.drop()
        else:
            held.release()

    def slots_for(self, placement: Placement) -> int:
        """How many tasks with a placement run at once."""
        asked = (self.placement if placement == ANYWHERE else placement).as_dict()
        total = 0
        for worker in self._workers().values():
            offer = worker.get("resources") or {}
            shares = [int(offer.get(name, 0) / amount) for name, amount in asked.items()]
            total += min([worker["nthreads"], *shares])
        return total

    def together(self, blocks: Sequence[Block]) -> list[list[Block]]:
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
    def hold(self, rows: RowBlocks) -> Iterator[RowBlocks]:
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
    def hold_sources(self, blocks: Sequence[Block]) -> Iterator[list[Block]]:
        """Keep what several blocks are made of (a shuffle, say) in the workers' memory."""
        sources = {id(b.X.source): b.X.source for b in blocks if getattr(b.X, "shared", ())}
        futures: dict[Any, Future] = {}
        for source in sources.values():
            count(tasks=len(source.graph))
            graph = HighLevelGraph.from_collections("shared", source.graph, dependencies=())
            values = [Delayed(key, graph, layer="shared") for key in source.outputs]
            with _quiet():
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

    def with_notes(self, rows: RowBlocks) -> RowBlocks:
        """Return the same rows with room for notes beside every block that is in memory.

        Notes come with a block that was loaded. Other blocks get theirs from a task of which they
        are an argument, so that they are where the block is, and go when the last handle does.
        """
        bare = [block for block in rows.blocks if _is_resident(block) and block.notes is None]
        notes = self.map(_new_notes, [_futures_of(block) for block in bare], name="notes")
        beside = dict(zip((block.number for block in bare), notes, strict=True))
        blocks = (
            block._replace(notes=beside.get(block.number, block.notes)) for block in rows.blocks
        )
        return replace(rows, blocks=tuple(blocks))

    def streams(self, rows: RowBlocks) -> bool:
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
        asked = self.placement.as_dict()
        for worker in workers_of(self.client).values():
            if not _offers(worker, asked):
                continue
            limit, used = worker["memory_limit"] or MEMORY_LIMIT, worker["metrics"].get("memory", 0)
            if "GPU" in asked and worker.get("gpu"):  # where NVML tells
                limit = worker["gpu"]["memory-total"]
                used = worker["metrics"].get("gpu", {}).get("memory-used", 0)
            free += max(0.0, 0.5 * limit - used)
        return free

    @property
    def room(self) -> int:
        """Bytes that every worker that tasks are for, and this process, may hold."""
        asked = self.placement.as_dict()
        limits = [
            worker["memory_limit"] or MEMORY_LIMIT
            for worker in self._workers().values()
            if _offers(worker, asked)
        ]
        return int(min([*limits, psutil.virtual_memory().available]))

    def _settings(self, placement: Placement, priority: int) -> dict[str, Any]:
        """Return what the scheduler is told of a task, having checked that a worker can run it."""
        if placement == ANYWHERE:
            placement = self.placement
        elif placement != self.placement:
            self.check(placement)
        settings: dict[str, Any] = {"priority": priority}
        if placement != ANYWHERE:
            settings["resources"] = placement.as_dict()
        return settings


def _offers(worker: dict[str, Any], asked: dict[str, float]) -> bool:
    """Say whether a worker offers all that is asked for."""
    offer = worker.get("resources") or {}
    return all(offer.get(name, 0) >= amount for name, amount in asked.items())


def _key(name: str) -> str:
    """Make a task's key: what the dashboard shows, and a part that no other task has."""
    return f"{name or 'task'}-{uuid.uuid4().hex}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Send large values without Dask's warning about it: here that is what was meant."""
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
        yield


def _threaded(func: Callable[..., Any], group: Any) -> Callable[..., Any]:
    """Let the task that reduces a worker's own blocks use all of that worker's threads."""
    if isinstance(func, partial) and func.func is reduce_group and all(map(_is_resident, group)):
        return partial(_with_worker_threads, func)
    return func


def _with_worker_threads(func: Callable[..., Any], *args: Any) -> Any:
    """Reduce a group with as many threads as the worker has."""
    return func(*args, n_threads=get_worker().state.nthreads)


def _on_worker(func: Callable[..., Any], *args: Any) -> Any:
    """Run a task with one library thread: the worker's threads are there for its tasks."""
    with library_threads(1):
        return func(*args)


def _sent(value: Any) -> Any:
    """Return arguments with futures for what is kept."""
    if isinstance(value, Share):
        return value.task
    if isinstance(value, Block) and isinstance(value.X, Share):
        return value._replace(X=value.X.task)
    if type(value) in (list, tuple):
        return type(value)(map(_sent, value))
    return value


def _limited(func: Callable[..., Any], placement: Placement) -> Callable[..., Any]:
    """Limit the library threads of a task: who asks for several CPUs wants to use them."""
    n_threads = int(placement.as_dict().get("CPU", 1))
    return partial(_on_worker, func) if n_threads <= 1 else partial(_on_many, n_threads, func)


def _on_many(n_threads: int, func: Callable[..., Any], *args: Any) -> Any:
    """Run a task that asked for several CPUs with as many library threads."""
    with library_threads(n_threads):
        return func(*args)


def _load(handle: Block) -> Block:
    """Bring a block into the memory of the worker that runs this, with room for notes."""
    return open_block(handle)._replace(notes=Notes())


def _new_notes(parts: Sequence[Any]) -> Notes:
    """Make room for notes where the parts of a block are."""
    return Notes()


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
    return _is_placed(block) or not (block.to_device or isinstance(block.X, Loadable))


def _futures_of(block: Block) -> list[Future]:
    """Return the futures that a block consists of which some worker has."""
    if is_cached(block):
        return [block.X.stored]
    if isinstance(block.X, Future):
        parts = (*block[:3], *(block.more or {}).values())
        return [part for part in parts if part is not None]
    return list(block.X.inputs.values())
