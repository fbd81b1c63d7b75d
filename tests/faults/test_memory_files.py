"""Parquet files larger than a worker's free memory are read in pieces, and no worker dies."""

import os
import threading

import bench_larger
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
from sklearn.pipeline import make_pipeline
from worker_memory import PeakMemory, import_all

from skfleet import Fleet
from skfleet.estimators import (
    PCA,
    ColumnTransformer,
    GaussianNB,
    KMeans,
    LogisticRegression,
    OneHotEncoder,
    Ridge,
    SimpleImputer,
    StandardScaler,
)

pytestmark = pytest.mark.slow

N_ROWS, N_FILES, NUMBERS = 800_000, 3, [f"x{i}" for i in range(16)]
# What a worker has beside what it has imported: much less than it takes to read a file as a whole.
SPARE_BYTES = 150_000_000
COEF = np.linspace(-1, 1, len(NUMBERS))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of one row group each, 50 MB in memory as numbers."""
    folder = tmp_path_factory.mktemp("files")
    for i in range(N_FILES):
        rng = np.random.default_rng(i)
        rows = rng.normal(size=(N_ROWS, len(NUMBERS)))
        frame = pd.DataFrame(rows, columns=NUMBERS)
        frame["y"] = rows @ COEF
        frame["label"] = (frame["y"] + rng.logistic(size=N_ROWS) > 0).astype(int)
        frame.loc[rng.random(N_ROWS) < 0.05, "x0"] = np.nan
        frame["city"] = np.char.add("city ", rng.integers(0, 200, N_ROWS).astype(str))
        frame.to_parquet(folder / f"{i}.parquet", index=False, row_group_size=N_ROWS)
    return str(folder)


@pytest.fixture
def small_workers(idle_bytes):
    """Workers with memory for a part of a file; no worker may end, and little be left."""
    limit = idle_bytes + SPARE_BYTES
    options = {"threads_per_worker": 1, "dashboard_address": None}
    with Fleet(n_workers=2, memory_limit=limit, **options) as client:
        client.run(import_all)
        client.register_plugin(PeakMemory())
        before = client.run(os.getpid)
        yield client
        assert client.run(os.getpid) == before
        peaks = client.run(lambda dask_worker: dask_worker.plugins["peak-memory"].peak)
        assert max(peaks.values()) < 0.95 * limit


def _preparation():
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    return ColumnTransformer(
        [("numbers", numbers, NUMBERS), ("city", OneHotEncoder(handle_unknown="ignore"), ["city"])]
    )


def _first_rows(folder):
    """Return a few rows of the first file, which is not read whole."""
    file = pq.ParquetFile(os.path.join(folder, "0.parquet"))
    return next(file.iter_batches(5_000)).to_pandas()


def _growth_by_reading(path):
    """Return the most memory that a process has while it reads a file, above what it had."""
    memory = psutil.Process().memory_info
    before, peak, is_over = memory().rss, 0, threading.Event()

    def watch():
        nonlocal peak
        while not is_over.wait(0.005):
            peak = max(peak, memory().rss)

    thread = threading.Thread(target=watch)
    thread.start()
    pd.read_parquet(path, columns=NUMBERS)
    is_over.set()
    thread.join()
    return peak - before


def test_a_single_file_is_too_large_to_be_read_whole(files):
    """The limit of these tests is one that counts."""
    with Fleet(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        client.run(import_all)
        path = os.path.join(files, "0.parquet")
        assert client.submit(_growth_by_reading, path).result() > SPARE_BYTES


@pytest.mark.parametrize("target", ["label", "y"])
def test_pipelines_with_text(small_workers, files, target):
    frame = dd.read_parquet(files)
    model = LogisticRegression() if target == "label" else Ridge(alpha=1e-3)
    pipeline = make_pipeline(_preparation(), model).fit(frame[[*NUMBERS, "city"]], frame[target])
    coef = np.ravel(pipeline[-1].coef_)[1 : len(NUMBERS)]
    np.testing.assert_allclose(coef, COEF[1:], atol=0.05)


def test_estimators_of_several_passes(small_workers, files):
    frame = dd.read_parquet(files)
    X = frame[NUMBERS].fillna(0.0)
    assert GaussianNB().fit(X, frame["label"]).class_count_.sum() == N_FILES * N_ROWS
    assert PCA(2).fit(X).explained_variance_ratio_.sum() < 0.2
    centers = KMeans(2, max_iter=3, n_init=1, random_state=0).fit(X).cluster_centers_
    assert centers.shape == (2, len(NUMBERS))


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask
def test_predictions(small_workers, files, tmp_path):
    frame = dd.read_parquet(files)
    X = frame[NUMBERS].fillna(0.0)
    model = Ridge(alpha=1e-3).fit(X, frame["y"])
    model.predict(X).to_frame("answer").to_parquet(tmp_path, write_index=False)
    answers = pd.concat([pd.read_parquet(path) for path in sorted(tmp_path.glob("*.parquet"))])
    assert len(answers) == N_FILES * N_ROWS
    y = frame["y"].compute(scheduler="sync").to_numpy()
    assert np.abs(answers["answer"].to_numpy() - y).mean() < 0.1


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask
def test_transformed_rows_and_text(small_workers, files, tmp_path):
    """What is written is as large as what is read."""
    X = dd.read_parquet(files)[[*NUMBERS, "city"]]
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    steps = ColumnTransformer(
        [("numbers", numbers, NUMBERS)], remainder="passthrough", verbose_feature_names_out=False
    )
    steps.set_output(transform="pandas").fit(_first_rows(files)[list(X.columns)])
    steps.transform(X).to_parquet(tmp_path)
    written = [pd.read_parquet(path, columns=["x0", "city"]) for path in tmp_path.glob("*.parquet")]
    rows = pd.concat(written)
    assert len(rows) == N_FILES * N_ROWS
    assert rows["x0"].notna().all()
    assert rows["city"].nunique() == 200


def test_figures_of_the_benchmark(tmp_path):
    files = bench_larger.Layout(200_000, 100_000, "600MB", {}).files(tmp_path)
    for case in (bench_larger.RIDGE, bench_larger.PREDICT):
        figures = bench_larger.measure(case, files, "600MB")
        assert figures.result == "ok"
        assert (figures.n_lost, figures.n_lines) == (0, 0)
        assert 0.3 < figures.peak < 0.95
