"""Settings of the execution in a ``with`` block: engine, device, persisted and cached blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

_CHOICES: dict[str, tuple[object, ...]] = {
    "engine": ("auto", "local", "dask"),
    "device": ("auto", "cpu", "cuda"),
    "keep_blocks": ("auto", True, False),
    "disk_cache": ("auto", True, False),
    "block_bytes": ("auto",),
    "single_task_below": ("auto",),
    "deterministic": (True, False),
    "progress": ("auto", True, False),
    "trust_files": (True, False),
}
# Settings that may be a number of bytes, and the least one.
_LEAST_BYTES = {"disk_cache": 1, "block_bytes": 1, "single_task_below": 0}


@dataclass(frozen=True)
class Config:
    """Current settings."""

    engine: str = "auto"
    device: str = "auto"
    keep_blocks: bool | str = "auto"
    disk_cache: bool | float | str = "auto"
    block_bytes: int | str = "auto"
    single_task_below: int | str = "auto"
    deterministic: bool = False
    progress: bool | str = "auto"
    trust_files: bool = False
    wait_for_workers_timeout: float = 10.0


_DEFAULT = Config()
_current: ContextVar[Config] = ContextVar("skfleet_config", default=_DEFAULT)


def get_config() -> Config:
    """Return the settings of the current context.

    Returns
    -------
    config : Config
        The settings, each as an attribute.

    Examples
    --------
    >>> from skfleet import config_context, get_config
    >>> with config_context(device="cpu"):
    ...     get_config().device
    'cpu'
    """
    return _current.get()


def asks_for_progress(verbose: Any) -> bool:
    """Return whether a search with this `verbose` is to have a bar."""
    return bool(verbose == 1 or (not verbose and get_config().progress is True))


def check_timeout(seconds: object) -> None:
    """Raise unless this is a valid timeout in seconds."""
    if isinstance(seconds, bool) or not isinstance(seconds, Real) or not seconds >= 0:
        raise ValueError(
            "wait_for_workers_timeout must be a number of seconds from 0 on. "
            f"Got {seconds!r} instead. Leave it out for 10 seconds."
        )


@contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Change how skfleet runs inside a ``with`` block.

    Parameters
    ----------
    engine : {"auto", "local", "dask"}, default="auto"
        Where the work on rows runs. ``"auto"`` follows the data: Dask collections run on the
        current Dask client when there is one, everything else in this process. ``"local"``
        runs everything in this process. ``"dask"`` runs everything on the current client, rows
        that live in this process included, and raises without a client.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where the work on rows runs, for estimators whose own ``device`` leaves it open. ``"auto"``
        follows the data: every block is processed where it is, by the library that holds it.
        ``"cpu"`` asks for workers labelled ``CPU``. ``"cuda"`` asks for workers labelled ``GPU``:
        blocks on the host are brought to the GPU in the task that loads them, and stay there for a
        fit that makes several passes; rows of this process go to one GPU worker, or to the GPU of
        this process where no worker has one. Fitted attributes are on the host.
    keep_blocks : {"auto", True, False}, default="auto"
        Whether an estimator that makes several passes keeps the blocks in the memory of the
        workers for the time of the fit. ``"auto"`` keeps them when they fit into what the workers
        have free, and otherwise loads, reduces and drops every block in every pass.
    disk_cache : {"auto", True, False} or number of bytes, default="auto"
        Whether an estimator that makes several passes over rows that are not kept in memory writes
        each block, once loaded and converted, to the local disk of its worker, and maps it from
        there in later passes. The files lie in the worker's ``local_directory`` and are removed
        when the fit ends. A tenth of the disk (10 GiB at most) stays free; blocks that find no room
        are loaded in every pass. A number is the most that each worker may write. ``"auto"`` does
        so for rows too large for memory, where by a trial of some blocks and of the disks three
        passes take less time.
    block_bytes : {"auto"} or number of bytes, default="auto"
        Size in memory of the blocks in which workers read the rows of Parquet files, whatever the
        partitions are, where each row of a frame is made of one row of its files: columns are
        selected, assigned and converted, rows are filtered, gaps filled. ``"auto"`` is 16 MiB,
        less, down to 2 MiB, where the smallest worker has less than 800 MB for each thread, and
        more, up to 128 MiB, where it has more than 1.5 GB, or nothing limits its memory.
        Partitions that are smaller, and those of other frames, are a block each.
    single_task_below : {"auto"} or number of bytes, default="auto"
        Size in memory of Dask rows up to which a fit is one task, on one worker that collects all
        rows, or runs in this process where there is no client: many passes over blocks would take
        longer. Its answers are those of a fit on rows in this process; `Incremental` learns block
        by block there too. ``"auto"`` is 32 MiB, and less where that is more than a 32nd of a
        worker's memory; 0 turns it off. Rows of unknown size are loaded in the task, if they have
        32 blocks at most, and are fitted block by block once they turn out to be larger. So are
        rows and estimators on a GPU, estimators with callbacks, and all rows where `keep_blocks`,
        `disk_cache` or `block_bytes` is set. Searches and cross-validation bring such rows to this
        process. Metrics and scores of Dask rows are one task up to an eighth of it.
    deterministic : bool, default=False
        ``True`` sums block by block in a fixed tree, so that the last bits of an answer do not
        depend on which worker held which block, at the price of one task per block and pass.
    progress : {"auto", True, False}, default="auto"
        Whether a fit that passes over rows shows its passes and blocks: on one bar in a terminal,
        where rich is installed, and in a notebook, else as lines at intervals. ``"auto"`` shows it
        where ``verbose`` of the estimator asks for it (its docstring says so) or
        ``joblib.parallel_config("skfleet", progress=True)``. ``True`` shows it of every fit, search
        and call of joblib, but of estimators whose `verbose` is set and prints lines of its own,
        and ``False`` of no fit. The fits in a pipeline have one bar together, those in a search
        and in tasks have none.
    trust_files : bool, default=False
        Whether checkpoints are in folders that several users share. By default a checkpoint on a
        disk of the machine is written for its owner alone, and one that another user may have
        written is refused: it has pickles, which run code. So is the file of a scheduler's
        address. Locations such as ``s3://`` are as trusted as their store.
    wait_for_workers_timeout : float, default=10
        Seconds for which work waits for a first worker where a scheduler has none, and for a
        scheduler that does not answer, before it raises `skfleet.exceptions.NoWorkersError`. More
        than 60 is also the wait for workers that are all paused for lack of memory, before a
        `skfleet.exceptions.WorkersPausedError`.

    Raises
    ------
    ValueError
        If a setting does not exist or has a value that is not one of the above.

    Notes
    -----
    A device that no worker offers raises `skfleet.exceptions.PlacementError` when an estimator is
    fitted, before any task is submitted.

    Examples
    --------
    >>> import skfleet
    >>> with skfleet.config_context(engine="local", deterministic=True):
    ...     pass
    """
    for name, value in settings.items():
        if name == "wait_for_workers_timeout":
            check_timeout(value)
            continue
        if name not in _CHOICES:
            names = ", ".join([*_CHOICES, "wait_for_workers_timeout"])
            raise ValueError(f"config_context has the settings {names}. Got {name!r} instead.")
        if not any(value is choice or value == choice for choice in _CHOICES[name]):
            choices = ", ".join(repr(choice) for choice in _CHOICES[name])
            if name in _LEAST_BYTES:
                is_number = isinstance(value, Real) and not isinstance(value, bool)
                is_finite = name == "disk_cache" or (is_number and value < math.inf)
                if is_number and value >= _LEAST_BYTES[name] and is_finite:
                    continue
                choices += " or a number of bytes, as 50e9"
            raise ValueError(f"{name} must be one of {choices}. Got {value!r} instead.")
    token = _current.set(replace(_current.get(), **settings))
    try:
        yield
    finally:
        _current.reset(token)
