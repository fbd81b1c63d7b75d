"""Warnings point at the line that somebody wrote who reads them, and each is said once."""

import inspect
import warnings

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from joblib import Parallel, delayed, parallel_config
from sklearn import model_selection
from sklearn.exceptions import ConvergenceWarning, FitFailedWarning
from sklearn.linear_model import SGDClassifier
from sklearn.svm import LinearSVC
from sklearn.utils import parallel

from clusters import wait_for_idle_workers
from skfleet import metrics
from skfleet._captured_output import capture_output, output_replayer, process_token
from skfleet._warnings import IgnoredWarnings, warn
from skfleet.estimators import (
    PCA,
    BlockwiseVotingClassifier,
    GaussianMixture,
    Incremental,
    KMeans,
    LogisticRegression,
    RidgeClassifier,
    SGDRegressor,
)
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
y = (X[:, 0] + 0.1 * X[:, 1] > 0).astype(int)
ROWS = da.from_array(X, chunks=20)


@pytest.fixture(scope="module", params=["processes", "threads"])
def client(request, process_cluster, cluster_client):
    cluster = process_cluster if request.param == "processes" else cluster_client.cluster
    with Client(cluster) as client:
        wait_for_idle_workers(client)
        yield client


@pytest.fixture(scope="module")
def threads():
    with Client(n_workers=1, processes=False, dashboard_address=":0") as client:
        yield client


def caught(call):
    """Call, and return the warnings, and the line of the call."""
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        call()
    lines, first = inspect.getsourcelines(call)
    return log, range(first, first + len(lines))


IN_THIS_PROCESS = {
    "metrics": lambda: metrics.roc_auc_score(da.zeros(60, dtype=int, chunks=20), ROWS[:, 0]),
    "mixture": lambda: GaussianMixture(2, random_state=0, max_iter=1).fit(X),
    "clusters": lambda: KMeans(3, random_state=0, n_init=1).fit(np.ones((20, 2))),
    "glm": lambda: LogisticRegression(max_iter=1).fit(X, y),
    "glm on Dask": lambda: LogisticRegression(max_iter=1).fit(ROWS, y),
    "epochs": lambda: SGDRegressor(max_iter=1, tol=1e-9).fit(X, y),
    "labels": lambda: RidgeClassifier().fit(X, y[:, None]),
    "in a search": lambda: GridSearchCV(
        LogisticRegression(max_iter=1), {"C": [1.0]}, cv=2, n_jobs=1
    ).fit(X, y),
    "in a search on Dask": lambda: GridSearchCV(
        LogisticRegression(max_iter=1), {"C": [1.0]}, cv=2, refit=False
    ).fit(ROWS, y),
    "candidates": lambda: HyperbandSearchCV(
        SGDClassifier(), {"penalty": ["l1", "l2", "nonsense"]}, max_iter=3, random_state=0
    ).fit(X, y),
}


@pytest.mark.parametrize("name", IN_THIS_PROCESS)
def test_warning_of_this_process_points_at_the_call(threads, name):
    log, lines = caught(IN_THIS_PROCESS[name])
    ours = [w for w in log if not w.filename.endswith("sklearn/model_selection/_search.py")]
    assert ours
    assert {(w.filename, w.lineno in lines) for w in ours} == {(__file__, True)}


def test_registry_of_the_caller_decides_what_is_said_again():
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("alas")
    assert len(log) == 1


SEARCHES = [GridSearchCV, model_selection.GridSearchCV]


@pytest.mark.parametrize("search", SEARCHES, ids=["ours", "scikit-learn's"])
def test_fits_on_workers_warn_once_with_their_number(client, search):
    """Three candidates on four splits, two of which have too few iterations."""
    model = LinearSVC(dual=True, random_state=0)
    found = search(model, {"max_iter": [1, 2, 100_000]}, cv=4, refit=False)

    def fit():
        with parallel_config("skfleet", client=client):
            found.fit(X, y)

    log, lines = caught(fit)
    (warning,) = [w for w in log if w.category is ConvergenceWarning]
    assert "Liblinear failed to converge" in str(warning.message)
    assert str(warning.message).endswith("(in 8 of 12 fits)")
    assert warning.filename == __file__
    assert warning.lineno in lines


def complain(n):
    warnings.warn("alas", RuntimeWarning, stacklevel=1)
    return n


def test_warning_of_a_function_of_the_user_stays_where_it_arose(client):
    def call():
        with parallel_config("skfleet", client=client):
            Parallel()(delayed(complain)(n) for n in range(3))

    log, _ = caught(call)
    (warning,) = log
    assert str(warning.message) in ("alas (3 times)", "alas (2 times)")  # once for each process
    assert warning.filename == __file__
    assert warning.lineno == inspect.getsourcelines(complain)[1] + 1


def test_warnings_of_a_call_that_fails_do_not_hide_its_error(client):
    def fail(n):
        warnings.warn("alas", RuntimeWarning, stacklevel=1)
        if n == 2:
            raise KeyError(n)

    def call():
        with parallel_config("skfleet", client=client), pytest.raises(KeyError, match="2"):
            Parallel()(delayed(fail)(n) for n in range(3))

    log, _ = caught(call)
    assert len(log) <= 1


def test_what_shows_warnings_is_left_as_it_was(threads):
    before = warnings.showwarning
    with parallel_config("skfleet", client=threads):
        Parallel()(delayed(abs)(n) for n in range(3))
    assert warnings.showwarning is before


class Chatty(SGDClassifier):
    """Warns at a line of the user's, and prints, where alpha is small."""

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        super().partial_fit(X, y, classes=classes, sample_weight=sample_weight)
        if self.alpha < 1e-2:
            warnings.warn("much ado", RuntimeWarning, stacklevel=1)
            print("a line")
        return self


def test_training_in_an_adaptive_search_warns_once_and_prints_here(client, capsys):
    search = HyperbandSearchCV(
        Chatty(random_state=0), {"alpha": [1e-3, 1e-1]}, max_iter=3, random_state=0
    )
    with client.as_current():
        log, _ = caught(lambda: search.fit(X, y))
    (warning,) = [w for w in log if w.category is RuntimeWarning]
    results = search.cv_results_
    n_calls = sum(results["partial_fit_calls"][results["param_alpha"] < 1e-2])
    assert str(warning.message) == f"much ado ({n_calls} times)"
    assert warning.filename == __file__
    assert capsys.readouterr().out.count("a line") == n_calls


def test_members_of_a_committee_warn_once_with_their_number(client):
    committee = BlockwiseVotingClassifier(LinearSVC(max_iter=1, tol=1e-9, random_state=0))
    with client.as_current():
        log, lines = caught(lambda: committee.fit(ROWS, da.from_array(y, chunks=20)))
    (warning,) = [w for w in log if w.category is ConvergenceWarning]
    assert str(warning.message).endswith("(in 3 of 3 fits)")
    assert (warning.filename, warning.lineno in lines) == (__file__, True)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_learning_in_parts_warns_once_and_prints_here(client, method, capsys):
    model = Incremental(Chatty(alpha=1e-3), epochs=2)
    with client.as_current():
        log, _ = caught(
            lambda: getattr(model, method)(ROWS, da.from_array(y, chunks=20), classes=[0, 1])
        )
    n_calls = 6 if method == "fit" else 3
    (warning,) = [w for w in log if w.category is RuntimeWarning]
    assert str(warning.message) == f"much ado ({n_calls} times)"
    assert capsys.readouterr().out.splitlines() == ["a line"] * n_calls


class Peculiar(UserWarning):
    """Cannot be made of a text alone."""

    def __init__(self, text, number):
        super().__init__(text, number)


def test_warning_that_is_made_of_more_than_a_text_comes_as_it_is(threads):
    def complain(n):
        warnings.warn(Peculiar("alas", 1), stacklevel=1)

    def call():
        with parallel_config("skfleet", client=threads):
            Parallel()(delayed(complain)(n) for n in range(2))

    (warning,), _ = caught(call)
    assert warning.message.args == ("alas", 1)


def test_failed_fits_are_told_of_by_scikit_learn(threads):
    with pytest.warns(FitFailedWarning), pytest.warns(UserWarning, match="non-finite"):
        GridSearchCV(LinearSVC(), {"penalty": ["l2", "nonsense"]}, cv=2).fit(X, y)


def test_pca_that_did_not_converge_points_at_the_call(threads, monkeypatch):
    from skfleet.estimators.decomposition import _svd_solvers

    monkeypatch.setattr(_svd_solvers, "MAX_PASSES", 1)
    wide = RNG.normal(size=(200, 150))
    with pytest.warns(ConvergenceWarning, match="1 passes") as log:
        PCA(5, svd_solver="arpack", tol=1e-14).fit(da.from_array(wide, chunks=(50, 150)))
    assert log[0].filename == __file__


def test_the_last_fit_of_a_search_warns_at_the_users_line(threads):
    search = GridSearchCV(LinearSVC(max_iter=1, tol=1e-9), {"C": [1.0, 2.0]}, cv=2)
    with threads.as_current(), pytest.warns(ConvergenceWarning) as caught:
        search.fit(X, y)
    assert {one.filename for one in caught} == {__file__}


def test_false_warning_of_racing_filters_is_dropped():
    text = "`sklearn.utils.parallel.delayed` should be used with `sklearn.utils.parallel.Parallel`"
    with (
        warnings.catch_warnings(),
        output_replayer(),
        capture_output(process_token()) as events,
    ):
        warnings.simplefilter("always")
        for message in (text, "another"):
            warnings.warn_explicit(message, UserWarning, parallel.__file__, 1)
    assert [str(event.content.message) for event in events] == ["another"]


def test_warnings_are_ignored_until_the_last_context_ends():
    first = ignored = IgnoredWarnings(UserWarning, "of a task")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        first.__enter__()
        with ignored:
            warnings.warn("of a task", stacklevel=1)
            first.__exit__()  # in another order than they were entered
            warnings.warn("of a task", stacklevel=1)
            with pytest.raises(UserWarning, match="another"):
                warnings.warn("another", stacklevel=1)
        assert list(warnings.filters) == before


def test_filters_that_a_context_puts_back_ignore_nothing_any_more():
    ignored = IgnoredWarnings(UserWarning, "of a task")
    before = list(warnings.filters)
    ignored.__enter__()  # of a thread that runs on
    with warnings.catch_warnings():
        assert len(warnings.filters) == len(before) + 1
        ignored.__exit__()
        assert list(warnings.filters) == before
    assert list(warnings.filters) == before
