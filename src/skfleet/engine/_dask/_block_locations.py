"""Locations of blocks on a cluster: in which worker's memory, or on which worker's disk."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

from dask.typing import Key
from distributed import Client, Future
from distributed.system import MEMORY_LIMIT

from skfleet._cluster import WorkerInfo, scheduler_workers
from skfleet.blocks import BlockRef, LazyBlock, by_partition, file_sizes
from skfleet.engine._dask._disk_blocks import group_mapped
from skfleet.engine._disk_cache import is_cached

# Parts of a device's memory of which one task's blocks take at most one. Dask brings back all that
# it has spilled of a task's blocks, and of the next one's meanwhile.
DEVICE_PARTS = 4
# Bytes of files that a task of a pass reads, in blocks: Dask takes milliseconds for each task.
TASK_BYTES = 128 * 2**20
# Runs into which the pieces of a partition are cut for idle threads. All but the first may have
# to skip what is before them in the file.
MAX_RUNS = 4
# A worker's label and the size of its device do not change: a description may be so old.
DESCRIPTION_SECONDS = 60.0


def is_resident(block: BlockRef) -> bool:
    """Return whether a block, or all its parts, are in workers' memory, and on their device."""
    if block.to_device:
        return False
    return isinstance(block.X, Future) or getattr(block.X, "is_resident", False)


def is_on_worker(block: BlockRef) -> bool:
    """Return whether some worker has a block, in memory or on its disk."""
    return is_resident(block) or is_cached(block)


def is_persisted(block: BlockRef) -> bool:
    """Return whether loading a block would bring nothing to a worker's memory or disk."""
    return is_on_worker(block) or not (block.to_device or isinstance(block.X, LazyBlock))


def futures_of(block: BlockRef) -> list[Future]:
    """Return the futures of a block's parts that some worker has."""
    if is_cached(block):
        return [block.X.stored]
    if isinstance(block.X, Future):
        parts = (*block[:3], *(block.per_sample or {}).values())
        return [part for part in parts if part is not None]
    return list(getattr(block.X, "inputs", {}).values())


def resident_nbytes(client: Client, blocks: Sequence[BlockRef]) -> int | None:
    """Return the bytes of blocks' futures in workers' memory; None while some are not there yet."""
    futures = {future.key: future for block in blocks for future in futures_of(block)}
    if not futures:
        return 0
    # A question may come before the message that makes a key known.
    if any(future.status != "finished" for future in futures.values()):
        return None
    sizes = client.nbytes(list(futures), summary=False)
    return sum(sizes.values()) if len(sizes) == len(futures) else None


def free_bytes(worker: WorkerInfo) -> float:
    """Return how much a worker can load before it begins to spill, half of its memory spared."""
    limit, used = worker["memory_limit"] or MEMORY_LIMIT, worker["metrics"].get("memory", 0)
    return max(0.0, 0.5 * limit - used)


def group_by_worker(client: Client, blocks: Sequence[BlockRef]) -> list[list[BlockRef]]:
    """Group blocks by the worker that has most parts of each; any other block is a group.

    So are the pieces of a partition, or runs of them, which a task reads one after the other, and
    small files.
    Of one worker, blocks in memory are one group; of a GPU worker, as many as take a part of its
    device's memory. Those on its disk are one for each thread, which maps one at a time.
    """
    # Blocks that are loaded for the pass can run anywhere: the scheduler chooses.
    workers = scheduler_workers(client, max_age=DESCRIPTION_SECONDS)
    on_workers = [block for block in blocks if is_on_worker(block)]
    n_threads = sum(worker["nthreads"] for worker in workers.values())
    loaded = runs_of_pieces([block for block in blocks if not is_on_worker(block)], n_threads)
    single = _join_small_files(loaded, n_threads)
    if not on_workers:
        return single
    # One question for all blocks, since each is a round trip.
    futures = {f.key: f for block in on_workers for f in futures_of(block)}
    holders = client.who_has(list(futures.values()))
    if not workers.keys() >= {address for own in holders.values() for address in own}:
        workers = scheduler_workers(client)
    groups: dict[str, list[BlockRef]] = {address: [] for address in workers}
    lost = []
    # A block's parts may be on several workers, and a part on more than one.
    candidates: dict[int, list[str]] = {}  # of a block's position, the workers with most parts
    for i, block in enumerate(on_workers):
        n_parts: dict[str, int] = defaultdict(int)
        for future in futures_of(block):
            for address in holders.get(future.key, ()):
                if address in groups:  # it may have left since it was listed
                    n_parts[address] += 1
        if n_parts:
            most = max(n_parts.values())
            candidates[i] = [address for address, n in n_parts.items() if n == most]
        else:
            lost.append(block)
    # Blocks that one worker has come first; of several workers, the one with the fewest blocks.
    n_blocks, places = dict.fromkeys(groups, 0), {}
    for i in sorted(candidates, key=lambda i: len(candidates[i])):
        places[i] = min(candidates[i], key=n_blocks.__getitem__)
        n_blocks[places[i]] += 1
    for i in sorted(places):
        groups[places[i]].append(on_workers[i])
    for block in lost:  # Dask computes it again somewhere after a worker's death
        if groups:
            min(groups.values(), key=len).append(block)
        else:
            single.append([block])
    # A task for each worker, unless all of its blocks at a time would be too many.
    all_parts = []
    for address, group in groups.items():
        n_threads = workers[address]["nthreads"]
        parts = group_mapped(group, n_threads)
        limit = _device_limit(workers[address], n_threads)
        if limit and len(group) > 1:
            n_bytes = client.nbytes([f.key for b in group for f in futures_of(b)], summary=False)
            parts = [part for whole in parts for part in _group_by_size(whole, n_bytes, limit)]
        all_parts += parts
    return all_parts + single


def _device_limit(worker: WorkerInfo, n_threads: int) -> int:
    """Return the bytes of one task's blocks on a GPU worker; 0 for others, or if NVML is silent."""
    is_gpu = (worker.get("resources") or {}).get("GPU")
    n_bytes = (worker.get("gpu") or {}).get("memory-total") or 0
    return n_bytes // (DEVICE_PARTS * n_threads) if is_gpu else 0


def _group_by_size(
    blocks: Sequence[BlockRef], n_bytes: Mapping[Key, int], limit: int
) -> list[list[BlockRef]]:
    """Collect blocks, in order, into groups of at most `limit` bytes or one block."""
    groups: list[list[BlockRef]] = []
    room = 0
    for block in blocks:
        size = sum(n_bytes.get(future.key, 0) for future in futures_of(block))
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(block)
        room -= size
    return groups


def runs_of_pieces(blocks: Sequence[BlockRef], n_threads: int) -> list[list[BlockRef]]:
    """Group blocks that are pieces of a partition; others are alone.

    Where there are several threads for each partition, its pieces are cut into a run for each.
    """
    groups = by_partition(blocks)
    n_runs = min(n_threads // max(1, len(groups)), MAX_RUNS)
    return [run for group in groups for run in _group_evenly(group, n_runs)]


def _join_small_files(groups: list[list[BlockRef]], n_threads: int) -> list[list[BlockRef]]:
    """Join blocks that are read from files of few bytes, where all threads have some to read."""
    blocks = [block for group in groups for block in group]
    sizes = file_sizes(blocks)
    if not blocks or sizes is None:
        return groups
    n_threads = max(1, n_threads)
    n_per_task = max(1, TASK_BYTES * len(blocks) // max(1, int(sum(sizes))))
    n_rounds = math.ceil(len(blocks) / (n_per_task * n_threads))
    return _group_evenly(blocks, n_rounds * n_threads)


def _group_evenly(blocks: list[BlockRef], n: int) -> list[list[BlockRef]]:
    """Cut blocks, in order, into at most n parts of about as many."""
    n = max(1, min(n, len(blocks)))
    bounds = [len(blocks) * i // n for i in range(n + 1)]
    return [blocks[low:high] for low, high in pairwise(bounds)]


def worker_options(address: str | None) -> dict[str, Any]:
    """Return the scheduler's options for a task that runs on a worker if it is there."""
    return {} if address is None else {"workers": [address], "allow_other_workers": True}


def places_of_pieces(
    groups: Sequence[Sequence[BlockRef]], worker_threads: Mapping[str, int]
) -> list[tuple[str | None, float]]:
    """Return the worker and the priority for each block in groups of pieces.

    The pieces of a group have one worker. The workers take a group for each thread at a time. A
    group of one piece goes anywhere.
    """
    n_threads = sum(worker_threads.values()) or 1
    pieces = [(k // n_threads, i, k) for k, group in enumerate(groups) for i in range(len(group))]
    ranks = {piece: rank for rank, piece in enumerate(sorted(pieces))}
    workers = cycle(worker_threads or [None])
    chosen = [next(workers) if len(group) > 1 else None for group in groups]
    return [(chosen[piece[2]], -ranks[piece] / len(pieces)) for piece in pieces]
