"""Launches of descent.cu: thread blocks, shared memory, self-test."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from skfleet import _cuda
from skfleet._array import asarray_like, astype, dtype_of, is_floating, namespace, to_host
from skfleet._cuda import CudaSource, DeviceLimits, device_limits, device_number, limits
from skfleet._typing import Array
from skfleet.glm._sgd_config import SGDConfig, SGDTargets, SGDWeights
from skfleet.glm._sgd_losses import REGRESSION_LOSSES
from skfleet.glm._sgd_steps import descend_by_batches, to_device_as

# Benchmarks switch this off to compare the kernel with operations of the array library.
ENABLED = True
# Threads of a block, which are as many as a batch may have rows, and of a warp.
THREADS, WARP = 512, 32
# Rates of descent.cu; those of "adaptive" and of passive-aggressive steps are constant for a block.
RATE_KINDS = {"invscaling": 1, "optimal": 2}
PASSIVE_KINDS = {"pa1": 1, "pa2": 2}


class DescentOptions(NamedTuple):
    """Compile-time constants of descent.cu."""

    itemsize: int
    loss: str
    passive: int
    is_limited: bool
    is_staged: bool

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        constants = {
            "REAL": {4: "float", 8: "double"}[self.itemsize],
            "THREADS": THREADS,
            "LOSS": self.loss.upper(),
            "PASSIVE": self.passive,
            "LIMITED": int(self.is_limited),
            "STAGED": int(self.is_staged),
        }
        return tuple(f"-D{name}={value}" for name, value in constants.items())


class DescentLaunch(NamedTuple):
    """Threads of a row, and shared memory; `is_staged` where two batches fit in."""

    lanes: int
    stride: int  # of rows in shared memory
    is_staged: bool
    shared: int

    @classmethod
    def of(cls, dtype: np.dtype, d: int, size: int, limits: DeviceLimits) -> DescentLaunch | None:
        """Return the configuration for batches of rows of d columns; None beyond the limits."""
        if size > THREADS:
            return None
        lanes = 1
        while lanes < WARP and 2 * lanes * size <= THREADS:
            lanes *= 2
        # An odd multiple of the lanes: rows that are read at a time lie in different banks.
        stride = lanes * (-(-d // lanes) | 1)
        capacity, columns = THREADS // lanes, d + 1
        doubles = -(-(3 * columns + 2 * THREADS // WARP) // 2) * 2
        reals = columns + max(columns, THREADS) + capacity
        tiles, products = 2 * capacity * stride, 2 * capacity
        least = 8 * doubles + dtype.itemsize * reals + 4 * 2 * capacity
        is_staged = least + dtype.itemsize * tiles <= limits.shared
        shared = least + dtype.itemsize * (tiles if is_staged else products)
        return cls(lanes, stride, is_staged, shared) if shared <= limits.shared else None

    @property
    def capacity(self) -> int:
        """The most rows of a batch."""
        return THREADS // self.lanes

    def copy_bytes(self, d: int, itemsize: int, address: int) -> int:
        """Return the bytes that are copied at once, to which all rows are aligned."""
        sizes = [n for n in (16, 8, 4) if n >= itemsize]
        return next(n for n in sizes if not (d * itemsize | self.stride * itemsize | address) % n)


def supports(X: Any, targets: SGDTargets, config: SGDConfig) -> bool:
    """Return whether the kernel supports rows and targets, and passes its self-test for them."""
    if not ENABLED or not _cuda.is_kernel_matrix(X):
        return False
    n, d = (int(size) for size in X.shape)
    # Whole numbers as targets of a regression would be computed with in other precisions.
    if n >= 2**31 or not (targets.positive is not None or is_floating(targets.values)):
        return False
    number = device_number(X)
    launches = DescentLaunch.of(dtype_of(X), d, config.batch_rows(n), device_limits(number))
    if launches is None:
        return False
    rate = "constant" if config.learning_rate == "adaptive" else config.learning_rate
    return self_test_passes(dtype_of(X), d, config.loss, rate, launches.capacity, number)


def launch(
    build: DescentOptions, name: str, grid: tuple[int, int, int], shared: int, args: tuple[Any, ...]
) -> None:
    """Launch a kernel on the current device; raise where that is impossible."""
    source = CudaSource(__package__, "descent.cu", build.options)
    _cuda.launch(source, name, grid, THREADS, args, shared=shared)


class StepSchedule(NamedTuple):
    """Steps of the rows, decay and sum of the rates of the batches, for each column of rates."""

    steps: Any
    decays: Any
    rate_sums: Any
    n_rates: int


def descend(
    weights: SGDWeights,
    X: Any,
    targets: SGDTargets,
    config: SGDConfig,
    order: np.ndarray | None = None,
) -> SGDWeights:
    """Return the weights after descending on the rows of X, by two launches for all batches."""
    xp, dtype, (n, d) = namespace(X), dtype_of(X), (int(size) for size in X.shape)
    size, k = config.batch_rows(n), len(weights.intercept)
    launches = DescentLaunch.of(dtype, d, size, limits(X))
    assert launches is not None
    passive = PASSIVE_KINDS.get(config.learning_rate, 0)
    build = DescentOptions(
        dtype.itemsize, config.loss, passive, config.is_limited, launches.is_staged
    )
    *by_rate, n_rates = _schedule(build, weights, X, config)

    def like_rows(values: Array | None) -> Any:
        return None if values is None else xp.ascontiguousarray(astype(values, dtype))

    y, weight = to_device_as(targets.values, X), targets.sample_weight
    weight = None if weight is None else to_device_as(weight, X)
    state = _upload(_packed(weights, k, d), X, xp.float64)
    rows = (X, like_rows(y), like_rows(weight), _upload(order, X, xp.int64))
    outputs = (_upload(values, X, X.dtype) for values in (targets.positive, targets.side_weights))
    copy = launches.copy_bytes(d, dtype.itemsize, _address(X))
    flags = (config.fit_intercept, config.track_objective)
    sizes = (d, size, n_rates, launches.lanes, launches.stride, copy, *flags)
    reals = (weights.t, config.l1, config.l2, config.epsilon, config.eta0, config.average)
    numbers = (np.int64(n), *map(np.int32, sizes), *map(np.float64, reals))
    args = (*rows, *by_rate, *outputs, state, *numbers)
    launch(build, "descend", (k, 1, 1), launches.shared, args)

    total = n if weight is None else float(xp.sum(weight, dtype=xp.float64))
    return _unpacked(to_host(state), weights, n, total)


def _schedule(
    build: DescentOptions, weights: SGDWeights, X: Any, config: SGDConfig
) -> StepSchedule:
    """Compute the steps of all rows on their device."""
    xp, n = namespace(X), int(X.shape[0])
    size = config.batch_rows(n)
    # One column of rates serves all outputs until "adaptive" decays make them differ.
    rate = np.atleast_1d(weights.rate)
    rate = rate[:1] if (rate == rate[0]).all() else rate
    n_rates, n_batches = len(rate), -(-n // size)
    steps = xp.empty(n * n_rates, dtype=X.dtype)
    decays, rate_sums = xp.empty((2, n_batches * n_rates), dtype=xp.float64)
    offset = config.optimal_offset(weights.t) if config.learning_rate == "optimal" else 0.0
    sizes = (size, n_rates, RATE_KINDS.get(config.learning_rate, 0))
    reals = (weights.t, config.eta0, config.power_t, config.alpha, offset, config.l2)
    numbers = (np.int64(n), *map(np.int32, sizes), *map(np.float64, reals))
    grid = (-(-n_batches * n_rates // THREADS), 1, 1)
    args = (_upload(rate, X, xp.float64), steps, decays, rate_sums, *numbers)
    launch(build, "schedule", grid, 0, args)
    return StepSchedule(steps, decays, rate_sums, n_rates)


def _upload(values: Any, X: Any, dtype: Any) -> Any:
    """Return values on the host, if there are any, as an array on the device of X."""
    # A copy keeps the order of columns in memory, which the kernel does not look for.
    return None if values is None else asarray_like(np.ascontiguousarray(values), X, dtype=dtype)


def _address(X: Any) -> int:
    """Return the address of the first number of X."""
    interface = getattr(X, "__cuda_array_interface__", None) or X.__array_interface__
    return int(interface["data"][0])


def _packed(weights: SGDWeights, k: int, d: int) -> np.ndarray:
    """Return the state of k outputs as the kernel has it."""
    state = np.zeros((k, 3, d + 1))
    fields = (weights.coef, weights.mean_coef, weights.l1_applied)
    for i, values in enumerate(fields):
        if values is not None:
            state[:, i, :d] = values
    state[:, 0, d] = weights.intercept
    if weights.mean_intercept is not None:
        state[:, 1, d] = weights.mean_intercept
    sums = np.zeros((k, 3))
    sums[:] = np.stack(np.broadcast_arrays(weights.value, weights.penalty, weights.l1_due), axis=-1)
    return np.hstack([state.reshape(k, -1), sums])


def _unpacked(state: np.ndarray, weights: SGDWeights, n: int, weight: float) -> SGDWeights:
    """Return weights with what the kernel has learned of n rows."""
    k, d = np.shape(weights.coef)
    coef, mean, applied = np.moveaxis(state[:, :-3].reshape(k, 3, d + 1), 1, 0)
    value, penalty, l1_due = state[:, -3:].T.copy()
    has_mean = weights.mean_coef is not None
    return weights._replace(
        coef=coef[:, :d].copy(),
        intercept=coef[:, d].copy(),
        mean_coef=mean[:, :d].copy() if has_mean else None,
        mean_intercept=mean[:, d].copy() if has_mean else None,
        l1_applied=None if weights.l1_applied is None else applied[:, :d].copy(),
        l1_due=l1_due,
        value=value,
        penalty=penalty,
        t=weights.t + n,
        n_rows=weights.n_rows + n,
        weight=weights.weight + weight,
    )


@cache
def self_test_passes(
    dtype: np.dtype, d: int, loss: str, learning_rate: str, size: int, number: int
) -> bool:
    """Run the self-test, once for each kind of steps and shape, device and process."""
    import cupy

    what = f"stochastic gradient descent does without its CUDA kernel for {loss}, {d} columns"
    rows_like = cupy.zeros((0, d), dtype)
    return _cuda.passes_self_test(what, lambda: self_test(rows_like, loss, learning_rate, size))


def self_test(rows_like: Any, loss: str, learning_rate: str, size: int) -> str:
    """Compare the kernel with NumPy on two and a half batches; return the difference in words."""
    rng, dtype, d = np.random.default_rng(0), dtype_of(rows_like), int(rows_like.shape[1])
    n, k = 5 * size // 2 + 1, 1 if loss in REGRESSION_LOSSES else 3
    rows = (rng.normal(size=(n, d)) / np.sqrt(d)).astype(dtype)
    weight, order = rng.random(n), rng.permutation(n)
    targets = SGDTargets(rng.normal(size=n), weight)
    if k > 1:
        targets = SGDTargets(rng.integers(0, k, n), weight, np.arange(k), rng.random((2, k)))
    config = SGDConfig(
        loss=loss,
        epsilon=0.1,
        l1=1e-3,
        l2=1e-2,
        learning_rate=learning_rate,
        alpha=1e-2,
        eta0=0.05,
        power_t=0.25,
        fit_intercept=True,
        average=size + 1,
        batch_size=size,
        track_objective=True,
    )
    zeros = np.zeros((k, d))
    start = SGDWeights(rng.normal(size=(k, d)), rng.normal(size=k), zeros, zeros[:, 0], zeros)
    expected = descend_by_batches(start, rows, targets, config, order)
    on_device = targets._replace(
        values=asarray_like(targets.values, rows_like),
        sample_weight=asarray_like(weight, rows_like),
    )
    learned = descend(start, asarray_like(rows, rows_like), on_device, config, order)
    tol = 1e3 * np.finfo(dtype).eps
    for name, ours, theirs in zip(SGDWeights._fields, learned, expected, strict=True):
        if not np.allclose(ours, theirs, rtol=tol, atol=tol):
            return f"wrong {name}"
    return ""
