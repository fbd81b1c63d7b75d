"""A group of child processes on the workers of a cluster, which train together (`ProcessGroup`)."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from distributed import Future, wait

from skfleet._cluster import PauseCheck, scheduler_workers, seceded, wait_for_workers
from skfleet.blocks import Block, BlockRef
from skfleet.engine._counters import add_counts
from skfleet.engine._dask._disk_blocks import CachedBlock, StoredBlock, store_block
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._dask._graph import has_shared_subgraph
from skfleet.engine._dask._scatter import no_large_graph_warning, substitute_futures
from skfleet.engine._dask._task_events import DaskCompletionQueue
from skfleet.engine._dask._worker_processes import (
    CallResult,
    ProcessHandle,
    call_process,
    preload_process,
    start_process,
)
from skfleet.engine._disk_cache import disk_limit
from skfleet.engine._protocol import TaskResult
from skfleet.exceptions import NoWorkersError

# Seconds between two looks at what has completed.
POLL_SECONDS = 1.0
# Seconds to wait, after an error in one process, for the others: one may be lost, which explains
# the error.
ERROR_SECONDS = 3.0
# Times that a call is submitted again that the scheduler has moved to another worker.
MAX_MOVES = 20


class Placement(NamedTuple):
    """The worker of a process, the threads that it may use, and all workers of its machine."""

    address: str
    n_threads: int
    neighbors: Sequence[str]


def machine_of(address: str) -> str:
    """Return the host of a worker's address."""
    return urlsplit(address).hostname or address


def threads_of_machine(engine: DaskEngine) -> int:
    """Return the number of threads that all workers of a machine have; the least of any machine."""
    threads: Counter[str] = Counter()
    for address, n in engine.worker_threads().items():
        threads[machine_of(address)] += n
    return min(threads.values(), default=1)


class GroupLostError(RuntimeError):
    """A process of a group died, hung or could not be started; the group is of no use then."""

    def __init__(self, rank: int, reason: str, address: str) -> None:
        super().__init__(f"process {rank} on {address} was lost: {reason}")


class ProcessGroup:
    """Processes on workers that hold ``factory(rank)``, one for each placement.

    With `in_workers` they are threads of the workers.

    They end when the group is closed, or the client dies.
    """

    def __init__(
        self,
        engine: DaskEngine,
        factory: Callable[[int], object],
        placements: Sequence[Placement],
        *,
        timeout: float,
        name: str,
        in_workers: bool = False,
    ) -> None:
        self._engine, self._name, self._timeout = engine, name, timeout
        self._addresses = [place.address for place in placements]
        self._starts: list[Future] = []
        self._handles: list[ProcessHandle] = []
        try:
            for rank, place in enumerate(placements):
                call = (start_process, factory, (rank,), place.n_threads, in_workers)
                self._starts.append(self._submit(f"start-{name}", place.address, *call))
            self._handles = self._wait()
            # Dask may have moved a start before it ran.
            self._addresses = [handle.address for handle in self._handles]
        except BaseException:
            self.close()
            raise

    @property
    def hosts(self) -> list[str]:
        """The host of each process, as others can reach it."""
        return [handle.host for handle in self._handles]

    def call(
        self,
        method: str,
        args: Sequence[tuple[object, ...]],
        *,
        ranks: Sequence[int] | None = None,
        seconds: float = 0.0,
    ) -> list[Any]:
        """Return the results of a method of all processes, or some, each with its own arguments.

        Raises a GroupLostError where a process is lost, or none of them answers within `seconds`
        and the timeout; else the first error.
        """
        ranks = list(range(len(self._handles)) if ranks is None else ranks)
        tasks = {
            self._submit_call(rank, method, a): rank for rank, a in zip(ranks, args, strict=True)
        }
        try:
            results = self._collect(tasks, method, args, time.monotonic() + seconds + self._timeout)
        finally:
            for task in tasks:
                task.release()
        return [results[rank].value for rank in ranks]

    # A call that has failed waits a little for those of the other processes: where one of these is
    # lost, the error is but a consequence.
    def _collect(
        self,
        tasks: dict[Future, int],
        method: str,
        args: Sequence[tuple[object, ...]],
        deadline: float,
    ) -> dict[int, CallResult]:
        queue = self._engine.completion_queue()
        for task in tasks:
            queue.add(task)
        results: dict[int, CallResult] = {}
        error: BaseException | None = None
        n_moves, ranks = 0, list(tasks.values())
        while len(results) < len(ranks):
            pending = [rank for rank in ranks if rank not in results]
            if time.monotonic() >= deadline:
                if error is not None:
                    raise error
                raise self._lost(pending[0], f"{method} gave no answer in time")
            for done in self._completed(queue, pending, deadline):
                rank, result = tasks[done.task], done.value
                if done.error is not None:
                    raise self._lost(rank, str(done.error) or type(done.error).__name__)
                if result.is_elsewhere and n_moves < MAX_MOVES and self._is_alive(rank):
                    n_moves += 1  # Dask has stolen the task
                    task = self._submit_call(rank, method, args[ranks.index(rank)])
                    tasks[task] = rank
                    queue.add(task)
                    continue
                if result.lost:
                    raise self._lost(rank, result.lost)
                results[rank] = result
                if result.error is not None and error is None:
                    error = result.error
                    deadline = min(deadline, time.monotonic() + ERROR_SECONDS)
        if error is not None:
            raise error
        return results

    def _completed(
        self, queue: DaskCompletionQueue, ranks: Sequence[int], deadline: float
    ) -> list[TaskResult]:
        """Return the tasks that complete within a poll; raise for a rank whose worker is gone.

        A task for a dead worker may run anywhere, but one that met no worker at all is not looked
        at again when another comes.
        """
        completed = queue.next(max(0.0, min(POLL_SECONDS, deadline - time.monotonic())))
        for rank in ranks if not completed else ():
            if not self._is_alive(rank):
                raise self._lost(rank, "its worker died")
        return completed

    def _is_alive(self, rank: int) -> bool:
        """Return whether the worker of a rank is there."""
        client = self._engine.client
        return self._addresses[rank] in scheduler_workers(client, POLL_SECONDS / 2)

    def _lost(self, rank: int, reason: str) -> GroupLostError:
        return GroupLostError(rank, reason, self._addresses[rank])

    def _submit_call(self, rank: int, method: str, args: tuple[object, ...]) -> Future:
        handle = self._handles[rank]
        name = f"{method}-{self._name}"
        return self._submit(name, handle.address, call_process, handle, method, args, self._timeout)

    def _submit(
        self, name: str, address: str, func: Callable[..., object], *args: object
    ) -> Future:
        add_counts(tasks=1)
        with no_large_graph_warning():
            return self._engine.client.submit(
                func,
                *substitute_futures(args),
                key=f"{name}-{uuid.uuid4().hex}",
                pure=False,
                workers=[address],
                allow_other_workers=True,  # or it would wait for ever for a dead worker
                priority=10,
            )

    def _wait(self) -> list[ProcessHandle]:
        """Return the handles of the processes, once all have started."""
        queue = self._engine.completion_queue()
        ranks = {task: rank for rank, task in enumerate(self._starts)}
        for task in ranks:
            queue.add(task)
        handles: dict[int, ProcessHandle] = {}
        deadline = time.monotonic() + self._timeout
        while len(handles) < len(ranks):
            pending = [rank for rank in ranks.values() if rank not in handles]
            if time.monotonic() >= deadline:
                raise self._lost(pending[0], f"it did not start within {self._timeout:g} seconds")
            for done in self._completed(queue, pending, deadline):
                if done.error is not None:
                    raise self._lost(ranks[done.task], str(done.error))
                handles[ranks[done.task]] = done.value
        return [handles[rank] for rank in ranks.values()]

    def close(self) -> None:
        """End the processes."""
        for task in self._starts:
            task.release()
        self._starts = []


class ProcessLauncher:
    """Starts groups of processes, one for each machine of a cluster at first.

    A process has the threads of all workers of its machine, or `n_threads`. With `in_workers` each
    worker holds its object in a thread of its own, which takes arrays on its GPU as they are. When
    workers are gone for good, as many processes run with as many threads: then a machine has
    several.
    """

    lost_error = GroupLostError

    def __init__(
        self,
        engine: DaskEngine,
        factory: Callable[..., object],
        *,
        timeout: float,
        name: str,
        n_threads: int | None = None,
        in_workers: bool = False,
    ) -> None:
        self.engine, self._factory, self._timeout, self._name = engine, factory, timeout, name
        self._in_workers = in_workers
        workers = dict(sorted(engine.worker_threads().items()))
        machines: dict[str, list[str]] = {}
        for address in workers:
            key = address if in_workers else machine_of(address)
            machines.setdefault(key, []).append(address)
        self._placements = [
            Placement(members[0], n_threads or sum(map(workers.__getitem__, members)), members)
            for members in machines.values()
        ]
        # The block, the rank and the worker of each task that stores one.
        self._sources: dict[Any, tuple[BlockRef, int, str]] = {}

    @property
    def threads(self) -> list[int]:
        """The threads of each process that there is a place for."""
        return [place.n_threads for place in self._placements]

    @property
    def memory_limits(self) -> list[int]:
        """The bytes that each process may hold."""
        limit = self.engine.memory_limit
        if self._in_workers:  # of their GPU, as far as NVML reports it
            workers = scheduler_workers(self.engine.client)
            gpus = [(workers.get(p.address) or {}).get("gpu") or {} for p in self._placements]
            return [gpu.get("memory-total", limit) for gpu in gpus]
        return [len(place.neighbors) * limit for place in self._placements]

    def preload(self) -> None:
        """Start processes that load their libraries meanwhile."""
        if self._in_workers:
            return
        self._preloaded = [
            self.engine.submit(
                preload_process,
                self._factory,
                place.n_threads,
                name=f"preload-{self._name}",
                worker=place.address,
            )
            for place in self._placements
        ]

    def start(self, n: int) -> ProcessGroup:
        """Start n processes."""
        placements = self._placements[:n]
        return ProcessGroup(
            self.engine,
            self._factory,
            placements,
            timeout=self._timeout,
            name=self._name,
            in_workers=self._in_workers,
        )

    def recover(self, n: int, seconds: float) -> None:
        """Place the processes of dead workers on others; at first, wait for as many as before."""
        deadline = time.monotonic() + seconds
        wait_for_workers(self.engine.client)
        alive = list(self.engine.worker_threads())
        while len(alive) < n and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 4)
            alive = list(self.engine.worker_threads())
        if not alive:
            raise NoWorkersError(
                "training must have a worker. Got none instead: all have died. Start workers."
            )
        loads = Counter(dict.fromkeys(alive, 0))
        loads.update(p.address for p in self._placements[:n] if p.address in loads)
        for rank, place in enumerate(self._placements[:n]):
            machines = {machine_of(address) for address in place.neighbors}
            near = [address for address in alive if machine_of(address) in machines] or alive
            address = place.address
            if address not in loads:
                address = min(near, key=lambda a: loads[a])
                loads[address] += 1
            self._placements[rank] = place._replace(address=address, neighbors=near)

    def store(self, blocks: Sequence[BlockRef]) -> list[BlockRef]:
        """Return references to blocks that tasks write to the disks of the workers, in order."""
        limit, n = disk_limit(), len(blocks)
        add_counts(passes=1)
        # Rows of this process would go through the scheduler with their task.
        blocks = [
            BlockRef(self.engine.scatter(block), number=block.number, row_offset=block.row_offset)
            if isinstance(block, Block)
            else block
            for block in blocks
        ]
        if has_shared_subgraph(list(blocks)):  # goes to the cluster in one graph, placed by Dask
            tasks = self.engine.map(_store, blocks, limit, name="store-block")
            return [_stored(block, task) for block, task in zip(blocks, tasks, strict=True)]
        fractions = np.cumsum(self.threads) / sum(self.threads)
        ranks = np.searchsorted(fractions, (np.arange(n) + 0.5) / n)
        stored = [self._store_on(*pair) for pair in zip(blocks, ranks.tolist(), strict=True)]
        return self.restore(stored)

    def restore(self, stored: Sequence[BlockRef]) -> list[BlockRef]:
        """Return references to stored blocks, once all are; those of dead workers anew elsewhere.

        Dask would write them again too, but not where there was no worker for a moment.
        """
        refs = list(stored)
        pauses = PauseCheck(self.engine.client)
        while True:
            alive = wait_for_workers(self.engine.client)
            pending = []
            for i, ref in enumerate(refs):
                task = ref.X.stored
                source = self._sources.get(task.key)
                if source is None:
                    continue
                block, rank, address = source
                if address not in alive:
                    del self._sources[task.key]
                    task.release()
                    refs[i] = self._store_on(block, rank)
                    pending.append(refs[i].X.stored)
                elif task.status == "pending":
                    pending.append(task)
            if not pending:
                return refs
            with seceded(), suppress(TimeoutError):
                wait(pending, timeout=POLL_SECONDS)
            pauses.look()

    def _store_on(self, block: BlockRef, rank: int) -> BlockRef:
        """Submit the task that writes a block to the disk of a rank's machine."""
        neighbors = self._placements[rank].neighbors
        address = neighbors[len(self._sources) % len(neighbors)]
        task = self.engine.submit(_store, block, disk_limit(), name="store-block", worker=address)
        self._sources[task.key] = block, rank, address
        return _stored(block, task)


def _stored(block: BlockRef, task: Future) -> BlockRef:
    return BlockRef(CachedBlock(task), number=block.number, row_offset=block.row_offset)


def _store(block_ref: BlockRef, limit: float) -> StoredBlock | BlockRef:
    return store_block(block_ref, None, limit)
