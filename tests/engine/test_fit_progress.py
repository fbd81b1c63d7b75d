"""The bar of a fit: one for each outermost estimator, of its passes, blocks and rows."""

import io
import logging
import re
import sys
import time

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from joblib import Parallel, delayed, parallel_config
from sklearn.linear_model import LinearRegression as StockRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skfleet import _progress_bar, config_context
from skfleet.engine import counting
from skfleet.engine._fit_progress import FitHint, FitProgress, PassState
from skfleet.estimators import (
    PCA,
    GaussianMixture,
    KMeans,
    LogisticRegression,
    PoissonRegressor,
    RandomForestClassifier,
    Ridge,
    SGDClassifier,
    StandardScaler,
    TransformedTargetRegressor,
)
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
y = (X[:, 0] + RNG.normal(size=60) > 0).astype(int)
Xd, yd = da.from_array(X, chunks=(10, 3)), da.from_array(y, chunks=10)


@pytest.fixture(scope="module")
def client():
    with Client(n_workers=1, processes=False, dashboard_address=":0", set_as_default=False) as one:
        yield one


@pytest.fixture(params=["local", "dask"])
def _engine(request):
    """No client, or that of the module."""
    if request.param == "local":
        with config_context(engine="local"):
            yield
    else:
        with request.getfixturevalue("client").as_current():
            yield


def lines(capsys):
    return capsys.readouterr().out.splitlines()


FITS = {
    "scaler": lambda: StandardScaler().fit(Xd),
    "fit_transform": lambda: StandardScaler().fit_transform(Xd),
    "logistic": lambda: LogisticRegression().fit(Xd, yd),
    "ridge": lambda: Ridge().fit(Xd, yd),
    "kmeans": lambda: KMeans(2, random_state=0).fit(Xd),
    "sgd": lambda: SGDClassifier(max_iter=3, tol=None).fit(Xd, yd),
    "forest": lambda: RandomForestClassifier(3).fit(Xd, yd),
    "target": lambda: TransformedTargetRegressor(func=np.exp, inverse_func=np.log).fit(
        Xd, da.exp(yd)
    ),
    "pipeline": lambda: make_pipeline(StandardScaler(), PCA(2), Ridge()).fit(Xd, yd),
    "pipeline in pipeline": lambda: make_pipeline(
        make_pipeline(StandardScaler(), PCA(2)), Ridge()
    ).fit(Xd, yd),
}


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("fit", FITS)
def test_a_fit_has_one_line_with_its_passes(fit, capsys):
    with config_context(progress=True), counting() as counts:
        FITS[fit]()
    (line,) = lines(capsys)
    plural = "es" * (counts.passes != 1)
    assert f": {counts.passes} pass{plural} over 6 blocks, " in line
    assert line.startswith("Pipeline: ") == fit.startswith("pipeline")


@pytest.mark.usefixtures("single_task")
@pytest.mark.parametrize("fit", ["kmeans", "pipeline"])
def test_fits_in_one_task_have_one_line_too(fit, client, capsys):
    with client.as_current(), config_context(progress=True), counting() as counts:
        FITS[fit]()
    (line,) = lines(capsys)
    name = "Pipeline" if fit == "pipeline" else "KMeans"
    assert line.startswith(f"{name}: {counts.passes} passes over 1 block, ")


@pytest.mark.usefixtures("_engine")
def test_the_bar_costs_no_passes_tasks_or_loads(capsys):
    all_counts = []
    for progress in (False, True):
        with config_context(progress=progress), counting() as counts:
            FITS["logistic"]()
            FITS["sgd"]()
        all_counts.append(counts)
    assert all_counts[0] == all_counts[1]


def test_arrays_of_this_process_have_a_bar_too(capsys):
    with config_context(progress=True):
        Ridge().fit(X, y)
    assert re.match(r"Ridge: \d pass(es)? over 1 block, ", lines(capsys)[0])


def test_nothing_is_shown_unless_asked_for(capsys):
    with config_context(engine="local"):
        FITS["logistic"]()
        with config_context(progress=False):
            RandomForestClassifier(2, verbose=1).fit(Xd, yd)
    assert lines(capsys) == []


# -- what is shown -----------------------------------------------------------------------------


def test_passes_blocks_rows_and_bytes_are_shown(monkeypatch, capsys):
    """At each block, as the end of one is the begin of the next."""
    monkeypatch.setattr(_progress_bar, "MIN_LINE_SECONDS", 0.0)
    monkeypatch.setattr(_progress_bar, "MAX_LINE_SECONDS", 0.0)
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3)
    with config_context(engine="local", progress=True, keep_blocks=False, disk_cache=False):
        StandardScaler().fit(frame)
    *shown, last = lines(capsys)
    blocks = [re.match(r"StandardScaler: pass 1 of 1, (\d)/3 blocks", line)[1] for line in shown]
    assert blocks == ["0", "1", "2", "3"]
    assert re.search(r" rows/s, 480 B, about .* to go, ", shown[1])
    assert re.fullmatch(r"StandardScaler: 1 pass over 3 blocks, .* rows/s, 1.4 kB, .* s", last)


def state(n_expected=None):
    one = PassState("LogisticRegression")
    one.begin_stage("pass 1", 20, "blocks", is_pass=True)
    one.n_done = 20
    one.add_rows(1_000)
    one.begin_stage("pass 2", 20, "blocks", is_pass=True)
    one.n_expected, one.n_done = n_expected, 10
    one.begin -= 30.0
    return one


def test_time_to_go_needs_the_number_of_passes():
    assert state().seconds_left is None
    assert state(n_expected=4).seconds_left == pytest.approx(50.0, rel=0.01)
    assert state(n_expected=4).counts == "pass 2 of 4, 10/20 blocks"
    assert state().counts == "pass 2, 10/20 blocks"


def test_the_rate_is_that_of_passes_whose_rows_are_known():
    one = state()
    assert "rows/s" in one.details
    one.add_rows(None)
    assert "rows/s" not in one.details


@pytest.mark.parametrize(
    ("number", "text"), [(7, "7"), (999, "999"), (999.6, "1.0k"), (1.24e6, "1.2M"), (3e11, "300G")]
)
def test_numbers_are_short(number, text):
    one = state()
    one._rows_and_seconds = lambda: (number, 1.0)
    assert one.details == f"{text} rows/s"


def test_tasks_of_a_pass_that_is_over_do_not_count():
    class Done:
        status = "finished"

    progress = FitProgress("StandardScaler")
    progress.begin_pass(4)
    progress._advance_if_done(1, 1, None, Done)
    progress.begin_pass(4)
    progress._advance_if_done(1, 1, None, Done)
    assert progress.state.n_done == 0
    progress.close(is_complete=False)


@pytest.mark.usefixtures("_engine")
@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError])
def test_bar_ends_where_the_fit_failed(error, capsys):
    def fail(block):
        raise error

    bad = Xd.map_blocks(fail, dtype=float)
    with config_context(progress=True):
        with pytest.raises(error):
            StandardScaler().fit(bad)
        FITS["scaler"]()
    first, second = lines(capsys)
    assert first.startswith("StandardScaler: stopped in pass 1 of 1, 0/6 blocks, ")
    assert second.startswith("StandardScaler: 1 pass over 6 blocks, ")


# -- who has a bar ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", [LogisticRegression(verbose=1), PoissonRegressor(verbose=1)], ids=str
)
def test_verbose_shows_the_bar_and_the_solver(model, capsys):
    with config_context(engine="local"):
        model.fit(Xd, yd)
    solver, bar = lines(capsys)
    assert solver.endswith("iterations.")
    assert bar.startswith(type(model).__name__ + ": ")


def test_verbose_of_a_forest_shows_the_bar(client, capsys, monkeypatch):
    monkeypatch.setattr(_progress_bar, "MIN_LINE_SECONDS", 0.0)
    monkeypatch.setattr(_progress_bar, "MAX_LINE_SECONDS", 0.0)
    with client.as_current():
        RandomForestClassifier(3, verbose=1).fit(Xd, yd)
    shown = lines(capsys)
    assert any(": training, 0/3 trees" in line for line in shown)
    assert shown[-1].startswith("RandomForestClassifier: 2 passes over 6 blocks")


@pytest.mark.parametrize(
    "model",
    [
        KMeans(2, verbose=1, random_state=0),
        SGDClassifier(max_iter=2, tol=None, verbose=1),
        GaussianMixture(verbose=1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_lines_of_verbose_come_in_place_of_the_bar(model, capsys):
    with config_context(engine="local", progress=True):
        model.fit(Xd, yd)
    shown = lines(capsys)
    assert shown
    assert not any(line.startswith(type(model).__name__) for line in shown)


def test_progress_of_joblib_shows_fits_of_this_process(client, capsys):
    with parallel_config("skfleet", client=client, progress=True), config_context(engine="local"):
        FITS["scaler"]()
    assert lines(capsys)[0].startswith("StandardScaler: 1 pass")


def fit_in_task():
    with config_context(engine="local", progress=True):
        LogisticRegression(verbose=1).fit(Xd, yd)


def test_tasks_have_no_bar(client, capsys):
    with parallel_config("skfleet", client=client):
        Parallel()(delayed(fit_in_task)() for _ in range(2))
    assert not any("pass" in line for line in lines(capsys))


@pytest.mark.parametrize("is_lazy", [True, False])
def test_a_search_has_its_own_bar_only(is_lazy, client, capsys):
    search = GridSearchCV(LogisticRegression(), {"C": [1.0, 2.0]}, cv=2)
    rows = (Xd, yd) if is_lazy else (X, y)
    with client.as_current(), config_context(progress=True):
        search.fit(*rows)
    (line,) = lines(capsys)
    assert line.startswith("LogisticRegression: 4 of 4 fits, ")


def test_verbose_of_candidates_shows_no_bars(client, capsys):
    search = GridSearchCV(RandomForestClassifier(2, verbose=1), {"max_depth": [1, 2]}, cv=2)
    with client.as_current():
        search.fit(Xd, yd)
    assert lines(capsys) == []


def test_adaptive_search_follows_the_config(client, capsys):
    search = HyperbandSearchCV(SGDClassifier(), {"alpha": [1e-3, 1e-4]}, max_iter=3, random_state=0)
    with client.as_current(), config_context(progress=True):
        search.fit(X, y)
    (line,) = lines(capsys)
    assert re.match(r"SGDClassifier: \d+ of \d+ calls of partial_fit", line)


# -- pipelines of scikit-learn's ----------------------------------------------------------------


def fail(rows):
    raise ZeroDivisionError


def test_a_step_of_another_library_leaves_no_bar_open(capsys):
    with config_context(engine="local", progress=True):
        failing = make_pipeline(StandardScaler(), FunctionTransformer(fail), Ridge())
        with pytest.raises(ZeroDivisionError):
            failing.fit(Xd, yd)
        assert lines(capsys) == []
        failing.set_params(functiontransformer__func=None).fit(Xd, yd)
        assert lines(capsys)[0].startswith("Pipeline: 2 passes")
        make_pipeline(StandardScaler(), StockRegression()).fit(Xd, yd)
        FITS["scaler"]()
    assert [line.partition(":")[0] for line in lines(capsys)] == ["Pipeline", "StandardScaler"]


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


def test_a_pipeline_has_one_bar_in_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    with config_context(engine="local", progress=True):
        FITS["pipeline"]()
        print("after")
    shown = sys.stdout.getvalue()
    assert shown.count(" passes over 6 blocks") == 1
    assert shown.endswith("after\n")


# -- the hint ------------------------------------------------------------------------------------


@pytest.fixture
def _soon(monkeypatch):
    monkeypatch.setattr(_progress_bar, "HINT_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(FitHint, "_is_printed", False)


def slow(block):
    time.sleep(0.05)
    return block


@pytest.mark.usefixtures("_soon")
def test_a_long_fit_says_once_that_there_is_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    with config_context(engine="local"):
        for _ in range(2):
            StandardScaler().fit(Xd.map_blocks(slow))
    hint = "skfleet.config_context(progress=True) shows how far a fit is."
    assert sys.stdout.getvalue().splitlines() == [hint]


@pytest.mark.usefixtures("_soon")
def test_the_hint_is_in_the_log_where_nobody_looks_on(capsys, caplog):
    with config_context(engine="local"), caplog.at_level(logging.INFO, "skfleet"):
        StandardScaler().fit(Xd.map_blocks(slow))
    assert "shows how far a fit is." in caplog.text
    assert lines(capsys) == []


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("progress", [True, False])
def test_no_hint_where_the_bar_is_chosen(progress, capsys, caplog):
    with (
        config_context(engine="local", progress=progress),
        caplog.at_level(logging.INFO, "skfleet"),
    ):
        StandardScaler().fit(Xd.map_blocks(slow))
    assert "shows how far" not in caplog.text


def test_the_setting_is_checked():
    with pytest.raises(
        ValueError, match=r"progress must be one of 'auto', True, False\. Got 'yes'"
    ):
        config_context(progress="yes").__enter__()
