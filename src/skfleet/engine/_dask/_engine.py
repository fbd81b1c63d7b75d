"""The engine on a Dask cluster: tasks are futures, and a pass runs where the blocks are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import dask
import psutil
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from distributed import Client, Future
from distributed.system import MEMORY_LIMIT

from skfleet._cluster import (
    WorkerInfo,
    check_workers,
    completed,
    gather,
    scheduler_workers,
    seceded,
    wait_for_workers,
)
from skfleet._config import get_config
from skfleet._device import device_memory_available
from skfleet._typing import RowsT
from skfleet.blocks import BlockRef, RowBlocks, in_parts, persist_together
from skfleet.engine._counters import add_counts
from skfleet.engine._dask._block_locations import (
    free_bytes,
    futures_of,
    group_by_worker,
    is_on_worker,
    is_persisted,
    is_resident,
    places_of_pieces,
    resident_nbytes,
    runs_of_pieces,
    worker_options,
)
from skfleet.engine._dask._disk_blocks import persisted_block, should_store, store_block
from skfleet.engine._dask._graph import (
    UniqueTask,
    as_delayed,
    func_with_summary,
    has_shared_subgraph,
    iter_pending,
    new_key,
    to_graph_node,
    with_shared_subgraph,
)
from skfleet.engine._dask._scatter import (
    ScatteredObject,
    no_large_graph_warning,
    substitute_futures,
)
from skfleet.engine._dask._serialize import Pickled
from skfleet.engine._dask._task_events import DaskCompletionQueue
from skfleet.engine._dask._worker_functions import (
    call_after,
    limit_threads,
    load_block,
    new_block_cache,
    run_with_worker_threads,
)
from skfleet.engine._disk_cache import can_have_cache, disk_limit, reads_of
from skfleet.engine._fit_progress import count_steps, current_fit_progress
from skfleet.engine._halving import gather_or_halve
from skfleet.engine._probe import Probe
from skfleet.engine._protocol import Call, Task
from skfleet.engine._reduce import identity
from skfleet.engine._resources import (
    ANY_WORKER,
    ResourceRequest,
    check_satisfiable,
    count_slots,
    satisfies,
)

T = TypeVar("T")

# Seconds for which the scheduler's answer about its workers is reused.
WORKER_INFO_TTL = 0.3
# Bytes from which on an argument of many tasks is scattered, instead of sent with each of them.
SCATTER_THRESHOLD = 2**16
# Gathered results of up to so many bytes are released together, those of so many passes.
GATHERED_BYTES, GATHERED_PASSES = 2**18, 16


class DaskEngine:
    """A Dask cluster, through a client; `resources` are those of tasks that request none."""

    is_local = False

    def __init__(self, client: Client, resources: ResourceRequest = ANY_WORKER) -> None:
        self.client, self.resources = client, resources
        self._start_time = time.time()
        self._gathered: list[Sequence[Task]] = []
        self._satisfiable = {ANY_WORKER}  # requests that some worker has satisfied
        check_workers(client, wait_for_workers(client))

    def _workers(self) -> dict[str, WorkerInfo]:
        """Return the scheduler's description of its workers, at most `WORKER_INFO_TTL` old."""
        return scheduler_workers(self.client, WORKER_INFO_TTL)

    def run_on_all(self, func: Callable[..., T], *args: object) -> list[T]:
        return list(self.client.run(func, *args).values())

    @property
    def offers(self) -> dict[str, dict[str, float]]:
        """The resources that each worker offers; none of an unlabelled one."""
        return {a: dict(w.get("resources") or {}) for a, w in self._workers().items()}

    def check(self, resources: ResourceRequest) -> None:
        """Raise unless a worker offers these resources, or has offered them.

        A worker that died is started again, and its tasks wait for it.
        """
        if resources not in self._satisfiable:
            check_satisfiable(resources, self.offers)
            self._satisfiable.add(resources)

    def submit(
        self,
        func: Callable[..., object],
        /,
        *args: object,
        name: str = "",
        priority: float = 0,
        resources: ResourceRequest = ANY_WORKER,
        worker: str | None = None,
    ) -> Task:
        """Submit func(*args); futures among or inside the arguments arrive as their values.

        It runs on the `worker` of this address, or elsewhere where that is gone.
        """
        options = self._task_options(resources, priority) | worker_options(worker)
        args = in_parts(args)
        add_counts(tasks=1, **reads_of(args))
        args = substitute_futures(args)
        key = new_key(name)
        call = limit_threads(func, resources)
        if has_shared_subgraph(args):
            n_tasks, args = with_shared_subgraph(args)
            add_counts(tasks=n_tasks)
            task = dask.delayed(call, pure=False)(*args, dask_key_name=key)
            with no_large_graph_warning():
                return self.client.compute(task, optimize_graph=False, **options)
        with no_large_graph_warning():
            return self.client.submit(call, *args, key=key, pure=False, **options)

    # 1. A shared subgraph (a shuffle, say) needs Delayed objects, so such calls go one by one.
    # 2. Scattered objects that are not submitted yet become tasks of the same graph.
    # 3. Every call gets its key, so that calls can be arguments of one another.
    # 4. The graph goes to the scheduler in one message.
    # 5. The scattered objects take over the futures of their tasks.
    def submit_all(
        self, calls: Sequence[Call], *, priority: int = 0, resources: ResourceRequest = ANY_WORKER
    ) -> list[Task]:
        """Submit several calls, in one message.

        Messages wait up to 10 ms for others to the same address, if one has just been sent.
        """
        if any(has_shared_subgraph(call.args) for call in calls):
            tasks: dict[int, Task] = {}
            for call in calls:
                args = (tasks[id(a)] if isinstance(a, Call) else a for a in call.args)
                submit = partial(self.submit, func_with_summary(call), *args, name=call.name)
                tasks[id(call)] = submit(priority=priority, resources=resources)
            return [tasks[id(call)] for call in calls]
        pending = {id(obj): obj for call in calls for obj in iter_pending(call.args)}
        scatter_calls = {object_id: obj.as_call() for object_id, obj in pending.items()}
        all_calls = [*scatter_calls.values(), *calls]
        keys = {id(call): new_key(call.name) for call in all_calls}
        keys |= {object_id: keys[id(call)] for object_id, call in scatter_calls.items()}
        add_counts(tasks=len(all_calls))
        for call in calls:
            add_counts(**reads_of(call.args))
        graph = {
            keys[id(call)]: UniqueTask(
                keys[id(call)],
                limit_threads(func_with_summary(call), resources),
                *(to_graph_node(arg, keys) for arg in call.args),
            )
            for call in all_calls
        }
        options = self._task_options(resources, priority)
        with no_large_graph_warning():
            futures: list[Task] = self.client.get(graph, list(graph), sync=False, **options)
        if len(self._gathered) > GATHERED_PASSES:  # before, each pass would wait behind a message
            self._gathered.clear()
        for obj, future in zip(pending.values(), futures, strict=False):
            obj.future = future
        return futures[len(pending) :]

    def map(
        self,
        func: Callable[..., object],
        items: Iterable[Any],
        *args: object,
        name: str = "",
        resources: ResourceRequest = ANY_WORKER,
        is_threaded: bool = False,
    ) -> list[Task]:
        """Submit func(item, *args) for every item, in one message: a client sends one in 10 ms.

        One that `is_threaded`, on blocks in a worker's memory, has all threads of the worker.
        """
        items = list(items)
        if len(items) > 1:
            args = tuple(
                self.scatter_small(arg) if sizeof(arg) > SCATTER_THRESHOLD else arg for arg in args
            )
        if not has_shared_subgraph(items):
            threaded = partial(run_with_worker_threads, func)
            funcs = (threaded if is_threaded and all(map(is_resident, i)) else func for i in items)
            arguments = (in_parts((item, *args)) for item in items)
            calls = [Call(*call, name) for call in zip(funcs, arguments, strict=True)]
            return self.submit_all(calls, resources=resources)
        return self._map_delayed(func, items, *args, name=name, resources=resources)

    def _map_delayed(
        self,
        func: Callable[..., object],
        items: Sequence[object],
        *args: object,
        name: str,
        resources: ResourceRequest = ANY_WORKER,
        annotations: Iterable[dict[str, Any]] = repeat({}),
        waits: Iterable[bool] = repeat(False),
    ) -> list[Task]:
        """Submit func(item, *args) for items that share a subgraph, with annotations for each.

        What `waits` gets the result of the call before it as a further argument.
        """
        n_tasks, delayed_items = with_shared_subgraph(in_parts(items))
        add_counts(tasks=n_tasks + len(items), **reads_of(delayed_items))
        args = tuple(as_delayed(arg) if isinstance(arg, Future) else arg for arg in args)
        call = dask.delayed(limit_threads(func, ANY_WORKER), pure=False)
        tasks: list[Delayed] = []
        for item, annotation, wait in zip(delayed_items, annotations, waits, strict=False):
            before = tasks[-1:] if wait else []
            with dask.annotate(**annotation):
                tasks.append(call(item, *args, *before, dask_key_name=new_key(name)))
        options = self._task_options(resources, 0)
        with no_large_graph_warning():
            return self.client.compute(tasks, optimize_graph=False, **options)

    def _map_partitions(
        self, func: Callable[..., object], blocks: Sequence[BlockRef], *, name: str
    ) -> list[Task]:
        """Submit func(block) for every block, and a run of a partition's pieces to one worker.

        It reads on from one piece to the next; tasks of one priority would run in any order. If
        there is a thread for each run, pieces wait for the one before them: an idle worker would
        take them, and read all that is before them again.
        """
        threads = self.worker_threads()
        n_threads = sum(threads.values())
        runs = runs_of_pieces(blocks, n_threads)
        places = places_of_pieces(runs, threads)
        waits = [len(runs) <= n_threads and i > 0 for run in runs for i in range(len(run))]
        func = partial(call_after, func)
        if has_shared_subgraph(blocks):
            annotations = [{"priority": p, **worker_options(w)} for w, p in places]
            return self._map_delayed(func, blocks, name=name, annotations=annotations, waits=waits)
        tasks: list[Task] = []
        for block, (worker, priority), wait in zip(blocks, places, waits, strict=True):
            before = tasks[-1:] if wait else []
            tasks.append(
                self.submit(func, block, *before, name=name, worker=worker, priority=priority)
            )
        return tasks

    def gather(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results in order; after a failure the other tasks are cancelled."""
        try:
            with seceded():
                results = gather(self.client, tasks, self._has_workers, since=self._start_time)
        except BaseException:
            self.cancel(tasks)
            raise
        if sizeof(results) < GATHERED_BYTES:
            self._gathered.append(tasks)
        return results

    def as_completed(self, tasks: Sequence[Task]) -> Iterator[Task]:
        with seceded():
            yield from completed(self.client, tasks, self._has_workers, are_own=True)

    def completion_queue(self) -> DaskCompletionQueue:
        return DaskCompletionQueue(self.client, self._has_workers)

    def _has_workers(self, workers: dict[str, WorkerInfo]) -> bool:
        """Return whether any of these workers satisfies the engine's own resource request."""
        return any(_is_eligible(worker, self.resources) for worker in workers.values())

    def has_failed(self, task: Task) -> bool:
        return bool(task.status in ("error", "cancelled", "lost"))

    def is_done(self, task: Task) -> bool:
        return bool(task.status == "finished")

    def cancel(self, tasks: Sequence[Task]) -> None:
        self.client.cancel(list(tasks), force=True)

    def scatter_small(self, value: object) -> Task:
        """Send a value to the cluster once; workers pass it on among themselves.

        It is the result of a task, so that Dask recomputes it if its only holder dies.
        """
        return self.submit(identity, value, name="share")

    def scatter(self, value: object) -> ScatteredObject:
        """Send a large value once, to the worker that first needs it; others get it from there."""
        parcel, limit = Pickled.dumps(value), self.memory_limit
        if parcel.nbytes > limit:
            raise ValueError(
                "Rows that a worker is to have as a whole must fit into its memory. Got "
                f"{parcel.nbytes / 1e6:.0f} MB for {limit / 1e6:.0f} MB instead. Let workers read "
                "them: make X a Dask array or DataFrame of files."
            )
        return ScatteredObject(self.client, parcel, is_resendable=True, resources=self.resources)

    def rescatter(self, scattered: ScatteredObject) -> None:
        scattered.rescatter()

    def release(self, handle: ScatteredObject | Future) -> None:
        """Release a scattered value or a task, though the frames of an error still refer to it."""
        handle.release()

    def count_slots(self, resources: ResourceRequest) -> int:
        request = (self.resources if resources == ANY_WORKER else resources).as_dict()
        return sum(
            count_slots(worker["nthreads"], worker.get("resources") or {}, request)
            for worker in self._workers().values()
        )

    def group_by_worker(self, blocks: Sequence[BlockRef]) -> list[list[BlockRef]]:
        return group_by_worker(self.client, blocks)

    @contextmanager
    def persist(self, rows: RowBlocks, *, to_disk: bool = True) -> Iterator[RowBlocks]:
        """Load the blocks into the workers' memory, if the config asks for that or they fit.

        Blocks that do not fit are written to the workers' disks, where that is allowed and faster.
        """
        # Blocks that workers have already, or that come from this process, stay as they are.
        unloaded = [block for block in rows.blocks if not is_persisted(block)]
        if not unloaded:
            yield rows
            return
        if (progress := current_fit_progress()) is not None:
            progress.begin_stage("loading", len(unloaded))
        # Memory, else the disks, else nothing: then each pass loads the blocks.
        probe = Probe(self, replace(rows, blocks=tuple(unloaded)))
        in_memory = self._fits_in_memory(probe)
        shares_subgraph = has_shared_subgraph(unloaded)
        if not in_memory and not (to_disk and should_store(self, probe, shares_subgraph)):
            yield rows
            return
        store = partial(store_block, dtype=rows.dtype, limit=disk_limit())
        load = load_block if in_memory else store
        tasks: list[Task] = []

        def load_all(submitted: list[Task]) -> None:
            """Wait until all are in memory or on the disk, or one has failed."""
            tasks[:] = submitted
            for task in count_steps(self.as_completed(submitted), "loading", len(submitted)):
                # Its error is raised at once, while the others still load.
                if self.has_failed(task):
                    self.gather([task])

        try:
            submit = partial(self._map_partitions, load, name="load-block")
            gather_or_halve(self, submit, unloaded, load_all)
            futures = iter(tasks)
            blocks = tuple(
                block if is_persisted(block) else persisted_block(block, next(futures), in_memory)
                for block in rows.blocks
            )
            yield replace(rows, blocks=blocks)
        finally:
            self._gathered.clear()
            for task in tasks:
                task.release()

    @contextmanager
    def persist_collections(
        self, rows: RowBlocks, collections: Sequence[RowsT]
    ) -> Iterator[list[RowsT]]:
        unloaded = tuple(block for block in rows.blocks if not is_persisted(block))
        if not unloaded or not self._fits_in_memory(Probe(self, replace(rows, blocks=unloaded))):
            yield list(collections)
            return
        with no_large_graph_warning():
            persisted, futures = persist_together(collections, self.client)
        add_counts(tasks=len(futures), loads=len(unloaded))
        for future in self.as_completed(futures):
            if self.has_failed(future):
                self.gather([future])
        yield persisted

    def _fits_in_memory(self, probe: Probe) -> bool:
        """Return whether the workers load rows into their memory, by the config or their size."""
        keep_blocks: Any = get_config().keep_blocks
        if keep_blocks != "auto":
            return bool(keep_blocks)
        if probe.most_bytes <= (free := self.free_bytes()):
            return True
        if (progress := current_fit_progress()) is not None:
            progress.state.n_bytes = probe.n_bytes  # of the blocks as they were measured
        return probe.n_bytes <= free

    @contextmanager
    def persist_sources(self, blocks: Sequence[BlockRef]) -> Iterator[list[BlockRef]]:
        """Persist the subgraph that several blocks share (a shuffle, say) inside a ``with``."""
        sources = {id(b.X.source): b.X.source for b in blocks if getattr(b.X, "shared", ())}
        futures: dict[Any, Future] = {}
        for source in sources.values():
            add_counts(tasks=len(source.graph))
            graph = HighLevelGraph.from_collections("shared", source.graph, dependencies=())
            outputs = [Delayed(key, graph, layer="shared") for key in source.outputs]
            with no_large_graph_warning():
                computed = self.client.compute(outputs, optimize_graph=False)
            futures |= dict(zip(source.outputs, computed, strict=True))
        try:
            yield [
                b._replace(X=b.X.with_shared(futures)) if getattr(b.X, "shared", ()) else b
                for b in blocks
            ]
        finally:
            for future in futures.values():
                future.release()

    def with_block_cache(self, rows: RowBlocks) -> RowBlocks:
        """Return the same rows with a cache for every block in memory, or on a disk if they fit.

        A block that was loaded has one already. Any other's is the result of a task with the block
        as an argument, so it is on the block's worker, and is freed with the last handle.
        """
        fit = can_have_cache(rows, len(self.worker_threads()), self.memory_limit)
        has_place = is_on_worker if fit else is_resident
        uncached = [block for block in rows.blocks if has_place(block) and block.cache is None]
        futures = self.map(new_block_cache, list(map(futures_of, uncached)), name="block-cache")
        caches = dict(zip((block.number for block in uncached), futures, strict=True))
        blocks = tuple(b._replace(cache=caches.get(b.number, b.cache)) for b in rows.blocks)
        return replace(rows, blocks=blocks)

    def is_out_of_core(self, rows: RowBlocks) -> bool:
        return not all(map(is_resident, rows.blocks))

    def resident_nbytes(self, rows: RowBlocks) -> int | None:
        return resident_nbytes(self.client, rows.blocks)

    def worker_threads(self) -> dict[str, int]:
        """Return the threads of each worker that may run tasks of this engine, by address."""
        workers = self._eligible(scheduler_workers(self.client))
        return {address: worker["nthreads"] for address, worker in workers.items()}

    def free_bytes(self) -> float:
        """Return how much workers can load before they begin to spill, half of memory spared.

        GPU workers say themselves what is free: the driver counts what pools keep as used.
        """
        workers = self._eligible(scheduler_workers(self.client))
        if "GPU" in self.resources.as_dict():
            free = self.client.run(device_memory_available, workers=[*workers], on_error="ignore")
            return 0.5 * sum(free.values())
        return sum(map(free_bytes, workers.values()))

    @property
    def memory_limit(self) -> int:
        """Bytes that this process, and every worker for tasks of this engine, may hold."""
        workers = self._eligible(self._workers()).values()
        limits = [worker["memory_limit"] or MEMORY_LIMIT for worker in workers]
        return int(min([*limits, psutil.virtual_memory().available]))

    def _eligible(self, workers: Mapping[str, WorkerInfo]) -> dict[str, WorkerInfo]:
        """Return those of some workers that may run tasks of this engine."""
        return {a: w for a, w in workers.items() if _is_eligible(w, self.resources)}

    def _task_options(self, resources: ResourceRequest, priority: float) -> dict[str, Any]:
        """Return the scheduler's options for a task, after checking that a worker can run it."""
        if resources == ANY_WORKER:
            resources = self.resources
        elif resources != self.resources:
            self.check(resources)
        request = {} if resources == ANY_WORKER else {"resources": resources.as_dict()}
        return {"priority": priority, **request}


def _is_eligible(worker: WorkerInfo, request: ResourceRequest) -> bool:
    return satisfies(worker.get("resources") or {}, request)
