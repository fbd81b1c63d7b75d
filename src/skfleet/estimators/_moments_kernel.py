"""Launches of moments.cu: thread blocks, shared memory, self-test."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from skfleet import _cuda
from skfleet._array import FLOAT64, INT64, asarray_like, astype, dtype_of, namespace, to_host
from skfleet._cuda import CudaSource, DeviceLimits, device_limits, device_number, limits

# Benchmarks switch this off to compare the kernel with array operations.
ENABLED = True
# Threads of a block at most, and of a multiprocessor, as registers allow.
MAX_THREADS, THREADS_PER_PROCESSOR = 256, 512
# Values of a thread in registers at once.
RUN_BYTES = 64
# Threads of a block that merges, and how many of them have columns of their own: a sector's, or a
# warp where there are enough columns for all multiprocessors.
MERGE_THREADS, MERGE_SLOTS, MANY_MERGED = 256, (4, 32), 2048
# Four doubles of a thread, when the moments of a block are merged.
PART_BYTES = 32
# Shared memory that CUDA takes for itself of each block's.
RESERVED_SHARED_BYTES = 1024


class ThreadLayout(NamedTuple):
    """Threads of a block, of which `n_slots` have columns of their own, and its shared memory."""

    n_slots: int
    n_threads: int
    n_column_blocks: int
    shared: int

    @classmethod
    def of(cls, n_columns: int, k: int, limits: DeviceLimits) -> ThreadLayout | None:
        """Return the layout for columns and k labels, None if it exceeds the limits."""
        # two blocks together: one loads while the other one computes
        half_processor = limits.shared_by_all // 2 - RESERVED_SHARED_BYTES
        thread_bytes = max(8 * k, PART_BYTES)
        fitting = min(limits.shared, half_processor) // thread_bytes // 32 * 32
        max_threads = min(MAX_THREADS, fitting)
        if max_threads < 32:
            return None
        n_column_blocks = -(-n_columns // max_threads)
        width = -(-n_columns // n_column_blocks)
        # a power of two, or whole warps
        n_slots = -(-width // 32) * 32 if width > 32 else 1 << (width - 1).bit_length()
        n_groups = 1
        while 2 * n_groups * n_slots <= max_threads:
            n_groups *= 2
        n_threads = n_slots * n_groups
        return cls(n_slots, n_threads, n_column_blocks, n_threads * thread_bytes)

    def grid(self, n: int, run: int, limits: DeviceLimits) -> tuple[int, int, int]:
        """Return the grid of thread blocks for n rows: no more than run at once."""
        together = limits.shared_by_all // (self.shared + RESERVED_SHARED_BYTES)
        together = max(1, min(together, THREADS_PER_PROCESSOR // self.n_threads))
        n_tiles = -(-n // (run * (self.n_threads // self.n_slots)))
        n_row_blocks = max(1, together * limits.n_processors // self.n_column_blocks)
        return min(n_tiles, n_row_blocks), self.n_column_blocks, 1


class RowSums(NamedTuple):
    """Moments of columns (weights, means, squares), and sums by label, in float64 on a device.

    The sums by label have the weights and the numbers of rows as last columns.
    """

    moments: Any
    by_label: Any
    values: Any  # of both, one after the other

    def on_host(self) -> RowSums:
        """Return the sums on the host, by one copy."""
        values, n = to_host(self.values), 0
        moments, by_label = self.moments, self.by_label
        if moments is not None:
            n = moments.shape[0] * moments.shape[1]
            moments = values[:n].reshape(moments.shape)
        by_label = None if by_label is None else values[n:].reshape(by_label.shape)
        return RowSums(moments, by_label, values)


def supports(X: Any, k: int = 0) -> bool:
    """Return whether the kernel supports rows and k labels, and passes its self-test for them."""
    if not ENABLED or not _cuda.is_kernel_matrix(X):
        return False
    # labels differ from piece to piece: one test for several numbers of them
    k = 1 << (k - 1).bit_length() if k else 0
    return self_test_passes(dtype_of(X), int(X.shape[1]), k, device_number(X))


def launch(
    itemsize: int, name: str, grid: tuple[int, int, int], n_threads: int, shared: int, args: Any
) -> None:
    """Launch a kernel on the current device; raise where that is impossible."""
    _cuda.launch(source(itemsize), name, grid, n_threads, args, shared=shared)


def source(itemsize: int) -> CudaSource:
    """Return the source for rows of floats of a size."""
    real = {4: "float", 8: "double"}[itemsize]
    constants = {"REAL": real, "THREADS": MAX_THREADS, "RUN": RUN_BYTES // itemsize}
    options = tuple(f"-D{name}={value}" for name, value in constants.items())
    return CudaSource(__package__, "moments.cu", options)


def row_sums(
    X: Any,
    *,
    weights: Any = None,
    skips_nan: bool = False,
    moments: bool = True,
    codes: Any = None,
    k: int = 0,
    code_weights: Any = None,
    x_by_label: bool = True,
) -> RowSums:
    """Return the moments of the columns of X, and its sums by label, in one read of X.

    `skips_nan` leaves out values that are NaN; columns without any other have the mean NaN. `codes`
    are the labels of the rows, from 0 to k - 1 (all 0 where there are none), and `code_weights`
    their weights in the sums by label, which are of weights and numbers alone without `x_by_label`.
    """
    xp, n, limit = namespace(X), int(X.shape[0]), limits(X)
    itemsize = dtype_of(X).itemsize
    d = int(X.shape[1]) if moments or x_by_label else 0
    has_sums = k > 0
    layout = ThreadLayout.of(d + 2 * has_sums, k, limit)
    if layout is None:
        raise ValueError(f"k must be small. Got {k} instead.")
    grid = layout.grid(n, RUN_BYTES // itemsize, limit)

    def empty(*shape: int, is_needed: bool = True) -> Any:
        return xp.empty(shape, dtype=xp.float64, device=device(X)) if is_needed else None

    of_columns = empty(grid[0], 4, d, is_needed=moments)
    of_labels = empty(grid[0], k, d + 2, is_needed=has_sums)
    args = (
        X if d else None,
        _vector(weights, FLOAT64),
        _vector(codes, INT64),
        _vector(code_weights, FLOAT64),
        of_columns,
        of_labels,
    )
    numbers = (np.int64(n), *map(np.int32, (d, k, layout.n_slots, skips_nan)))
    launch(itemsize, "summarize", grid, layout.n_threads, layout.shared, (*args, *numbers))
    n_moments, n_sums = 3 * d * moments, k * (d + 2) * has_sums
    out = empty(n_moments + n_sums)
    n_slots = MERGE_SLOTS[n_moments + n_sums > MANY_MERGED]
    n_merging = -(-d // n_slots) * moments - (-n_sums // n_slots)
    sizes = map(np.int32, (grid[0], d, n_sums, n_slots))
    first_row = X if moments and weights is None else None
    merged = (of_columns, of_labels, first_row, out, *sizes)
    shared = MERGE_THREADS * PART_BYTES
    launch(itemsize, "merge_parts", (n_merging, 1, 1), MERGE_THREADS, shared, merged)
    return RowSums(
        xp.reshape(out[:n_moments], (3, d)) if moments else None,
        xp.reshape(out[n_moments:], (k, d + 2)) if has_sums else None,
        out,
    )


def _vector(values: Any, dtype: np.dtype) -> Any:
    """Return numbers of rows as the kernel takes them: of a type, and one after the other."""
    return None if values is None else namespace(values).ascontiguousarray(astype(values, dtype))


@cache
def self_test_passes(dtype: np.dtype, d: int, k: int, number: int) -> bool:
    """Run the self-test, once for each shape, device and process."""
    import cupy

    if ThreadLayout.of(d + 2, k, device_limits(number)) is None:
        return False
    what = f"sums of rows do without their CUDA kernel for {d} columns and {k} labels"
    return _cuda.passes_self_test(what, lambda: self_test(cupy.zeros((0, d), dtype), k))


def self_test(rows_like: Any, k: int) -> str:
    """Compare the kernel with NumPy on random rows; return the difference in words."""
    rng, dtype, d = np.random.default_rng(0), dtype_of(rows_like), int(rows_like.shape[1])
    rows = (rng.normal(size=(300, d)) + 100).astype(dtype)
    rows[rng.random((300, d)) < 0.1] = np.nan
    weight, codes, one = rng.random(300), rng.integers(0, max(k, 1), 300), np.ones(300)
    is_value = ~np.isnan(rows)
    values = np.where(is_value, rows, 100).astype(np.float64)
    whole = asarray_like(values, rows_like)
    gaps = asarray_like(rows, rows_like)
    w = asarray_like(weight, rows_like, dtype=namespace(rows_like).float64)
    by_label = {"codes": asarray_like(codes, rows_like), "k": k, "code_weights": w} if k else {}
    sums = row_sums(whole, **by_label)
    pairs = [
        (sums.moments, _moments(values, np.ones_like(values))),
        (
            row_sums(gaps, weights=w, skips_nan=True).moments,
            _moments(values, weight[:, None] * is_value),
        ),
    ]
    if k:
        expected = np.zeros((k, d + 2))
        np.add.at(expected, codes, np.column_stack([weight[:, None] * values, weight, one]))
        counts = row_sums(whole, moments=False, x_by_label=False, **by_label)
        pairs += [(sums.by_label, expected), (counts.by_label, expected[:, d:])]
    if not all(np.allclose(to_host(ours), theirs, 1e-9, 1e-9) for ours, theirs in pairs):
        return "wrong sums"
    return ""


def _moments(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weights, means and squares of columns."""
    total = weights.sum(axis=0)
    mean = (weights * values).sum(axis=0) / np.where(total > 0, total, 1)
    return np.stack([total, mean, (weights * (values - mean) ** 2).sum(axis=0)])
