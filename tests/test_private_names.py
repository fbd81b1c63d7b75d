"""Private names of other libraries that are gone, and versions that are not tested.

Each program runs in a process of its own, in which names are hidden from this library alone.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from skfleet import _dask_private
from skfleet._private_names import TESTED, is_missing, is_tested
from skfleet.blocks import _dask_pieces

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]


def run(program, *hidden, setup=""):
    """Run a program that does not see some names; return its standard output and errors."""
    lines = ["from hidden_names import hide", *(f"hide({path!r})" for path in hidden)]
    places = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([setup, *lines, program])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


# -- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1.8.9", False),
        ("1.9.0", True),
        ("1.9.1", True),
        ("1.9.7", True),
        ("1.9.2rc1", True),
        ("1.10.0rc1", False),
        ("1.10.dev0", False),
        ("2.0", False),
        ("unknown", False),
    ],
)
def test_versions_of_the_same_series_are_tested(version, expected):
    assert is_tested(version, "1.9.0", "1.9.1") is expected


@pytest.mark.parametrize("library", TESTED)
def test_oldest_versions_are_the_bounds_of_the_project(library):
    names = {"sklearn": "scikit-learn", "xgboost": "xgboost-cpu"}
    (bound,) = {
        specifier.version
        for requirement in map(Requirement, all_requirements())
        if requirement.name == names.get(library, library)
        for specifier in requirement.specifier
    }
    assert TESTED[library][0].startswith(bound)


def all_requirements():
    """List what is needed to run, with all extras for users."""
    extras = PROJECT["optional-dependencies"]
    users = [
        text
        for name in extras.keys() - {"bench", "deploy", "docs", "test"}
        for text in extras[name]
    ]
    return PROJECT["dependencies"] + users


def test_every_library_that_users_need_has_a_lower_bound():
    tools = {"hypothesis", "pytest-timeout", "pytest-xdist"}
    unbound = {
        requirement.name
        for requirement in map(Requirement, all_requirements())
        if not any(s.operator == ">=" for s in requirement.specifier)
    }
    assert unbound == tools


FIT = """
import numpy as np
from skfleet.estimators import Ridge
from skfleet.estimators import StandardScaler
X = np.arange(20.0).reshape(10, 2)
Ridge().fit(StandardScaler().fit_transform(X), X[:, 0])
"""


def test_a_version_that_is_not_tested_is_one_line():
    setup = "import sklearn, dask\nsklearn.__version__ = '1.99.0'"
    (line,) = run(FIT, setup=setup)[1].splitlines()
    assert line.startswith("sklearn 1.99.0 is not among the versions that scikit-fleet is tested")
    assert "1.9.0 to 1.9." in line
    assert "install one of these, or a newer scikit-fleet" in line


def test_tested_versions_are_no_line():
    assert run(FIT)[1] == ""


# -- names that nothing depends on ---------------------------------------------------------------


def test_no_name_is_gone_from_the_versions_here():
    assert not is_missing(*vars(_dask_private).values(), *_dask_pieces.BY_ROWS)


FRAMES = """
import logging, sys, tempfile
import numpy as np, pandas as pd
import dask.dataframe as dd
logging.basicConfig(level="INFO", stream=sys.stderr)
logging.getLogger("distributed").setLevel("ERROR")
from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import LinearRegression, StandardScaler
from skfleet.model_selection import train_test_split
rng = np.random.default_rng(0)
folder = tempfile.mkdtemp()
rows = pd.DataFrame(rng.normal(size=(600, 3)), columns=["a", "b", "c"])
rows["day"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 9, 600), unit="D")
rows["name"] = rng.choice(["here", "there"], 600)
rows["y"] = rows["a"] - 2 * rows["b"] + 0.1 * rng.normal(size=600)
rows["a"] = rows["a"].where(rows["b"] < 1)
for i in range(2):
    part = rows[300 * i : 300 * (i + 1)].reset_index(drop=True)
    part.to_parquet(f"{folder}/{i}.parquet", row_group_size=50)
frame = dd.read_parquet(folder, filters=[("b", "<", 2)]).fillna({"a": 0.5})
frame = frame.assign(d=frame["name"].str.len(), e=frame["day"].dt.day)
plain = rows[rows["b"] < 2].fillna({"a": 0.5})
plain = plain.assign(d=plain["name"].str.len(), e=plain["day"].dt.day)
names = ["a", "b", "c", "d", "e"]
with config_context(block_bytes=2_000), counting() as counts:
    model = LinearRegression().fit(frame[names], frame["y"])
    n_pieces = counts.loads
    whole = LinearRegression().fit(plain[names].to_numpy(float), plain["y"].to_numpy())
    np.testing.assert_allclose(model.coef_, whole.coef_)
    answers = model.predict(frame[names])
    expected = whole.predict(plain[names].to_numpy(float))
    np.testing.assert_allclose(answers.compute(), expected)
    scaled = StandardScaler().set_output(transform="pandas").fit_transform(frame[names])
    scaled.to_parquet(f"{folder}/scaled")
    assert len(dd.read_parquet(f"{folder}/scaled")) == len(plain)
    joined = frame.assign(answer=answers)[["answer", "y"]].compute()
    np.testing.assert_allclose(joined["answer"], expected)
    np.testing.assert_allclose(joined["y"], plain["y"])
    X_train, X_test, y_train, y_test = train_test_split(
        frame[names], frame["y"], random_state=0, shuffle=True
    )
    assert len(X_train) + len(X_test) == len(plain)
    assert LinearRegression().fit(X_train, y_train).score(X_test, y_test) > 0.9
print(n_pieces)
"""

EXPRESSIONS, ARROW = "dask.dataframe.dask_expr._", "dask.dataframe.io.parquet.arrow:"
OF_FRAMES = [
    "dask._expr:Expr",
    "dask._task_spec:convert_legacy_graph",
    f"{EXPRESSIONS}categorical:Categorize",
    f"{EXPRESSIONS}expr:_DelayedExpr",
    f"{EXPRESSIONS}expr:Literal",
    f"{EXPRESSIONS}expr:Projection",
    f"{EXPRESSIONS}reductions:Len",
    f"{EXPRESSIONS}str_accessor:FunctionMap",
    *(f"{ARROW}_{name}" for name in ("filters_to_expression", "index_in_schema")),
    *(f"{ARROW}_{name}" for name in ("need_filtering", "process_kwargs")),
]


@pytest.fixture(scope="module")
def n_pieces():
    """Number of blocks of a fit on frames in pieces of files."""
    return int(run(FRAMES)[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("hidden", "has_pieces"),
    [
        (OF_FRAMES, False),
        ([f"{EXPRESSIONS}expr:Fillna", f"{EXPRESSIONS}accessor:PropertyMap"], False),
        ([f"{ARROW}ArrowDatasetEngine._read_table"], False),
        (["dask.dataframe.dask_expr.io.parquet:ReadParquetFSSpec._filtered_task"], False),
        (
            [
                f"{ARROW}ArrowDatasetEngine._pandas_to_arrow_table",
                f"{EXPRESSIONS}reductions:Len",
                f"{EXPRESSIONS}categorical:Categorize",
            ],
            True,
        ),
    ],
    ids=["all", "expressions", "_read_table", "_filtered_task", "others"],
)
def test_frames_without_names_have_the_same_answers(hidden, has_pieces, n_pieces):
    output, errors = run(FRAMES, *hidden)
    assert n_pieces > 2
    assert int(output) == (n_pieces if has_pieces else 2)
    gone = {path.partition(":")[2] for path in hidden if "." not in path.partition(":")[2]}
    assert {name.rpartition(".")[2] for name in re.findall(r"has no (\S+),", errors)} == gone


SEARCHES = """
import numpy as np
from distributed import Client
from sklearn import ensemble, model_selection, neighbors, svm, tree
from skfleet.model_selection import GridSearchCV
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
y = (X[:, 0] + 0.5 * rng.normal(size=120) > 0).astype(int)
CASES = [
    (tree.DecisionTreeClassifier(random_state=0), {"ccp_alpha": [0.0, 0.01, 0.1]}),
    (
        ensemble.HistGradientBoostingClassifier(random_state=0, early_stopping=False),
        {"max_iter": [2, 5]},
    ),
    (neighbors.KNeighborsClassifier(), {"n_neighbors": [1, 3, 5]}),
    (svm.SVC(), {"gamma": [0.1, 1.0], "C": [1.0, 10.0]}),
]
SCORINGS = {"scoring": ["accuracy", "roc_auc"], "refit": "accuracy"}
with Client(processes=False, n_workers=1, dashboard_address=":0"):
    for options in ({}, SCORINGS):
        for model, grid in CASES:
            ours = GridSearchCV(model, grid, cv=3, **options).fit(X, y)
            theirs = model_selection.GridSearchCV(model, grid, cv=3, **options).fit(X, y)
            for name in theirs.cv_results_:
                if name.startswith("mean_test"):
                    left, right = ours.cv_results_[name], theirs.cv_results_[name]
                    np.testing.assert_allclose(left, right, err_msg=str(model))
            assert not options or "mean_test_roc_auc" in ours.cv_results_
            uses = ours.shared_fits_  # several where a slow batch was divided
            print(sum(x.n_saved for x in uses), *{x.refused for x in uses if x.refused})
    model = ensemble.HistGradientBoostingClassifier(random_state=0, n_iter_no_change=3)
    early = GridSearchCV(model, {"max_depth": [1, 3]}, cv=3, early_stopping=0.25).fit(X, y)
    print("stopped", early.best_estimator_.max_iter, early.best_score_)
"""


CONTEXTS = "sklearn.callback._callback_context:CallbackContext._callbacks"


def test_searches_without_names_have_the_same_scores():
    hidden = [
        "sklearn.tree._classes:BaseDecisionTree._prune_tree",
        "sklearn.ensemble._hist_gradient_boosting.gradient_boosting:BaseHistGradientBoosting._predictors",
        "sklearn.neighbors._base:NeighborsBase._tree",
        "sklearn.metrics._scorer:_PassthroughScorer",
        "sklearn.metrics._scorer:_MultimetricScorer",
        "sklearn.metrics._scorer:_BaseScorer._score_func",
        "sklearn.utils._openmp_helpers:_openmp_effective_n_threads",
    ]
    *saved, stopped = run(SEARCHES)[0].splitlines()
    *saved_without, stopped_without = run(SEARCHES, *hidden)[0].splitlines()
    assert stopped.startswith("stopped")
    assert stopped_without == stopped
    assert all(int(line.split()[0]) > 0 for line in saved)
    for line in saved_without[:3] + saved_without[4:7]:
        assert line.startswith("0 it must not fail. Got ImportError: sklearn must be a version")


@pytest.mark.slow
def test_contexts_without_names_may_have_callbacks():
    *saved, stopped = run(SEARCHES, CONTEXTS)[0].splitlines()
    assert stopped.startswith("stopped")
    assert set(saved) == {"0 callbacks must not listen to the search or its estimator"}


CLUSTERS = """
import joblib, numpy as np
from dask import array as da
from distributed import Client
import skfleet
from skfleet import Fleet
from skfleet.estimators import LinearRegression
X = np.random.default_rng(0).normal(size=(90, 3))
rows, y = da.from_array(X, chunks=(30, 3)), da.from_array(X[:, 0], chunks=30)
LinearRegression().fit(rows, y)
with Fleet(n_workers=2, processes=True, threads_per_worker=1) as client:
    assert LinearRegression().fit(rows, y).score(rows, y) > 0.99
    with joblib.parallel_config("skfleet", progress=True):
        assert joblib.Parallel()(joblib.delayed(abs)(-i) for i in range(5)) == [*range(5)]
    (worker, *_) = client.cluster.workers.values()
    worker.process.process.kill()
    client.wait_for_workers(2)
    assert client.submit(abs, -1).result() == 1
with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
    assert skfleet._cluster.current_client() is client
"""


@pytest.mark.slow
def test_clusters_without_names_work():
    run(
        CLUSTERS,
        "distributed.client:_current_client",
        "distributed.client:_global_clients",
        "distributed.deploy.spec:SpecCluster._futures",
        "joblib.parallel:Parallel._iterating",
        "joblib.parallel:Parallel._aborting",
        "joblib.parallel:Parallel._raise_error_fast",
    )


BOOSTING = """
import numpy as np
from skfleet.estimators import {name}
from skfleet.model_selection import GridSearchCV
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
model = {name}(n_estimators=5)
search = GridSearchCV(model, {{"learning_rate": [0.1, 0.5]}}, cv=2).fit(X, X[:, 0])
assert search.best_score_ > 0.3
with_function = {name}(n_estimators=5, {options})
try:
    with_function.fit(__import__("dask.array").array.from_array(X, chunks=(100, 3)), X[:, 0])
except ImportError as error:
    print(error)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("library", "hidden", "options"),
    [
        (
            "xgboost",
            ["xgboost.sklearn:XGBModel._create_dmatrix", "xgboost.sklearn:_objective_decorator"],
            "objective=lambda y, p: (p - y, np.ones_like(y))",
        ),
        (
            "lightgbm",
            ["lightgbm.sklearn:_EvalFunctionWrapper"],
            "",
        ),
    ],
)
def test_boosting_without_names_of_functions(library, hidden, options):
    pytest.importorskip(library)
    name = {"xgboost": "XGBRegressor", "lightgbm": "LGBMRegressor"}[library]
    output, _ = run(BOOSTING.format(name=name, options=options), *hidden)
    assert output.startswith(f"{library} must be a version whose private names") is bool(options)


# -- names that all else depends on --------------------------------------------------------------

FRAME_FIT = """
import dask.dataframe as dd, pandas as pd
from skfleet.estimators import LinearRegression
frame = dd.from_pandas(pd.DataFrame({"a": range(9), "b": range(9)}), npartitions=2)
LinearRegression().fit(frame[["a"]], frame["b"])
"""
ENCODER_FIT = """
import dask.array as da, numpy as np
from skfleet.estimators import OneHotEncoder
OneHotEncoder().fit(da.from_array(np.array([["a"], ["b"]])))
"""
BOOSTER_FIT = """
import dask.array as da
from skfleet.estimators import XGBRegressor
X = da.ones((20, 2), chunks=(10, 2))
XGBRegressor().fit(X, X[:, 0])
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("library", "program", "hidden"),
    [
        ("dask", FRAME_FIT, f"{EXPRESSIONS}expr:Blockwise"),
        ("sklearn", ENCODER_FIT, "sklearn.preprocessing._encoders:_BaseEncoder._fit"),
        ("xgboost", BOOSTER_FIT, "xgboost.sklearn:XGBModel._configure_fit"),
    ],
)
def test_an_error_says_which_versions_have_the_name(library, program, hidden):
    pytest.importorskip(library)
    lines = "\n".join(f"    {line}" for line in program.splitlines())
    program = f"try:\n{lines}\nexcept ImportError as error:\n    print(error)"
    output, _ = run(program, hidden)
    oldest, newest = TESTED[library]
    assert output.startswith(f"{library} must be a version whose private names scikit-fleet knows")
    assert f"{oldest} to {newest}" in output
    assert hidden.rpartition(".")[2].rpartition(":")[2] in output
    assert "Install one of these, or a newer scikit-fleet." in output
