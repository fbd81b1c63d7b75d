"""The transformers, each with parameters, the rows that it takes, and in which containers."""

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from row_partitions import CONTAINERS, PARTITIONS
from sklearn import pipeline, preprocessing
from sklearn.feature_selection import chi2, f_classif, f_regression

N_ROWS = 40
DENSE = ("array", "frame")
NO_VALUES = "a block without values"


class Case(NamedTuple):
    """A transformer of a room of scikit-learn's and ours.

    `rows` and `target` name functions of this file; `without` are partitions that it does not take.
    """

    room: str
    name: str
    params: dict[str, Any] = {}
    rows: str = "numbers"
    target: str | None = None
    containers: tuple[str, ...] = CONTAINERS
    without: tuple[str, ...] = (NO_VALUES,)
    tolerance: dict[str, float] = {}

    def pair(self) -> tuple[Any, Any]:
        """Return our transformer and scikit-learn's."""
        room = "pipeline" if self.name == "FeatureUnion" else self.room
        modules = f"skfleet.estimators.{self.room}", f"sklearn.{room}"
        return tuple(getattr(import_module(m), self.name)(**self.params) for m in modules)

    def takes(self, partition: str, container: str) -> bool:
        """Return whether it takes rows in a partition and a container."""
        return container in self.containers and partition not in self.without

    def make_rows(self, container: str) -> tuple[Any, Any]:
        """Return X, as a frame or Series where the container is one, and y or None."""
        X = globals()[self.rows]()
        if container == "frame" and not hasattr(X, "iloc"):
            is_matrix = X.ndim == 2
            X = pd.DataFrame(X).add_prefix("x") if is_matrix else pd.Series(X, name="x")
        return X, None if self.target is None else globals()[self.target]()


def numbers():
    """Return numbers of which none is negative, some are zero, and a column is constant."""
    X = np.random.default_rng(0).gamma(2, size=(N_ROWS, 4)) * [1, 10, 0.1, 0] + [0, 0, 0, 3]
    X[::3, 0] = 0
    return X


def gaps():
    """Return numbers of both signs, of which some are missing."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N_ROWS, 4)) * [1, 10, 0.1, 0] + [0, 5, 7, 3]
    X[:3, 0] = 0
    X[rng.random(X.shape) < 0.1] = np.nan
    return X


def gamma():
    """Return numbers of which all differ."""
    return np.random.default_rng(9).gamma(2, size=(N_ROWS, 4))


def gamma_with_gaps():
    X = gamma()
    X[::7, 1] = np.nan
    return X


def counts():
    return np.random.default_rng(2).poisson(1.2, size=(N_ROWS, 4))


def objects():
    """Return text in which some values are missing, in two ways."""
    rng = np.random.default_rng(3)
    X = np.column_stack([rng.choice(list("xyzw"), N_ROWS), rng.choice(["aa", "b", "c"], N_ROWS)])
    X = X.astype(object)
    X[::6, 0], X[1::6, 0], X[::4, 1] = np.nan, None, None
    return X


def mixed():
    """Return a frame of columns of several types."""
    rng = np.random.default_rng(4)
    X = pd.DataFrame(
        {
            "text": rng.choice(list("xyzw"), N_ROWS),
            "integer": rng.integers(0, 5, N_ROWS),
            "category": pd.Categorical(rng.choice(["p", "q", "r"], N_ROWS)),
            "number": rng.normal(size=N_ROWS),
        },
        index=np.arange(N_ROWS) * 2,
    )
    X.loc[::7, "category"] = np.nan
    X.loc[::5, "number"] = np.nan
    return X


def documents():
    words = np.array(
        [
            "the",
            "fleet",
            "of",
            "a",
            "port",
            "is",
            "in",
            "the",
            "port",
            "of",
            "the",
            "fleet",
            "at",
            "noon",
        ]
    )
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(words, n)) for n in rng.integers(0, 7, N_ROWS)]
    return np.array(texts, dtype=object)


def dicts():
    rng = np.random.default_rng(6)
    items = np.empty(N_ROWS, dtype=object)
    items[:] = [{str(k): float(k) for k in rng.integers(0, 9, 3)} for _ in range(N_ROWS)]
    return items


def classes():
    return np.random.default_rng(7).choice(["bb", "a", "ccc"], N_ROWS)


def values():
    return np.random.default_rng(8).normal(size=N_ROWS)


def _of_columns(numeric, text):
    steps = pipeline.make_pipeline(preprocessing.StandardScaler(), preprocessing.MinMaxScaler())
    return {
        "transformers": [
            ("steps", steps, numeric),
            ("quantiles", preprocessing.RobustScaler(), numeric),
            ("categories", preprocessing.OneHotEncoder(sparse_output=False), text),
        ]
    }


_SCALE = {"atol": 1e-10}
_KEEP = {"keep_empty_features": True, "add_indicator": True}
_BINS = {"quantile_method": "averaged_inverted_cdf", "subsample": None}
_TEXT = {"containers": DENSE, "without": (NO_VALUES, "other categories", "sorted by y")}
# of a Series of dicts Dask makes text
_DICTS = _TEXT | {"containers": ("array",)}

CASES = {
    "StandardScaler": Case("preprocessing", "StandardScaler", {}, "gaps", None, DENSE, (), _SCALE),
    "StandardScaler without means": Case(
        "preprocessing",
        "StandardScaler",
        {"with_mean": False},
        "gaps",
        without=(),
        tolerance=_SCALE,
    ),
    "MinMaxScaler": Case("preprocessing", "MinMaxScaler", {}, "gaps", None, DENSE, ()),
    "MaxAbsScaler": Case("preprocessing", "MaxAbsScaler", {}, "gaps", without=()),
    "RobustScaler": Case("preprocessing", "RobustScaler", {}, "gaps", None, DENSE, ()),
    "RobustScaler without medians": Case(
        "preprocessing", "RobustScaler", {"with_centering": False}, "gaps", without=()
    ),
    "QuantileTransformer": Case("preprocessing", "QuantileTransformer", {"n_quantiles": 10}),
    "PowerTransformer": Case(
        *("preprocessing", "PowerTransformer", {}, "gamma_with_gaps", None, DENSE, ()),
        {"rtol": 1e-6, "atol": 1e-6},
    ),
    "KBinsDiscretizer": Case("preprocessing", "KBinsDiscretizer", _BINS, "gamma", containers=DENSE),
    "KBinsDiscretizer of means": Case(
        *("preprocessing", "KBinsDiscretizer"),
        {"strategy": "kmeans", "subsample": None, "encode": "ordinal", "n_bins": 3},
        "gamma",
        containers=DENSE,
    ),
    "SplineTransformer": Case(
        "preprocessing", "SplineTransformer", {"knots": "quantile"}, "gamma", containers=DENSE
    ),
    "PolynomialFeatures": Case("preprocessing", "PolynomialFeatures", {"include_bias": False}),
    "FunctionTransformer": Case(
        *("preprocessing", "FunctionTransformer"),
        {"func": np.log1p, "validate": True, "feature_names_out": "one-to-one"},
        containers=DENSE,
    ),
    "Normalizer": Case("preprocessing", "Normalizer"),
    "Binarizer": Case("preprocessing", "Binarizer", {"threshold": 0.5}),
    "OneHotEncoder": Case("preprocessing", "OneHotEncoder", {}, "objects", None, DENSE, ()),
    "OneHotEncoder of frames": Case(
        *("preprocessing", "OneHotEncoder", {"sparse_output": False, "min_frequency": 5}),
        *("mixed", None, ("frame",), ()),
    ),
    "OrdinalEncoder": Case("preprocessing", "OrdinalEncoder", {}, "objects", None, DENSE, ()),
    "TargetEncoder": Case("preprocessing", "TargetEncoder", {}, "mixed", "classes", ("frame",), ()),
    "TargetEncoder of numbers": Case(
        "preprocessing", "TargetEncoder", {}, "counts", "values", DENSE
    ),
    "LabelEncoder": Case("preprocessing", "LabelEncoder", {}, "classes", **_TEXT),
    "LabelBinarizer": Case("preprocessing", "LabelBinarizer", {}, "classes", **_TEXT),
    "SimpleImputer": Case("impute", "SimpleImputer", _KEEP, "gaps", without=()),
    "SimpleImputer of medians": Case(
        "impute", "SimpleImputer", {"strategy": "median"} | _KEEP, "gaps", without=()
    ),
    "SimpleImputer of text": Case(
        *("impute", "SimpleImputer", {"strategy": "most_frequent"} | _KEEP),
        *("objects", None, ("frame",), ()),
    ),
    "MissingIndicator": Case("impute", "MissingIndicator", {}, "gaps", without=()),
    "ColumnTransformer": Case(
        *("compose", "ColumnTransformer", _of_columns(["number", "integer"], ["text", "category"])),
        *("mixed", None, ("frame",), (), _SCALE),
    ),
    "ColumnTransformer of arrays": Case(
        *("compose", "ColumnTransformer", _of_columns([0, 1], [2])),
        *("counts", None, ("array",), (NO_VALUES,), _SCALE),
    ),
    "FeatureUnion": Case(
        *("compose", "FeatureUnion"),
        {
            "transformer_list": [
                ("mean", preprocessing.MaxAbsScaler()),
                ("bins", preprocessing.QuantileTransformer(n_quantiles=5)),
            ]
        },
        containers=("array", "csr"),
    ),
    "VarianceThreshold": Case("feature_selection", "VarianceThreshold", {"threshold": 0.1}),
    "SelectKBest": Case(
        *("feature_selection", "SelectKBest", {"score_func": chi2, "k": 2}, "counts", "classes"),
        tolerance={"rtol": 1e-10},
    ),
    "SelectPercentile": Case(
        *("feature_selection", "SelectPercentile", {"score_func": f_classif, "percentile": 50}),
        *("counts", "classes"),
        tolerance={"rtol": 1e-10},
    ),
    "SelectFwe": Case(
        *("feature_selection", "SelectFwe", {"score_func": f_regression, "alpha": 0.9}),
        *("counts", "values"),
        tolerance={"rtol": 1e-10},
    ),
    "CountVectorizer": Case("feature_extraction.text", "CountVectorizer", {}, "documents", **_TEXT),
    "TfidfVectorizer": Case("feature_extraction.text", "TfidfVectorizer", {}, "documents", **_TEXT),
    "HashingVectorizer": Case(
        "feature_extraction.text", "HashingVectorizer", {"n_features": 32}, "documents", **_TEXT
    ),
    "TfidfTransformer": Case(
        "feature_extraction.text", "TfidfTransformer", {}, "counts", containers=("array", "csr")
    ),
    "DictVectorizer": Case("feature_extraction", "DictVectorizer", {}, "dicts", **_DICTS),
    "FeatureHasher": Case(
        "feature_extraction", "FeatureHasher", {"n_features": 8}, "dicts", **_DICTS
    ),
    "GaussianNB": Case("naive_bayes", "GaussianNB", {}, "numbers", "classes", DENSE),
    "MultinomialNB": Case("naive_bayes", "MultinomialNB", {}, "counts", "classes"),
    "ComplementNB": Case("naive_bayes", "ComplementNB", {}, "counts", "classes"),
    "BernoulliNB": Case("naive_bayes", "BernoulliNB", {}, "counts", "classes"),
    "CategoricalNB": Case("naive_bayes", "CategoricalNB", {}, "counts", "classes", DENSE),
}


def combinations(engines):
    """Return all combinations of case, partition, container and engine."""
    return [
        (name, partition, container, engine)
        for name, case in CASES.items()
        for partition in PARTITIONS
        for container in CONTAINERS
        for engine in engines
        if case.takes(partition, container)
    ]


def pairwise_share(all_combinations):
    """Return combinations in which each two values occur together, but of case and partition."""
    shuffled = np.random.default_rng(0).permutation(len(all_combinations))
    share, seen = [], set()
    for least in (4, 3, 2, 1):  # those of more new pairs first
        for i in shuffled:
            name, partition, container, engine = all_combinations[i]
            pairs = {(name, container), (name, engine), (container, engine)}
            pairs |= {(partition, container), (partition, engine)}
            if len(pairs - seen) >= least:
                share.append(all_combinations[i])
                seen |= pairs
    return share
