"""Dask collections, seen without importing or computing more than needed."""

import dask.array as da
import dask.dataframe as dd
import pandas as pd
import pytest

from skfleet.blocks import estimated_nbytes, n_rows_if_known, open_block, row_blocks


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


def test_bytes_of_files_are_estimated_by_their_metadata(tmp_path):
    for i in range(5):
        pd.DataFrame({"a": range(100), "b": 1.5}).to_parquet(tmp_path / f"{i}.parquet")
    frame = dd.read_parquet(tmp_path)
    assert estimated_nbytes(frame) == pytest.approx(500 * 16)
    assert estimated_nbytes(frame.b) == pytest.approx(500 * 8)
    assert estimated_nbytes(frame.assign(c=frame.a * 2.0)) == pytest.approx(500 * 24)
    assert estimated_nbytes(dd.read_parquet(tmp_path, filesystem="arrow")[["a"]]) == pytest.approx(
        500 * 8
    )


def test_bytes_of_files_are_not_estimated_where_rows_may_go(tmp_path):
    pd.DataFrame({"a": range(100), "b": 1.5}).to_parquet(tmp_path / "0.parquet", row_group_size=20)
    frame = dd.read_parquet(tmp_path)
    for other in (
        frame[frame.a > 3],
        frame.dropna(),
        frame.merge(frame, on="a"),
        frame.map_partitions(lambda part: part[:1], meta=frame),
        dd.read_parquet(tmp_path, filters=[("a", ">", 3)]),
        dd.read_parquet(tmp_path, filters=[("a", ">", 300)]),  # of which Dask reads nothing
        dd.read_parquet(tmp_path, split_row_groups=True).partitions[:2],
        dd.from_pandas(frame.compute(), npartitions=2),
        da.ones(3),
    ):
        assert estimated_nbytes(other) is None
