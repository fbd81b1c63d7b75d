"""Dask collections, seen without importing or computing more than needed."""

import dask.array as da
import dask.dataframe as dd
import pandas as pd

from skfleet.blocks import n_rows_if_known


def test_n_rows_if_known():
    assert n_rows_if_known([1, 2]) == n_rows_if_known(da.ones(2, chunks=1)) == 2
    assert n_rows_if_known(dd.from_pandas(pd.DataFrame({"a": [1]}), npartitions=1)) is None
