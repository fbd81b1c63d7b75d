"""What the screen shows: bars in terminals and notebooks, lines elsewhere, in the user's words."""

import io
import re
import sys
import time
import types

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from joblib import Parallel, delayed, parallel_config
from rich.console import Console
from sklearn import model_selection
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from skfleet import _progress_bar
from skfleet._progress_bar import (
    Lines,
    Notebook,
    ProgressBar,
    ProgressState,
    Terminal,
    progress_text,
)
from skfleet.model_selection import (
    ASHASearchCV,
    GridSearchCV,
    HalvingGridSearchCV,
    HyperbandSearchCV,
    RandomizedSearchCV,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
y = (X[:, 0] + 0.1 * X[:, 1] > 0).astype(int)
GRID = {"max_depth": [1, 2, 3]}


@pytest.fixture(scope="module", autouse=True)
def _client():
    with Client(n_workers=1, processes=False, dashboard_address=":0") as client:
        yield client


class Screen(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self):
        return True


# -- the text ----------------------------------------------------------------------------------


def state(name="RandomForestClassifier", n_done=12, total=60, note="", left=None):
    one = ProgressState(name, "fits", total)
    one.n_done, one.status = n_done, note
    one.is_estimated = left is not None
    one.estimated_end = None if left is None else time.monotonic() + left
    one.begin -= 30.0
    return one


@pytest.mark.parametrize("width", range(24, 130))
@pytest.mark.parametrize("total", [60_000, None])
def test_counts_are_never_cut(width, total):
    one = state("HistGradientBoostingClassifier", 12_345, total, "alive 27/9/3/1, best 0.9731")
    text = progress_text(one, width)
    assert len(text) <= width
    assert ("12345 of 60000 fits" if total else "12345 fits") in text


def test_what_matters_less_goes_first():
    one = state(note="best 0.9731", left=100.0)
    whole = "RandomForestClassifier: 12 of 60 fits, best 0.9731, about 2 min to go, 30 s"
    assert progress_text(one) == whole
    assert progress_text(one, 74) == whole.removesuffix(", 30 s")
    assert progress_text(one, 60) == "RandomForestClassifier: 12 of 60 fits, best 0.9731"
    assert progress_text(one, 40) == "RandomForestClassifier: 12 of 60 fits"
    assert progress_text(one, 30) == "RandomForestCl…: 12 of 60 fits"


def test_time_to_go_is_in_proportion_and_none_when_it_is_over():
    one = state()
    assert one.seconds_left == pytest.approx(120.0, rel=0.01)
    one.is_over = True
    assert one.seconds_left is None


# -- the displays --------------------------------------------------------------------------------


@pytest.mark.parametrize("note", ["", "10 saved, best 0.9731", "alive 729/243/81/27, best 0.9731"])
def test_bar_in_80_columns_is_one_line_with_all_numbers(note):
    one = state("HistGradientBoostingClassifier", 12_345, 60_000, note)
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    terminal = Terminal.__new__(Terminal)
    terminal._state = one
    console.print(terminal, end="")
    (line,) = console.file.getvalue().splitlines()
    assert "12345 of 60000 fits" in line
    assert len(line.rstrip()) <= 77  # or ^C would break it in two


def test_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    bar = ProgressBar("SVC", "fits", 4)
    assert isinstance(bar._display, Terminal)
    bar.advance(3)
    bar.close()
    assert "SVC: 3 of 4 fits" in sys.stdout.getvalue()


def test_terminal_without_rich_gets_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(_progress_bar, "find_spec", lambda name: None)
    bar = ProgressBar("SVC", "fits", 4)
    assert isinstance(bar._display, Lines)
    bar.close()


def test_lines_come_at_intervals_and_at_the_end(capsys):
    bar = ProgressBar("SVC", "fits", 100)
    for _ in range(100):
        bar.state.begin -= 1.0  # a second a fit
        bar.advance(1)
    bar.close()
    lines = capsys.readouterr().out.splitlines()
    counts = [int(re.match(r"SVC: (\d+) of 100 fits", line).group(1)) for line in lines]
    assert counts == [5, 15, 35, 75, 100]


def test_notebook_gets_a_bar_without_rich(monkeypatch):
    shown = []

    class Handle:
        def update(self, obj):
            shown.append(obj._repr_html_())

    def display(obj, display_id):
        shown.append(obj._repr_html_())
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(_progress_bar, "REDRAW_SECONDS", 0.0)
    bar = ProgressBar("S<C", "fits", 4)
    assert isinstance(bar._display, Notebook)
    bar.advance(3)
    bar.close()
    assert [re.search(r'value="(\d)" max="4"', one).group(1) for one in shown] == ["0", "3", "3"]
    assert "S&lt;C: 3 of 4 fits" in shown[-1]


@pytest.mark.parametrize("kind", [GridSearchCV, HyperbandSearchCV])
def test_verbose_needs_no_rich(kind, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setitem(sys.modules, "rich", None)
    SEARCHES[kind](verbose=1).fit(X, y)
    line = sys.stdout.getvalue().splitlines()[-1]
    assert re.match(r"\w+Classifier: (\d+) of \1 (fits|calls of partial_fit), ", line)


# -- what is shown of a call ---------------------------------------------------------------------


def last_line(capsys):
    return capsys.readouterr().out.splitlines()[-1]


def work(n):
    return n


def double(n):
    return Parallel()(delayed(work)(i) for i in range(n))


CALLS = {
    "RandomForestClassifier: 7 of 7 tasks": lambda: RandomForestClassifier(7).fit(X, y),
    "DecisionTreeClassifier: 3 of 3 fits": lambda: model_selection.cross_validate(
        make_pipeline(StandardScaler(), DecisionTreeClassifier()), X, y, cv=3
    ),
    "work: 5 of 5 tasks": lambda: double(5),
}


@pytest.mark.parametrize("line", CALLS)
def test_bar_has_the_name_of_what_the_user_runs(line, capsys):
    with parallel_config("skfleet", progress=True):
        CALLS[line]()
    assert last_line(capsys).startswith(line + ", ")


def hyperband(**settings):
    return HyperbandSearchCV(
        SGDClassifier(), {"alpha": [1e-3, 1e-4]}, max_iter=3, random_state=0, **settings
    )


SEARCHES = {
    GridSearchCV: lambda **settings: GridSearchCV(
        DecisionTreeClassifier(random_state=0), GRID, cv=2, **settings
    ),
    RandomizedSearchCV: lambda **settings: RandomizedSearchCV(
        DecisionTreeClassifier(random_state=0), GRID, n_iter=3, cv=2, **settings
    ),
    HalvingGridSearchCV: lambda **settings: HalvingGridSearchCV(
        DecisionTreeClassifier(random_state=0), GRID, cv=2, random_state=0, **settings
    ),
    HyperbandSearchCV: hyperband,
}


@pytest.mark.parametrize("kind", SEARCHES)
def test_verbose_means_the_same_in_every_search(kind, capsys):
    """0 is silent, 1 shows how far it is, 2 tells of each fit."""
    name = "SGDClassifier" if kind is HyperbandSearchCV else "DecisionTreeClassifier"
    shown = rf"(?m)^{name}: (\d+) of \1 "
    SEARCHES[kind](verbose=0).fit(X, y)
    assert capsys.readouterr().out == ""
    SEARCHES[kind](verbose=1).fit(X, y)
    printed = capsys.readouterr().out
    assert re.search(shown, printed)
    assert " END " not in printed
    SEARCHES[kind](verbose=2).fit(X, y)
    printed = capsys.readouterr().out
    assert not re.search(shown, printed)
    assert " END " in printed


def test_bar_stops_where_the_work_did(capsys):
    """Of a search that ends in time only fits that were made are counted."""
    search = SEARCHES[GridSearchCV](verbose=1, time_budget=1e-9, error_score=0.0)
    with pytest.raises(ValueError, match="All the 6 fits failed"):
        search.fit(X, y)
    assert not re.search(r"[1-6] of 6 fits", capsys.readouterr().out)


class Interrupted(LogisticRegression):
    """Fitted in the driver, as it seems to be ours."""

    __module__ = "skfleet.of_this_test"

    def fit(self, X, y):
        if self.C > 3:
            raise KeyboardInterrupt
        return super().fit(np.asarray(X), y)

    def predict(self, X):
        return super().predict(np.asarray(X))


def test_bar_stops_where_ctrl_c_did(capsys):
    search = GridSearchCV(Interrupted(), {"C": [1, 2, 3, 4, 5]}, cv=2, verbose=1)
    with pytest.raises(KeyboardInterrupt):
        search.fit(da.from_array(X, chunks=20), y)
    assert last_line(capsys).startswith("Interrupted: 6 of 10 fits, ")


class Better(SGDClassifier):
    """Scores as well as its `alpha` is large."""

    def score(self, X, y, sample_weight=None):
        return self.alpha


def test_total_of_asha_is_not_exceeded(monkeypatch):
    """It promotes more than the best third where each candidate is better than those before."""
    counts = []
    advance = ProgressBar.advance

    def noted(bar, n_steps):
        advance(bar, n_steps)
        counts.append((bar.state.n_done, bar.state.total))

    monkeypatch.setattr(ProgressBar, "advance", noted)
    search = ASHASearchCV(
        Better(),
        {"alpha": list(np.linspace(0.1, 0.9, 12))},
        n_initial_parameters="grid",
        max_iter=9,
        random_state=0,
        n_jobs=1,
        verbose=1,
    )
    search.fit(X, y)
    assert all(n_done <= total for n_done, total in counts)
    assert counts[-1][0] > search.metadata["partial_fit_calls"]  # or this shows nothing


def test_one_bar_at_a_time(capsys):
    """The calls within a call that shows how far it is show nothing."""
    outer = _progress_bar.open_bar("outer", "tasks")
    with parallel_config("skfleet", progress=True):
        double(3)
    outer.close()
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["outer"]


# -- the hint ------------------------------------------------------------------------------------


@pytest.fixture
def _soon(monkeypatch):
    monkeypatch.setattr(_progress_bar, "HINT_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(_progress_bar.ProgressHint, "_is_printed", False)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("kind", [GridSearchCV, HyperbandSearchCV])
def test_search_says_once_that_it_can_show_more(kind, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    for _ in range(2):
        SEARCHES[kind]().fit(X, y)
    assert sys.stdout.getvalue().splitlines() == ["verbose=1 shows how far a search is."]


@pytest.mark.usefixtures("_soon")
def test_no_hint_where_nobody_looks_on_or_more_is_shown(monkeypatch, capsys):
    SEARCHES[GridSearchCV]().fit(X, y)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "stdout", Screen())
    SEARCHES[GridSearchCV](verbose=1).fit(X, y)
    assert "verbose=1 shows" not in sys.stdout.getvalue()
