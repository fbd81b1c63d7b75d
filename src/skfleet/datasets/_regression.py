"""Regression problems: linear targets of normal or low rank rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from skfleet._validation import check_bool, check_in_interval, check_positive_int, check_seed
from skfleet.datasets._cells import CellRows, draw_seed
from skfleet.datasets._generator_docstrings import document
from skfleet.datasets._low_rank import LowRankRows, check_low_rank, low_rank_rows


@dataclass(frozen=True)
class RegressionRows:
    """Rows and their linear targets, with normal noise."""

    rows: LowRankRows
    coef: np.ndarray
    bias: float
    noise: float

    @property
    def n_draws(self) -> int:
        return self.rows.n_draws

    @property
    def metas(self) -> tuple[np.ndarray, ...]:
        return (*self.rows.metas, np.empty((0, *self.coef.shape[1:])))

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        (X,) = self.rows(rng, numbers)
        y = X @ self.coef + self.bias
        if self.noise > 0:
            y += self.noise * rng.standard_normal(y.shape)
        return X, y


@document
def make_regression(
    n_samples: int = 100,
    n_features: int = 100,
    *,
    n_informative: int = 10,
    n_targets: int = 1,
    bias: float = 0.0,
    effective_rank: int | None = None,
    tail_strength: float = 0.5,
    noise: float = 0.0,
    shuffle: bool = True,
    coef: bool = False,
    random_state: Any = None,
    chunks: Any = "auto",
    as_frame: bool = False,
) -> tuple[Any, ...]:
    r"""Generate a regression problem, block by block.

    .. math:: y = X \beta + b + \varepsilon, \quad \varepsilon \sim N(0, \mathrm{noise}^2)

    where `n_informative` columns have coefficients from U(0, 100), and all others 0.

    Parameters
    ----------
    n_samples : int, default=100
        Number of rows.
    n_features : int, default=100
        Number of columns.
    n_informative : int, default=10
        Number of columns with coefficients above 0, all columns at most.
    n_targets : int, default=1
        Number of targets.
    bias : float, default=0.0
        Constant :math:`b` of all targets.
    effective_rank : int or None, default=None
        If None, X is standard normal. A number is that of singular vectors that explain most of
        X, which is then of :func:`make_low_rank_matrix`.
    tail_strength : float, default=0.5
        Fraction of the fat tail in the singular values, between 0 and 1, with `effective_rank`.
    noise : float, default=0.0
        Standard deviation of the noise of the targets.
    shuffle : bool, default=True
        Whether informative columns are anywhere; else they are the first ones. The order of rows
        is random in either case.
    coef : bool, default=False
        If True, the coefficients are returned too.
    {random_state}
    {chunks}
    {as_frame}

    Returns
    -------
    {X}
    y : Dask array, Series or DataFrame of shape (n_samples,) or (n_samples, n_targets)
        The targets, float64.
    coef : ndarray of shape (n_features,) or (n_features, n_targets)
        The coefficients. Only with `coef`.

    Raises
    ------
    {errors}

    See Also
    --------
    make_low_rank_matrix : Rows without targets.
    sklearn.datasets.make_regression : The same in the memory of one process.

    Notes
    -----
    No pass over the rows, and one with `effective_rank`. One task draws X and y of a block.
    A single row keeps its dimension in y, and a single column in `coef`.

    {cells}

    Examples
    --------
    >>> from skfleet.datasets import make_regression
    >>> from skfleet.estimators import Ridge
    >>> X, y, coef = make_regression(
    ...     10_000, 20, noise=1.0, coef=True, random_state=0, chunks=1_000
    ... )
    >>> model = Ridge(alpha=1e-3).fit(X, y)
    >>> bool(abs(model.coef_ - coef).max() < 0.1)
    True
    """
    from skfleet.datasets._collections import drawn_collections, row_lengths

    counts = {"n_samples": n_samples, "n_features": n_features, "n_targets": n_targets}
    for name, value in counts.items():
        check_positive_int(name, value)
    check_positive_int("n_informative", n_informative, 0)
    check_in_interval("bias", bias, -np.inf, open="lr")
    check_in_interval("noise", noise, 0, open="r")
    check_low_rank(1 if effective_rank is None else effective_rank, tail_strength)
    for name, value in (("shuffle", shuffle), ("coef", coef), ("as_frame", as_frame)):
        check_bool(name, value)
    check_seed("random_state", random_state)
    lengths = row_lengths(chunks, n_samples, n_features)
    rng = check_random_state(random_state)
    beta = _draw_coef(n_features, min(n_informative, n_features), n_targets, rng, shuffle=shuffle)
    if effective_rank is None:
        rows = CellRows(LowRankRows(n_features), draw_seed(rng), n_samples)
    else:
        rows = low_rank_rows(n_samples, n_features, effective_rank, tail_strength, rng)
    source = CellRows(RegressionRows(rows.draws, beta, bias, noise), rows.seed, n_samples)
    X, y = drawn_collections("make-regression", [source], lengths, as_frame=as_frame)
    return (X, y, beta) if coef else (X, y)


def _draw_coef(
    n_features: int,
    n_informative: int,
    n_targets: int,
    rng: np.random.RandomState,
    *,
    shuffle: bool,
) -> np.ndarray:
    """Return coefficients: of one column for each target, or of one dimension for one target."""
    coef = np.zeros((n_features, n_targets))
    coef[:n_informative] = 100 * rng.uniform(size=(n_informative, n_targets))
    if shuffle:
        rng.shuffle(coef)
    return coef[:, 0] if n_targets == 1 else coef
