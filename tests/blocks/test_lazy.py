"""Dask collections, seen without importing or computing more than needed."""

import dask.array as da
import dask.dataframe as dd
import pandas as pd

from skfleet.blocks import n_rows_if_known, open_block, row_blocks


def test_n_rows_if_known():
    assert n_rows_if_known([1, 2]) == n_rows_if_known(da.ones(2, chunks=1)) == 2
    assert n_rows_if_known(dd.from_pandas(pd.DataFrame({"a": [1]}), npartitions=1)) is None


def test_what_arrays_share_is_computed_once():
    parts = []
    shared = da.ones((6, 2), chunks=(2, 2)).map_blocks(lambda x: parts.append(len(x)) or x, meta=1)
    rows = row_blocks(shared + 1, shared[:, 0] * 2)
    for block in rows.blocks:
        open_block(block)
    assert parts == [2, 2, 2]
