"""Arrays that no memory holds, made on the device block by block: a mean, and a large SVD."""

from __future__ import annotations

import importlib
import time
from functools import lru_cache, partial
from typing import Any

import dask
import dask.array as da
import numpy as np
from bench_large_svd import exact, prototype_of, prototypes
from gpu_cases.machine import generator
from gpu_cases.run import Run, n_cores
from scipy import linalg

from skfleet import Fleet, config_context
from skfleet._array import to_host
from skfleet.engine import counting
from skfleet.estimators import TruncatedSVD

WIDTH = 1_000
WHOLE_ROWS, WHOLE_COLUMNS = 10_000_000, 20_000


def squares(run: Run) -> None:
    """The mean of squares of normal numbers, which is 1."""
    sizes, library = run.sizes, run.machine.library
    rates = run.machine.rates
    n_blocks, rows = _cut(sizes.squares_bytes, sizes.squares_block)
    n_bytes = 4.0 * WIDTH * rows * n_blocks

    who = f"{library}, one task at a time"

    def looked_at(mean: float) -> dict[str, Any]:
        return {
            "mean": mean,
            "bytes": n_bytes,
            "blocks": n_blocks,
            "bytes_a_second": n_bytes / run.seconds[who],
            "floor_writing": n_bytes / rates.copy,
        }

    lazy = normal(library, n_blocks, rows)
    run.timed(who, lambda: mean_of_squares(lazy), looked_at)
    # blocks of a size that suits a core's share of the memory
    n_blocks_host, rows_host = _cut(sizes.squares_bytes, min(sizes.squares_block, 64e6))

    def some(n_rows: int) -> Any:
        return normal("numpy", max(1, n_rows // rows_host), rows_host)

    run.timed_share(
        "NumPy on all cores",
        some,
        lambda X: mean_of_squares(X, scheduler="threads", num_workers=n_cores()),
        n_blocks_host * rows_host,
        lambda mean: {"mean": mean},
        step=rows_host,
    )
    run.ratios(who, ["NumPy on all cores"])


def _cut(n_bytes: float, block: float) -> tuple[int, int]:
    """Return into how many blocks of how many rows so many bytes of float32 are cut."""
    rows = max(1, int(block // (4 * WIDTH)))
    return max(1, round(n_bytes / (4 * WIDTH * rows))), rows


def normal(library: str, n_blocks: int, rows: int) -> da.Array:
    """Return a lazy array of normal numbers."""
    xp = importlib.import_module(library)
    return da.map_blocks(
        partial(_normal, library, rows),
        chunks=((rows,) * n_blocks, (WIDTH,)),
        dtype=np.float32,
        meta=xp.empty((0, 0), dtype=np.float32),
    )


def _normal(library: str, rows: int, block_id: tuple[int, int] | None = None) -> Any:
    """Make a block, by its number."""
    return generator(library, block_id[0]).standard_normal((rows, WIDTH), dtype=np.float32)


def mean_of_squares(X: da.Array, scheduler: str = "synchronous", **settings: Any) -> float:
    """Compute the mean of the squares."""
    return float(to_host((X**2).mean().compute(scheduler=scheduler, **settings)))


def svd(run: Run) -> None:
    """Ten components of genotypes: all of them, or as many rows as there is time for."""
    library = run.machine.library
    patience = run.sizes.patience
    # Rows of integers are worked on in double precision.
    _grow(run, "uint8", library, np.uint8, 3 * patience)
    _grow(run, "as float32", library, np.float32, 2 * patience)
    if run.machine.on_device:
        _grow(run, "NumPy on all cores", "numpy", np.uint8, patience / 2)


def _grow(run: Run, who: str, library: str, dtype: Any, limit: float) -> None:
    """Decompose more and more rows while there is time, and say what all would take."""
    sizes = run.sizes
    n_rows = max(sizes.svd_rows // 256 // sizes.svd_block, 2) * sizes.svd_block
    while True:
        run.machine.free()
        try:
            found = _decompose(run, library, n_rows, dtype)
        except Exception as error:
            run.failed(f"{who}, {n_rows:,} rows", error)
            return
        whole = WHOLE_ROWS * WHOLE_COLUMNS / (n_rows * sizes.svd_columns)
        run.note(
            f"{who}, {n_rows:,} rows",
            **found,
            rows=n_rows,
            columns=sizes.svd_columns,
            bytes_a_second=n_rows * sizes.svd_columns * found["passes"] / found["seconds"],
            seconds_of_10_000_000_by_20_000=found["seconds"] * whole,
            scaled_by=whole,
        )
        larger = min(4 * n_rows, sizes.svd_rows)
        if n_rows == sizes.svd_rows or found["seconds"] * larger / n_rows > limit:
            return
        n_rows = larger


def _decompose(run: Run, library: str, n_rows: int, dtype: Any) -> dict[str, Any]:
    """Decompose so many rows on a worker of this process, and look at the answer."""
    sizes = run.sizes
    n = 10
    X = genotypes(library, n_rows, sizes.svd_columns, sizes.svd_block)
    X = X if X.dtype == dtype else X.astype(dtype)
    # One thread makes blocks and tells the device, while another looks for the next task.
    n_threads = n_cores() if library == "numpy" else 2
    with (
        Fleet(n_workers=1, threads_per_worker=n_threads, processes=False, dashboard_address=None),
        config_context(keep_blocks=False),
        counting() as counts,
    ):
        began = time.perf_counter()
        model = TruncatedSVD(n, algorithm="randomized", random_state=0).fit(X)
        run.machine.wait()
        seconds = time.perf_counter() - began
    values, vectors = exact(n_rows, sizes.svd_columns, sizes.svd_columns, n)
    return {
        "seconds": seconds,
        "passes": counts.passes,
        "tasks": counts.tasks,
        "error_of_values": float(np.max(np.abs(model.singular_values_ / values - 1))),
        "angle": float(np.max(linalg.subspace_angles(model.components_.T, vectors.T))),
    }


def genotypes(library: str, n_rows: int, n_columns: int, block: int) -> da.Array:
    """Return a lazy array of the genotypes of bench_large_svd.py, made on the device."""
    xp = importlib.import_module(library)
    make = dask.delayed(_genotypes, pure=True)
    parts = [
        da.from_delayed(
            make(library, low, min(block, n_rows - low), n_columns),
            (min(block, n_rows - low), n_columns),
            dtype=np.uint8,
            meta=xp.empty((0, 0), dtype=np.uint8),
        )
        for low in range(0, n_rows, block)
    ]
    return da.concatenate(parts)


def _genotypes(library: str, start: int, n_rows: int, n_columns: int) -> Any:
    """Make one block."""
    table = _table(library, n_columns)
    chosen = prototype_of(np.arange(start, start + n_rows)).astype(np.int64)
    return table[importlib.import_module(library).asarray(chosen)]


@lru_cache(maxsize=2)
def _table(library: str, n_columns: int) -> Any:
    """Return the rows that all others repeat, on the device."""
    return importlib.import_module(library).asarray(prototypes(n_columns, 0))
