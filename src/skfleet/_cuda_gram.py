"""Launches of gram.cu: products of the columns of rows with one another, in one read."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from skfleet import _cuda
from skfleet._array import asarray_like, dtype_of, namespace, to_host
from skfleet._cuda import CudaSource, device_number, limits

# Benchmarks switch this off to compare the kernel with products of matrices.
ENABLED = True
# Columns up to which a thread for each tile fits into a block, and products of matrices are slower.
MAX_COLUMNS = 128
# Rows in shared memory at once, rows that are loaded from there together, and rows that are summed
# in their own type.
ROWS, UNROLL, FLUSH = 16, 4, 2048
# Threads of a multiprocessor by the size of a float, and rows that a block has at least. In a trial
# on an H200 fewer threads took a fifth longer; more have too few registers.
THREADS_PER_PROCESSOR, MIN_ROWS = {4: 400, 8: 800}, 8 * ROWS


class GramConstants(NamedTuple):
    """Compile-time constants of gram.cu: type and columns, and what is done with rows."""

    dtype: np.dtype
    d: int  # columns of the rows
    m: int  # and of what comes beside them
    centered: bool
    weighted: bool

    @property
    def side(self) -> int:
        """Columns of a tile: two vectors of 16 bytes."""
        return 2 * (16 // self.dtype.itemsize)

    @property
    def tiles(self) -> int:
        """Tiles along each side of the result."""
        return -(-(self.d + self.m) // self.side)

    @property
    def n_numbers(self) -> int:
        """Numbers of the tiles on and below the diagonal."""
        return self.side**2 * self.tiles * (self.tiles + 1) // 2

    @property
    def threads(self) -> int:
        """Threads of a block: whole warps."""
        return -(-self.n_numbers // (32 * self.side**2)) * 32

    @property
    def blocks_per_processor(self) -> int:
        """Blocks that a multiprocessor runs at once."""
        return max(1, THREADS_PER_PROCESSOR[self.dtype.itemsize] // self.threads)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return (ROWS * self.tiles * self.side + self.d) * self.dtype.itemsize

    @property
    def source(self) -> CudaSource:
        """The kernel, compiled with these constants."""
        constants = {
            "REAL": {4: "float", 8: "double"}[self.dtype.itemsize],
            "D": self.d,
            "M": self.m,
            "CENTERED": int(self.centered),
            "WEIGHTED": int(self.weighted),
            "TILES": self.tiles,
            "THREADS": self.threads,
            "MIN_BLOCKS": self.blocks_per_processor,
            "ROWS": ROWS,
            "UNROLL": UNROLL,
            "FLUSH": FLUSH,
        }
        options = tuple(f"-D{name}={value}" for name, value in constants.items())
        return CudaSource("skfleet", "gram.cu", options)

    def n_blocks(self, n_rows: int, n_processors: int) -> int:
        """Return the number of thread blocks for some rows."""
        return max(1, min(-(-n_rows // MIN_ROWS), n_processors * self.blocks_per_processor))


def supports(X: Any, n_more: int, *, centered: bool = True, weighted: bool = False) -> bool:
    """Return whether the kernel supports rows beside n_more columns, and passes its self-test."""
    if not ENABLED or not _cuda.is_kernel_matrix(X) or X.shape[1] + n_more > MAX_COLUMNS:
        return False
    constants = GramConstants(dtype_of(X), int(X.shape[1]), n_more, centered, weighted)
    return _passes_self_test(constants, device_number(X))


def products(X: Any, shift: Any, factor: Any, V: Any) -> tuple[Any, Any]:
    """Return Z.T @ Z and Z.T @ V in float64 for the rows Z = (X - shift) * factor.

    All arrays are of the type of X, on its device; `shift`, `factor` and V may be None.
    """
    xp, (n, d) = namespace(X), X.shape
    m = 0 if V is None else int(V.shape[1])
    constants = GramConstants(dtype_of(X), int(d), m, shift is not None, factor is not None)
    n_blocks = constants.n_blocks(n, limits(X).n_processors)
    source, on_device = constants.source, array_api_compat.device(X)
    sums = xp.empty((n_blocks, constants.n_numbers), dtype=xp.float64, device=on_device)
    every = xp.empty((d + m, d + m), dtype=xp.float64, device=on_device)
    args = (X, shift, factor, V, sums, np.int64(n))
    grid, threads = (n_blocks, 1, 1), constants.threads
    _cuda.launch(source, "gram", grid, threads, args, shared=constants.shared)
    grid = (-(-constants.n_numbers // 32), 1, 1)
    _cuda.launch(source, "collect", grid, 256, (sums, every, np.int32(n_blocks)), shared=8 * 256)
    return every[:d, :d], every[:d, d:]


@cache
def _passes_self_test(constants: GramConstants, number: int) -> bool:
    """Run the self-test, once for each kind of products, device and process."""
    import cupy

    n_columns = constants.d + constants.m
    what = f"products of {n_columns} columns do without their CUDA kernel"
    rows_like = cupy.zeros((0, 1), constants.dtype)
    return _cuda.passes_self_test(what, lambda: self_test(constants, rows_like))


def self_test(constants: GramConstants, rows_like: Any) -> str:
    """Compare the kernel with NumPy on random rows; return the difference in words."""
    rng, dtype, d, m = np.random.default_rng(0), *constants[:3]
    X, V = rng.normal(size=(1000, d)).astype(dtype), rng.normal(size=(1000, m)).astype(dtype)
    shift = rng.normal(size=d).astype(dtype) if constants.centered else None
    factor = rng.normal(size=1000).astype(dtype) if constants.weighted else None
    Z = X.astype(np.float64)
    Z = Z if shift is None else Z - shift
    Z = Z if factor is None else Z * factor[:, None]
    args = (X, shift, factor, V if m else None)
    on_device = (None if values is None else asarray_like(values, rows_like) for values in args)
    tol, scale = 1e3 * np.finfo(dtype).eps, np.linalg.norm(Z)
    pairs = zip(map(to_host, products(*on_device)), (Z.T @ Z, Z.T @ V), strict=True)
    is_right = all(np.allclose(*pair, rtol=tol, atol=tol * scale) for pair in pairs)
    return "" if is_right else "wrong products"
