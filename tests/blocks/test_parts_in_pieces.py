"""Parts of splits of Parquet files are read in pieces, as the files are, with the same answers."""

import pickle
from collections import OrderedDict

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import get_task_stream
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

from random_examples import n_examples
from skfleet import config_context
from skfleet.blocks import (
    RowSet,
    _dask_align,
    _file_parts,
    halve_pieces,
    partition_lengths,
    row_blocks,
)
from skfleet.blocks._dask_pieces import is_read_by_rows
from skfleet.blocks._dask_take import with_fewer_columns
from skfleet.engine import counting
from skfleet.engine._counted_rows import CountedRows, with_known_lengths
from skfleet.estimators import LogisticRegression, Ridge, SimpleImputer, StandardScaler
from skfleet.model_selection import GridSearchCV, KFold, cross_val_score, train_test_split

COLUMNS, LENGTHS = list("abc"), [900, 1000, 1100]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of several row groups, with gaps, a target and a label."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for i, n in enumerate(LENGTHS):
        rows = pd.DataFrame(rng.normal(size=(n, 3)), columns=COLUMNS)
        rows["y"] = rows["a"] * 2 + rng.normal(size=n)
        rows["label"] = (rows["y"] > 0).astype(int)
        rows.loc[rng.random(n) < 0.1, "b"] = np.nan
        rows.to_parquet(folder / f"{i}.parquet", row_group_size=300)
    return str(folder)


def in_pieces_and_whole(work):
    """Return what a function returns where files are in many pieces, and where they are whole."""
    with config_context(block_bytes=4_000):
        found = work()
    return found, work()


@st.composite
def row_sets(draw):
    n_rows = draw(st.integers(1, 60))
    kind = draw(st.sampled_from(["ranges", "bits", "counts"]))
    if kind == "ranges":
        low = draw(st.integers(0, n_rows))
        return RowSet(n_rows, [(low, draw(st.integers(low, n_rows)))])
    numbers = draw(st.lists(st.integers(0, n_rows - 1), unique=kind == "bits", max_size=80))
    return RowSet.from_indices(np.array(numbers, dtype=int), n_rows)


@settings(max_examples=n_examples(100, 1000), deadline=None)
@given(rows=row_sets(), data=st.data())
def test_parts_of_blocks(rows, data):
    low = data.draw(st.integers(0, rows.n_rows))
    block = rows.cut(low, data.draw(st.integers(low, rows.n_rows)))
    first = data.draw(st.integers(0, block.n_rows))
    last = data.draw(st.integers(first, block.n_rows))
    numbers, part = block.numbers(), block.part(first, last)
    expected = numbers[(numbers >= first) & (numbers < last)] - first
    assert part.numbers().tolist() == expected.tolist()
    assert (part.n_rows, part.n_taken) == (last - first, len(expected))


def test_splits_are_fitted_and_predicted_in_pieces(files):
    frame = dd.read_parquet(files)

    def work():
        parts = train_test_split(frame[COLUMNS], frame["y"], random_state=0)
        X_train, X_test, y_train, y_test = parts
        model = make_pipeline(SimpleImputer(), Ridge()).fit(X_train, y_train)
        answers = model.predict(X_test).compute()
        n_blocks = len(row_blocks(X_train, y_train).blocks)
        return n_blocks, model[-1].coef_, model.score(X_test, y_test), answers, X_test.compute()

    (n_pieces, *found), (n_blocks, *expected) = in_pieces_and_whole(work)
    assert n_blocks == len(LENGTHS)
    assert n_pieces > 4 * n_blocks
    for got, want in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9)
    pd.testing.assert_frame_equal(found[3], expected[3])


def test_parts_of_some_files(files):
    frame = dd.read_parquet(files)[COLUMNS]
    with config_context(block_bytes=4_000):
        counted = CountedRows([frame], ())
        (part,) = counted.take(RowSet(counted.n_rows, [(1000, counted.n_rows)]))
        rows = row_blocks(part)
        assert len(rows.blocks) > 8
        model = StandardScaler().fit(part)
        transformed = model.transform(part)
        assert sum(transformed.chunks[0]) == counted.n_rows - 1000
    values = frame.compute()[1000:]
    np.testing.assert_allclose(model.mean_, values.mean())
    np.testing.assert_allclose(transformed.compute(), (values - values.mean()) / values.std(ddof=0))


@pytest.mark.slow
@pytest.mark.parametrize("cv", [3, KFold(3), KFold(3, shuffle=True, random_state=0)])
def test_searches_and_scores(files, cv):
    frame = dd.read_parquet(files)
    model = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())

    def work():
        search = GridSearchCV(model, {"logisticregression__C": [0.01, 1.0]}, cv=cv)
        search.fit(frame[COLUMNS], frame["label"])
        scores = cross_val_score(model, frame[COLUMNS], frame["label"], cv=cv)
        return search.cv_results_["mean_test_score"], scores

    found, expected = in_pieces_and_whole(work)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want)


def test_counted_rows_have_nothing_to_count(files):
    frame = dd.read_parquet(files)
    with config_context(block_bytes=4_000):
        counted = with_known_lengths(frame[COLUMNS], frame["label"])
        with counting() as counts:
            again = with_known_lengths(*counted)
    assert counts.tasks == 0
    assert [partition_lengths(x) for x in again] == [tuple(LENGTHS)] * 2


def test_rows_that_are_dropped_before_a_split(files):
    """What is a piece of the file is then none of the rows that were counted."""
    frame = dd.read_parquet(files)
    frame = frame[frame["a"] > 0]

    def work():
        return cross_val_score(Ridge(), frame[["a", "c"]], frame["y"], cv=KFold(3))

    np.testing.assert_allclose(*in_pieces_and_whole(work))
    (part,) = CountedRows([frame], ()).take(RowSet(100, [(0, 50)]))
    assert not is_read_by_rows(part)


def test_rows_are_counted_in_pieces(files):
    frame = dd.read_parquet(files)
    with config_context(block_bytes=4_000), counting() as counts:
        rows = CountedRows([frame[COLUMNS], frame["y"]], [frame["label"]])
    assert rows.lengths == [tuple(LENGTHS)] * 2
    assert counts.passes == 1
    assert counts.tasks <= 2 * len(LENGTHS)
    np.testing.assert_array_equal(rows.values[0], frame["label"].compute())


def test_a_target_alone_is_read_alone(files):
    frame = dd.read_parquet(files)
    with config_context(block_bytes=4_000):
        X, y = CountedRows([frame[COLUMNS], frame["y"]], ()).take(RowSet(sum(LENGTHS), [(0, 100)]))
    (reader,) = {str(n.columns) for n in y.expr.walk() if not n.dependencies() and n.ndim == 2}
    assert "a" in reader
    alone = with_fewer_columns(y)
    (reader,) = {str(n.columns) for n in alone.expr.walk() if not n.dependencies() and n.ndim == 2}
    assert reader == "['y']"
    np.testing.assert_array_equal(alone.compute(), frame["y"].compute()[:100])
    assert len(X) == 100


def test_lengths_of_pieces_are_known(files, monkeypatch):
    """A target in this process is cut like them, without a pass that counts."""
    monkeypatch.setattr(_dask_align, "count_rows", None)
    frame = dd.read_parquet(files)
    with config_context(block_bytes=4_000):
        X, y = CountedRows([frame[COLUMNS], frame["y"]], ()).take(RowSet(3000, [(50, 2500)]))
        targets = y.compute().to_numpy()
        rows = row_blocks(X, targets)
        assert sum(rows.lengths) == len(targets) == 2450
        assert len(rows.blocks) > 8
        assert not any(block.X.files for block in rows.blocks)  # pieces are not halved
        model = make_pipeline(SimpleImputer(), Ridge()).fit(X, targets)
    expected = make_pipeline(SimpleImputer(), Ridge()).fit(X.compute(), targets)
    np.testing.assert_allclose(model[-1].coef_, expected[-1].coef_)


def test_rows_that_are_dropped_after_a_split(files):
    frame = dd.read_parquet(files)

    def work():
        train, _ = train_test_split(frame, random_state=0)
        rows = train[train["a"] > 0]
        return len(row_blocks(rows[["a", "c"]]).blocks), Ridge().fit(rows[["a", "c"]], rows["y"])

    (n_pieces, found), (n_blocks, expected) = in_pieces_and_whole(work)
    assert n_pieces > 4 * n_blocks
    np.testing.assert_allclose(found.coef_, expected.coef_)


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask
def test_answers_of_parts_are_written_in_pieces(files, tmp_path):
    frame = dd.read_parquet(files)[[*COLUMNS, "y"]]

    def work():
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        train, test = train_test_split(frame, random_state=0)
        model = make_pipeline(SimpleImputer(), Ridge()).fit(train[COLUMNS], train["y"])
        test.assign(answer=model.predict(test[COLUMNS])).to_parquet(folder)
        return pd.read_parquet(folder), len(list(folder.glob("*.parquet")))

    (found, n_files), (expected, n_files_of_whole) = in_pieces_and_whole(work)
    assert n_files == n_files_of_whole == len(LENGTHS)
    pd.testing.assert_frame_equal(found, expected)


def test_rows_are_counted_where_pieces_have_been_halved(files, monkeypatch, cluster_client):
    monkeypatch.setattr(_file_parts, "_n_parts", OrderedDict())
    frame = dd.read_parquet(files)
    with cluster_client.as_current(), config_context(block_bytes=4_000):
        assert halve_pieces(list(row_blocks(frame[COLUMNS]).blocks)) == 2
        rows = CountedRows([frame[COLUMNS]], [])
        assert rows.lengths == [tuple(LENGTHS)]


def test_lengths_of_parts_are_known_without_a_task(files, cluster_client):
    frame = dd.read_parquet(files)
    with cluster_client.as_current():
        parts = train_test_split(frame[COLUMNS], frame["y"], random_state=0)
        with get_task_stream(cluster_client) as stream:
            lengths = [len(part) for part in parts]
    assert lengths == [2250, 750, 2250, 750]
    assert stream.data == []
    for part in parts:
        assert repr(part).startswith(f"Dask {'Series' if part.ndim == 1 else 'DataFrame'} Struct")
        assert len(pickle.loads(pickle.dumps(part)).compute()) == len(part)
        assert len(part[part["a"] > 0] if part.ndim > 1 else part[part > 0]) < len(part)
