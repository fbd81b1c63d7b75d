"""Rows larger than the workers' memory, in Parquet files: what is fitted, in how much of it.

    python benchmarks/bench_larger.py --quick
    python benchmarks/bench_larger.py
    python benchmarks/bench_larger.py --rows 1e6 4e6 1.6e7 --json figures.json

Each case runs in a fleet of its own, of two workers of one thread. A line has its seconds next to
those of one read of the same columns by Dask (on workers without a limit), the passes over the
rows, the largest memory of a worker next to its limit, the workers that were lost, and the lines
that were printed. The first command takes about ten minutes, the second up to two hours and 30 GB
of disk in `--folder`, the third ten minutes and 5 GB: some models by the number of rows.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import results_file
from sklearn.linear_model import SGDClassifier as SGDInMemory
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet import estimators as est
from skfleet.engine import counting, counting_disabled
from skfleet.metrics import accuracy_score
from skfleet.model_selection import GridSearchCV, train_test_split

NUMBERS, CITY = [f"x{j}" for j in range(24)], ["city"]
ROWS_TOGETHER = 100_000


def rows(number):
    """Make some rows: numbers with gaps, a text of 1,000 values, a label and a target."""
    rng = np.random.default_rng(number)
    X = rng.normal(size=(ROWS_TOGETHER, len(NUMBERS)))
    frame = pd.DataFrame(X, columns=NUMBERS)
    for j in range(0, len(NUMBERS), 6):
        frame.loc[rng.random(len(X)) < 0.05, f"x{j}"] = np.nan
    frame["city"] = np.char.add("city ", rng.integers(1000, 2000, len(X)).astype(str))
    frame.loc[rng.random(len(X)) < 0.01, "city"] = None
    frame["y"] = (X[:, 1] + X[:, 2] + rng.logistic(size=len(X)) > 0).astype(int)
    frame["t"] = 3 * X[:, 1] + rng.normal(size=len(X))
    return frame


def write_rows(folder, n_rows, rows_per_file, row_group_size=2**20):
    """Write files of so many rows, if they are not there."""
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    numbers = iter(range(n_rows // ROWS_TOGETHER))
    for i in range(n_rows // rows_per_file):
        parts = [rows(next(numbers)) for _ in range(rows_per_file // ROWS_TOGETHER)]
        frame = pd.concat(parts, ignore_index=True)
        frame.to_parquet(unfinished / f"{i:04}.parquet", index=False, row_group_size=row_group_size)
    unfinished.rename(folder)


# -- cases -----------------------------------------------------------------------------------------


@dataclass
class Files:
    """Files to be read, and a folder to be written to."""

    source: Path
    output: Path

    @property
    def frame(self):
        """The rows of all files."""
        return dd.read_parquet(self.source)

    def head(self, columns):
        """Return the first rows of some columns."""
        first = pq.ParquetFile(min(self.source.glob("*.parquet")))
        return next(first.iter_batches(20_000, columns=columns)).to_pandas()


def mixed():
    """Numbers with gaps filled and scaled, text one-hot encoded."""
    city = est.OneHotEncoder(handle_unknown="ignore")
    return est.ColumnTransformer([("numbers", filled(), NUMBERS), ("city", city, CITY)])


def filled(*steps):
    """Gaps filled and numbers scaled, and further steps."""
    return make_pipeline(est.SimpleImputer(), est.StandardScaler(), *steps)


def fit(build, target=None, columns=NUMBERS, is_right=lambda model: True):
    """Return the case of a fit."""

    def case(files):
        y = () if target is None else (files.frame[target],)
        return is_right(build().fit(files.frame[columns], *y))

    return case


def finds(*coef):
    """Return a check of a linear model's coefficients of the columns that its target is made of."""
    return lambda model: bool(np.allclose(np.ravel(model[-1].coef_)[1:3], coef, atol=0.1))


def split(files):
    """Count the rows of a test set."""
    _, test = train_test_split(files.frame[NUMBERS], test_size=0.2, random_state=0)
    return abs(len(test) / len(files.frame) - 0.2) < 0.01


def search(files):
    """Search over four candidates in three folds."""
    grid = {"logisticregression__C": [0.01, 0.1, 1, 10]}
    model = GridSearchCV(filled(est.LogisticRegression()), grid, cv=3)
    return model.fit(files.frame[NUMBERS], files.frame["y"]).best_score_ > 0.7


def metric(files):
    """Score predictions."""
    guess = (files.frame["x1"] + files.frame["x2"] > 0).astype(int)
    return accuracy_score(files.frame["y"], guess) > 0.7


def neighbours(files):
    """Find the neighbours of 1,000 rows among all."""
    model = est.NearestNeighbors(n_neighbors=3).fit(files.frame[NUMBERS].fillna(0.0))
    distances, _ = model.kneighbors(files.head(NUMBERS).fillna(0.0)[:1_000])
    return float(distances[:, 0].max()) < 1e-6


def answers(build, method, target=None, columns=NUMBERS):
    """Return the case of a method whose answers are written; the model is fitted to few rows."""

    def case(files):
        y = () if target is None else (files.head([target])[target],)
        with counting_disabled():
            model = build().fit(files.head(columns), *y)
        rows = getattr(model, method)(files.frame[columns])
        return is_written(rows if len(rows.shape) == 2 else rows.to_frame("answer"), files)

    return case


def is_written(rows, files):
    """Write rows, and return whether there is one for each that was read."""
    rows.rename(columns=str).to_parquet(files.output, write_index=False)
    return n_rows_in(files.output) == n_rows_in(files.source)


def first_column(frame):
    """Return one column of a frame that has been read whole."""
    return frame.iloc[:, :1]


def n_rows_in(folder):
    """Return the number of rows in files."""
    return sum(pq.ParquetFile(path).metadata.num_rows for path in folder.glob("*.parquet"))


def partial_fit(files):
    """Train scikit-learn's own SGDClassifier for three epochs on batches of the files."""
    model = SGDInMemory(random_state=0)
    for _ in range(3):
        for path in sorted(files.source.glob("*.parquet")):
            for batch in pq.ParquetFile(path).iter_batches(50_000, columns=[*NUMBERS, "y"]):
                rows = batch.to_pandas().fillna(0.0)
                model.partial_fit(rows[NUMBERS].to_numpy(), rows["y"], classes=[0, 1])
    return True


TEXT = [*NUMBERS, *CITY]
LOGISTIC = fit(lambda: make_pipeline(mixed(), est.LogisticRegression()), "y", TEXT, finds(1.0, 1.0))
RIDGE = fit(lambda: make_pipeline(mixed(), est.Ridge()), "t", TEXT, finds(3.0, 0.0))
KMEANS = fit(lambda: filled(est.KMeans(8, random_state=0)))
PCA = fit(lambda: filled(est.PCA(5)))
SGD = fit(lambda: filled(est.SGDClassifier(max_iter=3, tol=None, random_state=0)), "y")
NAIVE_BAYES = fit(lambda: make_pipeline(est.SimpleImputer(), est.GaussianNB()), "y")
PREDICT = answers(lambda: make_pipeline(mixed(), est.LogisticRegression()), "predict", "y", TEXT)
# Models whose work space does not grow with the rows.
BOUNDED = {
    "ColumnTransformer, LogisticRegression": LOGISTIC,
    "ColumnTransformer, Ridge": RIDGE,
    "KMeans": KMEANS,
    "PCA": PCA,
    "SGDClassifier, 3 epochs": SGD,
    "GaussianNB": NAIVE_BAYES,
    "predict to Parquet": PREDICT,
}
MORE = {
    "LinearRegression": fit(lambda: filled(est.LinearRegression()), "t", is_right=finds(3.0, 0.0)),
    "Lasso": fit(lambda: filled(est.Lasso(0.01)), "t", is_right=finds(3.0, 0.0)),
    "PoissonRegressor": fit(lambda: filled(est.PoissonRegressor()), "y"),
    "Incremental": fit(lambda: filled(est.Incremental(SGDInMemory(random_state=0))), "y"),
    "MiniBatchKMeans": fit(lambda: filled(est.MiniBatchKMeans(8, random_state=0))),
    "IncrementalPCA": fit(lambda: filled(est.IncrementalPCA(5))),
    "TruncatedSVD": fit(lambda: filled(est.TruncatedSVD(5, random_state=0))),
    "GaussianMixture": fit(lambda: filled(est.GaussianMixture(3, random_state=0, max_iter=10))),
    "QuantileTransformer": fit(lambda: make_pipeline(est.QuantileTransformer(random_state=0))),
    "split": split,
    "metric": metric,
    "search, 4 candidates x 3 folds": search,
    "predict_proba to Parquet": answers(
        lambda: make_pipeline(mixed(), est.LogisticRegression()), "predict_proba", "y", TEXT
    ),
    "predict to Parquet, 20 trees": answers(
        lambda: make_pipeline(
            est.SimpleImputer(),
            est.RandomForestClassifier(n_estimators=20, max_depth=8, random_state=0),
        ),
        "predict",
        "y",
    ),
    "transform to Parquet": answers(lambda: filled().set_output(transform="pandas"), "transform"),
    "Dask: 25 columns read, one to Parquet": lambda files: is_written(
        files.frame[TEXT].map_partitions(first_column), files
    ),
    "Dask: 24 columns to Parquet": lambda files: is_written(files.frame[NUMBERS], files),
    "scikit-learn: partial_fit, 3 epochs": partial_fit,
}
# With --rows.
LONG = ("KMeans", "SGDClassifier, 3 epochs")
BY_ROWS = {name: case for name, case in BOUNDED.items() if name not in LONG}
# Models that hold rows.
HOLDING = {
    "RandomForestClassifier, max_samples=0.01": fit(
        lambda: make_pipeline(
            est.SimpleImputer(),
            est.RandomForestClassifier(n_estimators=10, max_samples=0.01, random_state=0),
        ),
        "y",
    ),
    "LGBMClassifier, 20 rounds": fit(lambda: est.LGBMClassifier(n_estimators=20, verbose=-1), "y"),
    "XGBClassifier, 20 rounds": fit(lambda: est.XGBClassifier(n_estimators=20), "y"),
    "NearestNeighbors": neighbours,
}

# -- figures ---------------------------------------------------------------------------------------


NOTE = (
    "Two workers of one thread. peak_bytes: the largest resident set of a worker, read 20 times a "
    "second; passes: of a fit over the rows (a lazy prediction is not counted); bytes_in_memory: "
    "of a pandas frame of all columns; load: of the machine in the minute before the end of a "
    "case, with the benchmark's own."
)


@dataclass
class Figures:
    """What a case took."""

    seconds: float
    passes: int
    peak_bytes: int
    limit: str
    n_lost: int
    n_lines: int
    result: str

    @property
    def peak(self):
        """The largest memory of a worker, of its limit."""
        return self.peak_bytes / dask.utils.parse_bytes(self.limit)

    def record(self):
        """Return what a file of results says."""
        return {
            "seconds": round(self.seconds, 1),
            "passes": self.passes,
            "peak_bytes": self.peak_bytes,
            "workers_lost": self.n_lost,
            "result": self.result,
            "load": results_file.load(),
        }

    def __str__(self):
        lost = f"{self.n_lost} workers lost" if self.n_lost else "none lost"
        return (
            f"{self.seconds:7.1f} s {self.passes:4d} passes  peak {self.peak:.2f}  {lost}  "
            f"{self.n_lines} lines  {self.result}"
        )


class Memory(threading.Thread):
    """The largest memory of a child process, read twenty times a second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.is_over = 0, threading.Event()
        self.start()

    def run(self):
        """Read it until this is over."""
        while not self.is_over.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    self.peak = max(self.peak, process.memory_info().rss)


@contextmanager
def captured_output():
    """Write what this process and its children print to a file."""
    with tempfile.TemporaryFile("w+") as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def n_lines_after(file, start):
    """Return the number of lines in a file, from a position on."""
    file.seek(start)
    return sum(bool(line.strip()) for line in file)


def measure(case, files, limit):
    """Run a case on workers with a memory limit."""
    shutil.rmtree(files.output, ignore_errors=True)
    options = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": limit}
    with captured_output() as file, counting() as counts:
        with Fleet(**options) as client:
            before, start = set(client.run(os.getpid).values()), os.fstat(file.fileno()).st_size
            memory, began = Memory(), time.perf_counter()
            try:
                result = "ok" if case(files) else "WRONG"
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            seconds = time.perf_counter() - began
            memory.is_over.set()
            n_lost = len(before - set(client.run(os.getpid, on_error="ignore").values()))
        n_lines = n_lines_after(file, start)
    shutil.rmtree(files.output, ignore_errors=True)
    return Figures(seconds, counts.passes, memory.peak, limit, n_lost, n_lines, result)


def seconds_of_a_read(files, columns=NUMBERS):
    """Return the seconds in which Dask counts the values of columns, without a limit of memory."""
    with Fleet(n_workers=2, threads_per_worker=1, memory_limit=None):
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            files.frame[columns].count().compute()
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


@dataclass
class Layout:
    """Rows, how they are in files, the memory of a worker, and what is fitted."""

    n_rows: int
    rows_per_file: int
    limit: str
    cases: dict
    row_group_size: int = 2**20

    def files(self, folder):
        """Return the files, which are written if they are not there."""
        name = f"{self.n_rows}-{self.rows_per_file}-{self.row_group_size}"
        write_rows(folder / name, self.n_rows, self.rows_per_file, self.row_group_size)
        return Files(folder / name, folder / "output")

    def record(self, files):
        """Return what a file of results says of the rows."""
        frame_bytes = rows(0).memory_usage(index=False, deep=True).sum() / ROWS_TOGETHER
        return {
            "rows": self.n_rows,
            "rows_per_file": self.rows_per_file,
            "bytes_on_disk": sum(path.stat().st_size for path in files.source.iterdir()),
            "bytes_in_memory": int(frame_bytes * self.n_rows),
            "limit_bytes": dask.utils.parse_bytes(self.limit),
            "cases": [],
        }


def layouts(is_quick, numbers_of_rows=()):
    """Return what is run."""
    if numbers_of_rows:
        return [Layout(n_rows, 500_000, "800MB", BY_ROWS) for n_rows in numbers_of_rows]
    if is_quick:
        return [
            Layout(1_000_000, 500_000, "800MB", BOUNDED),
            Layout(1_000_000, 100_000, "500MB", BOUNDED),
        ]
    return [
        Layout(5_000_000, 500_000, "1.5GB", BOUNDED | MORE | HOLDING),
        Layout(5_000_000, 500_000, "1.2GB", BOUNDED),
        Layout(5_000_000, 500_000, "800MB", BOUNDED | MORE),
        Layout(5_000_000, 100_000, "500MB", BOUNDED),
        Layout(4_000_000, 4_000_000, "1.2GB", BOUNDED),
        Layout(4_000_000, 4_000_000, "1.2GB", BOUNDED, row_group_size=4_000_000),
        Layout(40_000_000, 500_000, "800MB", BOUNDED),
    ]


class Larger:
    """Ridge regression behind a ColumnTransformer, on more rows than a worker holds."""

    timeout = 600

    def setup_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            files = Layout(1_000_000, 500_000, "800MB", {}).files(Path(folder))
            return measure(RIDGE, files, "800MB")

    def track_passes(self, found):
        return found.passes

    def track_seconds(self, found):
        return found.seconds

    def track_peak(self, found):
        return found.peak

    def track_lost_workers(self, found):
        return found.n_lost


def main():
    """Run all, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a million rows")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "larger")
    parser.add_argument("--only", nargs="*", help="parts of names of cases")
    parser.add_argument("--limit", nargs="*", help="memory limits")
    parser.add_argument("--rows", nargs="*", type=lambda n: int(float(n)), help="numbers of rows")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    if not given.rows:
        told = "10 minutes and 1" if given.quick else "2 hours and 30"
        print(f"about {told} GB in {given.folder}", flush=True)
    warnings.simplefilter("ignore")
    command = " ".join(["python benchmarks/bench_larger.py", *sys.argv[1:]])
    content = results_file.heading(command, NOTE, ["pandas", "pyarrow"])
    content["layouts"] = []
    n_short = 0
    for layout in layouts(given.quick, given.rows):
        if given.limit and layout.limit not in given.limit:
            continue
        files = layout.files(given.folder)
        record = layout.record(files)
        content["layouts"].append(record)
        print(
            f"\n{layout.n_rows:,} rows, {layout.rows_per_file:,} a file and at most "
            f"{layout.row_group_size:,} a row group, workers of {layout.limit}; "
            f"Dask reads the numbers in {seconds_of_a_read(files):.1f} s",
            flush=True,
        )
        for name, case in layout.cases.items():
            if given.only and not any(part in name for part in given.only):
                continue
            figures = measure(case, files, layout.limit)
            n_short += figures.result != "ok" or figures.n_lost > 0
            print(f"{name:42}{figures}", flush=True)
            record["cases"].append({"case": name, **figures.record()})
            if given.json:
                results_file.write(given.json, content)
    sys.exit(bool(n_short))


if __name__ == "__main__":
    main()
