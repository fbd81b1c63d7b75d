"""Estimate of the memory that a search takes, and how many fits it lets run at a time.

The functions compute with numbers alone. An estimate has the bytes that are certain: X once for
each worker process, and for each running fit its training and test rows, the outputs of
preprocessing steps, and the copies that estimators are known to make. What else an estimator makes
of its rows is unknown, and counts as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from skfleet._display import format_bytes

# Fractions of a worker's memory: fits are planned up to the first, at which Dask begins to write
# data to the disk, and refused above the second, at which it ends a worker.
PLANNED_FRACTION, LARGEST_FRACTION = 0.7, 0.95
# Of the memory that a worker process has in use, so much counts as that of Python and the imported
# libraries. The rest is of earlier work, and will be free.
MAX_IDLE_BYTES = 300_000_000

_FLOAT32_COPIES = (
    RandomForestClassifier, RandomForestRegressor, ExtraTreesClassifier, ExtraTreesRegressor,
    GradientBoostingClassifier, GradientBoostingRegressor, DecisionTreeClassifier,
    DecisionTreeRegressor,
)  # fmt: skip
_UINT8_BINS = (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
# Rows from which on `early_stopping="auto"` of histogram gradient boosting holds some out.
_MIN_EARLY_STOPPING_ROWS = 10_000


# The name of the calling process, in which workers on threads are.
IN_PROCESS = "this process"


def process_of(address: str) -> str:
    """Return the name of the process of a worker: workers on threads are all in one."""
    return IN_PROCESS if address.startswith("inproc://") else address


class RowSize(NamedTuple):
    """Bytes of a row of X and y, and of one of its values."""

    row: float
    item: int


class FitMemory(NamedTuple):
    """Bytes of one running fit."""

    rows: int  # training and test rows
    steps: int = 0  # outputs of the steps of a pipeline for these rows
    copies: int = 0  # of the rows, by the estimator

    @property
    def total(self) -> int:
        return sum(self)


class ProcessMemory(NamedTuple):
    """A worker process: its memory limit, the bytes in use, and the fits that it can run at once.

    ``holds_rows`` is true for workers on threads of the calling process, which has X already.
    """

    limit: int
    used: int
    n_slots: int
    holds_rows: bool = False


class MemoryPlan(NamedTuple):
    """Estimated bytes of a search, and the fits at a time of each worker process by its name."""

    rows: int  # X and y, once for each worker process
    fit: FitMemory
    n_fits: Mapping[str, int]
    processes: Mapping[str, ProcessMemory]
    driver: int

    @property
    def is_bounded(self) -> bool:
        """True if a process runs fewer fits at a time than it has slots."""
        return any(n < self.processes[name].n_slots for name, n in self.n_fits.items())

    def private_bytes(self, name: str) -> int:
        """Return the bytes of all fits that run at a time in a process."""
        return self.n_fits[name] * self.fit.total

    def peak_bytes(self, name: str) -> int:
        """Return the bytes that a process has in use at its peak."""
        return _fixed_bytes(self.processes[name], self.rows) + self.private_bytes(name)

    def spare_bytes(self) -> int:
        """Return the bytes that are left in each process at its peak."""
        spare = [
            int(PLANNED_FRACTION * process.limit) - self.peak_bytes(name)
            for name, process in self.processes.items()
        ]
        return max(0, min(spare, default=0))

    def allowed(self, addresses: Iterable[str]) -> list[str]:
        """Return the slots that may be in use, of the address of a worker for each slot."""
        if not self.is_bounded:
            return list(addresses)
        least = min(self.n_fits.values())
        counts: dict[str, int] = {}
        allowed = []
        for address in addresses:
            name = process_of(address)
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= self.n_fits.get(name, least):
                allowed.append(address)
        return allowed


def fit_memory(estimator: Any, size: RowSize, n_train: int, n_test: int) -> FitMemory:
    """Return the bytes of a fit on so many training and test rows.

    The steps of a pipeline but the last each count as one more copy of the rows.
    """
    steps = [step for _, step in getattr(estimator, "steps", ())] or [estimator]
    rows = size.row * (n_train + n_test)
    n_outputs = sum(step is not None and step != "passthrough" for step in steps[:-1])
    copies = _copied_fraction(steps[-1], size.item, n_train) * size.row * n_train
    return FitMemory(int(rows), int(n_outputs * rows), int(copies))


def _copied_fraction(estimator: Any, itemsize: int, n_train: int) -> float:
    """Return the bytes that an estimator makes of each byte of its training rows."""
    # Trees have the rows in single precision.
    if isinstance(estimator, _FLOAT32_COPIES):
        return 4 / itemsize if itemsize != 4 else 0.0
    if isinstance(estimator, _UINT8_BINS):
        # A byte for each value, and once more the rows where some of them are held out.
        stops_early = estimator.early_stopping
        if stops_early == "auto":
            stops_early = n_train > _MIN_EARLY_STOPPING_ROWS
        return 1 / itemsize + bool(stops_early)
    return 0.0


def refit_bytes(estimator: Any, size: RowSize, n_rows: int) -> int:
    """Return the bytes that the last fit takes in the calling process, which has its rows."""
    fit = fit_memory(estimator, size, n_rows, 0)
    return fit.total - fit.rows


def plan_memory(
    rows: int,
    fit: FitMemory,
    processes: Mapping[str, ProcessMemory],
    *,
    driver: int = 0,
    limit: int | None = None,
) -> MemoryPlan:
    """Plan the fits at a time of each worker process, at least one; none where that cannot fit.

    At most `limit` fits run at a time in all processes.
    """
    n_fits = {}
    if limit is not None:
        processes = {
            name: process._replace(n_slots=min(limit, process.n_slots))
            for name, process in processes.items()
        }
    for name, process in processes.items():
        fixed = _fixed_bytes(process, rows)
        n_planned = int((PLANNED_FRACTION * process.limit - fixed) // max(1, fit.total))
        # A single fit may take more than is planned, up to where Dask ends the worker.
        if n_planned < 1:
            n_planned = int(fixed + fit.total <= LARGEST_FRACTION * process.limit)
        n_fits[name] = min(process.n_slots, n_planned)
    return MemoryPlan(rows, fit, n_fits, processes, driver)


def _fixed_bytes(process: ProcessMemory, rows: int) -> int:
    """Return the bytes of a process whatever number of fits it runs."""
    return idle_bytes(process) + (0 if process.holds_rows else rows)


def check_memory(plan: MemoryPlan) -> None:
    """Raise ValueError where a process cannot run a fit."""
    name = next((name for name, n in plan.n_fits.items() if not n), None)
    if name is None:
        return
    process = plan.processes[name]
    fixed = _fixed_bytes(process, plan.rows)
    parts = [f"one fit {format_bytes(plan.fit.total)}"]
    if process.holds_rows:
        parts.append(f"in use {format_bytes(fixed)}")
    else:
        parts = [f"X {format_bytes(plan.rows)}", *parts]
        parts.append(f"Python {format_bytes(fixed - plan.rows)}")
    raise ValueError(
        "X must fit into each worker together with the rows of one fit. Got about "
        f"{format_bytes(fixed + plan.fit.total)} ({', '.join(parts)}) for a limit of "
        f"{format_bytes(process.limit)} on {name} instead. Start fewer workers with more memory "
        "each (n_workers=, memory_limit=), name the larger ones with "
        'parallel_config("skfleet", workers=[...]), or search on some of the rows.'
    )


def describe_memory(search: str, plan: MemoryPlan) -> str:
    """Return a line on the memory of a search: that of the fullest process."""
    name = max(plan.n_fits, key=lambda name: plan.peak_bytes(name) / plan.processes[name].limit)
    n_fits, process = plan.n_fits[name], plan.processes[name]
    bounded = f" instead of {process.n_slots}" if n_fits < process.n_slots else ""
    fits = "1 fit" if n_fits == 1 else f"{n_fits} fits"
    details = f"{fits} at a time{bounded}, {format_bytes(plan.fit.total)} each"
    driver = None if process.holds_rows else plan.driver
    return memory_line(search, plan.peak_bytes(name), process, plan.rows, details, driver)


def memory_line(
    search: str,
    peak: int,
    process: ProcessMemory,
    rows: int,
    details: str,
    driver: int | None = None,
) -> str:
    """Return a line on the peak of a worker process, and that of the calling process if known."""
    where = "here" if process.holds_rows else "per worker"
    limit = format_bytes(process.limit)
    driver_text = "" if driver is None else f", {format_bytes(driver)} here"
    return (
        f"{search}: about {format_bytes(peak)} {where} (limit {limit}){driver_text}: "
        f"X {format_bytes(rows)}, {details}"
    )


def check_peak(peak: int, smallest: str, process: ProcessMemory, name: str, remedy: str) -> None:
    """Raise ValueError where a process would be ended: `smallest` must fit into each worker."""
    if peak > LARGEST_FRACTION * process.limit:
        raise ValueError(
            f"{smallest} must fit into each worker. Got about {format_bytes(peak)} for a limit of "
            f"{format_bytes(process.limit)} on {name} instead. {remedy}"
        )


def idle_bytes(process: ProcessMemory) -> int:
    """Return the bytes of a process before a search."""
    return process.used if process.holds_rows else min(process.used, MAX_IDLE_BYTES)


def block_memory(
    block: int, train_fraction: float, process: ProcessMemory, resident: int, part: int, n_fits: int
) -> tuple[int, int]:
    """Return the bytes of fits on Dask rows in a worker process: the least, and those at the peak.

    The least is one block, with the training rows cut from it. At the peak a process has the rows
    that are `resident` for all fits, its `part` of the training rows for each of the fits at a
    time, half as many of those before, which Dask is about to release, and the least for each
    thread; as far as it may hold that much, and else the last alone.
    """
    least = int(block * (1 + train_fraction))
    peak = resident + round((n_fits + 0.5) * part) + process.n_slots * least
    fits = peak + idle_bytes(process) <= PLANNED_FRACTION * process.limit
    return least, peak if fits else process.n_slots * least


def adaptive_memory(
    rows: int,
    batch: int,
    preprocessing: int,
    n_slots: int,
    n_processes: int,
    *,
    is_replicated: bool,
) -> int:
    """Return the bytes of an adaptive search in a worker process, but for its models.

    Each process has all rows where they are replicated, and else its part. A training task has the
    rows of one batch, and one task fits the steps before the last of a pipeline.
    """
    return int(rows if is_replicated else rows / n_processes) + n_slots * batch + preprocessing
