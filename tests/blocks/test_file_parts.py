"""Pieces of files that are read in parts have the rows that they have as a whole."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import skfleet
from skfleet.blocks import _file_parts, halve_pieces, in_parts, open_block, open_parts, row_blocks

pytestmark = pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask

N_ROWS = 1000


@pytest.fixture
def halved(monkeypatch):
    """Without pieces that other tests halved."""
    monkeypatch.setattr(_file_parts, "_n_parts", type(_file_parts._n_parts)())


@pytest.fixture
def frame(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(N_ROWS, 3)), columns=list("abc"))
    table.loc[::7, "c"] = np.nan
    table.to_parquet(tmp_path / "0.parquet", index=False, row_group_size=150)
    return dd.read_parquet(str(tmp_path))


def blocks_of(frame, **options):
    with skfleet.config_context(block_bytes=9000):
        rows = row_blocks(frame[["a", "b"]], frame["c"], **options)
    assert len(rows.blocks) > 1
    return rows


@pytest.mark.parametrize("dtype", ["float", None])
def test_parts_are_the_rows_of_the_piece(halved, frame, dtype):
    rows = blocks_of(frame.dropna(), dtype=dtype)
    whole = [open_block(ref) for ref in rows.blocks]
    refs = rows.with_lengths([block.n_rows for block in whole]).blocks
    for n_parts in (2, 4, 8):
        assert halve_pieces([refs[:1]]) == n_parts  # and those of the same files
        (cut,) = in_parts((list(refs),))
        for ref, block in zip(cut, whole, strict=True):
            again, parts = open_block(ref), list(open_parts([ref]))
            assert [part.number for part in parts] == [block.number] * n_parts
            assert [part.row_offset for part in parts] == list(
                ref.row_offset + np.cumsum([0, *(part.n_rows for part in parts)])[:-1]
            )
            for name in ("X", "y"):
                values = np.asarray(getattr(block, name))
                np.testing.assert_array_equal(np.asarray(getattr(again, name)), values)
                joined = np.concatenate([np.asarray(getattr(part, name)) for part in parts])
                np.testing.assert_array_equal(joined, values)
    assert halve_pieces(list(refs)) == 0


def test_later_blocks_of_the_same_files_are_in_parts(halved, frame):
    halve_pieces(list(blocks_of(frame).blocks))
    same, other = (in_parts(list(blocks_of(x).blocks)) for x in (frame, frame.assign(b=1.0)))
    assert {ref.X.n_parts for ref in same} == {2}
    assert len(list(open_parts(same))) == 2 * len(same)
    assert {ref.X.n_parts for ref in other} == {1}  # which reads other columns


def test_what_cannot_be_halved(halved, frame):
    rows = row_blocks(np.ones((4, 2)))
    assert halve_pieces(list(rows.blocks)) == 0
    whole = row_blocks(frame.map_partitions(lambda x: x))  # in no pieces
    assert halve_pieces(list(whole.blocks)) == 0
    with skfleet.config_context(block_bytes=9000):
        mixed = row_blocks(frame[["a"]], np.ones(N_ROWS))  # cut by the rows of whole pieces
    assert halve_pieces(list(mixed.blocks)) == 0
