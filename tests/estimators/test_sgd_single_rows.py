"""SGDClassifier and SGDRegressor on rows of this process: scikit-learn's steps of single rows."""

import pickle
import warnings
from itertools import product

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn import linear_model as reference
from sklearn.base import clone, is_classifier
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score

from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import Incremental, SGDClassifier, SGDRegressor
from skfleet.estimators.linear_model import _sgd_base, _sgd_single_rows
from skfleet.glm import SGD_LOSSES

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 6))
X[np.abs(X) < 0.5] = 0
TARGETS = X[:, 0] - X[:, 1] + RNG.normal(size=200)
WEIGHTS = RNG.uniform(0.1, 2, 200)
HOW = {"random_state": 3, "max_iter": 20, "tol": None}

CONTAINERS = {
    "array": np.asarray,
    "columns": np.asfortranarray,
    "single": lambda a: a.astype(np.float32),
    "frame": lambda a: pd.DataFrame(a, columns=list("uvwxyz")),
    "csr": sparse.csr_array,
    "csc": sparse.csc_matrix,
}


def _labels(n_classes):
    cuts = np.linspace(-1, 1, n_classes + 1)[1:-1]
    return np.array(list("dabc"))[np.digitize(TARGETS, cuts)]


def _same(ours, theirs):
    for name in ("coef_", "intercept_"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert getattr(ours, name).shape == getattr(theirs, name).shape
    assert ours.coef_.dtype == theirs.coef_.dtype
    assert (ours.t_, ours.n_iter_) == (theirs.t_, theirs.n_iter_)
    assert ours.n_features_in_ == theirs.n_features_in_


@pytest.fixture
def calls(monkeypatch):
    """The calls of scikit-learn's fits, and "batches" for each block that we step through."""
    made = []

    def watch(owner, name, what):
        plain = getattr(owner, name)
        watched = lambda *a, **k: made.append(what) or plain(*a, **k)  # noqa: E731
        monkeypatch.setattr(owner, name, watched)

    for kind, name in product(("SGDClassifier", "SGDRegressor"), ("fit", "partial_fit")):
        watch(getattr(reference, kind), name, name)
    watch(_sgd_base, "descend", "batches")
    return made


# -- scikit-learn's answers ----------------------------------------------------------------------

SETTINGS = [
    {},
    {"tol": 1e-3, "max_iter": 1000},
    {"penalty": "elasticnet", "l1_ratio": 0.4, "average": True, "learning_rate": "invscaling"},
    {"penalty": "l1", "shuffle": False, "fit_intercept": False},
    {"penalty": None, "average": 10**6, "learning_rate": "adaptive", "tol": 0.1},
    {"n_iter_no_change": 2, "tol": 0.1, "average": 50},
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", CONTAINERS)
def test_fits_are_scikit_learn_s(name, settings, calls):
    rows, how = CONTAINERS[name](X), HOW | settings
    for weight in (None, WEIGHTS):
        for n_classes, class_weight in product((2, 4), (None, "balanced", {"a": 2.0, "d": 0.3})):
            args = rows, _labels(n_classes)
            told = {"class_weight": class_weight, **how}
            theirs = reference.SGDClassifier(**told).fit(*args, sample_weight=weight)
            ours = SGDClassifier(**told).fit(*args, sample_weight=weight)
            _same(ours, theirs)
            np.testing.assert_array_equal(ours.classes_, theirs.classes_)
            np.testing.assert_array_equal(ours.predict(rows), theirs.predict(rows))
        theirs = reference.SGDRegressor(**how).fit(rows, TARGETS, sample_weight=weight)
        ours = SGDRegressor(**how).fit(rows, TARGETS, sample_weight=weight)
        _same(ours, theirs)
        if name == "frame":
            np.testing.assert_array_equal(ours.feature_names_in_, theirs.feature_names_in_)
    assert set(calls) == {"fit"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("loss", SGD_LOSSES)
def test_all_losses(loss):
    for n_classes in (2, 4):
        args = X, _labels(n_classes)
        _same(
            SGDClassifier(loss, epsilon=0.3, alpha=0.01, **HOW).fit(*args),
            reference.SGDClassifier(loss, epsilon=0.3, alpha=0.01, **HOW).fit(*args),
        )


@pytest.mark.parametrize("penalty", ["l2", "l1", None])
@pytest.mark.parametrize("name", CONTAINERS)
def test_calls_of_partial_fit_are_scikit_learn_s(name, penalty, calls):
    how = {"random_state": 3, "penalty": penalty}
    weights = None, {"a": 2.0, "d": 0.3}
    cases = [
        (SGDClassifier(class_weight=weight, **how), _labels(n_classes))
        for n_classes, weight in product((2, 4), weights)
    ]
    for ours, y in [*cases, (SGDRegressor(**how), TARGETS)]:
        params, classifies = ours.get_params(), is_classifier(ours)
        theirs = getattr(reference, type(ours).__name__)()
        theirs.set_params(**{name: params[name] for name in theirs.get_params()})
        for low, weight in ((0, None), (70, WEIGHTS), (140, None)):
            here = slice(low, low + 60)
            first = {"classes": np.unique(y)} if classifies and not low else {}
            for model in (theirs, ours):
                part = None if weight is None else weight[here]
                model.partial_fit(CONTAINERS[name](X[here]), y[here], sample_weight=part, **first)
            _same(ours, theirs)
            ours = pickle.loads(pickle.dumps(ours))
    assert set(calls) == {"partial_fit"}


def test_classes_of_one_call_need_not_be_all():
    y = _labels(4)
    rows = X[y != "a"], y[y != "a"]
    models = [kind(random_state=0) for kind in (reference.SGDClassifier, SGDClassifier)]
    for model in models:
        model.partial_fit(*rows, classes=np.unique(y))
    _same(*reversed(models))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_one_stream_of_random_numbers_for_several_fits():
    y = _labels(4)
    answers = []
    for kind in (reference.SGDClassifier, SGDClassifier):
        state = np.random.RandomState(7)
        model = kind(random_state=state, max_iter=3)
        fits = [clone(model).set_params(random_state=state).fit(X, y).coef_ for _ in range(2)]
        model.partial_fit(X, y, classes=np.unique(y))
        answers.append([*fits, model.coef_])
    np.testing.assert_array_equal(*answers)
    assert not np.array_equal(answers[0][0], answers[0][1])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_starts_are_scikit_learn_s():
    y = _labels(4)
    pairs = [
        (reference.SGDClassifier(**HOW), SGDClassifier(**HOW), y, (np.ones((4, 6)), np.ones(4))),
        (reference.SGDRegressor(**HOW), SGDRegressor(**HOW), TARGETS, (np.ones(6), np.ones(1))),
    ]
    for theirs, ours, target, start in pairs:
        ours.fit(X, target, *start)
        assert (start[0] == 1).all()
        theirs.fit(X, target, *start)  # which learns in place
        _same(ours, theirs)
        for model in (theirs, ours):
            model.set_params(warm_start=True).fit(X, target).fit(X, target)
        _same(ours, theirs)
        for model in (theirs, ours):
            model.partial_fit(X, target)
        _same(ours, theirs)


def test_rows_and_earlier_coefficients_are_left_alone():
    rows, y = X.copy(), TARGETS.copy()
    model = SGDRegressor(**HOW).partial_fit(rows, y)
    before, copy = model.coef_, model.coef_.copy()
    model.partial_fit(rows, y)
    np.testing.assert_array_equal(before, copy)
    model.set_params(warm_start=True).fit(rows, y)
    np.testing.assert_array_equal(before, copy)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(y, TARGETS)


# -- which rows and parameters -------------------------------------------------------------------

LAZY = da.from_array(X, chunks=(50, 6))
BATCHES, FIT, EPOCHS = ({name} for name in ("batches", "fit", "partial_fit"))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
@pytest.mark.parametrize(
    ("settings", "rows", "in_fit", "in_partial_fit"),
    [
        ({}, X, FIT, EPOCHS),
        ({}, sparse.csr_array(X), FIT, EPOCHS),
        ({"penalty": "l1"}, X, FIT, EPOCHS),
        ({"average": True}, X, FIT, BATCHES),
        ({"average": 199}, X, FIT, BATCHES),
        ({"average": 200}, X, FIT, EPOCHS),  # a mean of one row
        ({"batch_size": 1}, X, BATCHES, BATCHES),
        ({"batch_size": 64}, X, BATCHES, BATCHES),
        ({}, LAZY, BATCHES, BATCHES),
        ({"early_stopping": True}, X, EPOCHS, None),
        ({"early_stopping": True, "penalty": None}, X, EPOCHS, None),
        ({"early_stopping": True, "penalty": "l1"}, X, BATCHES, None),
        ({"early_stopping": True, "average": 5}, X, BATCHES, None),
        ({"early_stopping": True, "batch_size": 8}, X, BATCHES, None),
        ({"early_stopping": True}, LAZY, BATCHES, None),
    ],
    ids=str,
)
def test_whose_steps_are_taken(kind, settings, rows, in_fit, in_partial_fit, calls):
    y = (TARGETS > 0).astype(int)
    model = kind(**HOW | {"max_iter": 3}, **settings)
    clone(model).fit(rows, y)
    assert set(calls) == in_fit
    assert len(calls) == (1 if in_fit == FIT else 3 * (4 if rows is LAZY else 1))
    if in_partial_fit is not None:
        calls.clear()
        model.partial_fit(rows, y, **({"classes": [0, 1]} if is_classifier(model) else {}))
        assert set(calls) == in_partial_fit


def test_rows_that_go_to_workers_take_batches(cluster_client, calls):
    model = SGDRegressor(random_state=0, max_iter=2, tol=None)
    with cluster_client.as_current(), config_context(engine="dask"):
        assert not _sgd_single_rows._fits_loop(model._validate_rows(X, TARGETS, y_numeric=True))
        model.fit(X, TARGETS)
    assert set(calls) == BATCHES
    assert len(model.history_) == 2


def test_sparse_rows_of_more_values_than_the_loop_counts_take_batches(monkeypatch, calls):
    rows = sparse.csr_array(X)
    monkeypatch.setattr(_sgd_single_rows, "_INT32_MAX", rows.nnz - 1)
    SGDRegressor(random_state=0, max_iter=2, tol=None).fit(rows, TARGETS)
    assert set(calls) == BATCHES


def test_long_indices_are_read():
    rows = sparse.csr_array(X)
    want = SGDRegressor(**HOW).fit(rows, TARGETS)
    rows.indices, rows.indptr = rows.indices.astype(np.int64), rows.indptr.astype(np.int64)
    np.testing.assert_array_equal(SGDRegressor(**HOW).fit(rows, TARGETS).coef_, want.coef_)
    assert rows.indices.dtype == np.int64


def test_blocks_of_incremental_are_learned_row_by_row():
    y = _labels(4)
    theirs = reference.SGDClassifier(random_state=0)
    for low in range(0, 200, 50):
        theirs.partial_fit(X[low : low + 50], y[low : low + 50], classes=np.unique(y))
    model = Incremental(SGDClassifier(random_state=0), shuffle=False)
    model.fit(LAZY, da.from_array(y, chunks=50))
    np.testing.assert_array_equal(model.estimator_.coef_, theirs.coef_)


# -- from one to the other -----------------------------------------------------------------------


@pytest.mark.parametrize("average", [False, True, 100, 120, 1000])
@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_models_go_from_rows_to_blocks_and_back(kind, average):
    """Batches of one row take scikit-learn's steps, so that all orders of the two are the same."""
    y = _labels(4) if kind is SGDClassifier else TARGETS
    how = {"shuffle": False, "average": average, "alpha": 0.01, "random_state": 0}
    how |= {"learning_rate": "invscaling", "eta0": 0.1}
    want, got = kind(**how, batch_size=1), kind(**how)
    first = {"classes": np.unique(y)} if kind is SGDClassifier else {}
    lazy = da.from_array(X, chunks=(1, 6)), da.from_array(y, chunks=1)  # batches of a row
    for n, rows in enumerate(((X, y), lazy, (X, y), lazy, (X, y)), start=1):
        part = rows[0][:40], rows[1][:40]
        takes_means = average and average < 40 * n
        got.set_params(batch_size=1 if takes_means else "auto")
        got.partial_fit(*part, **first)
        want.partial_fit(X[:40], y[:40], **first)
        np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-9)
        np.testing.assert_allclose(got.intercept_, want.intercept_, rtol=1e-9)
        assert got.t_ == want.t_
        first = {}
    assert got.t_ == 1 + 5 * 40


@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_partial_fit_goes_on_from_a_fit(kind):
    y = _labels(4) if kind is SGDClassifier else TARGETS
    for rows in (X, LAZY):
        model = kind(**HOW).fit(X, y)
        coef, t = model.coef_.copy(), model.t_
        model.set_params(learning_rate="constant", eta0=1e-9).partial_fit(rows, y)
        np.testing.assert_allclose(model.coef_, coef, rtol=1e-3)
        assert model.t_ == t + 200


@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_averages_go_on_after_a_fit(kind):
    y = _labels(4) if kind is SGDClassifier else TARGETS
    model = kind(**HOW, average=True).fit(X, y)
    coef = model.coef_.copy()
    model.set_params(learning_rate="constant", eta0=0.1, batch_size=1, shuffle=False)
    model.partial_fit(X[:1], y[:1])
    assert model.t_ == 20 * 200 + 2
    # one more row is one of 4,001 in the mean
    assert 0 < np.abs(model.coef_ - coef).max() < 10 * 0.1 / 4001


# -- stopping by a score -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_epochs_one_by_one_go_where_a_fit_goes(kind):
    y = (TARGETS > 0) if kind is SGDClassifier else TARGETS
    stops = {"early_stopping": True, "n_iter_no_change": 3, "shuffle": False, "alpha": 0.01}
    model = kind(**stops, random_state=0)
    val = X[150:], y[150:]
    model.fit(X[:150], y[:150], X_val=val[0], y_val=val[1])
    scores = []
    for n in range(1, model.n_iter_ + 1):
        how = {"shuffle": False, "alpha": 0.01, "max_iter": n, "tol": None}
        theirs = getattr(reference, kind.__name__)(**how).fit(X[:150], y[:150])
        scores.append(theirs.score(*val))
    np.testing.assert_allclose(model.coef_, theirs.coef_, rtol=1e-9)
    np.testing.assert_allclose(model.intercept_, theirs.intercept_, rtol=1e-9)
    assert (model.t_, model.n_iter_) == (theirs.t_, theirs.n_iter_)
    np.testing.assert_allclose(model.history_.score, scores, rtol=1e-9)
    assert model.history_.loss.isna().all()
    assert list(model.history_.n_samples_seen) == [150 * n for n in range(1, model.n_iter_ + 1)]
    assert model.restore_best_epoch().n_iter_ == np.argmax(scores) + 1


def test_classes_stop_each_for_itself():
    y, stops = _labels(4), {"early_stopping": True, "shuffle": False, "random_state": 0}
    val = {"X_val": X[150:]}
    model = SGDClassifier(**stops).fit(X[:150], y[:150], **val, y_val=y[150:])
    alone = [
        SGDClassifier(**stops).fit(X[:150], y[:150] == label, **val, y_val=y[150:] == label)
        for label in model.classes_
    ]
    assert len({single.n_iter_ for single in alone}) > 1
    for coef, single in zip(model.coef_, alone, strict=True):
        np.testing.assert_allclose(coef, single.coef_[0], rtol=1e-9)


def test_early_stopping_scores_weights_with_their_decay():
    """scikit-learn's scores lack it, next to an intercept that is what it is."""
    rows, y = make_classification(2000, 10, weights=[0.8], random_state=0)
    how = {"early_stopping": True, "random_state": 0, "n_iter_no_change": 3}
    model = SGDClassifier(**how).fit(rows[:1500], y[:1500], X_val=rows[1500:], y_val=y[1500:])
    assert model.history_.score.iloc[-1] == model.score(rows[1500:], y[1500:])
    model = SGDRegressor(**how).fit(rows[:1500], y[:1500], X_val=rows[1500:], y_val=y[1500:])
    score = r2_score(y[1500:], model.predict(rows[1500:]))
    np.testing.assert_allclose(model.history_.score.iloc[-1], score, rtol=1e-12)


def test_rates_fall_where_scores_stop_to_rise(calls):
    noise = RNG.integers(0, 2, 200)
    how = {"early_stopping": True, "n_iter_no_change": 2, "random_state": 0}
    model = SGDClassifier(learning_rate="adaptive", eta0=1e-4, **how).fit(X, noise)
    assert set(calls) == EPOCHS
    # 1e-4 / 5 / 5 / 5 is below 1e-6
    assert model.n_iter_ >= 1 + 4 * 2


# -- what is counted and said --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_passes(capsys):
    for model, y, n_first in ((SGDClassifier(), _labels(4), 1), (SGDRegressor(), TARGETS, 0)):
        with counting() as counts, config_context(progress=True):
            model.set_params(random_state=0, max_iter=7).fit(X, y)
        assert counts.passes == n_first + model.n_iter_
        line = capsys.readouterr().out
        assert f": {counts.passes} passes over 1 block, " in line
        with counting() as counts:
            model.partial_fit(X, y)
        assert counts.passes == 1


def test_there_is_no_record_of_epochs_that_nobody_kept():
    model = SGDRegressor(**HOW, batch_size=8).fit(X, TARGETS)
    assert len(model.history_) == 20
    model.set_params(batch_size="auto").fit(X, TARGETS)
    assert not hasattr(model, "history_")


def test_says_what_scikit_learn_says(capsys):
    how = {"random_state": 0, "verbose": 1}
    said = []
    for kind in (reference.SGDClassifier, SGDClassifier):
        kind(**how).fit(X, _labels(2))
        lines = capsys.readouterr().out.splitlines()
        said.append([line for line in lines if "seconds" not in line])
    assert said[0] == said[1] != []
    SGDClassifier(early_stopping=True, **how).fit(X, _labels(2))
    text = capsys.readouterr().out
    assert text.count("-- Epoch") == text.count("Score: ") > 1
    assert "nan" not in text


def test_warns_once_at_the_users_line():
    for model in (SGDRegressor(max_iter=2), SGDClassifier(max_iter=2)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.set_params(power_t=-0.1).fit(X, TARGETS > 0)
        assert [w.category for w in caught] == [FutureWarning, ConvergenceWarning]
        assert {w.filename for w in caught} == {__file__}
        assert "max_iter=2" in str(caught[1].message)


def test_weights_that_run_away():
    how = {"learning_rate": "constant", "eta0": 1e9}
    message = "Coefficients must stay finite. Floating-point under-/overflow occurred"
    with pytest.raises(ValueError, match=f"{message} at epoch #1 instead. Scale"):
        SGDRegressor(**how).fit(1e200 * X, TARGETS)
    with pytest.raises(ValueError, match=f"{message} instead. Scale"):
        SGDRegressor(**how).partial_fit(1e200 * X, TARGETS)
    model = SGDRegressor(**how)
    with pytest.raises(ValueError, match="weight above 0"):
        model.fit(X, TARGETS, sample_weight=np.zeros(200))
    with pytest.raises(ValueError, match="weight above 0"):
        model.partial_fit(X, TARGETS, sample_weight=np.zeros(200))
    assert not hasattr(model, "coef_")
