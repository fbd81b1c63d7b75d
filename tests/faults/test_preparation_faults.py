"""Preparation of Parquet: a worker dies in the middle, and rows are larger than memory."""

import os

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, QuantileTransformer, RobustScaler, StandardScaler
from test_faults_fits import killing_one_worker

from clusters import local_client
from skfleet.engine import counting
from skfleet.estimators import ColumnTransformer, LogisticRegression

pytestmark = pytest.mark.slow

FILE_ROWS = 100_000
NUMBERS = [f"x{i}" for i in range(20)]


# A worker with all libraries, and a block of 18 MB in preparation, takes about 450 MiB.
MEMORY_LIMIT = 700 * 2**20


@pytest.fixture
def client(request):
    """A client of two worker processes."""
    with local_client(2, threads_per_worker=1, **getattr(request, "param", {})) as client:
        yield client


def a_file(seed=0):
    """Return rows of numbers, in which some are missing, of text, and a label."""
    rng = np.random.default_rng(seed)
    # few distinct values, so that the file is small
    rows = pd.DataFrame(rng.normal(size=(FILE_ROWS, len(NUMBERS))).round(2), columns=NUMBERS)
    rows["label"] = (rows["x0"] - rows["x1"] + rng.logistic(size=FILE_ROWS) > 0).astype(int)
    rows.iloc[::10, 2] = np.nan
    return rows.assign(town=rng.choice(["Bergen", "Oslo", "Tromsø"], FILE_ROWS))


def prepared():
    """Return a ColumnTransformer that needs quantiles."""
    return ColumnTransformer(
        [
            ("scaled", make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS[:10]),
            ("robust", RobustScaler(), NUMBERS[10:15]),
            ("uniform", QuantileTransformer(subsample=None), NUMBERS[15:]),
            ("towns", OneHotEncoder(sparse_output=False), ["town"]),
        ]
    )


def fitted_values(model):
    """Return the fitted arrays of all parts."""
    parts = model.named_transformers_
    scaler = parts["scaled"][-1]
    values = [scaler.mean_, scaler.var_, parts["robust"].center_, parts["robust"].scale_]
    return [*values, parts["uniform"].quantiles_, parts["towns"].categories_[0]]


@pytest.mark.parametrize("after_passes", [1, 2])
def test_a_column_transformer_survives_a_killed_worker(client, after_passes, tmp_path):
    for i in range(30):
        a_file(i).to_parquet(tmp_path / f"{i:02}.parquet")
    rows = dd.read_parquet(tmp_path)
    with counting() as counts:
        undisturbed = fitted_values(prepared().fit(rows))
    assert counts.passes == 2
    with killing_one_worker(client, after_passes) as killed:
        again = fitted_values(prepared().fit(rows))
    assert killed
    for got, expected in zip(again, undisturbed, strict=True):
        if expected.dtype == object:
            assert got.tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("client", [{"memory_limit": MEMORY_LIMIT}], indirect=True)
def test_a_pipeline_on_rows_larger_than_memory(client, tmp_path):
    folder, rows = tmp_path / "rows", a_file()
    folder.mkdir()
    rows.to_parquet(folder / "0000.parquet", index=False)
    n_files = -(-3 * 2 * MEMORY_LIMIT // rows.memory_usage(deep=True).sum())
    for i in range(1, n_files):
        os.link(folder / "0000.parquet", folder / f"{i:04}.parquet")
    frame = dd.read_parquet(folder, split_row_groups=True)
    assert frame.npartitions == n_files
    before = client.run(os.getpid)
    model = make_pipeline(prepared(), LogisticRegression(C=1.0 / n_files, tol=1e-3))
    with counting() as counts:
        model.fit(frame, frame["label"])
    # the preparation takes three passes over the files; then its rows are read once more, and
    # written to the workers' disks. The first, the middle and the last one are measured for that
    assert counts.loads == 4 * n_files + 3
    answers = frame[["label"]].assign(answer=model.predict(frame))
    answers.to_parquet(tmp_path / "answers", write_index=False)
    assert client.run(os.getpid) == before
    local = make_pipeline(prepared(), LogisticRegression(C=1.0, tol=1e-3)).fit(rows, rows["label"])
    written = dd.read_parquet(tmp_path / "answers")
    assert len(written) == n_files * FILE_ROWS
    first = pd.read_parquet(tmp_path / "answers" / "part.0.parquet")["answer"].to_numpy()
    first = first[:FILE_ROWS]  # Dask writes several partitions as one
    assert (first == local.predict(rows)).mean() > 0.999
    np.testing.assert_allclose(model[-1].coef_, local[-1].coef_, atol=1e-2)
