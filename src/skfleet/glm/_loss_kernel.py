"""Launches of linear_loss.cu: for which losses and rows, thread blocks, self-test."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import device

from skfleet import _cuda
from skfleet._array import asarray_like, dtype_of, namespace, to_host
from skfleet._cuda import CudaSource, DeviceLimits, device_number, limits
from skfleet.glm._losses import BinaryLogistic, SquaredError, Tweedie

# Benchmarks and tests switch this off to compare the kernel with array operations.
ENABLED = True
# Other powers leave the range of float32 for common means, so that a self-test would tell nothing.
MAX_POWER = 4
# Threads of a block, and of a warp.
THREADS, WARP = 128, 32
# Columns of a thread, as registers allow, by the size of a float.
MAX_COLUMNS_PER_THREAD = {4: 32, 8: 24}
# Bytes of rows that a thread waits for at once: enough of them hide the latency of memory.
BYTES_PER_THREAD = 64
# As many as run at once for rows of up to 128 columns.
BLOCKS_PER_PROCESSOR = 6
# Sums of a block that adds up those of blocks.
TOTALS = 8


class LossConstants(NamedTuple):
    """Compile-time constants of linear_loss.cu."""

    itemsize: int
    lanes: int  # threads that share a row
    columns: int  # of a thread
    centered: bool
    loss: tuple[str, ...]  # the options that name it

    @classmethod
    def of(cls, dtype: np.dtype, d: int, loss: Any, *, centered: bool) -> LossConstants | None:
        """Return the constants for d columns; None for losses and widths without a kernel."""
        options = loss_options(loss)
        lanes = min(WARP, 1 << max(d - 1, 0).bit_length())
        columns = -(-d // lanes)
        if options is None or not 0 < columns <= MAX_COLUMNS_PER_THREAD[dtype.itemsize]:
            return None
        return cls(dtype.itemsize, lanes, columns, centered, options)

    @property
    def dtype(self) -> np.dtype:
        """The type of rows, coefficients, targets and weights."""
        return np.dtype(f"f{self.itemsize}")

    @property
    def rows(self) -> int:
        """Rows of a thread at once: a power of two."""
        n_rows = max(1, BYTES_PER_THREAD // (self.itemsize * self.columns))
        return 1 << (n_rows.bit_length() - 1)

    @property
    def width(self) -> int:
        """Columns with those that are zeros."""
        return self.lanes * self.columns

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 8 * THREADS + 2 * self.width * self.itemsize

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        constants = {
            "REAL": {4: "float", 8: "double"}[self.itemsize],
            "THREADS": THREADS,
            "LANES": self.lanes,
            "COLUMNS": self.columns,
            "ROWS": self.rows,
            "TOTALS": TOTALS,
            "CENTERED": int(self.centered),
        }
        return (*(f"-D{name}={value}" for name, value in constants.items()), *self.loss)

    def grid(self, n: int, limits: DeviceLimits) -> tuple[int, int, int]:
        """Return the grid of thread blocks that take n rows."""
        block_rows = THREADS // self.lanes * self.rows
        return min(-(-n // block_rows), BLOCKS_PER_PROCESSOR * limits.n_processors), 1, 1


class LossSums(NamedTuple):
    """Float64 sums over rows, on their device, as `GradientSums` has them for one output.

    With a Hessian also the sums of curves, of curves times columns, and the roots of curves, or
    each row times that; of some columns where asked.
    """

    value: Any
    loss_gradient: Any
    coef_gradient: Any
    curve: Any = None
    columns: Any = None
    roots: Any = None
    scaled_rows: Any = None


def loss_options(loss: Any) -> tuple[str, ...] | None:
    """Return the compiler's options for a loss; None for one without a kernel."""
    if loss.n_outputs != 1:
        return None
    if type(loss) is BinaryLogistic:
        return ("-DLOSS=LOGISTIC",)
    if type(loss) is SquaredError:
        return ("-DLOSS=SQUARED",)
    if type(loss) is Tweedie and abs(loss.power) <= MAX_POWER:
        power = f"-DPOWER=({float(loss.power)!r})"
        return "-DLOSS=TWEEDIE", power, f"-DLOG_LINK={int(loss.log_link)}"
    return None


def kernel_constants(X: Any, loss: Any, *, centered: bool) -> LossConstants | None:
    """Return the constants for rows and a loss; None where the kernel does not support them."""
    if not ENABLED or not _cuda.is_kernel_matrix(X):
        return None
    build = LossConstants.of(dtype_of(X), int(X.shape[1]), loss, centered=centered)
    return build if build is not None and self_test_passes(build, loss, device_number(X)) else None


def launch(build: LossConstants, name: str, grid: tuple[int, int, int], args: Any) -> None:
    """Launch a kernel on the current device; raise where that is impossible."""
    source = CudaSource(__package__, "linear_loss.cu", build.options)
    _cuda.launch(source, name, grid, THREADS, args, shared=build.shared)


def loss_sums(
    build: LossConstants,
    X: Any,
    predictor: Any,
    y: Any,
    weight: Any,
    *,
    hessian: bool = False,
    scaled: bool = True,
    columns: np.ndarray | None = None,
) -> LossSums:
    """Sum up the losses of rows and their derivatives; for the Hessian of `columns`, or of all.

    For a Hessian, scaled rows are computed, or the roots of curves without a copy of the rows.
    The predictor on the host is coefficients, the constant, and means where rows are centred.
    Targets and weights are of the rows' type and on their device; weights may be None.
    """
    xp, (n, d) = namespace(X), (int(size) for size in X.shape)
    m = 0 if not hessian else d if columns is None else len(columns)
    width = d + m + 3 if hessian else d + 2
    grid = build.grid(n, limits(X))

    def empty(*shape: int, dtype: Any = xp.float64) -> Any:
        return xp.empty(shape, dtype=dtype, device=device(X))

    parts, total = empty(grid[0], width), empty(width)
    predictor = asarray_like(predictor, X)
    arrays = [X, predictor, _contiguous(y), _contiguous(weight), parts]
    numbers = (np.int64(n), np.int32(d))
    if hessian:
        roots = None if scaled else empty(n, dtype=X.dtype)
        scaled_rows = empty(n, m, dtype=X.dtype) if scaled else None
        places = None
        if columns is not None:
            places = np.full(d, -1, dtype=np.int32)
            places[columns] = np.arange(m)
            places = asarray_like(places, X)
        more = (roots, scaled_rows, places)
        launch(build, "hessian", grid, (*arrays, *more, *numbers, np.int32(m)))
    else:
        launch(build, "gradient", grid, (*arrays, *numbers))
    add_up_grid = -(-width // TOTALS), 1, 1
    launch(build, "add_up", add_up_grid, (parts, total, np.int32(grid[0]), np.int32(width)))
    sums = LossSums(total[0], total[1:2], total[None, 2 : 2 + d])
    if not hessian:
        return sums
    curve, by_column = total[2 + d], total[3 + d :]
    return LossSums(*sums[:3], curve, by_column, roots, scaled_rows)


def _contiguous(x: Any) -> Any:
    """Return numbers by row as the kernel takes them, copied only when needed."""
    return None if x is None else namespace(x).ascontiguousarray(x)


@cache
def self_test_passes(build: LossConstants, loss: Any, number: int) -> bool:
    """Run the self-test, once for each kind of kernel, device and process."""
    import cupy

    what = f"{loss} does without its CUDA kernel for rows of up to {build.width} columns"
    empty = cupy.zeros(0, build.dtype)
    return _cuda.passes_self_test(what, lambda: self_test(build, loss, empty))


def self_test(build: LossConstants, loss: Any, array_like: Any) -> str:
    """Compare the kernel with NumPy on random rows; return the difference in words."""
    rng, n = np.random.default_rng(0), 300
    d = max(1, build.width - 1)
    rows = rng.normal(size=(n, d)).astype(build.dtype)
    center = rng.normal(size=d) if build.centered else np.zeros(0)
    coef = rng.normal(size=d) / np.sqrt(d)
    # All means are possible, and a label is a target of every loss.
    moved = rows - center.astype(build.dtype) if build.centered else rows
    constant = 1 - min(0.0, float((moved @ coef).min()))
    y, weight = rng.integers(0, 2, n).astype(build.dtype), rng.random(n).astype(build.dtype)
    if loss.valid_targets == "above 0":
        y += 1
    eta = moved.astype(np.float64) @ coef + constant
    value, slope, mean = loss.evaluate(y.astype(np.float64), eta[:, None])
    curve = weight * loss.hessian(y.astype(np.float64), mean, 0, 0)
    slope = slope[:, 0] * weight
    expected = [value @ weight, slope.sum(), slope @ moved, curve.sum(), curve @ moved]
    scale = [np.abs(value) @ weight, np.abs(slope).sum(), np.abs(slope) @ np.abs(moved)]
    scale += [curve.sum(), curve @ np.abs(moved)]
    predictor = np.concatenate([coef, [constant], center])
    X, targets, w = (asarray_like(values, array_like) for values in (rows, y, weight))
    tol = 1e3 * np.finfo(build.dtype).eps
    every_other = np.arange(d)[::-2]
    for hessian, scaled, columns in (
        (False, False, None),
        (True, False, None),
        (True, True, None),
        (True, True, every_other),
    ):
        sums = loss_sums(
            build, X, predictor, targets, w, hessian=hessian, scaled=scaled, columns=columns
        )
        results = [np.squeeze(to_host(part)) for part in sums if part is not None]
        root = np.sqrt(curve)
        z = root[:, None] * moved if scaled else root
        exact = [*expected, z] if hessian else expected[:3]
        sizes = [*scale, np.abs(z) + 1] if hessian else scale[:3]
        if columns is not None:
            exact[4:], sizes[4:] = ([part[..., columns] for part in x[4:]] for x in (exact, sizes))
        for ours, theirs, size in zip(results, exact, sizes, strict=True):
            if not np.all(np.abs(ours - np.squeeze(theirs)) <= tol * np.squeeze(size)):
                return "wrong sums"
    return ""
