"""The table of bad inputs, a row each, and containers that count what is loaded of them.

A row goes to every public entry in every container that can hold it (`test_bad_inputs`), and must
be refused with an error that says what is wrong: without a block loaded where type, shape or name
alone tells, and with the estimator left as it was. Add rows to `ROWS_OF_...`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from sklearn.base import is_classifier, is_regressor

N = 60
_rng = np.random.default_rng(0)
X = np.abs(_rng.normal(size=(N, 4))) + 0.1
TARGET = X @ [1.0, 2.0, 3.0, 4.0]
LABELS = (X[:, 0] > 0.7).astype(int)
WEIGHT = np.ones(N)
FRAME = pd.DataFrame(X, columns=["c0", "c1", "c2", "c3"])
DATES = pd.date_range("2020", periods=N)
AB = ["a", "b"] * (N // 2)


# ---------------------------------------------------------------- containers that count what loads

loads: list[int] = []


def _current_test():
    return os.environ.get("PYTEST_CURRENT_TEST", "").partition(" (")[0]


def _load(i, parts, test):
    # A task of a test before may still run, after another one of its pass has raised.
    if test in ("", _current_test()):
        loads.append(i)
    return parts[i]


def _parts(values):
    cuts = (20, 15, len(values) - 35) if len(values) >= 40 else (len(values) // 2,) * 2
    ends = np.cumsum([0, *cuts])
    ends[-1] = len(values)
    return [values[a:b] for a, b in pairwise(ends)]


def dask_array(values):
    parts, load = _parts(values), dask.delayed(_load, pure=False)
    blocks = [
        da.from_delayed(load(i, parts, _current_test()), shape=part.shape, dtype=values.dtype)
        for i, part in enumerate(parts)
    ]
    return da.concatenate(blocks)


def dask_frame(values):
    parts, test = _parts(values), _current_test()
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(lambda i: _load(i, parts, test), range(len(parts)), meta=values.iloc[:0])


def frame(values):
    if not isinstance(values, np.ndarray):
        return values
    if values.ndim == 1:
        return pd.Series(values, name="y")
    return pd.DataFrame(values, columns=[f"c{i}" for i in range(values.shape[1])])


CONTAINERS = {
    "numpy": np.asarray,
    "pandas": frame,
    "dask array": lambda v: dask_array(np.asarray(v)),
    "dask frame": lambda v: dask_frame(frame(v)),
}


def put(values, container):
    """Put values into a container; what no container holds stays what it is."""
    if not isinstance(values, np.ndarray | pd.DataFrame | pd.Series):
        return values() if callable(values) else values
    return CONTAINERS[container](values)


def fits_into(values, container):
    """Say whether a container can hold values and still be bad."""
    if isinstance(values, np.ndarray):
        return values.ndim < 3 or container in ("numpy", "dask array")
    return not isinstance(values, pd.DataFrame | pd.Series) or container in ("pandas", "dask frame")


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """A bad input: what it takes the place of, what it is, and what the error says.

    `is_known` says that nothing need be loaded to know. What an estimator of another library is
    given is its own to judge: `inner` is what scikit-learn's say.
    """

    place: str
    name: str
    values: Any
    says: str
    is_known: bool = True
    inner: str = ""
    only: Callable[[str, Any], bool] = lambda name, model: True

    def __str__(self):
        return f"{self.place}-{self.name}".replace(" ", "-")


def columns(**named):
    return FRAME.assign(**named)


def cell(values, value):
    values = np.array(values, dtype=float)
    values.reshape(N, -1)[3, -1] = value
    return values


NUMERIC = "must be numeric"
TEXT = "could not convert string to float|is not compatible with arrays of bytes/strings"
NO_ROWS = r"must be an array, a frame or a list|Expected 2D array, got scalar|float\(\) argument"
LENGTH = "must have as many rows as X|inconsistent numbers of samples"
MATCH = "feature names should match"


AROUND = {"Incremental", "ParallelPostFit", "BlockwiseVotingClassifier", "BlockwiseVotingRegressor"}
WITHOUT_TARGET = {
    "GaussianMixture", "IncrementalPCA", "KMeans", "MiniBatchKMeans", "PCA", "SpectralClustering",
    "TruncatedSVD",
}  # fmt: skip
SEVERAL_TARGETS = WITHOUT_TARGET | {
    "BlockwiseVotingRegressor", "ElasticNet", "Lasso", "LinearRegression", "Ridge", "RidgeCV",
    "RidgeClassifier",
}  # fmt: skip


def _learns_labels(name, model):
    return is_classifier(model)


def _learns_numbers(name, model):
    return is_regressor(model)


def _one_target(name, model):
    return name not in SEVERAL_TARGETS


def _ours(name, model):
    return name not in AROUND


ROWS_OF_X = [
    Row("X", "NaN", cell(X, np.nan), "Input X contains NaN", is_known=False),
    Row("X", "infinity", cell(X, np.inf), "Input X contains infinity", is_known=False),
    Row("X", "NA", columns(c1=pd.array([1, None] * 30, dtype="Int64")), "X contains NaN", False),
    Row("X", "text", np.full((N, 4), "a"), NUMERIC, inner=TEXT),
    Row("X", "objects", columns(c1=AB).to_numpy(), NUMERIC, inner=TEXT),
    Row("X", "text column", columns(c1=AB), "Column 'c1' of X must be numeric", inner=TEXT),
    Row("X", "string column", columns(c1=pd.array(AB, dtype="string")), NUMERIC, inner=TEXT),
    Row("X", "dates", np.tile(DATES.to_numpy()[:, None], 4), NUMERIC, only=_ours),
    Row("X", "date column", columns(c1=DATES), NUMERIC, inner="could not be promoted"),
    Row(
        "X",
        "date of a zone",
        columns(c1=DATES.tz_localize("UTC")),
        NUMERIC,
        inner="real number|Timestamp",
    ),
    Row("X", "span column", columns(c1=DATES - DATES[0]), NUMERIC, inner="could not be promoted"),
    Row(
        "X", "period column", columns(c1=DATES.to_period("D")), NUMERIC, inner="real number|operand"
    ),
    Row("X", "category", columns(c1=pd.Categorical(AB)), NUMERIC, inner=f"{TEXT}|can't multiply"),
    Row("X", "complex", X + 1j, "Complex data not supported"),
    Row("X", "complex column", columns(c1=X[:, 1] + 1j), "Complex data not supported"),
    Row("X", "one dimension", X[:, 0], "Expected (2D array, got 1D|a 2-dimensional)"),
    Row("X", "three dimensions", X[:, :, None], "got 3D array|Found array with dim 3"),
    Row(
        "X",
        "no columns",
        X[:, :0],
        "one column|0 feature|not contain any features|at least one array or dtype",
    ),
    Row("X", "columns of one name", FRAME.set_axis(list("abbc"), axis=1), "unique column names"),
    Row(
        "X",
        "names of several kinds",
        FRAME.set_axis(["a", 1, "b", 2], axis=1),
        "only supported if all input features have string names",
    ),
    Row("X", "a number", 3.0, NO_ROWS),
    Row("X", "nothing", None, NO_ROWS),
    Row("X", "a text", "abc", f"{NO_ROWS}|{NUMERIC}", inner=TEXT),
    Row("X", "a dict", {"a": 1}, NO_ROWS),
    Row("X", "a set", {1, 2}, NO_ROWS),
    Row("X", "a generator", lambda: (row for row in X), NO_ROWS),
    Row("X", "lists of several lengths", [[1, 2], [3]] * (N // 2), "inhomogeneous"),
]
ROWS_OF_Y = [
    Row("y", "NaN", cell(TARGET, np.nan), "Input y contains NaN", is_known=False),
    Row("y", "infinity", cell(TARGET, np.inf), "Input y contains infinity", is_known=False),
    Row("y", "too long", np.r_[LABELS, LABELS], LENGTH),
    Row("y", "too short", LABELS[:-7], LENGTH),
    Row("y", "none", LABELS[:0], f"{LENGTH}|minimum of 1 is required|at least one row"),
    Row(
        "y",
        "two dimensions",
        np.c_[LABELS, LABELS, LABELS],
        "y should be a 1d array",
        only=_one_target,
    ),
    Row("y", "three dimensions", np.ones((N, 2, 2)), "y should be a 1d|with dim 3", only=_ours),
    Row("y", "nothing", None, "requires y to be passed"),
    Row("y", "complex", LABELS + 1j, "Complex data not supported"),
    Row("y", "a number", 1.0, "1d array|at least 1 dimension|must be an array, a frame or a list"),
    Row("y", "a text", "abc", "1d array|at least 1 dimension|must be an array, a frame or a list"),
    Row(
        "y",
        "a generator",
        lambda: (label for label in LABELS),
        "1d array|at least 1 dimension|must be an array, a frame or a list",
    ),
    Row("y", "numbers for labels", TARGET, "Unknown label type", False, only=_learns_labels),
    Row(
        "y",
        "labels of two kinds",
        np.array([1, "a"] * (N // 2), dtype=object),
        "labels of one kind|Unknown label type",
        False,
        only=_learns_labels,
    ),
    Row(
        "y",
        "one label",
        np.zeros(N, dtype=int),
        "one class|only one class|at least two labels|greater than one|at least 2 classes",
        False,
        only=lambda name, model: (
            is_classifier(model) and "Voting" not in name and name != "RidgeClassifier"
        ),
    ),
    Row("y", "text for numbers", np.array(AB), f"y {NUMERIC}", only=_learns_numbers),
    Row("y", "dates for numbers", DATES.to_numpy(), f"y {NUMERIC}", only=_learns_numbers),
    Row("y", "category", pd.Series(pd.Categorical(AB)), f"y {NUMERIC}", only=_learns_numbers),
]
ROWS_OF_WEIGHT = [
    Row("w", "NaN", cell(WEIGHT, np.nan), "sample_weight contains NaN", is_known=False),
    Row("w", "infinity", cell(WEIGHT, np.inf), "weight contains (NaN or )?inf", is_known=False),
    Row("w", "negative", -WEIGHT, "must be non-negative", is_known=False, only=_ours),
    Row("w", "zero", 0 * WEIGHT, "weight above 0|one non-zero number", is_known=False),
    Row("w", "too long", np.r_[WEIGHT, WEIGHT], LENGTH),
    Row("w", "too short", WEIGHT[:-3], LENGTH),
    Row("w", "two dimensions", np.c_[WEIGHT, WEIGHT], "sample_weight must be 1D array or scalar"),
    Row("w", "one column", WEIGHT[:, None], "sample_weight must be 1D array or scalar"),
    Row("w", "text", np.full(N, "1"), f"sample_weight {NUMERIC}"),
    Row("w", "dates", DATES.to_numpy(), f"sample_weight {NUMERIC}"),
    Row("w", "complex", WEIGHT + 1j, f"sample_weight {NUMERIC}"),
    Row("w", "category", pd.Series(pd.Categorical(AB)), f"sample_weight {NUMERIC}"),
    Row("w", "objects", np.array(AB, dtype=object), f"weight {NUMERIC}", False, inner=TEXT),
    Row("w", "a text", "balanced", "sample_weight must be (1D array or scalar|an array)"),
    Row("w", "a dict", {0: 1.0}, "sample_weight must be (1D array or scalar|an array)"),
]
# What models that were fitted on FRAME are asked about.
ROWS_OF_NEW_X = [
    *(row for row in ROWS_OF_X if row.name not in ("NaN", "infinity", "NA")),
    Row("X", "too wide", np.c_[X, X], f"X has 8 features|{MATCH}"),
    Row("X", "too narrow", X[:, :2], f"X has 2 features|{MATCH}"),
    Row("X", "a column less", FRAME.iloc[:, :3], MATCH),
    Row("X", "a column more", FRAME.assign(z=1.0), MATCH),
    Row("X", "another order", FRAME.iloc[:, [1, 0, 2, 3]], MATCH),
    Row("X", "other names", FRAME.set_axis(list("abcd"), axis=1), MATCH),
]
# What metrics compare.
NO_VALUES = "must be an array, a frame or a list"
ROWS_OF_SCORES = [
    Row("y_pred", "NaN", cell(LABELS, np.nan), "Input y_pred contains NaN", is_known=False),
    Row("y_true", "NaN", cell(LABELS, np.nan), "Input (y|y_true) contains NaN", is_known=False),
    *(
        Row(place, name, values, f"{place} {says}")
        for place in ("y_true", "y_pred")
        for name, values, says in [
            ("nothing", None, NO_VALUES),
            ("a number", 1.0, NO_VALUES),
            ("a text", "abc", NO_VALUES),
            ("a generator", lambda: (label for label in LABELS), NO_VALUES),
            ("three dimensions", np.ones((N, 2, 2)), "must have one dimension, or two"),
            ("complex", LABELS + 1j, "must be real"),
        ]
    ),
    Row("y_pred", "too long", np.r_[LABELS, LABELS], "must have as many rows as"),
    *(row for row in ROWS_OF_WEIGHT if row.is_known and LENGTH not in row.says),
]
