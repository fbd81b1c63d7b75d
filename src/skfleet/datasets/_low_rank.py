"""Matrices with bell-shaped singular values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg
from sklearn.utils import check_random_state

from skfleet._config import config_context
from skfleet._linalg import qr_r, vstack
from skfleet._validation import check_bool, check_in_interval, check_positive_int, check_seed
from skfleet.blocks import Block, row_blocks
from skfleet.datasets._cells import CellRows, draw_seed
from skfleet.datasets._generator_docstrings import document
from skfleet.engine import Reduction, engine_for, map_reduce

# Numbers of a block of the pass that orthonormalises, 32 MB.
PASS_BLOCK_DRAWS = 2**22


@dataclass(frozen=True)
class LowRankRows:
    """Rows of normal draws, multiplied by a matrix: the draws themselves without one."""

    n_draws: int
    mixing: np.ndarray | None = None

    @property
    def metas(self) -> tuple[np.ndarray, ...]:
        width = self.n_draws if self.mixing is None else self.mixing.shape[1]
        return (np.empty((0, width)),)

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        draws = rng.standard_normal((len(numbers), self.n_draws))
        return (draws if self.mixing is None else draws @ self.mixing,)


@document
def make_low_rank_matrix(
    n_samples: int = 100,
    n_features: int = 100,
    *,
    effective_rank: int = 10,
    tail_strength: float = 0.5,
    random_state: Any = None,
    chunks: Any = "auto",
    as_frame: bool = False,
) -> Any:
    r"""Generate a mostly low rank matrix with bell-shaped singular values, block by block.

    :math:`X = U \Sigma V^T` with :math:`r` = min(n_samples, n_features) singular values

    .. math:: \sigma_i = (1 - t) e^{-(i / k)^2} + t e^{-0.1 i / k},
        \quad i = 0, ..., r - 1

    of `effective_rank` :math:`k` and `tail_strength` :math:`t`, and random orthonormal vectors.

    Parameters
    ----------
    n_samples : int, default=100
        Number of rows.
    n_features : int, default=100
        Number of columns.
    effective_rank : int, default=10
        Approximate number of singular vectors that explain most of the data.
    tail_strength : float, default=0.5
        Fraction of the fat tail in the singular values, between 0 and 1.
    {random_state}
    {chunks}
    {as_frame}

    Returns
    -------
    {X}

    Raises
    ------
    {errors}

    See Also
    --------
    sklearn.datasets.make_low_rank_matrix : The same in the memory of one process.

    Notes
    -----
    Rows of :math:`U` depend on one another, so the call makes one pass. It draws normal rows
    :math:`G`, on the workers or in this process, and returns the factor :math:`R` of
    :math:`G = QR` (TSQR; Demmel et al., 2012): r x r numbers. A block is :math:`G_b R^{-1} \Sigma
    V^T` with the same draws. So :math:`U = Q` is uniform, as scikit-learn's, and the singular
    values are exact to rounding.

    {cells}

    Examples
    --------
    >>> import numpy as np
    >>> from skfleet.datasets import make_low_rank_matrix
    >>> X = make_low_rank_matrix(5_000, 20, effective_rank=3, random_state=0, chunks=1_000)
    >>> X
    dask.array<make-low-rank-matrix, shape=(5000, 20), dtype=float64, chunksize=(1000, 20), ...>
    >>> np.linalg.svd(X.compute(), compute_uv=False)[:3].round(3)
    array([1.   , 0.931, 0.788])
    """
    from skfleet.datasets._collections import drawn_collections, row_lengths

    check_positive_int("n_samples", n_samples)
    check_positive_int("n_features", n_features)
    check_low_rank(effective_rank, tail_strength)
    check_bool("as_frame", as_frame)
    check_seed("random_state", random_state)
    lengths = row_lengths(chunks, n_samples, n_features)
    rng = check_random_state(random_state)
    rows = low_rank_rows(n_samples, n_features, effective_rank, tail_strength, rng)
    (X,) = drawn_collections("make-low-rank-matrix", [rows], lengths, as_frame=as_frame)
    return X


def check_low_rank(effective_rank: Any, tail_strength: Any) -> None:
    """Raise for an impossible profile of singular values."""
    check_positive_int("effective_rank", effective_rank)
    check_in_interval("tail_strength", tail_strength, 0, 1)


def low_rank_rows(
    n_samples: int,
    n_features: int,
    effective_rank: int,
    tail_strength: float,
    rng: np.random.RandomState,
) -> CellRows:
    """Return rows with bell-shaped singular values, after the pass that orthonormalises them."""
    rank = min(n_samples, n_features)
    seed = draw_seed(rng)
    draws = CellRows(LowRankRows(rank), seed, n_samples)
    V = linalg.qr(rng.standard_normal((n_features, rank)), mode="economic")[0]
    i = np.arange(rank) / effective_rank
    values = (1 - tail_strength) * np.exp(-(i**2)) + tail_strength * np.exp(-0.1 * i)
    mixing = linalg.solve_triangular(_triangular_factor(draws), values[:, None] * V.T)
    return CellRows(LowRankRows(rank, mixing), seed, n_samples)


def _triangular_factor(draws: CellRows) -> np.ndarray:
    """Return the R of a QR factorisation of rows, in blocks that do not depend on the user's."""
    from skfleet.datasets._collections import drawn_collections, row_lengths

    rank, n_samples = draws.draws.n_draws, draws.n_samples
    n_cells = -(-max(PASS_BLOCK_DRAWS // rank, rank) // draws.cell_rows)
    lengths = row_lengths(min(n_cells * draws.cell_rows, n_samples), n_samples, rank)
    (G,) = drawn_collections("normal-draws", [draws], lengths, as_frame=False)
    # deterministic: partial results are combined in the order of the blocks
    with config_context(deterministic=True):
        rows = row_blocks(G, dtype=None)
        return map_reduce(engine_for(rows), Reduction(_local_r, _combine_r, _positive_r), rows)


def _local_r(block: Block) -> np.ndarray:
    return qr_r(block.X)


def _combine_r(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return qr_r(vstack([a, b]))


def _positive_r(r: np.ndarray) -> np.ndarray:
    """Return the R whose diagonal is positive, of which there is one."""
    return np.copysign(1.0, np.diag(r))[:, None] * r
