"""Tests of each column against the target, of sums over blocks: F, correlation, chi-squared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, special, stats
from sklearn import feature_selection
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import check_X_y

from skfleet._array import FLOAT64, asarray_like, astype, is_not_numpy, namespace, to_host
from skfleet._linalg import is_sparse, sums_down
from skfleet._validation import unique_values
from skfleet._warnings import warn
from skfleet.blocks import Block, take_rows
from skfleet.estimators._array_api_blocks import valid_floats


class WithinClasses(NamedTuple):
    """Classes, their number of rows, and means of columns in each; squares about these means."""

    classes: np.ndarray
    n_rows: np.ndarray
    mean: np.ndarray
    squares: np.ndarray


def within_classes(X: Any, y: Any) -> WithinClasses:
    """Return the moments of the columns of X by class."""
    classes, codes, members = _members(y)
    n_rows = np.bincount(codes)
    if is_sparse(X):
        X = _canonical(X)
        mean = _dense(members @ X) / n_rows[:, None]
        n_stored = _dense(members @ _stored(X))
        about_mean = X.data - mean[np.repeat(codes, np.diff(X.indptr)), X.indices]
        squares = ((n_rows[:, None] - n_stored) * mean**2).sum(axis=0)
        squares += np.bincount(X.indices, about_mean**2, X.shape[1])
        return WithinClasses(classes, n_rows, mean, squares)
    # about the first row, so that the squares of a constant column are zero
    origin = astype(X[0, :], FLOAT64)
    shifted = X - origin
    mean = _sums_of_members(members, shifted) / asarray_like(n_rows[:, None].astype(float), shifted)
    shifted -= take_rows(mean, codes)
    squares = column_squares(shifted)
    return WithinClasses(classes, n_rows, origin + mean, squares)


def combine_within_classes(a: WithinClasses, b: WithinClasses) -> WithinClasses:
    """Return the moments of two parts of the rows (Chan, Golub and LeVeque, 1983)."""
    classes, (n_a, n_b), (mean_a, mean_b) = _align(a, b, ("n_rows", "mean"))
    n_rows = n_a + n_b
    fraction = (n_b / n_rows)[:, None]
    delta = mean_b - mean_a
    squares = a.squares + b.squares + (n_a[:, None] * fraction * delta**2).sum(axis=0)
    return WithinClasses(classes, n_rows, mean_a + fraction * delta, squares)


def f_of_classes(statistics: WithinClasses) -> tuple[np.ndarray, np.ndarray]:
    """Return the F statistics of an analysis of variance, and their p-values."""
    classes, n_rows, mean, squares = statistics
    n, df_between = n_rows.sum(), len(classes) - 1
    df_within = n - len(classes)
    # about the first class, so that nothing is between classes where the means are equal
    from_first = mean - mean[0]
    about_mean = from_first - n_rows @ from_first / n
    with np.errstate(divide="ignore", invalid="ignore"):
        between = n_rows @ about_mean**2 / np.float64(df_between)
        within = squares / np.float64(df_within)
        F = between / within
    is_constant = within == 0
    if is_constant.any() and not between.all():
        warn(f"Features {np.flatnonzero(is_constant)} are constant.")
    return F, special.fdtrc(df_between, df_within, F)


class Covariances(NamedTuple):
    """Number of rows, means of the columns and the target, and their squares and products."""

    n_rows: int
    x_mean: np.ndarray
    y_mean: float
    xx: np.ndarray
    xy: np.ndarray
    yy: float


def covariances(X: Any, y: Any) -> Covariances:
    """Return the squares and products of the columns of X and of y about their means."""
    n_rows, y = X.shape[0], np.asarray(y, dtype=np.float64)
    y_mean = y.mean()
    y = y - y_mean
    yy = y @ y
    if is_sparse(X):
        X = _canonical(X)
        x_mean = np.asarray(X.sum(axis=0)).ravel() / n_rows
        n_stored = np.bincount(X.indices, minlength=X.shape[1])
        xx = (n_rows - n_stored) * x_mean**2
        xx += np.bincount(X.indices, (X.data - x_mean[X.indices]) ** 2, X.shape[1])
        return Covariances(n_rows, x_mean, y_mean, xx, X.T @ y, yy)
    origin = X[0, :]
    X = X - origin
    mean = sums_down(X) / n_rows
    X -= mean
    xy = asarray_like(y, X) @ X
    return Covariances(n_rows, origin + mean, y_mean, column_squares(X), xy, yy)


def combine_covariances(a: Covariances, b: Covariances) -> Covariances:
    """Return the squares and products of two parts of the rows."""
    n_rows = a.n_rows + b.n_rows
    fraction = b.n_rows / n_rows
    x_delta, y_delta = b.x_mean - a.x_mean, b.y_mean - a.y_mean
    weight = a.n_rows * fraction
    return Covariances(
        n_rows,
        a.x_mean + fraction * x_delta,
        a.y_mean + fraction * y_delta,
        a.xx + b.xx + weight * x_delta**2,
        a.xy + b.xy + weight * x_delta * y_delta,
        a.yy + b.yy + weight * y_delta**2,
    )


def correlation(statistics: Covariances) -> np.ndarray:
    """Return the correlation of each column with the target, zero where either is constant."""
    with np.errstate(divide="ignore", invalid="ignore"):
        r = statistics.xy / np.sqrt(statistics.xx) / np.sqrt(statistics.yy)
    return np.where(np.isnan(r), 0.0, r)


def f_of_correlation(statistics: Covariances) -> tuple[np.ndarray, np.ndarray]:
    """Return the F statistics of regressions on each column, and their p-values."""
    explained, df = correlation(statistics) ** 2, statistics.n_rows - 2
    with np.errstate(divide="ignore", invalid="ignore"):
        F = explained / (1 - explained) * df
        p_values = stats.f.sf(F, 1, df)
    is_undefined = np.isnan(F)
    F = np.where(np.isinf(F), np.finfo(F.dtype).max, F)
    return np.where(is_undefined, 0.0, F), np.where(is_undefined, 1.0, p_values)


class ClassSums(NamedTuple):
    """Classes or labels, their number of rows, and the sums of columns in each and in all rows."""

    classes: np.ndarray
    n_rows: np.ndarray
    sums: np.ndarray
    n_total: int
    total: np.ndarray


def class_sums(X: Any, y: Any) -> ClassSums:
    """Return the sums of the columns of X, which are not negative, by class or label."""
    values = X.data if is_sparse(X) else X
    if bool(namespace(values).any(values < 0)):
        raise ValueError("Input X must be non-negative.")
    binarizer = LabelBinarizer().fit(y)  # raises for a target of no classes
    if y.ndim == 1:
        classes, codes, members = _members(y)
        n_rows, sums = np.bincount(codes), _sums_of_members(members, X)
        return ClassSums(classes, n_rows, sums, len(y), namespace(sums).sum(sums, axis=0))
    labels = np.asarray(binarizer.transform(y), dtype=np.float64)
    members = np.vstack([labels.T, np.ones(len(y))])
    sums = asarray_like(members, X) @ X if is_not_numpy(X) else _dense(members @ X)
    return ClassSums(binarizer.classes_, labels.sum(axis=0), sums[:-1, :], len(y), sums[-1, :])


def combine_class_sums(a: ClassSums, b: ClassSums) -> ClassSums:
    """Return the sums of two parts of the rows."""
    classes, n_rows, sums = _align(a, b, ("n_rows", "sums"))
    return ClassSums(classes, sum(n_rows), sum(sums), a.n_total + b.n_total, a.total + b.total)


def chi2_of_classes(statistics: ClassSums) -> tuple[np.ndarray, np.ndarray]:
    """Return the chi-squared statistics of the sums, and their p-values."""
    _, n_rows, observed, n_total, total = statistics
    expected = np.outer(n_rows / n_total, total)
    with np.errstate(invalid="ignore"):
        chi2 = ((observed - expected) ** 2 / expected).sum(axis=0)
    if len(n_rows) == 1:  # scikit-learn adds a class of no rows
        chi2[:] = np.nan
    return chi2, special.chdtrc(max(len(n_rows), 2) - 1, chi2)


class UnivariateTest(NamedTuple):
    """A test that is made of sums, with what scikit-learn checks of the rows."""

    per_block: Callable[[Any, Any], Any]
    combine: Callable[[Any, Any], Any]
    finalize: Callable[[Any], Any]
    checks: dict[str, Any]
    takes_labels: bool = False

    def reduce(self, estimator: Any, block: Block) -> Any:
        """Return the sums of a block that is valid."""
        X, y = block.X, to_host(block.y)
        has_labels = self.takes_labels and y.ndim == 2 and y.shape[1] > 1
        checks = {"estimator": estimator, "multi_output": has_labels}
        if is_not_numpy(X):
            X = valid_floats(estimator, X, double=True, allow_nan=False)
            _, y = check_X_y(np.zeros((len(y), 1)), y, **checks)
            return self.per_block(X, y)
        X, y = check_X_y(X, y, accept_sparse="csr", **checks, **self.checks)
        return self.per_block(X, y)


_FLOATS = {"dtype": (np.float64, np.float32)}
_TESTS: list[tuple[Any, UnivariateTest]] = [
    (
        feature_selection.f_classif,
        UnivariateTest(within_classes, combine_within_classes, f_of_classes, {}),
    ),
    (
        feature_selection.f_regression,
        UnivariateTest(covariances, combine_covariances, f_of_correlation, {"dtype": np.float64}),
    ),
    (
        feature_selection.r_regression,
        UnivariateTest(covariances, combine_covariances, correlation, {"dtype": np.float64}),
    ),
    (
        feature_selection.chi2,
        UnivariateTest(class_sums, combine_class_sums, chi2_of_classes, _FLOATS, True),
    ),
]


def univariate_test(score_func: Any) -> UnivariateTest:
    """Return the test that a function of scikit-learn's makes, or raise."""
    for function, test in _TESTS:
        if score_func is function:
            return test
    names = ", ".join(function.__name__ for function, _ in _TESTS)
    name = getattr(score_func, "__name__", repr(score_func))
    raise TypeError(
        f"score_func must be one of scikit-learn's {names} for Dask rows, which are made of sums. "
        f"Got {name} instead. Fit on skfleet.datasets.sample_rows(X, y, n_samples=...), whose rows "
        "are in this process."
    )


def _members(y: Any) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the classes, the code of each row, and a sparse matrix of the rows of each class."""
    classes, codes = unique_values(y, return_inverse=True)
    n_rows = len(codes)
    entries = np.ones(n_rows), (codes, np.arange(n_rows))
    return classes, codes, sparse.csr_array(entries, shape=(len(classes), n_rows))


def _sums_of_members(members: Any, X: Any) -> Any:
    """Return the sums of the columns of X by class, on the device of X."""
    return dot_on_device(members, X) if is_not_numpy(X) else _dense(members @ X)


def dot_on_device(members: Any, X: Any) -> Any:
    """Return the product of a sparse matrix of ones, one in each column, and rows on a device."""
    xp = namespace(X)
    codes = asarray_like(members.tocsc().indices.astype(np.int64), X)
    classes = asarray_like(np.arange(members.shape[0]), X)
    return xp.astype(classes[:, None] == codes[None, :], X.dtype) @ X


def column_squares(X: Any) -> Any:
    """Return the sums of the squares of columns, on the device of X."""
    if is_not_numpy(X):
        return sums_down(X * X)
    return np.einsum("ij,ij->j", X, X)


def _align(a: Any, b: Any, names: Sequence[str]) -> Any:
    """Return the classes of two parts, and a pair of arrays by class for each name.

    A class that one of the parts lacks has zeros in it.
    """
    both = np.concatenate([a.classes, b.classes])
    classes, codes = unique_values(both, return_inverse=True)
    pairs = []
    for name in names:
        pair = []
        for part, rows in ((a, codes[: len(a.classes)]), (b, codes[len(a.classes) :])):
            values = getattr(part, name)
            aligned = np.zeros((len(classes), *values.shape[1:]), values.dtype)
            aligned[rows] = values
            pair.append(aligned)
        pairs.append(pair)
    return classes, *pairs


def _canonical(X: Any) -> Any:
    """Return CSR rows with one entry at most for each column, in float64."""
    X = X.astype(np.float64)  # a copy
    X.sum_duplicates()
    return X


def _stored(X: Any) -> Any:
    """Return a CSR matrix of ones where X has an entry."""
    return sparse.csr_array((np.ones(len(X.data)), X.indices, X.indptr), shape=X.shape)


def _dense(X: Any) -> np.ndarray:
    return np.asarray(X.toarray() if is_sparse(X) else X, dtype=np.float64)
