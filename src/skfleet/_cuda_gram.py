"""Launches of gram.cu: products of the columns of rows with one another, in one read."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from skfleet import _cuda
from skfleet._array import asarray_like, dtype_of, namespace, to_host
from skfleet._cuda import CudaSource, device_limits, device_number

# Benchmarks switch this off to compare the kernel with products of matrices.
ENABLED = True
# Columns up to which a thread for each tile fits into a block, and products of matrices are slower.
MAX_COLUMNS = 128
# Rows in shared memory at once, and rows that are summed in their own type.
ROWS, FLUSH = 16, 2048
# As many as registers allow at once, by the size of a float, and rows that a block has at least.
THREADS_PER_PROCESSOR, MIN_ROWS = {4: 400, 8: 800}, 8 * ROWS


class TileLayout(NamedTuple):
    """Tiles of columns: how many along a side, of how many columns each."""

    dtype: np.dtype
    tiles: int

    @classmethod
    def of(cls, dtype: np.dtype, n_columns: int) -> TileLayout:
        """Return the layout for some columns of a type."""
        return cls(dtype, -(-n_columns // (2 * (16 // dtype.itemsize))))

    @property
    def side(self) -> int:
        """Columns of a tile: two vectors of 16 bytes."""
        return 2 * (16 // self.dtype.itemsize)

    @property
    def n_pairs(self) -> int:
        """Tiles on and below the diagonal."""
        return self.tiles * (self.tiles + 1) // 2

    @property
    def threads(self) -> int:
        """Threads of a block: whole warps."""
        return -(-self.n_pairs // 32) * 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return ROWS * self.tiles * self.side * self.dtype.itemsize

    @property
    def source(self) -> CudaSource:
        """The kernel, compiled for this layout."""
        constants = {
            "REAL": {4: "float", 8: "double"}[self.dtype.itemsize],
            "TILES": self.tiles,
            "THREADS": self.threads,
            "ROWS": ROWS,
            "ITEMS": -(-ROWS * self.tiles * self.side // self.threads),
            "FLUSH": FLUSH,
        }
        options = tuple(f"-D{name}={value}" for name, value in constants.items())
        return CudaSource("skfleet", "gram.cu", options)

    def n_blocks(self, n_rows: int, n_processors: int) -> int:
        """Return the number of thread blocks for some rows."""
        most = n_processors * max(1, THREADS_PER_PROCESSOR[self.dtype.itemsize] // self.threads)
        return max(1, min(-(-n_rows // MIN_ROWS), most))


def supports(X: Any, n_more: int) -> bool:
    """Return whether the kernel supports rows beside n_more columns, and passes its self-test."""
    if not ENABLED or not _cuda.is_kernel_matrix(X) or X.shape[1] + n_more > MAX_COLUMNS:
        return False
    return _passes_self_test(TileLayout.of(dtype_of(X), X.shape[1] + n_more), device_number(X))


def products(X: Any, shift: Any, factor: Any, V: Any) -> tuple[Any, Any]:
    """Return Z.T @ Z and Z.T @ V in float64 for the rows Z = (X - shift) * factor.

    All arrays are of the type of X, on its device; `shift`, `factor` and V may be None.
    """
    xp, (n, d) = namespace(X), X.shape
    m = 0 if V is None else int(V.shape[1])
    layout = TileLayout.of(dtype_of(X), d + m)
    n_blocks = layout.n_blocks(n, device_limits(device_number(X)).n_processors)
    n_numbers, on_device = layout.side**2 * layout.n_pairs, array_api_compat.device(X)
    sums = xp.empty((n_blocks, n_numbers), dtype=xp.float64, device=on_device)
    every = xp.empty((d + m, d + m), dtype=xp.float64, device=on_device)
    args = (X, shift, factor, V, sums, np.int64(n), np.int32(d), np.int32(m))
    _cuda.launch(
        layout.source, "gram", (n_blocks, 1, 1), layout.threads, args, shared=layout.shared
    )
    grid, args = (-(-n_numbers // 32), 1, 1), (sums, every, np.int32(n_blocks), np.int32(d + m))
    _cuda.launch(layout.source, "collect", grid, 256, args, shared=8 * 256)
    return every[:d, :d], every[:d, d:]


@cache
def _passes_self_test(layout: TileLayout, number: int) -> bool:
    """Run the self-test, once for each layout, device and process."""
    import cupy

    what = f"products of {layout.tiles * layout.side} columns do without their CUDA kernel"
    return _cuda.passes_self_test(what, lambda: self_test(layout, cupy.zeros((0, 1), layout.dtype)))


def self_test(layout: TileLayout, rows_like: Any) -> str:
    """Compare the kernel with NumPy on random rows; return the difference in words."""
    rng, d = np.random.default_rng(0), layout.tiles * layout.side - 1
    host = [rng.normal(size=size) for size in ((1000, d), (d,), (1000,), (1000, 1))]
    X, shift, factor, V = (values.astype(layout.dtype).astype(np.float64) for values in host)
    arrays = (asarray_like(values, rows_like) for values in host)
    Z = (X - shift) * factor[:, None]
    tol = 1e3 * np.finfo(layout.dtype).eps
    pairs = zip(map(to_host, products(*arrays)), (Z.T @ Z, Z.T @ V), strict=True)
    scale = np.linalg.norm(Z)
    is_right = all(np.allclose(*pair, rtol=tol, atol=tol * scale) for pair in pairs)
    return "" if is_right else "wrong products"
