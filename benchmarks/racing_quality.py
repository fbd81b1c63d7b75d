"""What racing over folds saves, and whether it chooses the same candidate as the full search.

100 random pairs of rows and a grid, of several kinds of models, are scored in full once for each
number of splits. The decisions of `racing` are then replayed on these tables, split by split, as
one slot would make them. More slots begin some fits that a decision would have prevented: how many
is simulated.

`python benchmarks/racing_quality.py --tables FOLDER [--data FOLDER] [--json FILE]` scores what the
folder of tables does not have yet, in about ten minutes of one core, and prints the figures. The
folder of data has taxis.csv, diamonds.csv, adult-train.csv, bikeshare.csv and sms.tsv; without it
all pairs are of scikit-learn's own rows.
"""

from __future__ import annotations

import argparse
import heapq
import json
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.model_selection import KFold, ParameterSampler, StratifiedKFold, cross_validate
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from skfleet.model_selection._dispatch._fit_queues import SplitQueue
from skfleet.model_selection._dispatch._scheduler import FitBatch, FitScheduler, PlannedFit
from skfleet.model_selection._racing._race import RULES, Race, RaceResult

N_PAIRS = 100
N_SPLITS = (10, 5)
N_SLOTS = (1, 4, 16)
MAX_ROWS = 1000
_ADULT = """
age workclass fnlwgt education education-num marital-status occupation relationship race sex
capital-gain capital-loss hours-per-week native-country income
"""


class Rows(NamedTuple):
    """Rows of a data set: numbers, or texts."""

    X: Any
    y: Any
    is_classification: bool


class Model(NamedTuple):
    """A model with the values of its parameters, and the most rows and candidates it is tried on.

    ``regressor`` is None for a model that only classifies.
    """

    classifier: Callable[[], Any]
    regressor: Callable[[], Any] | None
    space: dict[str, list[Any]]
    max_rows: int = MAX_ROWS
    max_candidates: int = 60


def scaled(model: Any) -> Callable[[], Any]:
    """Return what builds a model behind a scaler."""
    return lambda: Pipeline([("scaler", StandardScaler()), ("model", clone(model))])


_POWERS = [float(10.0**n) for n in range(-4, 4)]
_TREE = {
    "max_depth": [1, 2, 3, 5, 8, None],
    "min_samples_leaf": [1, 2, 5, 10, 20],
    "max_features": [None, "sqrt", 0.5],
}
MODELS = {
    "svm": Model(
        scaled(SVC()),
        scaled(SVR()),
        {"model__C": _POWERS, "model__gamma": _POWERS, "model__kernel": ["rbf", "sigmoid"]},
        max_rows=500,
    ),
    "tree": Model(
        lambda: DecisionTreeClassifier(random_state=0),
        lambda: DecisionTreeRegressor(random_state=0),
        _TREE,
    ),
    "forest": Model(
        lambda: RandomForestClassifier(random_state=0),
        lambda: RandomForestRegressor(random_state=0),
        {"n_estimators": [5, 10, 20], **_TREE},
        max_rows=500,
        max_candidates=40,
    ),
    "extra trees": Model(
        lambda: ExtraTreesClassifier(random_state=0),
        lambda: ExtraTreesRegressor(random_state=0),
        {"n_estimators": [5, 10, 20], **_TREE},
        max_rows=500,
        max_candidates=40,
    ),
    "neighbours": Model(
        scaled(KNeighborsClassifier()),
        scaled(KNeighborsRegressor()),
        {
            "model__n_neighbors": [1, 2, 3, 5, 8, 12, 20, 30, 50, 80],
            "model__weights": ["uniform", "distance"],
            "model__p": [1, 2],
        },
    ),
    "logistic": Model(
        scaled(LogisticRegression(tol=1e-3)),
        None,
        {
            "model__C": [float(10.0**n) for n in np.arange(-5, 4, 0.5)],
            "model__class_weight": [None, "balanced"],
        },
        max_rows=500,
    ),
    "sgd": Model(
        scaled(SGDClassifier(max_iter=50, tol=1e-2, random_state=0)),
        scaled(SGDRegressor(max_iter=50, tol=1e-2, random_state=0)),
        {
            "model__alpha": [float(10.0**n) for n in np.arange(-6, 1.5, 0.5)],
            "model__penalty": ["l1", "l2", "elasticnet"],
            "model__average": [False, True],
        },
    ),
    "boosting": Model(
        lambda: HistGradientBoostingClassifier(max_iter=15, random_state=0),
        lambda: HistGradientBoostingRegressor(max_iter=15, random_state=0),
        {
            "learning_rate": [0.01, 0.03, 0.1, 0.3, 1.0],
            "max_leaf_nodes": [3, 7, 15, 31],
            "min_samples_leaf": [5, 20, 50],
            "l2_regularization": [0.0, 1.0],
        },
        max_rows=500,
        max_candidates=25,
    ),
}
TEXT_MODELS = {
    "text logistic": Model(
        lambda: make_pipeline(
            TfidfVectorizer(), LogisticRegression(solver="liblinear", random_state=0)
        ),
        None,
        {
            "tfidfvectorizer__min_df": [1, 2, 5],
            "tfidfvectorizer__sublinear_tf": [True, False],
            "logisticregression__C": _POWERS,
        },
        max_candidates=30,
    ),
    "text naive Bayes": Model(
        lambda: make_pipeline(TfidfVectorizer(), MultinomialNB()),
        None,
        {
            "tfidfvectorizer__min_df": [1, 2, 5],
            "tfidfvectorizer__ngram_range": [(1, 1), (1, 2)],
            "multinomialnb__alpha": _POWERS,
        },
        max_candidates=30,
    ),
}


def bundled() -> dict[str, Rows]:
    """Return scikit-learn's own data sets."""
    loaders = {
        "iris": datasets.load_iris,
        "wine": datasets.load_wine,
        "breast cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
    }
    rows = {name: Rows(*load(return_X_y=True), True) for name, load in loaders.items()}
    return rows | {"diabetes": Rows(*datasets.load_diabetes(return_X_y=True), False)}


def from_folder(folder: Path) -> dict[str, Rows]:
    """Return the data sets of a folder."""
    adult = pd.read_csv(
        folder / "adult-train.csv", header=None, names=_ADULT.split(), skipinitialspace=True
    )
    taxis = pd.read_csv(folder / "taxis.csv", parse_dates=["pickup", "dropoff"])
    taxis["seconds"] = (taxis.pop("dropoff") - taxis["pickup"]).dt.total_seconds()
    taxis["hour"] = taxis.pop("pickup").dt.hour
    taxis = taxis.drop(columns=["pickup_zone", "dropoff_zone", "total"])
    bikes = pd.read_csv(folder / "bikeshare.csv", parse_dates=["datetime"])
    bikes["hour"] = bikes.pop("datetime").dt.hour
    bikes = bikes.drop(columns=["casual", "registered"])
    sms = pd.read_csv(folder / "sms.tsv", sep="\t", header=None, quoting=3, on_bad_lines="skip")
    return {
        "adult": Rows(adult, adult.pop("income") == ">50K", True),
        "diamonds": Rows(
            frame := pd.read_csv(folder / "diamonds.csv"), np.log(frame.pop("price")), False
        ),
        "taxis": Rows(frame := taxis.dropna(), frame.pop("tip"), False),
        "bikes": Rows(bikes, np.log1p(bikes.pop("count")), False),
        "sms": Rows(sms[1].astype(str), sms[0] == "spam", True),
    }


@cache
def data_sets(folder: Path | None) -> dict[str, Rows]:
    """Return all data sets."""
    return bundled() | (from_folder(folder) if folder is not None else {})


def drawn(rows: Rows, n_rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return some of the rows, with numbers in place of categories."""
    chosen = random.permutation(len(rows.y))[:n_rows]
    X, y = (np.asarray(part)[chosen] for part in (rows.X, rows.y))
    if getattr(rows.X, "ndim", 2) == 2 and hasattr(rows.X, "columns"):
        frame = rows.X.iloc[chosen]
        text = frame.select_dtypes(exclude="number").columns
        encode = make_column_transformer(
            (OneHotEncoder(sparse_output=False, min_frequency=10), text), remainder="passthrough"
        )
        X = encode.fit_transform(frame)
    return X, y


def pair(number: int, folder: Path | None) -> dict[str, Any]:
    """Return the scores and seconds of all fits of a random pair, for each number of splits."""
    random = np.random.default_rng(number)
    sets = data_sets(folder)
    name = str(random.choice(list(sets)))
    rows = sets[name]
    models = TEXT_MODELS if name == "sms" else MODELS
    fitting = [k for k, m in models.items() if rows.is_classification or m.regressor is not None]
    kind = str(random.choice(fitting))
    model = models[kind]
    X, y = drawn(rows, int(random.integers(150, model.max_rows + 1)), random)
    build = model.classifier if rows.is_classification else model.regressor
    n_candidates = int(random.integers(10, model.max_candidates + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        candidates = list(ParameterSampler(model.space, n_candidates, random_state=number))
        table: dict[str, Any] = {"data": name, "model": kind, "n_rows": len(y)}
        for n_splits in N_SPLITS:
            kind_of_split = StratifiedKFold if rows.is_classification else KFold
            splits = list(kind_of_split(n_splits, shuffle=True, random_state=number).split(X, y))
            results = [
                cross_validate(build().set_params(**params), X, y, cv=splits)
                for params in candidates
            ]
            table[f"scores {n_splits}"] = [result["test_score"].tolist() for result in results]
            seconds = [(result["fit_time"] + result["score_time"]).tolist() for result in results]
            table[f"seconds {n_splits}"] = seconds
    return table


def tables(folder: Path, data: Path | None, n_pairs: int) -> Iterator[dict[str, Any]]:
    """Yield the tables of all pairs, scored where the folder has them not."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(n_pairs):
        file = folder / f"{'all' if data else 'bundled'}-{number}.json"
        if not file.exists():
            file.write_text(json.dumps(pair(number, data)))
        yield json.loads(file.read_text())


def raced(rule: str, scores: np.ndarray) -> RaceResult:
    """Return what a race leaves of a table of scores, by candidate and split."""
    race = Race(rule, scores.shape[1])
    race.add(len(scores))
    for split in range(scores.shape[1]):
        for candidate in range(len(scores)):
            if candidate not in race.drops:
                race.record(candidate, split, scores[candidate, split])
    return race.result()


def begun(rule: str, scores: np.ndarray, seconds: np.ndarray, n_slots: int) -> float:
    """Return the share of fits that slots begin in a race, which do not wait for decisions."""
    n_candidates, n_splits = scores.shape
    race, scheduler = Race(rule, n_splits), FitScheduler(n_slots, is_race=True)
    race.add(n_candidates)
    queue = SplitQueue(race, lambda fit: fit.candidate)
    for candidate in range(n_candidates):
        for split in range(n_splits):
            queue.add(PlannedFit(0, split, candidate))
    running: list[tuple[float, int, FitBatch]] = []
    now, n_begun, n_batches = 0.0, 0, 0
    while True:
        queue.feed("cpu", scheduler)
        while (batch := scheduler.next_batch()) is not None:
            length = sum(seconds[fit.candidate, fit.fold] for fit in batch.fits)
            heapq.heappush(running, (now + length, n_batches, batch))
            n_batches, n_begun = n_batches + 1, n_begun + len(batch.fits)
            queue.feed("cpu", scheduler)
        if not running:
            return n_begun / scores.size
        now, _, batch = heapq.heappop(running)
        for fit in batch.fits:
            own = seconds[fit.candidate, fit.fold]
            scheduler.record_duration(fit, own, 0.0)
            race.record(fit.candidate, fit.fold, scores[fit.candidate, fit.fold])
        scheduler.batch_done([seconds[fit.candidate, fit.fold] for fit in batch.fits])
        for place in (scheduler, queue):
            place.remove(lambda fit: fit.candidate in race.drops)


def comparison(rule: str, n_splits: int, every: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how a race compares with the full search, over all pairs."""
    rows = []
    for table in every:
        scores, seconds = (np.array(table[f"{x} {n_splits}"]) for x in ("scores", "seconds"))
        race = raced(rule, scores)
        means = scores.mean(axis=1)
        best, choice = means.argmax(), np.where(race.is_eligible, means, -np.inf).argmax()
        error = scores[best].std() / np.sqrt(n_splits)
        was_made = np.arange(n_splits) < race.n_splits[:, None]
        rows.append(
            {
                "data": table["data"],
                "model": table["model"],
                "n_candidates": len(scores),
                "same_winner": means[choice] == means[best],
                "within_error": means[choice] >= means[best] - error,
                "fits_saved": 1 - was_made.mean(),
                "seconds_saved": 1 - (seconds * was_made).sum() / seconds.sum(),
                **{f"saved_{n}": 1 - begun(rule, scores, seconds, n) for n in N_SLOTS},
            }
        )
    frame = pd.DataFrame(rows)
    return {
        "racing": rule,
        "cv": n_splits,
        "pairs": len(frame),
        "same_winner": round(float(frame["same_winner"].mean()), 3),
        "within_error": round(float(frame["within_error"].mean()), 3),
        "median_fits_saved": round(float(frame["fits_saved"].median()), 3),
        "median_seconds_saved": round(float(frame["seconds_saved"].median()), 3),
        "median_fits_saved_by_slots": {
            str(n): round(float(frame[f"saved_{n}"].median()), 3) for n in N_SLOTS
        },
        "quartiles_fits_saved": frame["fits_saved"].quantile([0.25, 0.75]).round(3).tolist(),
        "fits_saved_by_model": {
            str(model): round(float(value), 3)
            for model, value in frame.groupby("model")["fits_saved"].median().items()
        },
        "misses": [f"{r['data']}, {r['model']}" for r in rows if not r["within_error"]],
    }


def main() -> None:
    """Print the figures, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="folder of the tables of scores")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--pairs", type=int, default=N_PAIRS)
    options = parser.parse_args()
    data = options.data
    if data is not None and not data.is_dir():
        print(f"{data} is absent: all pairs are of scikit-learn's own rows")
        data = None
    every = list(tables(options.tables, data, options.pairs))
    figures = [comparison(rule, n, every) for rule in RULES for n in N_SPLITS]
    columns = ["racing", "cv", "pairs", "same_winner", "within_error"]
    columns += ["median_fits_saved", "median_seconds_saved"]
    print(pd.DataFrame(figures)[columns].to_string(index=False))
    for figure in figures:
        print(f"{figure['racing']}, cv={figure['cv']}: missed {figure['misses']}")
        print(f"  median saving of fits by slots {figure['median_fits_saved_by_slots']}")
    if options.json is not None:
        record = {"data": "all" if data else "bundled", "versions": versions(), "races": figures}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def versions() -> dict[str, str]:
    """Return the versions of what computes the scores."""
    return {name: version(name) for name in ("scikit-learn", "numpy", "scipy")}


if __name__ == "__main__":
    main()
