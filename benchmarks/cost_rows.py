"""The rows of `bench_cost.py`: of each kind, in NumPy, in the workers' memory, and in files."""

from functools import cached_property
from itertools import cycle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import default_client, wait

N_COLUMNS, N_PARTS = 20, 8
# Files of fewer rows would be of the time to open them.
ROWS_OF_A_FILE = 12_500
FEW = 1_000
CONTAINERS = ("numpy", "array", "parquet")

# A function of each kind returns the rows, and a signal that targets are made of.


def numbers(rng, n):
    """Return numbers of several scales, with a signal of five columns."""
    X = rng.normal(size=(n, N_COLUMNS)) * (1 + np.arange(N_COLUMNS) / 10)
    return X, X[:, :5].sum(axis=1) / 3


def gaps(rng, n):
    """Return numbers of which every twentieth is missing."""
    X, signal = numbers(rng, n)
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, signal


def counts(rng, n):
    """Return counts, such as those of terms."""
    X = rng.poisson(1.0, size=(n, N_COLUMNS)).astype(np.float64)
    return X, X[:, :5].sum(axis=1) / 2 - 2.5


def categories(rng, n):
    """Return whole numbers below 50."""
    X = rng.integers(0, 50, size=(n, N_COLUMNS))
    return X, (X[:, :5] % 5 - 2).sum(axis=1) / 3


def words(rng, n):
    """Return five columns of 50 words each."""
    X = rng.integers(0, 50, size=(n, 5))
    return _vocabulary("word", 50)[X], (X % 5 - 2).sum(axis=1) / 3


def texts(rng, n):
    """Return texts of eight words of a thousand."""
    chosen = _vocabulary("word", 1_000)[(1_000 * rng.random((n, 8)) ** 3).astype(int)]
    return _objects(" ".join(row) for row in chosen), None


def dicts(rng, n):
    """Return dictionaries of a number and a category."""
    x, city = rng.normal(size=n), _vocabulary("city", 20)[rng.integers(0, 20, n)]
    return _objects({"x": a, "city": b} for a, b in zip(x.tolist(), city, strict=True)), None


def labels(rng, n):
    """Return texts of ten values."""
    return _vocabulary("label", 10)[rng.integers(0, 10, n)], None


def label_sets(rng, n):
    """Return sets of up to three labels of ten."""
    chosen = _vocabulary("label", 10)[rng.integers(0, 10, size=(n, 3))]
    return _objects(map(tuple, chosen)), None


def groups(rng, n):
    """Return numbers around eight centres."""
    label = rng.integers(0, 8, n)
    centers = np.random.default_rng(0).normal(size=(8, N_COLUMNS))
    return 3 * centers[label] + rng.normal(size=(n, N_COLUMNS)), label


def truths(rng, n):
    """Return true labels of two classes."""
    signal = rng.normal(size=n)
    return (signal + rng.logistic(size=n) > 0).astype(int), signal


def amounts(rng, n):
    """Return true amounts above zero."""
    signal = rng.normal(size=n)
    return np.exp(signal / 2 + rng.normal(size=n) / 4), signal


def _vocabulary(word, n):
    return np.array([f"{word} {i}".replace(" ", "") for i in range(n)], dtype=object)


def _objects(values):
    """Return an array of objects of one dimension, also where they are sequences."""
    values = list(values)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


NOT_IN_FILES = (dicts, label_sets)
TARGETS = {
    "number": lambda rng, signal: signal + rng.normal(size=len(signal)),
    "label": lambda rng, signal: (signal + rng.logistic(size=len(signal)) > 0).astype(int),
    "count": lambda rng, signal: rng.poisson(np.exp(np.clip(signal / 3, -3, 3))),
    "amount": lambda rng, signal: np.exp(signal / 3) * rng.gamma(4.0, 0.25, size=len(signal)),
    "group": lambda rng, signal: signal,
    "guess": lambda rng, signal: (signal > 0).astype(int),
    "probability": lambda rng, signal: 1 / (1 + np.exp(-signal)),
    "estimate": lambda rng, signal: np.exp(signal / 2),
}


class Rows:
    """Rows of a kind and their target, or None, in each container."""

    def __init__(self, kind, target, n, folder):
        rng = np.random.default_rng(n)
        self.X, signal = kind(rng, n)
        self.y = None if target is None else TARGETS[target](rng, signal)
        self.n = n
        self.containers = [c for c in CONTAINERS if c != "parquet" or kind not in NOT_IN_FILES]
        self._path = folder / f"{kind.__name__}-{target}-{n}"

    def given(self, container):
        """Return what our estimators are given: the same object for all of them."""
        if container == "numpy":
            return self.X, self.y
        return self._array if container == "array" else self._frame

    def read(self, container):
        """Return what scikit-learn is given: of files, all columns are read."""
        if container != "parquet":
            return self.X, self.y
        return self._columns(pd.read_parquet(self._files))

    def few(self, container):
        """Return the first rows, as scikit-learn is given them."""
        X, y = self._first if container == "parquet" else (self.X, self.y)
        return X[:FEW], None if y is None else y[:FEW]

    @cached_property
    def _first(self):
        return self._columns(pd.read_parquet(self._files / "0.parquet"))

    @cached_property
    def _array(self):
        """Chunks in the memory of the workers."""
        n = -(-self.n // N_PARTS)
        arrays = [None if values is None else _persisted(values, n) for values in (self.X, self.y)]
        wait([array for array in arrays if array is not None])
        return tuple(arrays)

    @cached_property
    def _frame(self):
        return self._columns(dd.read_parquet(self._files))

    @cached_property
    def _files(self):
        """The folder of the files, which are written if they are not there."""
        if not self._path.exists():
            self._path.mkdir(parents=True)
            frame = pd.DataFrame(self.X).rename(columns=lambda j: f"x{j}")
            if self.y is not None:
                frame["y"] = self.y
            n_files = min(max(self.n // ROWS_OF_A_FILE, 1), N_PARTS)
            for i, part in enumerate(np.array_split(np.arange(self.n), n_files)):
                rows = frame.iloc[part[0] : part[-1] + 1]
                rows.to_parquet(self._path / f"{i}.parquet", index=False)
        return self._path

    def _columns(self, frame):
        """Return the columns of a frame as rows and target."""
        names = [f"x{j}" for j in range(self.X.shape[1])] if self.X.ndim == 2 else "x0"
        return frame[names], None if self.y is None else frame["y"]


def _persisted(values, n):
    """Return chunks of n rows, which the workers have in turn: Dask itself may give one most."""
    array, workers = da.from_array(values, chunks=(n, *values.shape[1:])), cycle(_workers())
    return da.concatenate(
        [block.persist(workers=next(workers)) for block in array.blocks]
    ).persist()


def _workers():
    return sorted(default_client().nthreads())
