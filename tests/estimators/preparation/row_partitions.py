"""Dask collections of the same rows in every partition, and scikit-learn's answer beside ours."""

from itertools import pairwise

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator, clone

from skfleet.blocks import with_pandas_text

# How rows are cut, and in what order they are; the rows are those of `arranged`.
PARTITIONS = (
    "one block",
    "a row a block",
    "sorted by y",
    "sorted by a column",
    "empty first",
    "empty middle",
    "empty last",
    "a block without values",
    "unknown lengths",
    "other categories",
)
CONTAINERS = ("array", "frame", "csr")


def arranged(X, y, partition):
    """Return the rows in the order, and with the gaps, of a partition."""
    X, y = X.copy(), None if y is None else np.asarray(y)
    if partition in ("sorted by y", "sorted by a column", "other categories"):
        by_y = partition == "sorted by y" and y is not None
        first = X if X.ndim == 1 else X.iloc[:, 0] if hasattr(X, "iloc") else X[:, 0]
        keys = y if by_y else np.asarray(first)
        order = np.argsort(np.array([str(key) for key in keys]), kind="stable")
        X = X.iloc[order] if hasattr(X, "iloc") else X[order]
        y = None if y is None else y[order]
    if partition == "a block without values":
        low, high = _bounds(len(X), partition)[1:3]
        if hasattr(X, "iloc"):
            empty = X.iloc[low:high].copy()
            for name in X.columns:
                is_integer = X[name].dtype.kind in "iu"
                X[name] = X[name].astype(float) if is_integer else X[name]
                empty[name] = pd.Series(np.nan, index=empty.index, dtype=X[name].dtype)
            X = pd.concat([X.iloc[:low], empty, X.iloc[high:]])
        else:
            X = X.astype(float) if X.dtype.kind in "iu" else X
            X[low:high] = "" if X.ndim == 1 else np.nan
    return X, y


def _bounds(n, partition):
    if partition == "one block":
        return [0, n]
    if partition == "a row a block":
        return list(range(n + 1))
    inner = [n // 3, n // 2]
    empty = {"empty first": [0], "empty middle": [n // 2], "empty last": [n]}.get(partition, [])
    return sorted([0, *inner, *empty, n])


def as_dask(X, partition, container="array"):
    """Return rows that were `arranged` for a partition as a Dask collection."""
    bounds = _bounds(len(X), partition)
    if hasattr(X, "iloc"):
        parts = [X.iloc[a:b] for a, b in pairwise(bounds)]
        if partition == "other categories":  # each partition has those that it needs
            parts = [_own_categories(part) for part in parts]
        meta = dd.from_pandas(_own_categories(X), npartitions=1)._meta
        import dask

        return dd.from_delayed([dask.delayed(p) for p in parts], meta=meta, verify_meta=False)
    chunks = tuple(np.diff(bounds).tolist())
    X = sparse.csr_array(X) if container == "csr" else X
    rows = da.from_array(X, chunks=(chunks, *X.shape[1:]), asarray=False)
    if partition == "unknown lengths" and container != "csr":
        rows = rows[da.ones(rows.shape[0], chunks=(chunks,), dtype=bool)]
    return rows


def _own_categories(part):
    columns = part.columns if part.ndim == 2 else []
    for name in columns:
        if isinstance(part[name].dtype, pd.CategoricalDtype):
            part = part.assign(**{name: part[name].cat.remove_unused_categories()})
    return part


def check_like_reference(
    ours,
    reference,
    X,
    y=None,
    *,
    partition,
    container="array",
    rtol=1e-12,
    atol=1e-12,
    skip=(),
    scheduler="synchronous",
):
    """Fit ours on Dask rows and the reference on the same rows, and compare all they have.

    `ours` and `reference` are unfitted; X is a frame for ``container="frame"``, else an array.
    """
    X, y = arranged(X, y, partition)
    local = sparse.csr_array(X) if container == "csr" else X
    lazy = as_dask(X, partition, container)
    if container == "frame":  # Dask makes strings of objects, and unites categories
        local = with_pandas_text(lazy.compute())
    y, lazy_y = ((), ()) if y is None else ((y,), (as_dask(y, partition),))
    reference, ours = clone(reference).fit(local, *y), clone(ours).fit(lazy, *lazy_y)
    same_attributes(ours, reference, rtol=rtol, skip=skip)
    if not hasattr(reference, "transform"):
        return ours, reference, lazy, local
    expected, got = reference.transform(local), ours.transform(lazy)
    assert isinstance(got, da.Array)
    announced, blocks = got, got.compute(scheduler=scheduler)
    assert sparse.issparse(blocks) == sparse.issparse(expected)
    assert announced.dtype == blocks.dtype == expected.dtype
    assert announced.ndim == expected.ndim
    assert announced.shape[1:] == expected.shape[1:]
    same_values(blocks, expected, rtol=rtol, atol=atol)
    if container == "frame" and X.ndim == 2 and not sparse.issparse(expected):
        frame = clone(ours).set_output(transform="pandas").fit(lazy, *lazy_y).transform(lazy)
        want = clone(reference).set_output(transform="pandas").fit(local, *y).transform(local)
        assert isinstance(frame, dd.DataFrame)
        pd.testing.assert_frame_equal(
            frame.compute(scheduler=scheduler), want, rtol=max(rtol, 1e-10), atol=atol
        )
    return ours, reference, lazy, local


def _is_of_arrays(values):
    is_object = isinstance(values, np.ndarray) and values.dtype == object
    return is_object and all(isinstance(value, np.ndarray) for value in values)


def public_attributes(model):
    return {k: v for k, v in vars(model).items() if k.endswith("_") and not k.startswith("_")}


def same_attributes(ours, reference, *, rtol=1e-12, skip=()):
    """Compare all fitted attributes, their dtypes and shapes included."""
    a, b = public_attributes(ours), public_attributes(reference)
    assert a.keys() == b.keys()
    for name in a.keys() - set(skip):
        same_values(a[name], b[name], rtol=rtol, name=name)
    if b and hasattr(reference, "get_feature_names_out"):
        names = reference.get_feature_names_out()
        assert list(ours.get_feature_names_out()) == list(names)


def same_values(a, b, *, rtol=1e-12, atol=1e-14, name="values"):
    """Compare values of any kind: numbers within the tolerance, all else exactly."""
    if isinstance(b, BaseEstimator):
        assert isinstance(a, type(b)), name
        same_attributes(a, b, rtol=rtol)
    elif isinstance(b, dict):
        assert list(a) == list(b), name
        for key in b:
            same_values(a[key], b[key], rtol=rtol, atol=atol, name=f"{name}[{key!r}]")
    elif isinstance(b, list | tuple):
        assert len(a) == len(b), name
        for i, (x, z) in enumerate(zip(a, b, strict=True)):
            same_values(x, z, rtol=rtol, atol=atol, name=f"{name}[{i}]")
    elif _is_of_arrays(b):
        assert isinstance(a, np.ndarray), name
        same_values(list(a), list(b), rtol=rtol, atol=atol, name=name)
    elif sparse.issparse(b):
        assert a.shape == b.shape, name
        same_values(a.toarray(), b.toarray(), rtol=rtol, atol=atol, name=name)
    elif isinstance(b, np.ndarray | np.generic | int | float) and not isinstance(b, bool):
        x, z = np.asarray(a), np.asarray(b)
        assert x.dtype == z.dtype, (name, x.dtype, z.dtype)
        assert x.shape == z.shape, (name, x.shape, z.shape)
        if z.dtype.kind == "f":
            # where all values are of one size, the smallest have that size's rounding
            scale = np.nanmax(np.abs(z[np.isfinite(z)]), initial=0.0)
            np.testing.assert_allclose(x, z, rtol=rtol, atol=max(atol, rtol * scale), err_msg=name)
        elif z.dtype == object:  # pandas would take None for NaN
            for p, q in zip(x.ravel().tolist(), z.ravel().tolist(), strict=True):
                assert p is q or p == q or (p != p and q != q), (name, p, q)
        elif x.size:
            pd.testing.assert_frame_equal(
                pd.DataFrame(x.reshape(len(x), -1) if x.ndim else [x.item()]),
                pd.DataFrame(z.reshape(len(z), -1) if z.ndim else [z.item()]),
            )
    elif " at 0x" in repr(b):  # an object of no value: that of its attributes
        assert type(a) is type(b), name
        same_values(vars(a), vars(b), rtol=rtol, atol=atol, name=name)
    else:
        assert type(a) is type(b) or a == b, name
        assert repr(a) == repr(b), name
