"""Rows in a random order, across all partitions of Dask collections."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state, shuffle

from skfleet.blocks import as_sized, check_rows, is_lazy, shuffle_partitions


def shuffle_rows(*arrays: Any, random_state: Any = None) -> Any:
    """Shuffle the rows of arrays together.

    For arrays in this process it is :func:`sklearn.utils.shuffle`. Rows of Dask collections move
    between partitions, through Dask's shuffle. Their order depends on the seed and on the number of
    rows, and not on the partition; it is not that of :func:`sklearn.utils.shuffle`.

    Parameters
    ----------
    *arrays : sequence of {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame}
        Rows to shuffle, all of the same length; all in this process, or all Dask collections of
        dense rows.
    random_state : int, RandomState instance or None, default=None
        Seed of the order.

    Returns
    -------
    shuffled : array, frame or collection, or list of these
        The rows of each array in its container, in the same random order; lazy for Dask
        collections, with as many partitions as before. A frame keeps its index, without divisions.

    Raises
    ------
    ValueError
        For arrays of different lengths.
    TypeError
        For sparse chunks, and for arrays some of which are Dask collections.

    Notes
    -----
    One pass counts the rows where their number is unknown. On a cluster the rows go through the
    workers' disks (Dask's P2P shuffle), each time that they are computed: persist what is read in
    several passes.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.model_selection import shuffle_rows
    >>> X = da.arange(10, chunks=4)
    >>> shuffle_rows(X, random_state=0).compute()
    array([...])
    """
    check_rows(**{f"array {i}": values for i, values in enumerate(arrays)})
    lazy = [is_lazy(values) for values in arrays]
    if not any(lazy):
        return shuffle(*arrays, random_state=random_state)
    if not all(lazy):
        kind = type(as_sized("Every array", arrays[lazy.index(False)])).__name__
        raise TypeError(
            "Every array must be a Dask collection where one is. Got "
            f"{kind} instead. Make one of it, with dask.array.from_array say."
        )
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    shuffled = shuffle_partitions(arrays, seed)
    return shuffled[0] if len(shuffled) == 1 else shuffled
