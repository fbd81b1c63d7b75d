"""scikit-learn's splitters and `train_test_split`, on Dask rows too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

from sklearn import model_selection
from sklearn.model_selection import check_cv
from sklearn.model_selection import train_test_split as train_test_split_in_memory

from skfleet._sklearn_private import validate_shuffle_split
from skfleet.blocks import RowSet, class_in_scikit_learn, is_lazy
from skfleet.engine import CountedRows
from skfleet.model_selection._splits._row_splits import Split, row_splits

T = TypeVar("T", bound=type)

_ON_DASK_ROWS = """
On Dask arrays and DataFrames each part has the rows that it has in scikit-learn, whatever the
partition. ``split`` then yields :class:`RowSet` objects, array-likes of row numbers in ascending
order that need at most a bit for each row; :func:`split_rows` takes the rows lazily. Labels and
groups are computed where the splitter uses them, and rows are counted where their number is
unknown, in one pass.
"""

# Splitters whose splits do not depend on y; any other one is given it.
_IGNORE_Y = (
    model_selection.KFold,
    model_selection.GroupKFold,
    model_selection.TimeSeriesSplit,
    model_selection.ShuffleSplit,
    model_selection.GroupShuffleSplit,
    model_selection.LeaveOneGroupOut,
    model_selection.LeavePGroupsOut,
    model_selection.LeaveOneOut,
    model_selection.LeavePOut,
    model_selection.PredefinedSplit,
    model_selection.RepeatedKFold,
)


def _needs_y(splitter: Any) -> bool:
    return class_in_scikit_learn(splitter) not in _IGNORE_Y


def _lazy_splits(
    splitter: Any, X: Any = None, y: Any = None, groups: Any = None
) -> Iterator[Split]:
    """Yield the splits of Dask rows."""
    rows = CountedRows([X], [y if _needs_y(splitter) else None, groups])
    yield from row_splits(splitter, rows.n_rows, *rows.values)


def _on_dask_rows(cls: T) -> T:
    """Let a splitter of scikit-learn's split Dask rows too, and say so in its docstring."""
    base: Any = cls.__bases__[0]

    @wraps(base.split)
    def split(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(map(is_lazy, (*args, *kwargs.values()))):
            return _lazy_splits(self, *args, **kwargs)
        return base.split(self, *args, **kwargs)

    cls.split, cls.class_in_scikit_learn = split, base  # type: ignore[attr-defined]
    summary, _, text = inspect.cleandoc(base.__doc__ or "").partition("\n\n")
    cls.__doc__ = f"{summary}\n{_ON_DASK_ROWS}\n{text}"
    return cls


@_on_dask_rows
class KFold(model_selection.KFold):
    pass


@_on_dask_rows
class StratifiedKFold(model_selection.StratifiedKFold):
    pass


@_on_dask_rows
class GroupKFold(model_selection.GroupKFold):
    pass


@_on_dask_rows
class StratifiedGroupKFold(model_selection.StratifiedGroupKFold):
    pass


@_on_dask_rows
class TimeSeriesSplit(model_selection.TimeSeriesSplit):
    pass


@_on_dask_rows
class ShuffleSplit(model_selection.ShuffleSplit):
    pass


@_on_dask_rows
class StratifiedShuffleSplit(model_selection.StratifiedShuffleSplit):
    pass


@_on_dask_rows
class GroupShuffleSplit(model_selection.GroupShuffleSplit):
    pass


@_on_dask_rows
class LeaveOneGroupOut(model_selection.LeaveOneGroupOut):
    pass


@_on_dask_rows
class LeavePGroupsOut(model_selection.LeavePGroupsOut):
    pass


@_on_dask_rows
class LeaveOneOut(model_selection.LeaveOneOut):
    pass


@_on_dask_rows
class LeavePOut(model_selection.LeavePOut):
    pass


@_on_dask_rows
class PredefinedSplit(model_selection.PredefinedSplit):
    pass


@_on_dask_rows
class RepeatedKFold(model_selection.RepeatedKFold):
    pass


@_on_dask_rows
class RepeatedStratifiedKFold(model_selection.RepeatedStratifiedKFold):
    pass


def train_test_split(
    *arrays: Any,
    test_size: float | int | None = None,
    train_size: float | int | None = None,
    random_state: Any = None,
    shuffle: bool = True,
    stratify: Any = None,
) -> list[Any]:
    """Split rows into a part to train on and a part to test on.

    The parts have the rows of :func:`sklearn.model_selection.train_test_split`. For arrays in this
    process it is that function. Of Dask collections the parts are lazy, in the container of each,
    and have their rows in the original order; arrays passed with them are split alike.

    Parameters
    ----------
    *arrays : sequence of {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame}
        Rows to split, all of the same length.
    test_size : float or int, default=None
        Fraction, or number, of rows in the test part. By default what `train_size` leaves, or 0.25.
    train_size : float or int, default=None
        Fraction, or number, of rows in the training part. By default what `test_size` leaves.
    random_state : int, RandomState instance or None, default=None
        Seed of the random choice of rows.
    shuffle : bool, default=True
        Whether the rows are chosen at random. Otherwise the first ones are the training part.
    stratify : {array-like, Dask array or Series} of shape (n_samples,), default=None
        Labels whose proportions both parts are to have.

    Returns
    -------
    splitting : list of length 2 * len(arrays)
        Training and test part of each array.

    Raises
    ------
    ValueError
        For sizes that no rows remain with, arrays of different lengths, or rows whose order differs
        from one pass to the next.

    Notes
    -----
    One pass counts the rows where their number is unknown, and brings `stratify` to this process,
    where it is a Dask collection. A random choice needs nine bytes a row while it is made, then a
    bit. A part takes one task for each partition.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.model_selection import train_test_split
    >>> X = da.arange(10, chunks=4)
    >>> X_train, X_test = train_test_split(X, test_size=3, random_state=0)
    >>> X_train.compute(), X_test.compute()
    (array([0, 1, 3, 5, 6, 7, 9]), array([2, 4, 8]))
    """
    if not arrays or not any(map(is_lazy, (*arrays, stratify))):
        options = {"random_state": random_state, "shuffle": shuffle, "stratify": stratify}
        return train_test_split_in_memory(
            *arrays, test_size=test_size, train_size=train_size, **options
        )
    if shuffle is False and stratify is not None:
        raise ValueError("Stratified train/test split is not implemented for shuffle=False")
    rows = CountedRows(arrays, [stratify])
    n_train, n_test = validate_shuffle_split(rows.n_rows, test_size, train_size, 0.25)
    if shuffle is False:
        ranges = [(0, n_train)], [(n_train, n_train + n_test)]
        train, test = (RowSet(rows.n_rows, part) for part in ranges)
    else:
        cls = ShuffleSplit if stratify is None else StratifiedShuffleSplit
        splitter = cls(test_size=n_test, train_size=n_train, random_state=random_state)
        train, test = next(row_splits(splitter, rows.n_rows, *rows.values))
    return list(chain.from_iterable(zip(rows.take(train), rows.take(test), strict=True)))


def split_rows(*arrays: Any, cv: Any = 5, groups: Any = None) -> Iterator[list[Any]]:
    """Yield the training and the test part of arrays for each split of a cross-validation.

    Parameters
    ----------
    *arrays : sequence of {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame}
        Rows to split, all of the same length. The second one is y, by which a splitter stratifies.
    cv : int, cross-validation splitter or iterable, default=5
        scikit-learn's splitters, those of this module, or any other; a number is that of the folds
        of a KFold.
    groups : {array-like, Dask array or Series} of shape (n_samples,), default=None
        Group of each row, for splitters that keep groups together.

    Yields
    ------
    splitting : list of length 2 * len(arrays)
        Training and test part of each array, in its container and in the original order of the
        rows; lazy for Dask collections.

    Raises
    ------
    ValueError
        For arrays of different lengths, rows whose order differs from one pass to the next, or what
        the splitter refuses.

    Notes
    -----
    One pass counts rows of unknown number, and brings Dask labels and groups to this process, where
    the splitter uses them. A part takes one task for each partition that has rows of it.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.model_selection import split_rows
    >>> X = da.arange(6, chunks=4)
    >>> for X_train, X_test in split_rows(X, cv=2):
    ...     print(X_train.compute(), X_test.compute())
    [3 4 5] [0 1 2]
    [0 1 2] [3 4 5]
    """
    splitter = check_cv(cv)
    takes_y = len(arrays) > 1 and hasattr(cv, "split") and _needs_y(splitter)
    rows = CountedRows(arrays, [arrays[1] if takes_y else None, groups])
    for train, test in row_splits(splitter, rows.n_rows, *rows.values):
        yield list(chain.from_iterable(zip(rows.take(train), rows.take(test), strict=True)))
