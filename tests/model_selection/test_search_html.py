"""What a notebook shows of a search: nothing new before the fit, and then what it found."""

import re
import time
import warnings

import dask.array as da
import numpy as np
import pytest
import sklearn
from adaptive_cases import SEARCHES, SPACE, sgd
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from sklearn.utils import estimator_html_repr

from skfleet import estimators
from skfleet._display import count, format_value, html_table
from skfleet.model_selection import (
    ASHASearchCV,
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    HyperbandSearchCV,
    RandomizedSearchCV,
)
from skfleet.model_selection._search_html import search_html

X, y = load_iris(return_X_y=True)
BAD = "<script>alert(1)</script>"

pytestmark = pytest.mark.usefixtures("on_cluster")


class Tagged(SVC):
    """An estimator with a parameter of any text."""

    def __init__(self, tag="", C=1.0, seconds=0.0):
        super().__init__(C=C)
        self.tag, self.seconds = tag, seconds

    def fit(self, X, y):
        time.sleep(self.seconds)
        return super().fit(X, y)


class Silent:
    """A value whose repr fails."""

    def __repr__(self):
        raise RuntimeError("no words")


def shown(search):
    """Return the lines of each cell of the table above the diagram, by the name of the row."""
    table = re.match(r"<table.*?</table>", search_html(search))[0]
    rows = re.findall(r"<tr><th.*?>(.*?)</th><td.*?>(.*?)</td></tr>", table)
    return {name: cell.split("<br>") for name, cell in rows}


def number(text):
    return float(text.split()[0])


@pytest.mark.parametrize(
    "search",
    [
        GridSearchCV(SVC(), {"C": [0.1, 1]}),
        HalvingGridSearchCV(SVC(), {"C": [0.1, 1]}),
        HyperbandSearchCV(SGDClassifier(), SPACE),
    ],
    ids=lambda search: type(search).__name__,
)
def test_before_the_fit_there_is_the_diagram_alone(search):
    assert search_html(search) == ""
    assert repr(search).startswith(f"{type(search).__name__}(estimator=S")
    assert search._repr_html_().startswith("<style>")
    assert search._repr_mimebundle_()["text/html"].startswith("<style>")


def test_results_stand_above_the_diagram():
    search = GridSearchCV(RandomForestClassifier(random_state=0), {"n_estimators": [2, 5]}, cv=3)
    terminal = repr(search)
    search.fit(X, y)
    assert repr(search) == terminal
    table = search_html(search)
    assert "Results of GridSearchCV" in table
    for html in (search._repr_html_(), search._repr_mimebundle_()["text/html"]):
        assert html.startswith(f"{table}<style>")
        assert "sk-top-container" in html
    assert search._repr_mimebundle_()["text/plain"] == terminal
    assert table not in estimator_html_repr(search)
    rows, best = shown(search), search.best_index_
    assert list(rows) == ["Best score", "Best parameters", "Candidates", "Time", "Fits saved"]
    spread = search.cv_results_["std_test_score"][best]
    assert rows["Best score"] == [
        f"{search.best_score_:.4g} ± {spread:.2g}", "mean ± standard deviation of 3 splits",
    ]  # fmt: skip
    assert rows["Best parameters"] == [f"n_estimators = {search.best_params_['n_estimators']}"]
    assert rows["Candidates"] == ["2 on 3 splits"]
    assert re.fullmatch(r"\S+ s for fits, \S+ s for scores, \S+ s for the refit", *rows["Time"])
    assert rows["Fits saved"] == ["3 of 6 of RandomForestClassifier, shared over n_estimators"]


def test_without_diagrams_there_is_text_alone():
    search = GridSearchCV(SVC(), {"C": [0.1, 1]}).fit(X, y)
    with sklearn.config_context(display="text"):
        assert not hasattr(search, "_repr_html_")
        assert search._repr_mimebundle_() == {"text/plain": repr(search)}
    assert hasattr(search, "_repr_html_")


@pytest.mark.parametrize("refit", ["f1_macro", False])
def test_several_metrics(refit):
    metrics = ["accuracy", "f1_macro"]
    search = RandomizedSearchCV(
        SVC(), {"C": [0.01, 1]}, n_iter=2, scoring=metrics, refit=refit, cv=3
    ).fit(X, y)
    rows = shown(search)
    if refit:  # the metric that chose is the first
        names = [line.partition(":")[0] for line in rows["Best score"]]
        assert names == ["f1_macro", "accuracy", "mean ± standard deviation of 3 splits"]
        assert number(rows["Best score"][0].partition(": ")[2]) == pytest.approx(
            search.best_score_, abs=1e-3
        )
    else:
        assert "Best score" not in rows
        assert "Best parameters" not in rows
        highest = [max(search.cv_results_[f"mean_test_{name}"]) for name in metrics]
        texts = [line.partition(": ")[2] for line in rows["Highest scores"]]
        np.testing.assert_allclose(list(map(number, texts)), highest, rtol=1e-3)


def test_refit_that_is_false_or_a_function():
    search = GridSearchCV(SVC(), {"C": [0.01, 1]}, refit=False, cv=3).fit(X, y)
    assert "refit" not in shown(search)["Time"][0]
    assert "Refit" not in shown(search)
    search = GridSearchCV(SVC(), {"C": [0.01, 1]}, refit=lambda results: 0, cv=3).fit(X, y)
    rows = shown(search)
    assert "Best score" not in rows
    assert number(rows["Scores at best_index_"][0]) == pytest.approx(
        search.cv_results_["mean_test_score"][0], rel=1e-3
    )
    assert rows["Best parameters"] == ["C = 0.01"]


@pytest.mark.parametrize("kind", [HalvingGridSearchCV, HalvingRandomSearchCV])
def test_halving_shows_its_iterations(kind):
    search = kind(SVC(), {"C": [0.01, 0.1, 1, 10, 100]}, random_state=0).fit(X, y)
    steps = zip(search.n_candidates_, search.n_resources_, strict=True)
    expected = ", ".join(f"{n} on {n_rows}" for n, n_rows in steps)
    assert shown(search)["Candidates"] == [f"{expected} n_samples; 5 splits"]


@pytest.mark.parametrize(("kind", "params"), SEARCHES)
def test_adaptive_searches_show_their_calls(kind, params):
    search = kind(sgd(), SPACE, random_state=0, **params).fit(X, y)
    rows = shown(search)
    assert rows["Best score"] == [f"{search.best_score_:.4g}"]
    n_candidates, n_calls = len(search.cv_results_["params"]), search.metadata_["partial_fit_calls"]
    assert rows["Candidates"] == [
        f"{n_candidates}, in {n_calls} calls of partial_fit",
        f"best after {count(search.n_iter_, 'call')}",
    ]
    assert rows["Time"][0].endswith(" from begin to end")
    assert rows["Best parameters"][0].startswith("alpha = ")
    assert "Fits saved" not in rows
    assert search._repr_html_().startswith("<table")


def test_checkpoints_and_time_budgets(tmp_path):
    params = {"cv": 3, "checkpoint": tmp_path / "grid", "time_budget": 60}
    for n_fits in (0, 6):
        search = GridSearchCV(SVC(), {"C": [0.1, 1]}, **params).fit(X, y)
        assert shown(search)["From the checkpoint"] == [f"{n_fits} of 6 fits"]
        assert shown(search)["Time budget"] == ["60 s, enough for all fits"]
    params = {"checkpoint": tmp_path / "adaptive", "time_budget": 60, "random_state": 0}
    for _ in range(2):
        search = HyperbandSearchCV(sgd(), SPACE, max_iter=4, **params).fit(X, y)
        n_calls = search.n_checkpoint_calls_
        assert shown(search)["From the checkpoint"] == [f"{count(n_calls, 'call')} of partial_fit"]
        assert shown(search)["Time budget"] == ["60 s, not used up"]
    assert n_calls > 0


def test_time_budget_that_ended_the_search():
    grid = {"tag": range(30)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(Tagged(seconds=0.1), grid, cv=2, time_budget=0.6).fit(X, y)
    n_missing = int(np.isnan(search.cv_results_["mean_test_score"]).sum())
    rows = shown(search)
    assert 0 < n_missing < 30
    assert rows["Candidates"] == ["30 on 2 splits", f"{n_missing} without a score"]
    expected = f"0.6 s, which ended the search: {n_missing} candidates not fitted on all splits"
    assert rows["Time budget"] == [expected]
    assert "nan" not in rows["Time"][0]


def test_interrupted_search_has_no_refit():
    search = GridSearchCV(SVC(), {"C": [0.1, 1]}).fit(X, y)
    assert "Refit" not in shown(search)
    del search.best_estimator_
    assert "Refit" not in shown(search)
    del search.refit_time_
    assert shown(search)["Refit"] == ["none: the search was interrupted"]


def test_fits_of_this_process_show_no_shared_fits():
    search = GridSearchCV(SVC(), {"C": [0.1, 1]}, n_jobs=1).fit(X, y)
    assert list(shown(search)) == ["Best score", "Best parameters", "Candidates", "Time"]
    search = GridSearchCV(SVC(), [{}], cv=[(np.arange(100), np.arange(100, 150))]).fit(X, y)
    rows = shown(search)
    assert rows["Best parameters"] == ["defaults"]
    assert rows["Candidates"] == ["1 on 1 split"]
    assert rows["Best score"] == [f"{search.best_score_:.4g}"]


def test_why_no_fit_was_shared():
    search = GridSearchCV(Tagged(), {"C": [0.1, 1]}, cv=2).fit(X, y)
    (reason,) = shown(search)["Fits saved"]
    assert reason.startswith("none of 4 of Tagged: ")


def test_fits_of_several_steps_have_no_sum():
    model = make_pipeline(PCA(random_state=0), SVC())
    search = GridSearchCV(model, {"pca__n_components": [1, 2], "svc__C": [0.1, 1.0]}, cv=2)
    lines = shown(search.fit(X, y))["Fits saved"]
    assert {line.partition(" of ")[2] for line in lines} == {
        "8 of SVC, shared over C",
        "8 of PCA, shared over n_components",
    }


def test_texts_of_users_are_escaped():
    def scoring(estimator, X, y):
        return {BAD: 1.0}

    search = GridSearchCV(Tagged(), {"tag": [BAD]}, scoring=scoring, refit=BAD, cv=2).fit(X, y)
    html = search_html(search)
    assert "<script" not in html
    assert shown(search)["Best parameters"] == [f"tag = &#x27;{BAD}&#x27;".replace(BAD, ESCAPED)]
    assert shown(search)["Best score"][0].startswith(f"{ESCAPED}: 1")


ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


def test_values_are_short_and_never_raise():
    assert format_value(np.float64(0.1)) == "0.1"
    assert format_value(np.str_("a")) == "'a'"
    assert format_value(np.datetime64("2026-01-01")) == "np.datetime64('2026-01-01')"
    assert format_value(SVC(C=2.0)) == "SVC(C=2.0)"
    assert "Silent" in format_value(Silent())
    assert len(format_value(list(range(10**6)))) < 100
    assert len(format_value("a" * 1000)) <= 160
    assert len(format_value({"key": ["b" * 200] * 9})) <= 160
    assert "\n" not in format_value(np.eye(3))
    search = GridSearchCV(Tagged(), {"tag": [Silent()]}, cv=2).fit(X, y)
    assert "Silent" in shown(search)["Best parameters"][0]


def test_long_lists_of_parameters_are_cut():
    search = GridSearchCV(SVC(), {"C": [1.0]}, cv=2).fit(X, y)
    search.best_params_ = {f"p{i}": i for i in range(30)}
    lines = shown(search)["Best parameters"]
    assert lines[-2:] == ["p19 = 19", "and 10 more"]


def test_tables_leave_colours_to_the_page():
    html = html_table("caption", [("name", "cell")], ["Name", "Cell"])
    colours = set(re.findall(r"(?:color|background[^:]*): ([^;\"]+)", html))
    assert colours <= {"inherit"}
    assert "<script" not in html
    assert "class=" not in html


def test_what_is_lazy_in_a_model_is_shown_without_being_computed(monkeypatch):
    """The labels of rows on Dask are named by scikit-learn's table of fitted attributes."""
    rows = da.from_array(X, chunks=(50, 4))
    models = [estimators.KMeans(2, random_state=0), estimators.MiniBatchKMeans(2, random_state=0)]
    models.append(estimators.SpectralClustering(2, n_landmarks=40, random_state=0))
    for model in models:
        model.fit(rows)
        assert isinstance(model.labels_, da.Array)
    monkeypatch.setattr(da.Array, "__dask_graph__", lambda self: pytest.fail("it was computed"))
    for model in models:
        html = model._repr_html_()
        assert "labels_" in html
        assert "Array[int32](150,)" in html


def test_a_sampler_of_the_users_needs_no_parameters():
    class Halves:
        def ask(self, instruction, pending=None):
            return {"alpha": 0.5**instruction.candidate}

        def tell(self, *args):
            pass

    params = {"n_initial_parameters": 3, "max_iter": 4}
    search = ASHASearchCV(sgd(), None, sampler=Halves(), **params)
    assert search.metadata["n_models"] == 3
    assert shown(search.fit(X, y))["Candidates"][0].startswith("3, in ")
