"""Files that are read in pieces are opened once, whichever threads read the pieces."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.pipeline import make_pipeline

from skfleet import config_context
from skfleet.blocks import BlockRef, _row_streams
from skfleet.blocks._row_streams import FileRows, OpenStreams, Piece
from skfleet.engine._dask._block_locations import places_of_pieces, runs_of_pieces
from skfleet.estimators import ColumnTransformer, LogisticRegression, OneHotEncoder, StandardScaler

N_ROWS, N_PIECES = 1000, 5


@pytest.fixture
def opened(monkeypatch):
    """The streams that have been opened."""
    streams = []

    class Counted(_row_streams.RowStream):
        def __init__(self, *args):
            super().__init__(*args)
            streams.append(self)
            self.is_closed = False

        def close(self):
            super().close()
            self.is_closed = True

    monkeypatch.setattr(_row_streams, "RowStream", Counted)
    return streams


@pytest.fixture
def source(tmp_path):
    """Return the rows of a file by its number."""

    def make(number):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"a": np.arange(N_ROWS) + number}), path)
        return FileRows(str(path), pa.fs.LocalFileSystem(), None)

    return make


def read(streams, source, i):
    piece = Piece(i, N_PIECES, "reader")
    with streams.reading(source, ["a"], piece) as stream:
        return stream.read(*piece.bounds(stream.n_rows))["a"].to_pylist()


def test_a_file_is_read_on_by_any_thread(opened, source):
    streams, file = OpenStreams(), source(0)
    found = []
    for i in range(N_PIECES):
        with ThreadPoolExecutor(1) as thread:
            found += thread.submit(read, streams, file, i).result()
    assert found == list(range(N_ROWS))
    (stream,) = opened
    assert stream.is_closed


def test_one_thread_has_one_open_stream(opened, source):
    streams, files = OpenStreams(), [source(0), source(1)]
    for i in range(N_PIECES):
        for number, file in enumerate(files):
            assert read(streams, file, i)[0] == number + i * N_ROWS // N_PIECES
            assert sum(not stream.is_closed for stream in opened) <= 1


def test_two_threads_have_two(opened, source):
    streams, files, meeting = OpenStreams(), [source(0), source(1)], Barrier(2)

    def read_all(file):
        meeting.wait(10)
        with streams.reading(file, ["a"], Piece(0, N_PIECES, "reader")):
            meeting.wait(10)  # both are in use
        return [read(streams, file, i)[0] for i in range(1, N_PIECES)]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(read_all, files)
    assert second == [value + 1 for value in first]
    assert all(stream.is_closed for stream in opened)


def test_two_threads_that_take_turns_have_two(opened, source):
    streams, files = OpenStreams(), [source(0), source(1)]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for i in range(N_PIECES):
            for thread, file in zip((one, other), files, strict=True):
                thread.submit(read, streams, file, i).result()
    assert len(opened) == 2
    assert all(stream.is_closed for stream in opened)


def test_what_was_left_of_a_file_is_closed_where_it_begins_again(opened, source):
    streams, file = OpenStreams(), source(0)
    for i in (0, 1, 0, 1):
        read(streams, file, i)
    assert [stream.is_closed for stream in opened] == [True, False]


def test_a_stream_that_failed_is_closed(opened, source):
    streams, file = OpenStreams(), source(0)
    with pytest.raises(ZeroDivisionError), streams.reading(file, ["a"], Piece(0, N_PIECES)):
        raise ZeroDivisionError
    (stream,) = opened
    assert stream.is_closed
    assert read(streams, file, 0)[0] == 0


# -- tasks -----------------------------------------------------------------------------------------


def places(sizes, worker_threads):
    found = places_of_pieces([[None] * n for n in sizes], worker_threads)
    names = [(k, i) for k, n in enumerate(sizes) for i in range(n)]
    order = sorted(zip(found, names, strict=True), key=lambda pair: -pair[0][1])
    return [(worker, name) for (worker, _), name in order]


def test_a_worker_takes_one_partition_after_the_other():
    order = places([3, 3, 3], {"a": 1, "b": 1})
    assert [name for worker, name in order if worker == "a"] == [
        (0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
    assert [name for worker, name in order if worker == "b"] == [(1, 0), (1, 1), (1, 2)]


def test_two_threads_of_a_worker_take_two_partitions():
    order = places([2, 2, 2], {"a": 2})
    assert [name for _, name in order] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize(
    ("sizes", "n_threads", "expected"),
    [
        ([5], 1, [5]),
        ([5], 2, [2, 3]),
        ([9], 16, [2, 2, 2, 3]),
        ([2], 4, [1, 1]),
        ([4, 4, 4], 4, [4, 4, 4]),
        ([4, 1], 4, [2, 2, 1]),
        ([], 2, []),
    ],
)
def test_idle_threads_get_runs_of_pieces(sizes, n_threads, expected):
    blocks = [BlockRef(SimpleNamespace(partition=k)) for k, n in enumerate(sizes) for _ in range(n)]
    runs = runs_of_pieces(blocks, n_threads)
    assert [len(run) for run in runs] == expected
    assert [block for run in runs for block in run] == blocks


def test_whole_partitions_go_anywhere():
    order = places([1, 2, 1], {"a": 1})
    assert [worker for worker, name in order if name[0] != 1] == [None, None]
    assert places([1], {}) == [(None, (0, 0))]


@pytest.fixture
def no_stealing(cluster_client):
    """An idle worker takes no piece of a file from the one that reads it."""
    stealing = cluster_client.cluster.scheduler.extensions["stealing"]
    cluster_client.sync(stealing.stop)
    yield
    cluster_client.sync(stealing.start)


@pytest.mark.usefixtures("no_stealing")
def test_each_pass_opens_a_file_once(tmp_path, opened, cluster_client):
    rng = np.random.default_rng(0)
    for number in range(4):
        rows = pd.DataFrame(rng.normal(size=(2000, 3)), columns=list("abc"))
        rows["city"], rows["y"] = rng.choice(["x", "z"], 2000), (rows["a"] > 0).astype(int)
        rows.to_parquet(tmp_path / f"{number}.parquet")
    frame = dd.read_parquet(tmp_path)
    parts = [("numbers", StandardScaler(), list("abc")), ("city", OneHotEncoder(), ["city"])]
    model = make_pipeline(ColumnTransformer(parts), LogisticRegression())
    with (
        cluster_client.as_current(),
        config_context(block_bytes=4_000, keep_blocks=False, disk_cache=True),
    ):
        model.fit(frame[[*"abc", "city"]], frame["y"])
    assert model[-1].n_iter_.max() > 1
    # one for the parts, one to write the rows, and a trial of three blocks
    assert len(opened) <= 2 * 4 + 3 + 2
