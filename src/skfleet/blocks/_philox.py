"""NumPy's Philox generator on a device: a CUDA kernel for CuPy, array operations for others."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import device

from skfleet import _cuda
from skfleet._array import FLOAT64, asarray_like, astype, namespace
from skfleet._typing import Array

# Multipliers of the two products of a round, and increments of the keys after each round.
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
ROUNDS = 10
# Threads of a block of the kernel.
THREADS = 256
SOURCE = _cuda.CudaSource(__package__, "philox.cu")


def philox_uniform_like(X: Array, seed: int, start: int, n_rows: int) -> Array:
    """Return the draws of ``Generator(Philox(key=seed))`` from `start` on, on the device of X.

    That is Philox4x64-10 (Salmon et al., 2011, Parallel random numbers: as easy as 1, 2, 3):
    four draws for each count.
    """
    if array_api_compat.is_cupy_array(X):
        return _uniform_on_cuda(X, seed, start, n_rows)
    xp = namespace(X)

    def word(number: int) -> Any:
        return asarray_like(np.uint64(number % 2**64), X)

    def product(multiplier: int, x: Any) -> tuple[Any, Any]:
        """Return the upper and the lower half of a product of 128 bits."""
        half, low_bits = word(32), word(2**32 - 1)
        m_high, m_low = word(multiplier >> 32), word(multiplier % 2**32)
        high, low = x >> half, x & low_bits
        # as in long multiplication by halves: two cross products, each with a carry
        cross = (m_low * low >> half) + m_high * low
        cross_low = (cross & low_bits) + m_low * high
        return m_high * high + (cross >> half) + (cross_low >> half), word(multiplier) * x

    first, skip = divmod(start, 4)
    n_counts = -(-(skip + n_rows) // 4)
    keys = [seed, seed >> 64]
    a = xp.arange(first + 1, first + 1 + n_counts, dtype=xp.uint64, device=device(X))
    b = c = d = xp.zeros_like(a)
    for _ in range(ROUNDS):
        a_high, a_low = product(MULTIPLIERS[0], a)
        c_high, c_low = product(MULTIPLIERS[1], c)
        a, b, c, d = c_high ^ b ^ word(keys[0]), c_low, a_high ^ d ^ word(keys[1]), a_low
        keys = [key + step for key, step in zip(keys, STEPS, strict=True)]
    bits = xp.reshape(xp.stack([a, b, c, d], axis=1), (-1,))[skip : skip + n_rows]
    return astype(bits >> word(11), FLOAT64) * 2.0**-53


def _uniform_on_cuda(X: Any, seed: int, start: int, n_rows: int) -> Array:
    """Return the same draws by one launch of philox.cu."""
    import cupy

    with X.device:
        draws = cupy.empty(n_rows, dtype=cupy.float64)
        if n_rows:
            grid = (-(-n_rows // THREADS), 1, 1)
            numbers = kernel_numbers(seed, start, n_rows)
            _cuda.launch(SOURCE, "uniform", grid, THREADS, (*numbers, draws))
    return draws


def kernel_numbers(seed: int, start: int, n_rows: int) -> tuple[np.integer, ...]:
    """Return the numbers that the kernel takes, in the types of its parameters."""
    words = (np.uint64(number % 2**64) for number in (start, seed, seed >> 64))
    return (*words, np.int64(n_rows))
