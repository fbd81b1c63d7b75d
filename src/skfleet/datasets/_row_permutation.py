"""Random permutation of row numbers, computed for any of them alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from pandas.util import hash_array

# Few pairs need more rounds until all orders of the rows are equally probable.
ROUNDS, ROUNDS_OF_FEW, FEW_ROWS = 3, 8, 2**16


@dataclass(frozen=True)
class RowPermutation:
    """Permutation of the numbers below `n_rows`, of which no array is kept.

    That is a Feistel network on pairs of numbers (Black and Rogaway, 2002, Ciphers with arbitrary
    finite domains): each half of a pair is shifted by a hash of the other one. There are up to
    about sqrt(n_rows) pairs too many; a row that gets one of these is permuted again.
    """

    n_rows: int
    keys: tuple[int, ...]

    @classmethod
    def draw(cls, n_rows: int, rng: np.random.RandomState) -> RowPermutation:
        """Return a random permutation."""
        n_rounds = ROUNDS_OF_FEW if n_rows < FEW_ROWS else ROUNDS
        return cls(n_rows, tuple(rng.randint(2**31 - 1, size=2 * n_rounds).tolist()))

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Return the places of rows."""
        places = self._shift_pairs(numbers.astype(np.uint64))
        outside = np.flatnonzero(places >= self.n_rows)
        while len(outside):
            places[outside] = self._shift_pairs(places[outside])
            outside = outside[places[outside] >= self.n_rows]
        return places.astype(np.int64)

    def _shift_pairs(self, places: np.ndarray) -> np.ndarray:
        n_left = isqrt(self.n_rows - 1) + 1
        n_right = np.uint64(-(-self.n_rows // n_left))
        left, right = np.divmod(places, n_right)
        keys = np.array(self.keys, dtype=np.uint64)
        for left_key, right_key in zip(keys[::2], keys[1::2], strict=True):
            left = (left + _hash_bits(right ^ left_key)) % np.uint64(n_left)
            right = (right + _hash_bits(left ^ right_key)) % n_right
        return left * n_right + right


def _hash_bits(values: np.ndarray) -> np.ndarray:
    """Return 63 bits for each number: a sum with one of the halves must not overflow."""
    return hash_array(values) >> np.uint64(1)
