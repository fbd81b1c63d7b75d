"""Random rows of a data set, in the memory of this process."""

from __future__ import annotations

from typing import Any

from sklearn.utils.random import sample_without_replacement

from skfleet._validation import check_positive_int
from skfleet.blocks import RowSet, compute_together
from skfleet.engine import CountedRows, log_pass


def sample_rows(X: Any, y: Any = None, *, n_samples: int, random_state: Any = None) -> Any:
    """Draw rows without replacement, into the memory of this process.

    The rows depend on the seed and on the number of rows, and not on the partition. Fit an
    estimator that needs all its rows at once on them, and apply it to any number of rows with
    :class:`skfleet.estimators.ParallelPostFit`.

    Parameters
    ----------
    X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
            (n_samples, n_features)
        Data to draw rows of.
    y : array-like, Dask array or Series of shape (n_samples,), default=None
        Target values, of which the same rows are drawn.
    n_samples : int
        Number of rows to draw, at most all of them.
    random_state : int, RandomState instance or None, default=None
        Seed of the draw, which is that of
        :func:`sklearn.utils.random.sample_without_replacement`.

    Returns
    -------
    X_sample : ndarray, sparse matrix or dataframe of shape (n_samples, n_features)
        The rows, in their original order and in the container of X, or of a partition of it.
    y_sample : ndarray or Series of shape (n_samples,)
        Their target values. Only with y.

    Raises
    ------
    ValueError
        If `n_samples` is not between 1 and the number of rows, or X and y differ in length.

    Notes
    -----
    One pass reads the partitions that have rows of the sample; one more counts the rows first,
    where their number is unknown.

    Examples
    --------
    >>> import dask.array as da
    >>> from sklearn.impute import KNNImputer
    >>> from skfleet.datasets import sample_rows
    >>> from skfleet.estimators import ParallelPostFit
    >>> X = da.random.default_rng(0).normal(size=(10_000, 3), chunks=(1_000, 3))
    >>> imputer = KNNImputer().fit(sample_rows(X, n_samples=500, random_state=0))
    >>> ParallelPostFit(imputer).transform(X)
    dask.array<...shape=(10000, 3), dtype=float64, chunksize=(1000, 3), ...>
    """
    check_positive_int("n_samples", n_samples)
    rows = CountedRows([X] if y is None else [X, y], [])
    if n_samples > rows.n_rows:
        raise ValueError(
            f"n_samples must be at most the number of rows, {rows.n_rows}. Got {n_samples} instead."
        )
    numbers = sample_without_replacement(rows.n_rows, n_samples, random_state=random_state)
    parts = rows.take(RowSet.from_indices(numbers, rows.n_rows))
    if rows.n_partitions:
        log_pass("sample-rows", rows.n_partitions, rows.n_partitions)
    sample = compute_together(*parts)
    return sample[0] if y is None else tuple(sample)
