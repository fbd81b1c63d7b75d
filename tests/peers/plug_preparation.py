"""A pytest plugin that runs scikit-learn's tests of its transformers on ours.

With SKFLEET_DASK_ROWS=1, transformers are fitted on, and transform, Dask arrays and DataFrames of
three blocks in place of arrays and frames, and what comes lazily is computed. The file
SKFLEET_TEST_OUTCOMES gets a line for each test: its name, outcome, and whether it had Dask rows.
"""

import functools
import importlib
import inspect
import json
import os
from itertools import pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from scipy import sparse

from skfleet.estimators import _blockwise

ROOMS = ("preprocessing", "impute", "compose", "feature_extraction", "feature_extraction.text")
ROOMS += ("feature_selection", "naive_bayes", "pipeline")
METHODS = ("fit", "partial_fit", "transform", "inverse_transform", "fit_transform")
METHODS += ("predict", "predict_proba", "predict_log_proba", "predict_joint_log_proba", "score")

for room in ROOMS[:-1]:
    importlib.import_module(f"skfleet.estimators.{room}")
OURS = {reference.__name__: ours for reference, ours in _blockwise.BLOCKWISE_CLASSES.items()}
OURS["TransformedTargetRegressor"] = importlib.import_module(
    "skfleet.estimators.compose"
).TransformedTargetRegressor


def as_dask(rows):
    """Return rows of at least two dimensions, or text, in three blocks; anything else as it is."""
    n_rows = getattr(rows, "shape", (0,))[0]
    if n_rows < 3:
        return rows
    bounds = [0, n_rows // 3, n_rows // 2, n_rows]
    if isinstance(rows, pd.DataFrame | pd.Series):
        parts = [dask.delayed(rows.iloc[a:b]) for a, b in pairwise(bounds)]
        return dd.from_delayed(parts, meta=rows.iloc[:0], verify_meta=False)
    if isinstance(rows, np.ndarray) or (sparse.issparse(rows) and rows.format == "csr"):
        chunks = (tuple(np.diff(bounds).tolist()), *rows.shape[1:])
        return da.from_array(rows, chunks=chunks, asarray=False)
    return rows


def is_per_row(values, n_rows):
    """Return whether values are an array or a frame with an element per row."""
    return getattr(values, "shape", (0,))[:1] == (n_rows,)


# Classes whose `inverse_transform` returns a list, which lazily is an array of objects.
LISTS = ("DictVectorizer", "CountVectorizer", "TfidfVectorizer")

running, on_dask_rows = [], []


def on_dask(method):
    """Return a method that is called with Dask rows."""

    @functools.wraps(method)
    def called(self, *args, **kwargs):
        X = args[0] if args else kwargs.get(rows_name)
        if running or not dask.is_dask_collection(as_dask(X)):
            return method(self, *args, **kwargs)
        n_rows = X.shape[0]
        args = [as_dask(a) if is_per_row(a, n_rows) else a for a in args]
        kwargs = {k: as_dask(v) if is_per_row(v, n_rows) else v for k, v in kwargs.items()}
        running.append(name)  # and blocks are not cut again
        on_dask_rows.append(name)
        try:
            result = method(self, *args, **kwargs)
            result = dask.compute(result, scheduler="synchronous")[0]
            is_list = name == "inverse_transform" and type(self).__name__ in LISTS
            return list(result) if is_list else result
        finally:
            running.clear()

    name = method.__name__
    rows_name = list(inspect.signature(method).parameters)[1]
    return called


if os.environ.get("SKFLEET_DASK_ROWS"):
    for cls in OURS.values():
        for name in METHODS:
            if inspect.isfunction(getattr(cls, name, None)):
                setattr(cls, name, on_dask(getattr(cls, name)))

for room in ROOMS:
    module = importlib.import_module(f"sklearn.{room}")
    for name, ours in OURS.items():
        if hasattr(module, name):
            setattr(module, name, ours)
for name in ("PCA", "TruncatedSVD"):  # in a FeatureUnion
    decomposition = importlib.import_module("skfleet.estimators.decomposition")
    setattr(importlib.import_module("sklearn.decomposition"), name, getattr(decomposition, name))
for module in ("compose._column_transformer", "compose._target", "pipeline"):
    vars(importlib.import_module(f"sklearn.{module}"))["FunctionTransformer"] = OURS[
        "FunctionTransformer"
    ]
for module, name in (("compose", "make_column_transformer"), ("pipeline", "make_union")):
    compose = importlib.import_module("skfleet.estimators.compose")
    setattr(importlib.import_module(f"sklearn.{module}"), name, getattr(compose, name))


def pytest_runtest_setup():
    on_dask_rows.clear()


def pytest_runtest_logreport(report):
    if (path := os.environ.get("SKFLEET_TEST_OUTCOMES")) and (
        report.when == "call" or report.outcome == "failed"
    ):
        name = report.nodeid.rpartition("::")[2]
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{json.dumps([name, report.outcome, bool(on_dask_rows)])}\n")
