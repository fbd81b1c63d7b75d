"""Clusters of rows, of exact sizes, in the order of the clusters or in a random one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from skfleet.datasets._row_permutation import RowPermutation


@dataclass(frozen=True)
class RowClusters:
    """Clusters that end at the places `ends` of rows; the place of a row is random if permuted."""

    ends: np.ndarray
    permutation: RowPermutation | None

    @classmethod
    def draw(
        cls, n_rows: int, sizes: Any, rng: np.random.RandomState, *, shuffle: bool
    ) -> RowClusters:
        """Return clusters of given sizes, of which the last ones are cut off after all rows."""
        return cls(np.cumsum(sizes), RowPermutation.draw(n_rows, rng) if shuffle else None)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Return the clusters of rows of global numbers."""
        places = numbers if self.permutation is None else self.permutation(numbers)
        return np.searchsorted(self.ends, places, side="right")


def equal_sizes(n_samples: int, n_clusters: int) -> np.ndarray:
    """Return sizes that differ by one at most, larger ones first."""
    return n_samples // n_clusters + (np.arange(n_clusters) < n_samples % n_clusters)
