"""Large partitions of Parquet files are read in pieces, with the rows that Dask reads."""

import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import linear_model, preprocessing
from sklearn.pipeline import make_pipeline

from random_examples import n_examples
from skfleet import config_context
from skfleet._cluster import _memory
from skfleet.blocks import _row_streams, by_partition, open_block, row_blocks
from skfleet.blocks._block import file_block_bytes
from skfleet.blocks._row_streams import FileRows, Piece, RowStream
from skfleet.engine import counting
from skfleet.estimators import (
    BlockwiseVotingRegressor,
    ColumnTransformer,
    KMeans,
    LinearRegression,
    LogisticRegression,
    NearestNeighbors,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)


def table(n_rows, seed=0):
    """Rows of numbers with gaps, text with gaps, categories, dates and a target."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 3)), columns=["a", "b", "c"])
    frame["a"] = frame["a"].where(rng.random(n_rows) > 0.1)
    frame["n"] = rng.integers(0, 9, n_rows)
    frame["city"] = rng.choice(["here", "there", None], n_rows)
    frame["day"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(frame["n"], unit="D")
    frame["y"] = frame["b"] + rng.normal(size=n_rows)
    return frame


def write(folder, lengths, row_group_size=None, **options):
    for i, n_rows in enumerate(lengths):
        frame = table(n_rows, seed=i)
        frame.to_parquet(folder / f"{i:03d}.parquet", row_group_size=row_group_size, **options)
    return str(folder)


def rows_of(X, y, block_bytes, dtype="float"):
    """Return the rows of X and y as a pass opens them, and the number of rows of each block."""
    with config_context(block_bytes=block_bytes, engine="local"):
        blocks = [open_block(ref) for ref in row_blocks(X, y, dtype=dtype).blocks]
    # the dtype of text depends on the rows of a part
    parts = [pd.DataFrame(np.asarray(b.X, dtype=object)) for b in blocks if b.n_rows]
    y = [pd.Series(np.asarray(b.y)) for b in blocks if b.n_rows]
    whole = pd.concat(parts, ignore_index=True), pd.concat(y, ignore_index=True)
    return *whole, [b.n_rows for b in blocks]


def check_pieces(X, y, dtype="float"):
    """Check that pieces have the rows of the partitions, in their order; return their lengths."""
    with dask.config.set({"optimization.tune.active": False}):
        X_whole, y_whole, _ = rows_of(X, y, 1e12, dtype)
    X_pieces, y_pieces, lengths = rows_of(X, y, 2_000, dtype)
    pd.testing.assert_frame_equal(X_pieces, X_whole)
    pd.testing.assert_series_equal(y_pieces, y_whole)
    return lengths


EXPRESSIONS = {
    "projection": lambda frame: frame,
    "assign": lambda frame: frame.assign(a=frame["b"] * 2 + frame["n"]),
    "filter": lambda frame: frame[frame["n"] > 3],
    "filter of text": lambda frame: frame[frame["city"] == "here"],
    "dropna": lambda frame: frame.dropna(subset=["a"]),
    "fillna": lambda frame: frame.fillna({"a": 0.5}),
    "astype": lambda frame: frame.astype({"n": "float32"}),
    "rename": lambda frame: frame.rename(columns={"a": "z"}).rename(columns={"z": "a"}),
    "reset_index": lambda frame: frame.reset_index(drop=True),
    "where": lambda frame: frame.assign(a=frame["a"].where(frame["n"] > 2, 7.0)),
    "clip, abs, round": lambda frame: frame.assign(a=frame["a"].clip(-1, 1).abs().round(1)),
    "isin": lambda frame: frame.assign(c=frame["n"].isin([1, 2])),
    "map": lambda frame: frame.assign(c=frame["n"].map({1: 0.5, 2: 2.5}, meta=("c", "float64"))),
    "length of text": lambda frame: frame.assign(c=frame["city"].str.len()),
    "day": lambda frame: frame.assign(c=frame["day"].dt.day),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_rows_of_expressions(tmp_path, filesystem, expression):
    path = write(tmp_path, [300, 70, 500], row_group_size=120)
    frame = EXPRESSIONS[expression](dd.read_parquet(path, filesystem=filesystem))
    lengths = check_pieces(frame[["a", "b", "c"]], frame["y"])
    assert len(lengths) > 10
    check_pieces(frame[["city", "n"]], frame["y"], dtype=None)


# What a partition as a whole decides is made of whole partitions.
WHOLE = {
    "map_partitions": lambda frame: frame.map_partitions(lambda rows: rows - rows.mean()),
    "mean": lambda frame: frame - frame.mean(),
    "shift": lambda frame: frame.shift(1).fillna(0),
    "index": lambda frame: frame.assign(c=frame.index),
    "reset_index": lambda frame: frame.reset_index()[["a", "b", "index"]],
    "cumsum": lambda frame: frame.cumsum(),
    "sample": lambda frame: frame.sample(frac=0.5, random_state=0),
    "repartition": lambda frame: frame.repartition(npartitions=1),
    "sort": lambda frame: frame.sort_values("b"),
}


@pytest.mark.parametrize("expression", WHOLE)
def test_other_expressions_are_whole(tmp_path, expression):
    path = write(tmp_path, [300, 500])
    frame = WHOLE[expression](dd.read_parquet(path)[["a", "b", "c"]].fillna(0))
    n_partitions = frame.optimize().npartitions
    with config_context(block_bytes=2_000, engine="local"):
        assert len(row_blocks(frame).blocks) == n_partitions


@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
def test_filters_of_the_reader(tmp_path, filesystem):
    path = write(tmp_path, [300, 500], row_group_size=90)
    for filters in (
        [("n", ">", 3)],
        [[("n", ">", 3), ("b", "<", 0)], [("city", "==", "here")]],
        [("n", ">", 100)],
    ):
        frame = dd.read_parquet(path, filesystem=filesystem, filters=filters)
        if filters[0][-1] == 100:
            X, y = frame[["a", "b"]], frame["y"]
            with config_context(block_bytes=2_000, engine="local"):
                blocks = [open_block(ref) for ref in row_blocks(X, y).blocks]
            assert sum(block.n_rows for block in blocks) == 0
        else:
            check_pieces(frame[["a", "b"]], frame["y"])


@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
def test_directories_of_values(tmp_path, filesystem):
    frame = pd.concat([table(300, seed) for seed in range(2)], ignore_index=True)
    pq.write_to_dataset(pa.Table.from_pandas(frame), str(tmp_path), partition_cols=["n"])
    frame = dd.read_parquet(str(tmp_path), filesystem=filesystem)
    check_pieces(frame[["a", "b"]], frame["y"])
    check_pieces(frame[["a", "n", "city"]], frame["y"], dtype=None)


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask
def test_an_index_of_labels(tmp_path):
    for i, n_rows in enumerate([200, 300]):
        frame = table(n_rows, seed=i).set_index(pd.Index(np.arange(n_rows) ** 2 + i * 10**6))
        frame.rename_axis("number").to_parquet(tmp_path / f"{i}.parquet")
    for options in ({}, {"calculate_divisions": True}):
        frame = dd.read_parquet(str(tmp_path), index="number", **options)
        check_pieces(frame[["a", "b"]], frame["y"])


def test_types_of_other_files(tmp_path):
    # one file has no text, and integers where another has floats
    table(300).to_parquet(tmp_path / "0.parquet")
    table(200).assign(city=None, a=1).to_parquet(tmp_path / "1.parquet")
    frame = dd.read_parquet(str(tmp_path))
    check_pieces(frame[["a", "b"]], frame["y"])


@settings(max_examples=n_examples(15, 150), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    row_group_size=st.integers(1, 130),
    block_bytes=st.integers(100, 20_000),
    expression=st.sampled_from(list(EXPRESSIONS)),
    filesystem=st.sampled_from(["fsspec", "arrow"]),
    split=st.sampled_from([False, "adaptive", 2]),
)
def test_files_and_pieces_of_any_size(
    tmp_path_factory, lengths, row_group_size, block_bytes, expression, filesystem, split
):
    path = write(tmp_path_factory.mktemp("rows"), lengths, row_group_size)
    options = {} if filesystem == "arrow" else {"split_row_groups": split}
    frame = dd.read_parquet(path, filesystem=filesystem, **options)
    frame = EXPRESSIONS[expression](frame)
    X, y = frame[["a", "b", "c"]], frame["y"]
    computed = [part.reset_index(drop=True) for part in (X.compute(), y.compute())]
    if not len(computed[1]):
        return
    X_pieces, y_pieces, _ = rows_of(X, y, block_bytes)
    # pandas joins partitions of other types, with NA, as objects
    numbers = computed[0].convert_dtypes()
    np.testing.assert_array_equal(
        X_pieces.to_numpy(float), numbers.to_numpy(float, na_value=np.nan)
    )
    np.testing.assert_array_equal(y_pieces, computed[1])


@settings(max_examples=n_examples(50, 500), deadline=None)
@given(
    groups=st.lists(st.integers(0, 50), min_size=1, max_size=5),
    n_pieces=st.integers(1, 9),
    data=st.data(),
)
def test_a_stream_returns_pieces_in_any_order(tmp_path_factory, groups, n_pieces, data):
    path = str(tmp_path_factory.mktemp("stream") / "file.parquet")
    rows = pa.table({"a": np.arange(sum(groups)), "b": np.arange(sum(groups)) * 0.5})
    with pq.ParquetWriter(path, rows.schema) as writer:
        start = 0
        for n_rows in groups:
            writer.write_table(rows.slice(start, n_rows), row_group_size=max(1, n_rows))
            start += n_rows
    stream = RowStream(FileRows(path, pa.fs.LocalFileSystem(), None), ["a"])
    assert stream.n_rows == sum(groups)
    order = data.draw(st.permutations(range(n_pieces)))
    for i in order:
        low, high = Piece(i, n_pieces).bounds(stream.n_rows)
        assert stream.read(low, high)["a"].to_pylist() == list(range(low, high))
    stream.close()


@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
def test_files_that_are_written_again_are_read_again(tmp_path, filesystem):
    for seed in (0, 1):  # with a stream left open at the second piece
        table(900, seed).to_parquet(tmp_path / "0.parquet")
        frame = dd.read_parquet(str(tmp_path), filesystem=filesystem)[["b"]]
        with config_context(block_bytes=2_000, engine="local"):
            blocks = row_blocks(frame).blocks
        assert len(blocks) > 3
        expected = table(900, seed)["b"].to_numpy()
        high = 2 * 900 // len(blocks)
        got = open_block(blocks[0 if seed == 0 else 1]).X.ravel()
        assert got[-1] == expected[(high if seed else 900 // len(blocks)) - 1]


def test_members_and_neighbours_are_of_whole_partitions(tmp_path):
    frame = dd.read_parquet(write(tmp_path, [300, 200]))
    X, y = frame[["b", "c"]], frame["y"]
    with (
        dask.config.set({"optimization.tune.active": False}),
        config_context(block_bytes=1_000, engine="local"),
    ):
        voting = BlockwiseVotingRegressor(linear_model.Ridge()).fit(X, y)
        neighbors = NearestNeighbors(n_neighbors=2).fit(X.compute())
        distances, _ = neighbors.kneighbors(X)
    assert len(voting.estimators_) == 2
    assert distances.npartitions == 2


def test_files_without_metadata_are_left_to_dask(tmp_path, monkeypatch):
    frame = dd.read_parquet(write(tmp_path, [900]))[["b", "c"]]

    def fail(self):
        raise OSError("no such host")

    monkeypatch.setattr(FileRows, "open", fail)
    with config_context(block_bytes=1_000, engine="local"):
        assert len(row_blocks(frame).blocks) == 1
    monkeypatch.undo()
    with config_context(block_bytes=1_000, engine="local"):
        assert len(row_blocks(frame).blocks) > 1, "it is tried again"


@pytest.mark.parametrize("value", [True, 0, 0.5, -1, np.nan, np.inf, "16 MiB", None])
def test_sizes_of_blocks_that_cannot_be(value):
    with (
        pytest.raises(ValueError, match=r"block_bytes must be one of .* or a number of bytes"),
        config_context(block_bytes=value),
    ):
        pass


def test_a_pass_decodes_every_file_once(tmp_path, monkeypatch):
    path = write(tmp_path, [3_000, 2_000])
    frame = dd.read_parquet(path)
    opened, batches = [], []
    read_groups = RowStream._read_groups

    def counted(self, groups):
        opened.append(self)
        for batch in read_groups(self, groups):
            batches.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(RowStream, "_read_groups", counted)
    monkeypatch.setattr(_row_streams, "BATCH_ROWS", 100)
    settings = {"engine": "local", "keep_blocks": False, "disk_cache": False}
    with config_context(block_bytes=10_000, **settings), counting() as counts:
        StandardScaler().fit(frame[["a", "b", "c"]])
    assert counts.passes == 1
    assert counts.loads > 10
    assert len(opened) == 2
    assert sum(batches) == 5_000


def test_tasks_read_whole_partitions_on_a_cluster(tmp_path, cluster_client):
    frame = dd.read_parquet(write(tmp_path, [3_000, 2_000, 100]))
    with cluster_client.as_current(), config_context(block_bytes=10_000), counting() as counts:
        rows = row_blocks(frame[["a", "b", "c"]])
        scaler = StandardScaler().fit(frame[["a", "b", "c"]])
    assert [len(group) for group in by_partition(rows.blocks)] == [8, 5, 1]
    assert counts.tasks == 4  # one per partition, and one that combines
    expected = preprocessing.StandardScaler().fit(frame[["a", "b", "c"]].compute())
    np.testing.assert_allclose(scaler.mean_, expected.mean_)


@pytest.mark.parametrize("is_filled", [False, True], ids=["rows", "behind a fitted imputer"])
def test_workers_share_a_file_and_each_reads_on_to_the_end_of_its_run(
    tmp_path, monkeypatch, cluster_client, is_filled
):
    frame = dd.read_parquet(write(tmp_path, [8_000], row_group_size=8_000))[["b", "c"]]
    X = SimpleImputer().fit(frame.head(1_000)).transform(frame) if is_filled else frame
    opened, read = [], RowStream.read
    read_groups = RowStream._read_groups

    def counted(self, groups):
        opened.append(self)
        return read_groups(self, groups)

    def slow_read(self, low, high):
        time.sleep(0.03)  # an idle worker would take pieces from the other one's end
        return read(self, low, high)

    monkeypatch.setattr(RowStream, "_read_groups", counted)
    monkeypatch.setattr(RowStream, "read", slow_read)
    settings = {"keep_blocks": False, "disk_cache": True}
    with (
        cluster_client.as_current(),
        config_context(block_bytes=10_000, **settings),
        counting() as counts,
    ):
        KMeans(2, n_init=1, max_iter=3, random_state=0).fit(X)
    assert counts.cache_reads > counts.loads > 10
    assert len(opened) == 2, "one for each worker"


@pytest.mark.parametrize(
    ("limit", "threads", "n_bytes"),
    [
        (0, 1, 128 * 2**20),
        (4e9, 1, 3.6e9 / 64),
        (1e9, 1, 16 * 2**20),
        (540e6, 1, 140e6 / 24),
        (450e6, 2, 2 * 2**20),
    ],
)
def test_pieces_follow_the_memory_of_the_smallest_worker(
    monkeypatch, cluster_client, limit, threads, n_bytes
):
    large = {"memory_limit": 64 * 10**9, "nthreads": 1}
    workers = {"large": large, "other": {"memory_limit": limit, "nthreads": threads}}
    monkeypatch.setattr(_memory, "scheduler_workers", lambda client, max_age: workers)
    with cluster_client.as_current():
        assert file_block_bytes() == int(n_bytes)
        with config_context(block_bytes=123):
            assert file_block_bytes() == 123


def test_a_pipeline_of_scikit_learn_reads_rows_once_a_pass(tmp_path):
    frame = dd.read_parquet(write(tmp_path, [600, 700], row_group_size=200))
    X, y = frame[["a", "b", "c", "city"]], frame["y"]
    preparation = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b", "c"]),
            ("text", OneHotEncoder(), ["city"]),
        ],
        sparse_threshold=1.0,
    )
    models = []
    for block_bytes in (1e12, 5_000):
        pipeline = make_pipeline(preparation, LinearRegression())
        with config_context(block_bytes=block_bytes, engine="local"), counting() as counts:
            models.append(pipeline.fit(X, y))
        assert counts.passes == 3
    np.testing.assert_allclose(models[0][-1].coef_, models[1][-1].coef_)
    reference = linear_model.LinearRegression()
    expected = reference.fit(models[1][0].transform(X.compute()).toarray(), y.compute())
    answers = models[1].predict(X.compute())
    design = models[1][0].transform(X.compute()).toarray()
    np.testing.assert_allclose(answers, expected.predict(design), atol=1e-9)


def test_values_of_this_process_come_with_pieces(tmp_path):
    frame = dd.read_parquet(write(tmp_path, [600, 700]))
    X, y = frame[["b", "c"]], frame["y"].compute().to_numpy()
    with config_context(block_bytes=4_000, engine="local"):
        model = LinearRegression().fit(X, y)
        other = LinearRegression().fit(X, frame["y"])
        of_array = LinearRegression().fit(X, da.from_array(y, chunks=100))
    for found in (other, of_array):
        np.testing.assert_allclose(found.coef_, model.coef_)


PREDICTIONS = {
    "predict": lambda model, X: model.predict(X),
    "predict_proba": lambda model, X: model.predict_proba(X),
    "a filter above": lambda model, X: model.predict(X[X["n"] > 3]),
    "gaps": lambda model, X: model.predict(X.fillna({"a": 0.5})),
    "an index of its own": lambda model, X: model.predict(X.reset_index(drop=True)),
    "a column": lambda model, X: (lambda answers: answers[answers.columns[1]])(
        model.predict_proba(X)
    ),
    "beside its rows": lambda model, X: X.assign(answer=model.predict(X)),
    "rows that were filtered": lambda model, X: (
        lambda rows: rows.assign(answer=model.predict(rows))
    )(X[X["n"] > 3]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
@pytest.mark.parametrize("name", PREDICTIONS)
def test_predictions_of_pieces(tmp_path, filesystem, name):
    path = write(tmp_path, [300, 70, 500], row_group_size=120)
    X = dd.read_parquet(path, filesystem=filesystem)[["a", "b", "n"]]
    rows = table(200, seed=9)
    model = make_pipeline(SimpleImputer(), LogisticRegression())
    model.fit(rows[["a", "b", "n"]], (rows["y"] > 0).astype(int))
    expected = PREDICTIONS[name](model, X)
    # several files that are read as one have their labels twice
    with dask.config.set({"optimization.tune.active": False}), config_context(block_bytes=2_000):
        answers = PREDICTIONS[name](model, X)
        assert answers.npartitions == expected.npartitions == 3
        found, wanted = answers.compute(), expected.compute()
        assert_same = pd.testing.assert_series_equal
        if found.ndim == 2:
            assert_same = pd.testing.assert_frame_equal
        assert_same(found, wanted)
        assert_same(answers.partitions[2].compute(), expected.partitions[2].compute())


def test_fits_on_transformed_frames_read_pieces(tmp_path):
    frame = dd.read_parquet(write(tmp_path, [3_000, 2_000]))
    X, y = frame[["a", "b", "c"]], frame["y"]
    steps = make_pipeline(SimpleImputer(), StandardScaler()).set_output(transform="pandas")
    models = []
    for block_bytes in (1e12, 10_000):
        with config_context(block_bytes=block_bytes, engine="local"), counting() as counts:
            models.append(make_pipeline(steps, LinearRegression()).fit(X, y))
    assert counts.loads > 20
    np.testing.assert_allclose(models[0][-1].coef_, models[1][-1].coef_)


def test_steps_one_after_the_other_read_pieces(tmp_path):
    frame = dd.read_parquet(write(tmp_path, [3_000, 2_000]))
    X, y = frame[["a", "b", "c"]], frame["y"]
    models = []
    for block_bytes in (1e12, 10_000):
        steps = make_pipeline(SimpleImputer(), StandardScaler(), LinearRegression())
        with config_context(block_bytes=block_bytes, engine="local"), counting() as counts:
            models.append(steps.fit(X, y))
    assert counts.passes == 2
    assert counts.loads > 30
    np.testing.assert_allclose(models[0][-1].coef_, models[1][-1].coef_)
