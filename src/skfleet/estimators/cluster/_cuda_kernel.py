"""Launches of nearest.cu: thread blocks, shared memory, self-test."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from skfleet import _cuda
from skfleet._array import asarray_like, dtype_of, namespace, to_host
from skfleet._cuda import CudaSource, DeviceLimits, device_limits, device_number, limits

# Benchmarks switch this off to compare the kernel with matrix products.
ENABLED = True
# Threads of a block, and how many of them share rows.
THREADS, LANES = 128, 8
ROW_BYTES, WIDTH_BYTES = 32, 256
# As registers allow, by the size of a float.
MAX_CENTERS_PER_THREAD = {4: 13, 8: 7}
# More than run at once, which evens out their load. But where sums leave no shared memory for more
# than these, which the registers allow in any case, so many: each block writes sums of its own.
BLOCKS_PER_PROCESSOR, FULL_ASSIGN_BLOCKS, FULL_SUMS_BLOCKS = 8, 2, 4
# Shared memory that CUDA takes for itself of each block's.
RESERVED_SHARED_BYTES = 1024


class CompileOptions(NamedTuple):
    """Compile-time constants of nearest.cu."""

    itemsize: int
    centers: int  # of a thread at once

    @classmethod
    def of(cls, dtype: np.dtype, k: int) -> CompileOptions:
        """Return constants for k centres, with chunks of centres of equal size."""
        n_chunks = -(-k // (LANES * MAX_CENTERS_PER_THREAD[dtype.itemsize]))
        return cls(dtype.itemsize, -(-k // (LANES * n_chunks)))

    @property
    def rows(self) -> int:
        """Rows of a thread at once."""
        return ROW_BYTES // self.itemsize

    @property
    def width(self) -> int:
        """Columns in shared memory at once."""
        return WIDTH_BYTES // self.itemsize

    @property
    def tile(self) -> int:
        """Rows of a block at once."""
        return THREADS // LANES * self.rows

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        constants = {
            "REAL": {4: "float", 8: "double"}[self.itemsize],
            "THREADS": THREADS,
            "LANES": LANES,
            "ROWS": self.rows,
            "CENTERS": self.centers,
            "WIDTH": self.width,
        }
        return tuple(f"-D{name}={value}" for name, value in constants.items())

    def assign_bytes(self, k: int, d: int, with_sums: bool) -> int:
        """Return the shared memory that a block of `assign` takes."""
        chunk = LANES * self.centers
        stride = self.width + 16 // self.itemsize
        reals = (self.tile + chunk) * stride + chunk
        pitch = (d + 2) // 2 * 2
        return 12 * self.tile + self.itemsize * reals + 8 * k * pitch * with_sums


class LaunchConfig(NamedTuple):
    """Grid and shared memory of the kernels; one fused kernel where the sums fit."""

    build: CompileOptions
    fused: bool
    shared: int
    n_columns: int  # of `add_up`, with what follows
    n_clusters: int
    sums_shared: int

    @classmethod
    def of(cls, dtype: np.dtype, k: int, d: int, limits: DeviceLimits) -> LaunchConfig | None:
        """Return the configuration for k centres and d columns, None if it exceeds the limits."""
        build = CompileOptions.of(dtype, k)
        shared = build.assign_bytes(k, d, True)
        # two blocks together: one loads and sums up while the other one multiplies
        half_processor = limits.shared_by_all // 2 - RESERVED_SHARED_BYTES
        fused = 0 < d <= build.width and shared <= min(limits.shared, half_processor)
        if not fused:
            shared = build.assign_bytes(k, d, False)
        quarter = limits.shared_by_all // 4 - RESERVED_SHARED_BYTES
        sums_bytes = min(limits.shared, quarter) - 12 * build.tile
        # A power of two of up to d + 1 columns, but fewer (at least 16) where the sums of all
        # clusters would not fit into shared memory.
        n_columns = 1
        while n_columns < min(d + 1, THREADS):
            n_columns *= 2
        while n_columns > 16 and 8 * k * n_columns > sums_bytes:
            n_columns //= 2
        n_clusters = min(k, sums_bytes // (8 * n_columns))
        if shared > limits.shared or n_clusters < 1:
            return None
        sums_shared = 12 * build.tile + 8 * n_clusters * n_columns
        return cls(build, fused, shared, n_columns, n_clusters, sums_shared)

    def assign_grid(self, n: int, limits: DeviceLimits) -> tuple[int, int, int]:
        """Return the grid of thread blocks that label n rows."""
        n_blocks = _blocks_per_processor(self.shared, FULL_ASSIGN_BLOCKS, limits)
        return min(-(-n // self.build.tile), n_blocks * limits.n_processors), 1, 1

    def sums_grid(self, n: int, k: int, d: int, limits: DeviceLimits) -> tuple[int, int, int]:
        """Return the grid of thread blocks that sum up n rows, by columns and clusters."""
        y, z = -(-(d + 1) // self.n_columns), -(-k // self.n_clusters)
        n_blocks = _blocks_per_processor(self.sums_shared, FULL_SUMS_BLOCKS, limits)
        x = max(1, n_blocks * limits.n_processors // (y * z))
        return min(-(-n // self.build.tile), x), y, z


def _blocks_per_processor(shared: int, n_full: int, limits: DeviceLimits) -> int:
    n_together = limits.shared_by_all // (shared + RESERVED_SHARED_BYTES)
    return BLOCKS_PER_PROCESSOR if n_together > n_full else min(n_full, BLOCKS_PER_PROCESSOR)


class Assignment(NamedTuple):
    """Labels of rows on a device, with optional outputs; sums have the weights as last column."""

    labels: Any
    squared: Any = None
    inertia: Any = None
    sums: Any = None


def supports(X: Any, k: int) -> bool:
    """Return whether the kernel supports rows, and passes its self-test for their shape."""
    if not ENABLED or not _cuda.is_kernel_matrix(X):
        return False
    return self_test_passes(dtype_of(X), k, int(X.shape[1]), device_number(X))


def launch(
    build: CompileOptions, name: str, grid: tuple[int, int, int], shared: int, args: tuple[Any, ...]
) -> None:
    """Launch a kernel on the current device; raise where that is impossible."""
    source = CudaSource(__package__, "nearest.cu", build.options)
    _cuda.launch(source, name, grid, THREADS, args, shared=shared)


def assign(
    X: Any,
    centers: Any,
    norms: Any,
    mean: Any,
    weight: Any,
    rounding: float,
    *,
    squared: bool = False,
    inertia: bool = False,
    sums: bool = False,
) -> Assignment:
    """Label rows by their nearest centre and compute the requested outputs, on their device.

    Centres, their squared norms and the mean are of the rows' type, weights float64. Squared
    distances up to `rounding` times the squared norm of a centre count as none.
    """
    xp = namespace(X)
    n, d, k = int(X.shape[0]), int(X.shape[1]), int(centers.shape[0])
    limit = limits(X)
    config = LaunchConfig.of(dtype_of(X), k, d, limit)
    grid = config.assign_grid(n, limit)

    def empty(*shape: int, is_needed: bool = True, dtype: Any = xp.float64) -> Any:
        return xp.empty(shape, dtype=dtype, device=device(X)) if is_needed else None

    labels = empty(n, dtype=xp.int32)
    distances, parts = empty(n, is_needed=squared), empty(grid[0], is_needed=inertia)
    by_block = empty(grid[0], k, d + 1, is_needed=sums and config.fused)
    args = (X, mean, centers, norms, weight, labels, distances, parts, by_block)
    numbers = (np.int64(n), np.int32(d), np.int32(k), np.float64(rounding))
    launch(config.build, "assign", grid, config.shared, (*args, *numbers))
    total = None
    if sums:
        total = xp.sum(by_block, axis=0) if config.fused else add_up(X, mean, weight, labels, k)
    return Assignment(labels, distances, xp.sum(parts) if inertia else None, total)


def add_up(X: Any, mean: Any, weight: Any, labels: Any, k: int) -> Any:
    """Sum up rows, and weights as a last column, by label."""
    return _add_up(dtype_of(X), int(X.shape[1]), X, mean, weight, labels, k)


def count(dtype: np.dtype, weight: Any, labels: Any, k: int) -> Any:
    """Sum up the weights of rows of dtype by label."""
    return _add_up(dtype, 0, None, None, weight, labels, k)[:, 0]


def _add_up(dtype: np.dtype, d: int, X: Any, mean: Any, weight: Any, labels: Any, k: int) -> Any:
    """Launch `add_up` for d columns."""
    xp, n, limit = namespace(labels), int(labels.shape[0]), limits(labels)
    config = LaunchConfig.of(dtype, k, d, limit)
    grid = config.sums_grid(n, k, d, limit)
    by_block = xp.empty((grid[0], k, d + 1), dtype=xp.float64, device=device(labels))
    args = (X, mean, weight, labels, by_block)
    numbers = (n, d, k, config.n_columns, config.n_clusters)
    sizes = (np.int64(n), *map(np.int32, numbers[1:]))
    launch(config.build, "add_up", grid, config.sums_shared, (*args, *sizes))
    return xp.sum(by_block, axis=0)


@cache
def self_test_passes(dtype: np.dtype, k: int, d: int, number: int) -> bool:
    """Run the self-test, once for each shape, device and process."""
    import cupy

    if LaunchConfig.of(dtype, k, d, device_limits(number)) is None:
        return False
    what = f"k-means does without its CUDA kernel for {k} centres of {d} columns"
    return _cuda.passes_self_test(what, lambda: self_test(cupy.zeros((0, d), dtype), k))


def self_test(rows_like: Any, k: int) -> str:
    """Compare the kernel with NumPy on random rows; return the difference in words."""
    rng, dtype, d = np.random.default_rng(0), dtype_of(rows_like), int(rows_like.shape[1])
    rows, centers = rng.normal(size=(300, d)).astype(dtype), rng.normal(size=(k, d)).astype(dtype)
    weight, mean = rng.random(300), rng.normal(size=d).astype(dtype)
    device_arrays = [
        asarray_like(values, rows_like) for values in (rows, centers, (centers**2).sum(1), mean)
    ]
    w = asarray_like(weight, rows_like, dtype=namespace(rows_like).float64)
    assignment = assign(*device_arrays, w, 0.0, squared=True, inertia=True, sums=True)
    labels, squared, inertia, sums = map(to_host, assignment)
    rows, centers = (rows - mean).astype(np.float64), centers.astype(np.float64)
    scores = (centers**2).sum(1) - 2 * rows @ centers.T
    if labels.min() < 0 or labels.max() >= k:
        return "labels out of range"
    # Rounding may swap centres that are about equally near; a broken kernel is off by more.
    slack = 32 * np.sqrt(d) * np.finfo(dtype).eps * np.abs(scores).max()
    if np.any(scores[np.arange(300), labels] > scores.min(axis=1) + slack):
        return "wrong labels"
    exact = ((rows - centers[labels]) ** 2).sum(axis=1)
    expected = np.zeros((k, d + 1))
    np.add.at(expected, labels, weight[:, None] * np.hstack([rows, np.ones((300, 1))]))
    pairs = [(squared, exact), (inertia, weight @ exact), (sums, expected)]
    tol = 1e3 * np.finfo(dtype).eps
    if not all(np.allclose(ours, theirs, rtol=tol, atol=tol) for ours, theirs in pairs):
        return "wrong sums"
    sums_by_label = add_up(*device_arrays[::3], w, assignment.labels, k)
    counts = count(dtype, None, assignment.labels, k)
    if not np.allclose(to_host(sums_by_label), expected, tol, tol):
        return "wrong sums by label"
    if not np.array_equal(to_host(counts), np.bincount(labels, minlength=k)):
        return "wrong counts"
    return ""
