"""The rows, pipelines and spaces of `least_cpu.py`, and the tables of their fits.

A pair is some rows and a pipeline with a space of parameters. Values of distributions are rounded
to some steps, so that a space has 80 to 144 cells, of which each is fitted once on each of ten
splits. `Replayed` stands for the pipeline where fits are looked up.
"""

from __future__ import annotations

import itertools
import json
import math
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from racing_quality import data_sets, scaled
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.metrics import get_scorer
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVR
from threadpoolctl import threadpool_limits

N_SPLITS = 10


class Range(NamedTuple):
    """Distribution between two values, whose values are rounded to the middle of equal steps."""

    low: float
    high: float
    n_steps: int
    is_log: bool = False
    is_int: bool = False

    def distribution(self) -> Any:
        """Return the distribution of SciPy."""
        if self.is_int:
            return stats.randint(int(self.low), int(self.high) + 1)
        if self.is_log:
            return stats.loguniform(self.low, self.high)
        return stats.uniform(self.low, self.high - self.low)

    def step(self, value: float) -> int:
        """Return the step of a value."""
        low, high = self._ends()
        share = ((math.log(value) if self.is_log else value) - low) / (high - low)
        return min(max(int(share * self.n_steps), 0), self.n_steps - 1)

    def value(self, step: int) -> float | int:
        """Return the middle of a step."""
        low, high = self._ends()
        middle = low + (step + 0.5) / self.n_steps * (high - low)
        if self.is_log:
            return math.exp(middle)
        return int(middle) if self.is_int else middle

    def _ends(self) -> tuple[float, float]:
        if self.is_log:
            return math.log(self.low), math.log(self.high)
        return self.low, self.high + self.is_int


class Rounded:
    """Distribution of SciPy whose values are rounded as in the tables."""

    def __init__(self, values: Range) -> None:
        self._values, self._distribution = values, values.distribution()

    def rvs(self, *args: Any, **kwargs: Any) -> float:
        """Return a random value."""
        return self._round(self._distribution.rvs(*args, **kwargs))

    def ppf(self, quantile: float) -> float:
        """Return the value of a quantile."""
        return self._round(self._distribution.ppf(quantile))

    def _round(self, value: float) -> float:
        return self._values.value(self._values.step(value))


class Pair(NamedTuple):
    """Rows, a pipeline, and a space of its parameters."""

    data: str
    n_rows: int
    pipeline: Callable[[], Any]
    space: dict[str, Range | list[Any]]
    scoring: str
    cheap: dict[str, Any] = {}  # values of parameters with which a fit is cheap


def _encoded(encoder: Any, numbers: Any, model: Any) -> Pipeline:
    columns = make_column_transformer(
        (encoder, make_column_selector(dtype_exclude="number")),
        (numbers, make_column_selector(dtype_include="number")),
    )
    return Pipeline([("columns", columns), ("model", model)])


def _one_hot(numbers: Any, model: Any) -> Pipeline:
    return _encoded(OneHotEncoder(handle_unknown="ignore"), numbers, model)


def _polynomials() -> Pipeline:
    steps = [("scale", StandardScaler()), ("powers", PolynomialFeatures(1, include_bias=False))]
    return _one_hot(Pipeline(steps), Ridge())


_ORDINAL = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
PAIRS = {
    "adult, one-hot + logistic": Pair(
        "adult",
        2430,
        lambda: _one_hot(StandardScaler(), LogisticRegression(max_iter=300)),
        {
            "model__C": Range(1e-4, 1e2, 16, is_log=True),
            "columns__onehotencoder__min_frequency": [None, 5, 20, 80],
            "model__class_weight": [None, "balanced"],
        },
        "roc_auc",
    ),
    "adult, histogram boosting": Pair(
        "adult",
        810,
        lambda: _encoded(
            _ORDINAL, "passthrough", HistGradientBoostingClassifier(max_iter=20, random_state=0)
        ),
        {
            "model__learning_rate": Range(0.01, 1, 10, is_log=True),
            "model__max_leaf_nodes": [4, 8, 16, 31],
            "model__min_samples_leaf": [5, 20, 60],
        },
        "roc_auc",
        {"model__max_leaf_nodes": 4},
    ),
    "diamonds, polynomials + ridge": Pair(
        "diamonds",
        2430,
        _polynomials,
        {
            "model__alpha": Range(1e-4, 1e4, 18, is_log=True),
            "columns__pipeline__powers__degree": [1, 2, 3],
            "columns__pipeline__powers__interaction_only": [False, True],
        },
        "r2",
        {"columns__pipeline__powers__degree": 1},
    ),
    "diamonds, elastic net": Pair(
        "diamonds",
        2430,
        lambda: _one_hot(StandardScaler(), ElasticNet(max_iter=3000, tol=1e-4)),
        {"model__alpha": Range(1e-5, 1, 14, is_log=True), "model__l1_ratio": Range(0.05, 1, 8)},
        "r2",
    ),
    "bikes, gradient boosting": Pair(
        "bikes",
        540,
        lambda: GradientBoostingRegressor(random_state=0),
        {
            "learning_rate": Range(0.01, 1, 8, is_log=True),
            "n_estimators": Range(10, 69, 6, is_int=True),
            "max_depth": [2, 3, 4],
        },
        "r2",
        {"n_estimators": 10},
    ),
    "sms, tf-idf + logistic": Pair(
        "sms",
        3240,
        lambda: Pipeline([("words", TfidfVectorizer()), ("model", LogisticRegression())]),
        {
            "model__C": Range(1e-2, 1e3, 14, is_log=True),
            "words__min_df": [1, 2, 5],
            "words__sublinear_tf": [False, True],
        },
        "average_precision",
    ),
    "taxis, scaler + neighbours": Pair(
        "taxis",
        6075,
        scaled(KNeighborsRegressor()),
        {
            "model__n_neighbors": Range(1, 60, 20, is_int=True),
            "model__weights": ["uniform", "distance"],
            "model__p": [1, 2],
        },
        "neg_mean_absolute_error",
    ),
    "diabetes, scaler + SVR": Pair(
        "diabetes",
        442,
        scaled(SVR()),
        {
            "model__C": Range(1e-2, 1e4, 12, is_log=True),
            "model__gamma": Range(1e-5, 10, 8, is_log=True),
        },
        "r2",
    ),
}


class Data(NamedTuple):
    """Rows and splits of a pair."""

    X: Any
    y: np.ndarray
    splits: list[tuple[np.ndarray, np.ndarray]]
    is_classification: bool


@cache
def data_of(name: str, folder: Path | None) -> Data:
    """Return the rows and splits of a pair."""
    rows = data_sets(folder)[PAIRS[name].data]
    X, y = rows.X, np.asarray(rows.y)
    if name.startswith("taxis"):
        X = X.select_dtypes("number").to_numpy()
    if name.startswith("bikes"):
        X = X.to_numpy(float)
    random = np.random.default_rng(0)
    chosen = random.permutation(len(y))[: PAIRS[name].n_rows]
    X = X.iloc[chosen].reset_index(drop=True) if hasattr(X, "iloc") else X[chosen]
    if PAIRS[name].data == "sms":
        X = X.to_numpy(object)
    kind = StratifiedKFold if rows.is_classification else KFold
    splits = list(kind(N_SPLITS, shuffle=True, random_state=0).split(X, y[chosen]))
    return Data(X, y[chosen], splits, rows.is_classification)


def cell_of(space: dict[str, Range | list[Any]], params: dict[str, Any]) -> str:
    """Return the cell of a space that has these parameters."""
    steps = [
        values.step(params[name]) if isinstance(values, Range) else values.index(params[name])
        for name, values in space.items()
    ]
    return ",".join(map(str, steps))


def cells(space: dict[str, Range | list[Any]]) -> dict[str, dict[str, Any]]:
    """Return the parameters of all cells of a space."""
    sides = [
        [values.value(step) for step in range(values.n_steps)]
        if isinstance(values, Range)
        else values
        for values in space.values()
    ]
    every = [dict(zip(space, params, strict=True)) for params in itertools.product(*sides)]
    return {cell_of(space, params): params for params in every}


class Fit(NamedTuple):
    """Score of a fit, and the seconds of CPU that fit and score took."""

    score: float
    seconds: float


class Table:
    """Fits of a pair, by cell, split and number of training rows.

    Those on all rows of a split are made beforehand, and those on fewer when they are asked for.
    """

    def __init__(self, name: str, folder: Path, data: Path | None) -> None:
        self.pair, self._name, self._data = PAIRS[name], name, data
        self._file = folder / f"{name.replace(' ', '-').replace(',', '')}.json"
        self.fits = {key: Fit(*fit) for key, fit in self._read().items()}
        self._params = cells(self.pair.space)
        self.seconds_here = 0.0  # of fits made for the table, which no method takes

    def _read(self) -> dict[str, Any]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def save(self) -> None:
        """Write all fits."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self.fits))

    @property
    def data(self) -> Data:
        """Rows and splits."""
        return data_of(self._name, self._data)

    def fit(self, cell: str, split: int, n_train: int | None = None) -> Fit:
        """Return a fit, which is made where the table does not have it."""
        key = f"{cell} {split}" if n_train is None else f"{cell} {split} {n_train}"
        if key not in self.fits:
            begin = time.process_time()
            self.fits[key] = self._made(self._params[cell], split, n_train)
            self.seconds_here += time.process_time() - begin
        return self.fits[key]

    def _made(self, params: dict[str, Any], split: int, n_train: int | None) -> Fit:
        X, y, splits, _ = self.data
        train, test = splits[split]
        if n_train is not None:  # a smaller share is part of a larger, for all seeds
            n_test = round(len(test) * n_train / len(train))
            random = np.random.default_rng(split)
            train, test = random.permutation(train)[:n_train], random.permutation(test)[:n_test]
        rows = [X.iloc[part] if hasattr(X, "iloc") else X[part] for part in (train, test)]
        model, scorer = self.pair.pipeline().set_params(**params), get_scorer(self.pair.scoring)
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            begin = time.process_time()
            try:
                score = float(scorer(model.fit(rows[0], y[train]), rows[1], y[test]))
            except ValueError:  # for so few rows, such as one class alone
                score = math.nan
            return Fit(score, time.process_time() - begin)

    def complete(self) -> None:
        """Make all fits on all rows, and those of the default parameters."""
        for number, cell in enumerate(self._params):
            for split in range(N_SPLITS):
                self.fit(cell, split)
            if number % 20 == 0:
                self.save()
        self._params["default"] = {}
        for split in range(N_SPLITS):
            self.fit("default", split)
        self.save()

    def quality(self, cell: str) -> float:
        """Return the mean score of a cell over all splits."""
        return float(np.mean([self.fits[f"{cell} {split}"].score for split in range(N_SPLITS)]))

    def whole_seconds(self) -> list[float]:
        """Return the seconds of all fits on all rows."""
        return [fit.seconds for key, fit in self.fits.items() if key.count(" ") == 1]

    def aim(self, share: float) -> float:
        """Return the quality that is within a share of the best, from that of the defaults."""
        best = max(map(self.quality, cells(self.pair.space)))
        return best - share * (best - self.quality("default"))


@cache
def table(name: str, folder: Path, data: Path | None) -> Table:
    """Return the table of a pair, read once by each process."""
    return Table(name, folder, data)


class Replayed(BaseEstimator):
    """Stands for the pipeline of a pair: its fits are looked up, and noted in a file.

    Its rows are their numbers, by which it knows the split.
    """

    def __init__(self, **params: Any) -> None:
        vars(self).update(params)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the names of table and log, and the parameters of the pipeline."""
        return {name: value for name, value in vars(self).items() if not name.endswith("_")}

    def set_params(self, **params: Any) -> Replayed:
        """Set parameters of the pipeline."""
        vars(self).update(params)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return the tags, of a classifier or a regressor."""
        tags = super().__sklearn_tags__()
        tags.estimator_type = self.kind
        return tags

    def fit(self, X: np.ndarray, y: np.ndarray) -> Replayed:
        """Note the number of rows."""
        self.n_train_ = len(X)
        return self

    def score(self, X: np.ndarray, y: np.ndarray) -> float:
        """Return the score of the table, and note the fit."""
        own = table(*self.source)
        split = split_of_row(*self.source)[int(X[0, 0])]
        is_whole = self.n_train_ == len(own.data.splits[split][0])
        n_train = None if is_whole else self.n_train_
        cell = cell_of(own.pair.space, {name: getattr(self, name) for name in own.pair.space})
        fit = own.fit(cell, split, n_train)
        with open(self.log, "a") as file:
            file.write(f"{cell} {fit.seconds!r}\n")
        return fit.score


@cache
def split_of_row(name: str, folder: Path, data: Path | None) -> dict[int, int]:
    """Return the split in whose test rows each row is."""
    splits = table(name, folder, data).data.splits
    return {int(row): number for number, (_, test) in enumerate(splits) for row in test}


def make_table(name: str, folder: Path, data: Path | None) -> float:
    """Make what the table of a pair does not have yet; return the seconds of CPU that it took."""
    own = Table(name, folder, data)
    own.complete()
    return own.seconds_here
