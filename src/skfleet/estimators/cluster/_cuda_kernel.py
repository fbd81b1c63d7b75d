"""How nearest.cu is compiled and launched: which blocks of threads, with how much shared memory."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
from array_api_compat import device

from skfleet._array import asarray_like, dtype_of, namespace, to_host
from skfleet._warnings import warn

# Whether rows on a CUDA device get the kernel; benchmarks compare it with what others get.
ENABLED = True
# Threads of a block, and how many of them share rows.
THREADS, LANES = 128, 8
# Bytes of rows that a thread, and of columns that shared memory, hold at once.
ROW_BYTES, WIDTH_BYTES = 32, 256
# Centres of a thread, at most, as registers allow: float32 and float64.
MOST_CENTERS = {4: 13, 8: 7}
# Blocks for each multiprocessor: some more than run at once, to even them out.
BLOCKS_EACH = 8
# Shared memory that CUDA takes for itself of each block's, and what needs no permission.
RESERVED, FREELY = 1024, 48 * 1024
# Where the kernel expects an array that may be left out.
NOTHING = np.uint64(0)


class Build(NamedTuple):
    """What the source is compiled for."""

    itemsize: int
    centers: int  # of a thread at once

    @classmethod
    def of(cls, dtype: np.dtype, k: int) -> Build:
        """Choose so many centres that the last chunk of k is as full as the others."""
        n_chunks = -(-k // (LANES * MOST_CENTERS[dtype.itemsize]))
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


class Limits(NamedTuple):
    """What a device has: multiprocessors, shared memory for a block and for all on one of them."""

    n_processors: int
    shared: int
    shared_by_all: int


class Plan(NamedTuple):
    """How rows are assigned and summed up: in one kernel where the sums fit beside the rows."""

    build: Build
    fused: bool
    shared: int
    n_columns: int  # of `add_up`, with what follows
    n_clusters: int
    sums_shared: int

    @classmethod
    def of(cls, dtype: np.dtype, k: int, d: int, limits: Limits) -> Plan | None:
        """Return a plan for k centres and d columns, None where the device is too small."""
        build = Build.of(dtype, k)
        shared = build.assign_bytes(k, d, True)
        # two blocks together: one loads and sums up while the other one multiplies
        two = limits.shared_by_all // 2 - RESERVED
        fused = 0 < d <= build.width and shared <= min(limits.shared, two)
        if not fused:
            shared = build.assign_bytes(k, d, False)
        room = min(limits.shared, limits.shared_by_all // 4 - RESERVED) - 12 * build.tile
        n_columns = 1
        while n_columns < min(d + 1, THREADS):
            n_columns *= 2
        while n_columns > 16 and 8 * k * n_columns > room:
            n_columns //= 2
        n_clusters = min(k, room // (8 * n_columns))
        if shared > limits.shared or n_clusters < 1:
            return None
        sums_shared = 12 * build.tile + 8 * n_clusters * n_columns
        return cls(build, fused, shared, n_columns, n_clusters, sums_shared)

    def assign_grid(self, n: int, limits: Limits) -> tuple[int, int, int]:
        """Return how many blocks label n rows."""
        return min(-(-n // self.build.tile), BLOCKS_EACH * limits.n_processors), 1, 1

    def sums_grid(self, n: int, k: int, d: int, limits: Limits) -> tuple[int, int, int]:
        """Return how many blocks sum up n rows, their columns and their clusters."""
        y, z = -(-(d + 1) // self.n_columns), -(-k // self.n_clusters)
        x = max(1, BLOCKS_EACH * limits.n_processors // (y * z))
        return min(-(-n // self.build.tile), x), y, z


class Found(NamedTuple):
    """What is known of rows on a device; sums have the weights as their last column."""

    labels: Any
    squared: Any = None
    inertia: Any = None
    sums: Any = None


def takes(X: Any, k: int) -> bool:
    """Say whether rows are of the kind, on a device, that the kernel is right about."""
    if not ENABLED or not is_suitable(X):
        return False
    return is_right(dtype_of(X), k, int(X.shape[1]), X.device.id)


def is_suitable(X: Any) -> bool:
    """Say whether X is a CuPy matrix of reals, row by row, on the current device."""
    if not array_api_compat.is_cupy_array(X):
        return False
    import cupy

    kind = X.ndim == 2 and X.size > 0 and X.dtype in (np.float32, np.float64)
    return kind and X.flags.c_contiguous and X.device == cupy.cuda.Device()


def limits(x: Any) -> Limits:
    """Return what the CUDA device of an array has."""
    return _limits(x.device.id)


@cache
def _limits(number: int) -> Limits:
    """Ask CUDA what a device has."""
    import cupy

    said = cupy.cuda.Device(number).attributes
    return Limits(
        said["MultiProcessorCount"],
        said["MaxSharedMemoryPerBlockOptin"],
        said["MaxSharedMemoryPerMultiprocessor"],
    )


@cache
def _module(build: Build) -> Any:
    """Return the compiled source; CuPy compiles it at its first launch on each device."""
    import cupy

    source = files(__package__).joinpath("nearest.cu").read_text()
    return cupy.RawModule(code=source, options=build.options)


@cache
def _function(build: Build, name: str) -> Any:
    """Return one of the kernels."""
    return _module(build).get_function(name)


def launch(
    build: Build, name: str, grid: tuple[int, int, int], shared: int, args: tuple[Any, ...]
) -> None:
    """Launch a kernel on the current device; a launch that is impossible raises."""
    function = _function(build, name)
    if shared > FREELY:
        function.max_dynamic_shared_size_bytes = shared
    function(grid, (THREADS, 1, 1), args, shared_mem=shared)


def assign(
    X: Any,
    near: Any,
    norms: Any,
    mean: Any,
    weight: Any,
    rounding: float,
    *,
    squared: bool = False,
    inertia: bool = False,
    sums: bool = False,
) -> Found:
    """Label rows by their nearest centre, and find what else is asked for, in their own library.

    Centres, their squared norms and the mean are of the rows' type, weights float64. Squared
    distances up to `rounding` times the squared norm of a centre count as none.
    """
    xp = namespace(X)
    n, d, k = int(X.shape[0]), int(X.shape[1]), int(near.shape[0])
    limit = limits(X)
    plan = Plan.of(dtype_of(X), k, d, limit)
    grid = plan.assign_grid(n, limit)

    def empty(*shape: int, wanted: bool = True, dtype: Any = xp.float64) -> Any:
        return xp.empty(shape, dtype=dtype, device=device(X)) if wanted else None

    labels = empty(n, dtype=xp.int32)
    distances, parts = empty(n, wanted=squared), empty(grid[0], wanted=inertia)
    by_block = empty(grid[0], k, d + 1, wanted=sums and plan.fused)
    args = (X, mean, near, norms, weight, labels, distances, parts, by_block)
    numbers = (np.int64(n), np.int32(d), np.int32(k), np.float64(rounding))
    launch(plan.build, "assign", grid, plan.shared, (*map(_or_nothing, args), *numbers))
    total = None
    if sums:
        total = xp.sum(by_block, axis=0) if plan.fused else add_up(X, mean, weight, labels, k)
    return Found(labels, distances, xp.sum(parts) if inertia else None, total)


def add_up(X: Any, mean: Any, weight: Any, labels: Any, k: int) -> Any:
    """Sum up rows, and weights as a last column, by label."""
    return _add_up(dtype_of(X), int(X.shape[1]), X, mean, weight, labels, k)


def count(dtype: np.dtype, weight: Any, labels: Any, k: int) -> Any:
    """Sum up the weights of rows of dtype by label."""
    return _add_up(dtype, 0, None, None, weight, labels, k)[:, 0]


def _add_up(dtype: np.dtype, d: int, X: Any, mean: Any, weight: Any, labels: Any, k: int) -> Any:
    """Launch `add_up` for d columns."""
    xp, n, limit = namespace(labels), int(labels.shape[0]), limits(labels)
    plan = Plan.of(dtype, k, d, limit)
    grid = plan.sums_grid(n, k, d, limit)
    by_block = xp.empty((grid[0], k, d + 1), dtype=xp.float64, device=device(labels))
    args = (X, mean, weight, labels, by_block)
    numbers = (n, d, k, plan.n_columns, plan.n_clusters)
    sizes = (np.int64(n), *map(np.int32, numbers[1:]))
    launch(plan.build, "add_up", grid, plan.sums_shared, (*map(_or_nothing, args), *sizes))
    return xp.sum(by_block, axis=0)


def _or_nothing(array: Any) -> Any:
    """Return an array, or what stands for one that is left out."""
    return NOTHING if array is None else array


@cache
def is_right(dtype: np.dtype, k: int, d: int, number: int) -> bool:
    """Try the kernel on a few rows, once for each shape, device and process.

    What cannot be compiled or launched, or answers wrongly, is not used: one line says why.
    """
    import cupy

    try:
        if Plan.of(dtype, k, d, _limits(number)) is None:
            return False
        problem = trial(cupy.zeros((0, d), dtype), k)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        warn(
            f"k-means does without its CUDA kernel for {k} centres of {d} columns: {problem}",
            RuntimeWarning,
        )
    return not problem


def trial(like_rows: Any, k: int) -> str:
    """Compare the kernel with NumPy on rows that are made up; return what is wrong."""
    rng, dtype, d = np.random.default_rng(0), dtype_of(like_rows), int(like_rows.shape[1])
    rows, centers = rng.normal(size=(300, d)).astype(dtype), rng.normal(size=(k, d)).astype(dtype)
    weight, mean = rng.random(300), rng.normal(size=d).astype(dtype)
    there = [
        asarray_like(values, like_rows) for values in (rows, centers, (centers**2).sum(1), mean)
    ]
    w = asarray_like(weight, like_rows, dtype=namespace(like_rows).float64)
    found = assign(*there, w, 0.0, squared=True, inertia=True, sums=True)
    labels, squared, inertia, sums = map(to_host, found)
    rows, centers = (rows - mean).astype(np.float64), centers.astype(np.float64)
    scores = (centers**2).sum(1) - 2 * rows @ centers.T
    if labels.min() < 0 or labels.max() >= k:
        return "labels out of range"
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
    apart, counted = add_up(*there[::3], w, found.labels, k), count(dtype, None, found.labels, k)
    if not np.allclose(to_host(apart), expected, tol, tol):
        return "wrong sums by label"
    if not np.array_equal(to_host(counted), np.bincount(labels, minlength=k)):
        return "wrong counts"
    return ""
