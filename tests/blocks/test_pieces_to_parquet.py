"""Results of large Parquet files are joined and written by pieces, as those of whole partitions."""

from functools import cache
from types import SimpleNamespace

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

from random_examples import n_examples
from skfleet import config_context
from skfleet.blocks import by_rows, map_by_rows
from skfleet.blocks._joined_rows import joined
from skfleet.estimators import (
    ColumnTransformer,
    GaussianNB,
    LogisticRegression,
    NearestNeighbors,
    SimpleImputer,
    StandardScaler,
)

pytestmark = pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask

NUMBERS = ["a", "b", "n"]
ALL = [*NUMBERS, "half", "city", "kind", "is_new", "day"]


def rows_of(n_rows, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 2)), columns=["a", "b"])
    frame["a"] = frame["a"].where(rng.random(n_rows) > 0.1)
    frame["n"] = rng.integers(0, 9, n_rows)
    frame["half"] = frame["b"].astype("float32")
    frame["city"] = rng.choice(["here", "there", None], n_rows)
    frame["kind"] = pd.Categorical(rng.choice(["x", "y"], n_rows), categories=["x", "y"])
    frame["is_new"] = frame["n"] > 4
    frame["day"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(frame["n"], unit="D")
    return frame


def write(folder, lengths, *, index=None, n_group=150):
    folder.mkdir()
    for i, n_rows in enumerate(lengths):
        frame = rows_of(n_rows, seed=i)
        if index:
            frame.index = pd.Index(np.arange(n_rows) * 3 + i, name=index)
        frame.to_parquet(folder / f"{i:03d}.parquet", row_group_size=n_group)
    return str(folder)


@cache
def fitted():
    """The models of these tests."""
    rows = rows_of(300, seed=9)
    impute, few, many = SimpleImputer(), LogisticRegression(), GaussianNB()
    scale = make_pipeline(impute, StandardScaler()).set_output(transform="pandas")
    passed_on = ColumnTransformer(
        [("numbers", scale, NUMBERS)], remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    return SimpleNamespace(
        few=make_pipeline(impute, few).fit(rows[NUMBERS], np.where(rows["b"] > 0, "more", "less")),
        many=make_pipeline(impute, many).fit(rows[NUMBERS], np.arange(300) % 20),
        scale=scale.fit(rows[NUMBERS]),
        passed_on=passed_on.fit(rows[ALL]),
    )


RESULTS = {
    "labels": lambda m, X: m.few.predict(X[NUMBERS]).to_frame("answer"),
    "probabilities": lambda m, X: m.few.predict_proba(X[NUMBERS]),
    "many classes": lambda m, X: m.many.predict_proba(X[NUMBERS]),
    "numbers": lambda m, X: m.scale.transform(X[NUMBERS]),
    "all types": lambda m, X: m.passed_on.transform(X[ALL]),
    "filtered": lambda m, X: m.scale.transform(X[X["n"] > 3][NUMBERS]),
    "none left": lambda m, X: m.scale.transform(X[X["n"] > 99][NUMBERS]),
    "beside its rows": lambda m, X: X.assign(answer=m.few.predict(X[NUMBERS])),
    "two of them": lambda m, X: X.assign(
        answer=m.few.predict(X[NUMBERS]), more=m.few.predict_proba(X[NUMBERS])["more"]
    ),
    "renamed": lambda m, X: m.scale.transform(X[NUMBERS]).rename(columns={"a": "A"}) * 2,
    "reset": lambda m, X: m.scale.transform(X[NUMBERS]).reset_index(drop=True),
    "index as a column": lambda m, X: m.scale.transform(X[NUMBERS]).reset_index(),
}
OPTIONS = {
    "plain": {},
    "without index": {"write_index": False},
    "row groups": {"row_group_size": 70},
    "compressed": {"compression": "zstd", "custom_metadata": {"by": "us"}},
    "named": {"name_function": "rows-{}.parquet".format},
    "partitioned": {"partition_on": ["n"]},
    "with metadata": {"write_metadata_file": True},
    "any schema": {"schema": None},
}


def check_files(tmp_path, make, path, **options):
    """Check that pieces write the files of whole partitions; return the row groups of these."""
    n_groups = []
    with dask.config.set({"optimization.tune.active": False}):
        for name, block_bytes in (("whole", 1e12), ("pieces", 2_000)):
            with config_context(block_bytes=block_bytes):
                make(fitted(), dd.read_parquet(path)).to_parquet(str(tmp_path / name), **options)
    files, others = (
        sorted(file.relative_to(tmp_path / name) for file in (tmp_path / name).rglob("*.parquet"))
        for name in ("whole", "pieces")
    )
    assert others == files
    for file in files:
        whole, pieces = (tmp_path / name / file for name in ("whole", "pieces"))
        assert pq.read_schema(pieces).equals(pq.read_schema(whole), check_metadata=True)
        pd.testing.assert_frame_equal(pd.read_parquet(pieces), pd.read_parquet(whole))
        n_groups.append(pq.read_metadata(pieces).num_row_groups)
    return n_groups


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("name", "index"),
    [*((name, None) for name in RESULTS), ("numbers", "id"), ("all types", "id"), ("reset", "id")],
)
def test_files_of_results(tmp_path, name, index):
    path = write(tmp_path / "rows", [300, 1, 500], index=index)
    n_groups = check_files(tmp_path, RESULTS[name], path)
    if name in ("numbers", "all types", "two of them"):
        assert n_groups[0] > 1
        assert n_groups[1] == 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_files_with_options(tmp_path, options):
    make = RESULTS["beside its rows"]
    path = write(tmp_path / "rows", [300, 400])
    check_files(tmp_path, make, path, **options)
    if "row_group_size" in options:
        file = pq.ParquetFile(tmp_path / "pieces" / "part.0.parquet")
        lengths = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        assert lengths == [70, 70, 70, 70, 20]


@by_rows
def _fail_at_the_end(rows):
    if (rows["n"] == 99).any():
        raise ValueError("a row that no model knows")
    return rows


def test_a_file_whose_rows_failed_is_removed(tmp_path):
    rows = rows_of(600)
    rows.loc[599, "n"] = 99
    rows.to_parquet(tmp_path / "rows.parquet")
    frame = dd.read_parquet(tmp_path / "rows.parquet")
    with config_context(block_bytes=2_000):
        answers = map_by_rows(frame, _fail_at_the_end, meta=frame._meta)
    with pytest.raises(ValueError, match="no model knows"):
        answers.to_parquet(str(tmp_path / "answers"))
    assert not list((tmp_path / "answers").iterdir())


def test_results_with_two_uses_are_made_once(tmp_path):
    frame = dd.read_parquet(write(tmp_path / "rows", [300]))
    calls = []

    @by_rows
    def counted(rows):
        calls.append(len(rows))
        return rows

    with config_context(block_bytes=2_000):
        answers = map_by_rows(frame[["b"]], counted, meta=frame._meta[["b"]])
        for name in ("one", "two"):
            written = answers.to_parquet(str(tmp_path / name), compute=False)
            calls.clear()
            dask.compute(written, answers["b"].sum(), scheduler="sync")
            assert sum(calls) == 300
            assert len(calls) > 1


def test_pieces_of_arrays(tmp_path):
    path = write(tmp_path / "rows", [300, 400])
    model, calls = StandardScaler().fit(rows_of(300)[["b", "n"]]), []
    arrays = []
    for block_bytes in (1e12, 2_000):
        X = dd.read_parquet(path)[["b", "n"]]
        X = X.map_partitions(by_rows(lambda rows: calls.append(len(rows)) or rows), meta=X._meta)
        calls.clear()
        with config_context(block_bytes=block_bytes):
            arrays.append(model.transform(X).compute(scheduler="sync"))
        assert sum(calls) == 700
        assert (max(calls) <= 100) == (block_bytes == 2_000)
    np.testing.assert_array_equal(*arrays)


def test_several_outputs_of_pieces(tmp_path):
    X = dd.read_parquet(write(tmp_path / "rows", [300, 400]))[["b", "n"]]
    model = NearestNeighbors(n_neighbors=3).fit(rows_of(100)[["b", "n"]])
    with config_context(block_bytes=2_000):
        answers = dask.compute(*model.kneighbors(X))
    for answer, expected in zip(answers, model.kneighbors(X.compute()), strict=True):
        np.testing.assert_allclose(answer, expected)


ROWS = {
    "frame": lambda n: pd.DataFrame({"a": np.arange(n) / 7, "b": np.arange(n) * 2.0}),
    "series": lambda n: pd.Series(np.arange(n) % 3 == 1, name="is"),
    "mixed": lambda n: pd.DataFrame({"a": np.arange(n) / 7, "b": np.arange(n), "c": "x"}),
    "array": lambda n: np.arange(3 * n, dtype="float32").reshape(n, 3),
    "vector": lambda n: np.arange(n),
    "text": lambda n: pd.Series([str(i) for i in range(n)], dtype="str"),
}


@settings(max_examples=n_examples(30, 300))
@given(name=st.sampled_from(sorted(ROWS)), lengths=st.lists(st.integers(0, 40), min_size=1))
def test_results_of_any_lengths_are_joined(name, lengths):
    ends = np.cumsum(lengths)
    rows = ROWS[name](ends[-1])
    take = rows.iloc.__getitem__ if hasattr(rows, "iloc") else rows.__getitem__
    parts = [take(slice(end - n, end)) for n, end in zip(lengths, ends, strict=True)]
    found = joined(iter(parts), len(parts))
    if isinstance(rows, np.ndarray):
        np.testing.assert_array_equal(found, rows, strict=True)
    elif rows.ndim == 1:
        pd.testing.assert_series_equal(found, rows)
    else:
        pd.testing.assert_frame_equal(found, rows)


def test_results_of_other_dtypes_are_joined():
    parts = [pd.Series([1, 2]), pd.Series([0.5]), pd.Series([3])]
    pd.testing.assert_series_equal(joined(iter(parts), 3), pd.concat(parts))
