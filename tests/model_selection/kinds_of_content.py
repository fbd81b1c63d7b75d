"""One object of each kind that a search may depend on; as a script it prints the key of each.

It is run as ``__main__`` from several places, where nothing but the content is the same.
"""

import collections
import dataclasses
import datetime
import enum
import functools
import json
import operator
import re
import sys
import warnings

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import optuna
import pandas as pd
from scipy import sparse, stats
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, make_scorer
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    PredefinedSplit,
    ShuffleSplit,
    StratifiedShuffleSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from skfleet.model_selection._records._tokenize import content_key

WEIGHTS = {"b": 2.0, "a": np.array([3.0])}


def weigh(x):
    return x * WEIGHTS["b"]


def score(model, X, y):
    return weigh(model.score(X, y)) if y[0] in {"u", "v", "w"} else 0.0


def even(n):
    return n == 0 or odd(n - 1)


def odd(n):
    return n != 0 and even(n - 1)


def closure(weight):
    def score(model, X, y):
        return weight * model.score(X, y)

    return score


@functools.lru_cache
def cached(x):
    return x


class Own(ClassifierMixin, BaseEstimator):
    def __init__(self, a=1):
        self.a = a

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    @property
    def weight(self):
        return weigh(self.a)


class Drawn:
    def __init__(self, low):
        self.low = low

    def rvs(self, random_state=None):
        return self.low + random_state.rand()


class Density(stats.rv_continuous):
    def _pdf(self, x):
        return 2 * x


class Callable(collections.namedtuple("Callable", "beta")):
    def __call__(self, model, X, y):
        return self.beta


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int = 1


class Asked:
    def __init__(self, seed):
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(sampler=sampler, direction="maximize")

    def ask(self, order, pending):
        return {"a": self.study.ask().suggest_float("a", 0, 1)}

    def tell(self, order, params, score):
        pass


def seeded(distribution, seed):
    distribution.random_state = seed
    return distribution


def kinds(folder):
    """Give objects by name, each of which differs from all others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    y = (X[:, 0] > 0).astype(int)
    frame = pd.DataFrame(
        {
            "a": [1, 2, 3],
            "text": ["x", "y", None],
            "kind": pd.Categorical(["u", "v", "u"]),
            "mixed": [{"q": 1}, "s", 2],
            "when": pd.date_range("2020", periods=3, tz="UTC"),
        }
    )
    lazy = dd.from_pandas(frame[["a", "text"]], npartitions=2)
    numbered = dd.from_pandas(frame[["a"]], npartitions=2)
    return {
        "loguniform": stats.loguniform(1e-3, 1e3),
        "another loguniform": stats.loguniform(1e-3, 1e2),
        "randint": stats.randint(1, 5),
        "seeded": seeded(stats.uniform(0, 1), 3),
        "other seed": seeded(stats.uniform(0, 1), 4),
        "generator": seeded(stats.uniform(0, 1), np.random.default_rng(3)),
        "histogram": stats.rv_histogram(np.histogram([1, 2, 3, 4])),
        "dirichlet": stats.dirichlet([1, 2.0]),
        "own density": Density(name="own")(loc=2),
        "discrete": stats.rv_discrete(values=([1, 2], [0.5, 0.5])),
        "another discrete": stats.rv_discrete(values=([1, 2], [0.4, 0.6])),
        "drawn": Drawn(1.0),
        "function": score,
        "recursive": even,
        "recursive too": odd,
        "lambda": lambda model, X, y: model.score(X, y),
        "another lambda": lambda model, X, y: model.score(y, X),
        "closure": closure(1),
        "another closure": closure(2),
        "partial": functools.partial(score, y=1),
        "wrapped partial": functools.update_wrapper(functools.partial(score, y=2), score),
        "cached": cached,
        "scorer": make_scorer(f1_score, average="macro"),
        "scorer of own": make_scorer(weigh),
        "callable": Callable(1),
        "another callable": Callable(2),
        "metric": accuracy_score,
        "of NumPy": np.mean,
        "ufunc": np.exp,
        "method": Drawn(1.0).rvs,
        "method of a builtin": "a".join,
        "builtin": len,
        "class": Own,
        "library class": LogisticRegression,
        "estimator": Own(),
        "another estimator": Own(2),
        "fitted": Own().fit(X, y),
        "forest": RandomForestClassifier(3, random_state=0).fit(X, y),
        "pipeline": make_pipeline(StandardScaler(), FunctionTransformer(lambda x: x + 1), Own()),
        "frozen": FrozenEstimator(LogisticRegression().fit(X, y)),
        "another frozen": FrozenEstimator(LogisticRegression().fit(X, 1 - y)),
        "search": GridSearchCV(Own(), {"a": [1, 2]}),
        "RandomState": np.random.RandomState(0),
        "Generator": np.random.default_rng(3),
        "global RandomState": np.random.mtrand._rand,
        "sampler": optuna.samplers.TPESampler(seed=0),
        "another sampler": optuna.samplers.TPESampler(seed=1),
        "study": Asked(0),
        "another study": Asked(1),
        "set": set("abcdefgh"),
        "frozenset": frozenset("abcdefgh"),
        "dict": {"b": 1, "a": {"x", "y"}},
        "ordered dict": collections.OrderedDict(a=1),
        "default dict": collections.defaultdict(list, a=[1]),
        "counter": collections.Counter("abc"),
        "number": 0.1,
        "float64": np.float64(0.1),
        "float32": np.float32(0.1),
        "bool": True,
        "int": 1,
        "int64": np.int64(1),
        "text": "1",
        "str_": np.str_("1"),
        "datetime64": np.datetime64("2020-01-01"),
        "nan": float("nan"),
        "None": None,
        "bytes": b"1",
        "list": [1, 2.5],
        "tuple": (1, 2.5),
        "mixed list": [1, 2.5, "a", None, ...],
        "array": X,
        "another array": X + 1e-12,
        "transposed": X.T,
        "array of objects": np.array(["a", 1, None], dtype=object),
        "array of texts": np.array(["a", "bc"]),
        "records": np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
        "masked": np.ma.array([1, 2], mask=[0, 1]),
        "frame": frame,
        "index": frame.set_index("a"),
        "columns": frame.rename(columns={"a": "b"}),
        "series": frame["text"],
        "nullable": frame[["a"]].astype("Int64"),
        "arrow": frame[["a"]].astype("int64[pyarrow]"),
        "csr": sparse.csr_matrix(X),
        "csc": sparse.csc_array(X),
        "dtype": np.dtype("f4"),
        "categories": pd.CategoricalDtype(["a", "b"]),
        "dask array": da.from_array(X, chunks=20),
        "dask random": da.random.default_rng(0).normal(size=(10, 2)),
        "dask frame": lazy,
        "dask query": lazy.query("a > 1"),
        "parquet": dd.read_parquet(folder),
        "dask expression": (dd.read_parquet(folder).query("a > 1").b + 1).fillna(0),
        "another dask expression": (dd.read_parquet(folder).query("a > 1").b + 2).fillna(0),
        "dask lambda": dd.read_parquet(folder).map_partitions(lambda part: part + 1),
        "dask map": numbered.map_partitions(operator.neg),
        "dask bag": db.from_sequence([1, 2], npartitions=1),
        "KFold": KFold(3),
        "ShuffleSplit": ShuffleSplit(2, random_state=0),
        "stratified": StratifiedShuffleSplit(2, random_state=0),
        "predefined": PredefinedSplit([0, 1, 0]),
        "splits": list(KFold(2).split(X)),
        "enum": Color.RED,
        "dataclass": Point(),
        "another dataclass": Point(2),
        "date": datetime.date(2020, 1, 1),
        "pattern": re.compile("a+"),
        "range": range(3),
        "slice": slice(1, 2),
    }


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    print(json.dumps({name: content_key(one) for name, one in kinds(sys.argv[1]).items()}))
