"""Counts for Poisson regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from skfleet._validation import check_bool, check_in_interval, check_positive_int, check_seed
from skfleet.datasets._cells import CellRows, draw_seed
from skfleet.datasets._generator_docstrings import document

# A count of a larger mean may not be exact in float64.
MAX_MEAN = 2.0**52


@dataclass(frozen=True)
class CountRows:
    """Normal rows and their Poisson counts."""

    coef: np.ndarray

    @property
    def n_draws(self) -> int:
        return len(self.coef)

    @property
    def metas(self) -> tuple[np.ndarray, ...]:
        return np.empty((0, self.n_draws)), np.empty(0, dtype=np.int64)

    def __call__(self, rng: np.random.Generator, numbers: np.ndarray) -> tuple[np.ndarray, ...]:
        X = rng.standard_normal((len(numbers), self.n_draws))
        means = np.exp(np.minimum(X @ self.coef, np.log(MAX_MEAN)))
        return X, rng.poisson(means)


@document
def make_counts(
    n_samples: int = 1000,
    n_features: int = 100,
    n_informative: int = 2,
    scale: float = 1.0,
    chunks: Any = "auto",
    random_state: Any = None,
    *,
    as_frame: bool = False,
) -> tuple[Any, Any]:
    r"""Generate a problem of counts, block by block.

    .. math:: y \sim \mathrm{Poisson}(e^{X \beta}), \quad X \sim N(0, I)

    where `n_informative` columns have coefficients from U(-scale, 0), and all others 0.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows.
    n_features : int, default=100
        Number of columns.
    n_informative : int, default=2
        Number of columns on which the counts depend, all different.
    scale : float, default=1.0
        Size of the coefficients.
    {chunks}
    {random_state}
    {as_frame}

    Returns
    -------
    {X}
    y : Dask array or Series of shape (n_samples,)
        The counts, int64.

    Raises
    ------
    {errors}

    See Also
    --------
    skfleet.estimators.PoissonRegressor : The model of these counts.

    Notes
    -----
    The signature and the construction are those of dask-ml's function of this name. Means are at
    most 2**52. No pass over the rows; one task draws X and y of a block.

    {cells}

    Examples
    --------
    >>> from skfleet.datasets import make_counts
    >>> from skfleet.estimators import PoissonRegressor
    >>> X, y = make_counts(10_000, 5, chunks=1_000, random_state=0)
    >>> model = PoissonRegressor(alpha=0).fit(X, y)
    >>> int((model.coef_ < -0.1).sum())
    2
    """
    from skfleet.datasets._collections import drawn_collections, row_lengths

    check_positive_int("n_samples", n_samples)
    check_positive_int("n_features", n_features)
    check_positive_int("n_informative", n_informative, 0)
    if n_informative > n_features:
        raise ValueError(
            f"n_informative must be at most n_features, {n_features}. Got {n_informative} instead."
        )
    check_in_interval("scale", scale, 0, open="r")
    check_bool("as_frame", as_frame)
    check_seed("random_state", random_state)
    lengths = row_lengths(chunks, n_samples, n_features)
    rng = check_random_state(random_state)
    coef = np.zeros(n_features)
    columns = rng.permutation(n_features)[:n_informative]
    coef[columns] = scale * (rng.uniform(size=n_informative) - 1)
    source = CellRows(CountRows(coef), draw_seed(rng), n_samples)
    X, y = drawn_collections("make-counts", [source], lengths, as_frame=as_frame)
    return X, y
