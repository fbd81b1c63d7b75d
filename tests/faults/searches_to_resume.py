"""A script that searches with a checkpoint, for tests that run it in several processes.

    python searches_to_resume.py FOLDER SEARCH,... KIND,... [WORKERS SECONDS]

Each search is made with each kind of parameter, and a line of JSON says what it found, how much of
it came from the checkpoint, and how many calls it made, each of which leaves a line in a file of
the folder. With a number of worker processes (0: threads of this one) and of seconds for a call,
it says too what a search without a checkpoint finds.
"""

import json
import sys
import time
import warnings
from enum import Enum
from functools import partial
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import optuna
import pandas as pd
from distributed import Client
from scipy import sparse
from scipy.stats import loguniform, rv_continuous
from search_classes import ADAPTIVE, OF_SCIKIT_LEARN
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import ShuffleSplit
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from skfleet import Fleet, model_selection
from skfleet.model_selection import CandidateSource
from skfleet.model_selection._dispatch._routes import _on_workers

optuna.logging.set_verbosity(optuna.logging.ERROR)
_on_workers.SLOW_BATCH_SECONDS = (
    60.0  # what is shared out anew may be made twice, and fits are counted here
)

SEARCHES = OF_SCIKIT_LEARN + ADAPTIVE


class Model(ClassifierMixin, BaseEstimator):
    """Answers by its parameter and by how often it has learned, and writes down each call."""

    def __init__(self, p=0.5, log=None, seconds=0.0, option=None):
        self.p = p
        self.log = log
        self.seconds = seconds
        self.option = option

    def fit(self, X, y):
        return self.partial_fit(X, y)

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        self.n_calls_ = getattr(self, "n_calls_", 0) + 1
        self.classes_ = np.array([0, 1])
        time.sleep(self.seconds)
        if self.log is not None:
            with Path(self.log).open("a") as log:
                log.write(f"{self.p} {self.n_calls_} {len(y)}\n")
        return self

    def predict(self, X):
        share = self.p * (1 - 0.5**self.n_calls_)
        rows = X.toarray() if sparse.issparse(X) else np.asarray(X)
        return (rows[:, 0].astype(float) % 1 < share).astype(int)


class Density(rv_continuous):
    def _pdf(self, x):
        return 2 * x


class Draw:
    """A distribution of one's own."""

    def __init__(self, low, high):
        self.low, self.high = low, high

    def rvs(self, random_state=None):
        return self.low + (self.high - self.low) * random_state.uniform()

    def ppf(self, share):
        return self.low + (self.high - self.low) * share


class Color(Enum):
    RED = 1


class Splitter:
    """A splitter of one's own."""

    def get_n_splits(self, X=None, y=None, groups=None):
        return 2

    def split(self, X, y=None, groups=None):
        rows = np.arange(len(y))
        for i in range(2):
            yield rows[rows % 2 != i], rows[rows % 2 == i]


class Scorer:
    def __init__(self, beta):
        self.beta = beta

    def __call__(self, model, X, y):
        return self.beta * model.score(X, y)


class Asked(CandidateSource):
    """Asks Optuna for candidates."""

    def __init__(self, seed):
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(sampler=sampler, direction="maximize")

    def ask(self, order, pending):
        return {"p": self.study.ask().suggest_float("p", 0.01, 1)}


def identity(X):
    return X


def weighted(truth, answer, weights):
    return weights["a"] * accuracy_score(truth, answer)


def closure(weight):
    return lambda model, X, y: weight * model.score(X, y)


X = np.random.RandomState(0).rand(60, 3)
y = (X[:, 0] < 0.5).astype(int)
FRAME = pd.DataFrame(X, columns=list("abc")).assign(d=pd.Categorical(["u", "v"] * 30))

# What of a search is another than it is by default. "option" are values for a parameter.
KINDS = {
    "distribution": {"p": loguniform(1e-2, 1)},
    "own distribution": {"p": Draw(0.1, 1)},
    "own density": {"p": Density(a=0, b=1, name="own")()},
    "NumPy scalars": {"p": list(np.linspace(0.1, 1, 9))},
    "array": {"p": np.linspace(0.1, 1, 9)},
    "functions": {"option": [identity, lambda x: x + 1, partial(weighted, weights=1)]},
    "sets": {"option": [{"u", "v", "w"}, frozenset("xyz"), {"a": {"b", "c"}}]},
    "generators": {"option": [np.random.RandomState(0), np.random.default_rng(0)]},
    "objects": {"option": [np.arange(3), Color.RED, Scorer, Scorer(1), pd.Series([1.0]), Model()]},
    "lambda": {"scoring": lambda model, X, y: model.score(X, y)},
    "closure": {"scoring": closure(0.5)},
    "callable": {"scoring": Scorer(0.5)},
    "scorer": {"scoring": make_scorer(weighted, weights={"a": np.float32(0.5)})},
    "several scores": {"scoring": {"own": Scorer(1), "a": "accuracy"}, "refit": "own"},
    "pipeline": {"steps": [("own", FunctionTransformer(identity)), ("fun", None)]},
    "frame": {"X": FRAME},
    "sparse": {"X": sparse.csr_array(X)},
    "list": {"X": X.tolist(), "y": y.tolist()},
    "Dask array": {"X": da.from_array(X, chunks=20), "y": da.from_array(y, chunks=20)},
    "Dask frame": {
        "X": dd.from_pandas(FRAME[["a", "b"]], npartitions=2),
        "y": dd.from_pandas(pd.Series(y), npartitions=2),
    },
    "Parquet": {"columns": ["a", "b"]},
    # of scikit-learn's searches only
    "splits": {"cv": ShuffleSplit(2, random_state=0)},
    "own splits": {"cv": Splitter()},
    "listed splits": {"cv": [(np.arange(n), np.arange(n, 60)) for n in (20, 30)]},
    # of adaptive searches only
    "evenly": {"p": loguniform(1e-2, 1), "sampler": "sobol"},
    "Optuna": {"sampler": partial(Asked, 0)},
    "points": {"p": loguniform(1e-2, 1), "points_to_evaluate": [{"p": np.float64(0.3)}]},
    "weights": {"fit": {"sample_weight": da.from_array(np.ones(60), chunks=20)}},
}  # fmt: skip
ONLY = {"cv": OF_SCIKIT_LEARN, "sampler": ADAPTIVE, "points_to_evaluate": ADAPTIVE, "fit": ADAPTIVE}


def applies(search, kind):
    """Say whether a search has such a parameter; grids have no distributions."""
    change = KINDS[kind]
    is_drawn = hasattr(change.get("p"), "rvs")
    return all(search in ONLY.get(name, SEARCHES) for name in change) and not (
        is_drawn and "Grid" in search
    )


def make(search, kind, folder, seconds, *, log=None, **params):
    """Make a search with a kind of parameter, and say what to fit it on."""
    change = dict(KINDS[kind])
    space = {"p": change.pop("p", [round(0.1 * i, 1) for i in range(1, 10)])}
    if "option" in change:
        space = {"p": [0.3, 0.6, 0.9], "option": change.pop("option")}
    model = Model(log=log and str(log), seconds=seconds)
    if "steps" in change:
        model = Pipeline([*change.pop("steps")[:1], ("model", model)])
        space = {f"model__{name}": values for name, values in space.items()}
    rows, labels = change.pop("X", X), change.pop("y", y)
    fit = change.pop("fit", {})
    if search in OF_SCIKIT_LEARN:
        params = {"cv": 2, **params}
        if "Grid" not in search:
            params["random_state"] = 0
        if search == "RandomizedSearchCV":
            params["n_iter"] = 9
        if search.startswith("Halving"):
            params |= {"random_state": 0, "min_resources": 20, "factor": 2}
            if search == "HalvingRandomSearchCV":
                params["n_candidates"] = 9
    else:
        params |= {"max_iter": 9, "random_state": 0}
        if search != "HyperbandSearchCV":
            params["n_initial_parameters"] = 9
    if "columns" in change:
        frame = dd.read_parquet(folder / "rows")
        frame = frame[frame.a >= 0].map_partitions(lambda part: part.assign(b=0))
        rows, labels = frame[change.pop("columns")], frame["y"]
    if "Optuna" in kind:
        change["sampler"] = change["sampler"]()  # which a search changes
    kwargs = {**params, **change}
    if search.startswith("Halving") and "refit" in kwargs:
        kwargs |= {"scoring": Scorer(1), "refit": True}  # they take one score only
    return getattr(model_selection, search)(model, space, **kwargs), rows, labels, fit


def found(search):
    """Return what a search has found, as plain values."""
    results = {
        name: np.asarray(values, dtype=float).tolist()
        for name, values in search.cv_results_.items()
        if name.startswith("mean_test") or name in ("budget", "n_resources")
    }
    best = {name: float(p) for name, p in search.best_params_.items() if name.endswith("p")}
    return {**results, "best": best}


def n_recorded(checkpoint):
    """Count what of a search was recorded: fits, or calls by the last record of each candidate."""
    fits = {}
    for path in checkpoint.glob("*.fits"):
        for line in path.read_text().splitlines():
            name = json.loads(line.split(" ", 1)[1])["fit"]
            number, n_calls, *_ = name.split("-") if name.count("-") == 2 else (name, "1")
            fits[number] = max(fits.get(number, 0), int(n_calls))
    return sum(fits.values())


def main(folder, searches, kinds, *, seconds, plain):
    if not (folder / "rows").exists():  # the state of a file is part of what is read
        (folder / "draft").mkdir(exist_ok=True)
        FRAME.assign(y=y).to_parquet(folder / "draft" / "0.parquet")
        (folder / "draft").rename(folder / "rows")
    for name in searches:
        for kind in kinds:
            if not applies(name, kind):
                continue
            case = f"{name} {kind}".replace(" ", "_")
            log = folder / f"{case}.log"
            n_before = len(log.read_text().split("\n")) if log.exists() else 1
            line = {"case": [name, kind], "n_recorded": n_recorded(folder / case)}
            search, *rows, fit = make(
                name, kind, folder, seconds, log=log, checkpoint=folder / case
            )
            search.fit(*rows, **fit)
            line["n_known"] = (
                search.n_checkpoint_fits_ if name in OF_SCIKIT_LEARN else search.n_checkpoint_calls_
            )
            line["n_made"] = len(log.read_text().split("\n")) - n_before
            line["found"] = found(search)
            if plain:
                other, *rows, fit = make(name, kind, folder, 0.0)
                line["plain"] = found(other.fit(*rows, **fit))
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    place, searches, kinds, *more = sys.argv[1:]
    n_workers, seconds = (int(more[0]), float(more[1])) if more else (0, 0.0)
    with (
        Fleet(n_workers=n_workers)
        if n_workers
        else Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0")
    ):
        main(
            Path(place),
            searches.split(","),
            KINDS if kinds == "all" else kinds.split(","),
            seconds=seconds,
            plain=bool(more),
        )
