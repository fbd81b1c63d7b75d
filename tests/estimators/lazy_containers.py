"""Dask containers of the same rows, and a comparison of lazy with local output."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from scipy import sparse


def make_frame(X):
    return pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])], index=range(100, 220))


CUTS = (50, 0, 1, 69)

LAZY = {
    "rows": lambda X: da.from_array(X, chunks=(CUTS, 6)),
    "rows and columns": lambda X: da.from_array(X, chunks=(CUTS, 4)),
    "unknown": lambda X: da.from_array(X, chunks=(CUTS, 6))[
        da.ones(120, chunks=(CUTS,), dtype=bool)
    ],
    "frame": lambda X: dd.from_pandas(make_frame(X), npartitions=3),
    "frame with an empty part": lambda X: dd.concat(
        [
            dd.from_pandas(make_frame(X).iloc[a:b], npartitions=1)
            for a, b in ((0, 60), (60, 60), (60, 120))
        ],
        interleave_partitions=True,
    ),
}


def is_frame(X):
    return hasattr(X, "npartitions") and hasattr(X, "index")


def compare(announced, want, X):
    """What was announced is what comes, and that is the wrapped estimator's answer."""
    got = announced.compute(scheduler="synchronous")
    values = want.toarray() if sparse.issparse(want) else np.asarray(want)
    if is_frame(X):
        assert isinstance(got, pd.Series if values.ndim == 1 else pd.DataFrame)
        pd.testing.assert_index_equal(got.index, X.index.compute(), check_names=False)
        if values.ndim == 2:
            assert list(announced.columns) == list(got.columns)
            assert set(announced.dtypes) == set(got.dtypes)
        else:
            assert announced.dtype == got.dtype
    else:
        assert isinstance(announced, da.Array)
        assert sparse.issparse(got) == sparse.issparse(want)
        assert announced.dtype == got.dtype
        assert announced.ndim == values.ndim
        assert announced.chunks[0] == X.chunks[0] or np.isnan(X.shape[0])
        if values.ndim == 2:
            assert announced.shape[1] == got.shape[1]
        for block in announced.blocks:
            part = block.compute(scheduler="synchronous")
            assert part.dtype == announced.dtype
    got = got.toarray() if sparse.issparse(got) else np.asarray(got)
    if values.dtype.kind == "f":
        np.testing.assert_allclose(got, values, rtol=1e-10, atol=1e-12)
    else:
        np.testing.assert_array_equal(got, values)
