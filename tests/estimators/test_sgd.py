"""SGDClassifier and SGDRegressor against scikit-learn's: the same by row, as good in batches."""

import pickle
import warnings
from itertools import product

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn import linear_model as reference
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, make_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.engine import counting
from skfleet.estimators import Incremental, SGDClassifier, SGDRegressor
from skfleet.glm import REGRESSION_LOSSES, SGD_LOSSES, SGDConfig
from skfleet.model_selection import HyperbandSearchCV

_IN_SEQUENCE = "a row of weight two makes one step, and not two, one after the other"


def _expected_failures(_):
    # scikit-learn's own fail these two for the same reason.
    return {
        "check_sample_weight_equivalence_on_dense_data": _IN_SEQUENCE,
        "check_sample_weight_equivalence_on_sparse_data": _IN_SEQUENCE,
    }


# One check has weights of 1000 on 50 rows, which no epochs are enough for.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [SGDClassifier(random_state=0), SGDRegressor(average=True, random_state=0)],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [SGDClassifier(loss="log_loss", penalty="elasticnet", random_state=0)],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_checks_of_probabilities(estimator, check):
    check(estimator)


# -- row by row: scikit-learn's own steps --------------------------------------------------------


def _rows(n_rows=90, n_features=5, seed=0):
    """Rows with many zeros, none of them all zero."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_features))
    X[np.abs(X) < 0.7] = 0
    X[:, 0] += 1.5
    return X


def _labels(X, n_classes=2, seed=1):
    noise = np.random.default_rng(seed).normal(size=len(X))
    return np.digitize(X[:, 1] - X[:, 2] + noise, np.linspace(-1, 1, n_classes + 1)[1:-1])


def _target(X, seed=2):
    return X[:, 0] - 2 * X[:, 1] + np.random.default_rng(seed).normal(size=len(X))


def _same(ours, theirs, rtol=1e-9):
    for name in ("coef_", "intercept_"):
        want = getattr(theirs, name)
        got = getattr(ours, name)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())
    assert ours.t_ == theirs.t_
    assert ours.n_iter_ == theirs.n_iter_


RATES = ["constant", "optimal", "invscaling", "adaptive", "pa1", "pa2"]
# "optimal" begins with long steps, which blow up differences of rounding unless alpha is large.
STRENGTH = {"optimal": 1.0}
BY_ROW = {"max_iter": 3, "tol": None, "shuffle": False, "l1_ratio": 0.4}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet", None])
@pytest.mark.parametrize("to", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_row_by_row_the_classifier_takes_scikit_learn_s_steps(rate, penalty, to):
    X = _rows()
    weight = np.random.default_rng(3).uniform(0, 2, len(X))
    for loss in SGD_LOSSES if to is np.asarray else ("hinge", "squared_hinge"):
        if rate in ("pa1", "pa2") and loss != "hinge":
            continue
        for n_classes, w in ((2, None), (3, weight)):
            y = _labels(X, n_classes)
            how = {"loss": loss, "penalty": penalty, "learning_rate": rate, **BY_ROW}
            how |= {"alpha": STRENGTH.get(rate, 0.01), "class_weight": {0: 2.0, 1: 0.5}}
            theirs = reference.SGDClassifier(**how).fit(to(X), y, sample_weight=w)
            ours = SGDClassifier(**how, batch_size=1).fit(to(X), y, sample_weight=w)
            _same(ours, theirs)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet", None])
def test_row_by_row_the_regressor_takes_scikit_learn_s_steps(rate, penalty):
    X = _rows()
    for loss, fit_intercept in product(REGRESSION_LOSSES, (True, False)):
        if rate in ("pa1", "pa2") and loss != "epsilon_insensitive":
            continue
        how = {"loss": loss, "penalty": penalty, "learning_rate": rate, **BY_ROW}
        how |= {"alpha": STRENGTH.get(rate, 0.01), "fit_intercept": fit_intercept, "epsilon": 0.3}
        theirs = reference.SGDRegressor(**how).fit(X, _target(X))
        _same(SGDRegressor(**how, batch_size=1).fit(X, _target(X)), theirs)


@pytest.mark.parametrize("average", [True, 50, 10_000])
def test_averages_are_scikit_learn_s(average):
    X = _rows()
    how = {"average": average, "alpha": 0.01, **BY_ROW}
    for n_classes in (2, 4):
        y = _labels(X, n_classes)
        theirs = reference.SGDClassifier(eta0=0.1, learning_rate="constant", **how)
        ours = SGDClassifier(eta0=0.1, learning_rate="constant", batch_size=1, **how)
        _same(ours.fit(X, y), theirs.fit(X, y))
        # scikit-learn's intercept behind the mean starts anew in each partial_fit
        for model in (ours, theirs):
            model.set_params(fit_intercept=False).fit(X, y)
        _same(ours.partial_fit(X, y), theirs.partial_fit(X, y))
    theirs, ours = reference.SGDRegressor(**how), SGDRegressor(batch_size=1, **how)
    for _ in range(2):
        _same(ours.partial_fit(X, _target(X)), theirs.partial_fit(X, _target(X)))


@pytest.mark.parametrize("rate", ["constant", "adaptive"])
def test_stops_when_scikit_learn_does(rate):
    X = _rows()
    how = {"learning_rate": rate, "shuffle": False, "tol": 1e-3, "alpha": 0.01, "max_iter": 500}
    y = _labels(X, 3)
    theirs = reference.SGDClassifier(loss="log_loss", **how).fit(X, y)
    assert 10 < theirs.n_iter_ < 500
    _same(SGDClassifier(loss="log_loss", batch_size=1, **how).fit(X, y), theirs)
    theirs = reference.SGDRegressor(**how).fit(X, _target(X))
    _same(SGDRegressor(batch_size=1, **how).fit(X, _target(X)), theirs)


def test_goes_on_from_where_scikit_learn_does():
    X = _rows()
    y = _labels(X, 3)
    how = {**BY_ROW, "penalty": "l1", "alpha": 0.05, "eta0": 0.1, "learning_rate": "invscaling"}
    theirs, ours = reference.SGDClassifier(**how), SGDClassifier(batch_size=1, **how)
    for low in range(0, 90, 30):
        here = slice(low, low + 30)
        theirs.partial_fit(X[here], y[here], classes=[0, 1, 2])
        ours.partial_fit(X[here], y[here], classes=[0, 1, 2])
        ours = pickle.loads(pickle.dumps(ours))
        _same(ours, theirs)
    assert (ours.coef_ == 0).any()
    theirs.set_params(warm_start=True).fit(X, y)
    _same(ours.set_params(warm_start=True).fit(X, y), theirs)
    theirs.fit(X, y, np.ones((3, 5)), np.ones(3))
    _same(ours.fit(X, y, np.ones((3, 5)), np.ones(3)), theirs)
    with pytest.raises(ValueError, match="coef_init, or coef_ with warm_start"):
        ours.fit(X, y, np.ones((2, 5)))
    with pytest.raises(ValueError, match="intercept_init, or intercept_"):
        ours.fit(X, y, None, np.ones(2))


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_answers_are_scikit_learn_s(loss, n_classes):
    X = _rows()
    y = np.array(list("badc"))[_labels(X, n_classes)]
    how = {"loss": loss, "alpha": 1.0, **BY_ROW}
    theirs, ours = reference.SGDClassifier(**how), SGDClassifier(batch_size=1, **how)
    theirs.fit(X, y)
    ours.fit(X, y)
    far = 10 * X
    for method in ("predict_proba", "decision_function"):
        got, want = getattr(ours, method)(far), getattr(theirs, method)(far)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(
            ours.predict_log_proba(far), theirs.predict_log_proba(far), rtol=1e-8, atol=1e-10
        )
    np.testing.assert_array_equal(ours.predict(far), theirs.predict(far))
    assert ours.score(X, y) == theirs.score(X, y)
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'"):
        SGDClassifier().predict_proba(X)


# -- in batches: as good -------------------------------------------------------------------------


def _data(name):
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X / 16, y
    if name == "classification":
        X, y = make_classification(4000, 30, n_informative=10, class_sep=2, random_state=0)
    elif name == "cancer":
        X, y = load_breast_cancer(return_X_y=True)
    else:
        X, y = load_diabetes(return_X_y=True)
        y = (y - y.mean()) / y.std()
    return StandardScaler().fit_transform(X), y


def _scores(model, X, y, n_seeds=4):
    X, X_test, y, y_test = train_test_split(X, y, random_state=0)
    scores = []
    for seed in range(n_seeds):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted = clone(model).set_params(random_state=seed).fit(X, y)
        scores.append(fitted.score(X_test, y_test))
    return np.mean(scores)


@pytest.mark.parametrize("epochs", [1, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loss", ["hinge", "log_loss", "modified_huber"])
@pytest.mark.parametrize("name", ["digits", "cancer", "classification"])
def test_classifies_as_well_as_scikit_learn_s(name, loss, epochs):
    X, y = _data(name)
    how = {"loss": loss, "max_iter": epochs}
    theirs = _scores(reference.SGDClassifier(**how), X, y)
    assert _scores(SGDClassifier(**how, batch_size=8), X, y) >= theirs - 0.04


@pytest.mark.parametrize("loss", list(REGRESSION_LOSSES))
def test_predicts_as_well_as_scikit_learn_s(loss):
    X, y = _data("diabetes")
    theirs = _scores(reference.SGDRegressor(loss=loss), X, y)
    assert _scores(SGDRegressor(loss=loss, batch_size=8), X, y) >= theirs - 0.01


@pytest.mark.parametrize("loss", ["squared_error", "squared_epsilon_insensitive"])
def test_large_batches_of_correlated_columns_do_not_run_away(loss, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 1)) + 0.5 * rng.normal(size=(4000, 100))
    y = X[:, 0] - X[:, 1] + 0.1 * rng.normal(size=4000)
    model = SGDRegressor(loss=loss, max_iter=20, tol=None, random_state=0)
    for batch_size in (64, 512):
        assert model.set_params(batch_size=batch_size).fit(X, y).score(X, y) > 0.8
    monkeypatch.setattr(SGDConfig, "is_limited", False)
    assert model.fit(X, y).score(X, y) < -1e6
    with pytest.raises(ValueError, match="Coefficients must stay finite"):
        model.fit(1e200 * X, y)


def test_a_weight_is_as_many_equal_rows_of_a_batch():
    X = _rows()
    y = _labels(X)
    times = np.random.default_rng(0).integers(0, 4, len(X))
    how = {"shuffle": False, "learning_rate": "constant", "penalty": None, "tol": None}
    many = np.repeat(X, times, axis=0), y.repeat(times)
    model = SGDClassifier(eta0=0.1, max_iter=5, batch_size=10**6, **how)
    weighted = clone(model).fit(X, y, sample_weight=times)
    repeated = clone(model).fit(*many)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-9)
    # a sum that is limited is so by its number of rows, which matters little
    model = SGDRegressor(eta0=1e-4, max_iter=5, batch_size=10**6, **how)
    weighted = clone(model).fit(X, y, sample_weight=times)
    repeated = clone(model).fit(*many)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-2)


# -- containers ----------------------------------------------------------------------------------

MODELS = [
    SGDClassifier(loss="log_loss", penalty="elasticnet", class_weight={0: 3.0, 2: 0.5}),
    SGDClassifier(average=True, learning_rate="adaptive", eta0=0.1),
    SGDClassifier(learning_rate="pa1"),
    SGDRegressor(loss="huber", penalty="l1"),
    SGDRegressor(loss="epsilon_insensitive", learning_rate="pa2"),
    SGDClassifier(early_stopping=True, validation_fraction=0.3),
    SGDRegressor(early_stopping=True, validation_fraction=0.3),
]


@pytest.mark.sampled(24)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_every_world_gives_the_same_answer(world, model):
    X = _rows(600, 4)
    X[X == 0] = 0.1  # sparse rows have other intercepts, and pay penalties later
    y = _labels(X, 3) if is_classifier(model) else _target(X)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(X))
    # The cuts fall between batches; those of validation rows do not, but for batches of one.
    size = 1 if model.early_stopping else 100
    model = clone(model).set_params(
        shuffle=False, batch_size=size, max_iter=3, random_state=0, fit_intercept=False
    )
    want = clone(model).fit(X, y, sample_weight=weight)
    got = clone(model).fit(world.X(X), world.column(y), sample_weight=world.column(weight))
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-8, atol=1e-12)
    assert type(got.coef_) is np.ndarray
    assert (got.t_, got.n_iter_) == (want.t_, want.n_iter_)
    answer = world.host(got.predict(world.X(X)))
    np.testing.assert_allclose(answer, want.predict(X), rtol=1e-8)
    if model.early_stopping:
        return
    told = {"classes": [0, 1, 2]} if is_classifier(model) else {}
    got.partial_fit(world.X(X), world.column(y), sample_weight=world.column(weight), **told)
    want.partial_fit(X, y, sample_weight=weight, **told)
    np.testing.assert_allclose(got.coef_, want.coef_, rtol=1e-8, atol=1e-12)


def test_one_seed_one_answer_wherever_the_blocks_are(cluster_client):
    X = _rows(700, 4)
    y = _labels(X, 3)
    rows = da.from_array(X, chunks=(100, 4)), da.from_array(y, chunks=100)
    model = SGDClassifier(random_state=0, max_iter=4, tol=None)
    here = clone(model).fit(*rows)
    with cluster_client.as_current():
        for lazy in (rows, [part.persist() for part in rows]):
            there = clone(model).fit(*lazy)
            np.testing.assert_array_equal(there.coef_, here.coef_)
    again, other = clone(model).fit(*rows), clone(model).set_params(random_state=1).fit(*rows)
    np.testing.assert_array_equal(again.coef_, here.coef_)
    assert not np.array_equal(other.coef_, here.coef_)


def test_single_precision_rows(world):
    X = _rows(600, 4)
    X = X.astype(np.float32)
    y = _labels(X, 3)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", batch_size=50, shuffle=False)
    model.set_params(max_iter=5, tol=None, fit_intercept=False)
    want = clone(model).fit(X.astype(np.float64), y)
    model.fit(world.X(X), world.column(y))
    assert model.coef_.dtype == model.intercept_.dtype == np.float32
    np.testing.assert_allclose(model.coef_, want.coef_, rtol=1e-3, atol=1e-4)
    assert world.host(model.predict_proba(world.X(X))).dtype == np.float32


def test_passes(cluster_client):
    X = _rows(700, 4)
    rows = da.from_array(X, chunks=(100, 4))
    with cluster_client.as_current(), counting() as counts:
        SGDClassifier(max_iter=3, tol=None).fit(rows, da.from_array(_labels(X), chunks=100))
    assert counts.passes == 1 + 3
    with cluster_client.as_current(), counting() as counts:
        SGDRegressor(max_iter=3, tol=None).fit(rows, _target(X))
    assert counts.passes == 3


# -- with others ---------------------------------------------------------------------------------


def test_incremental_trains_it_as_the_plain_loop_does(cluster_client):
    X = _rows(400, 4)
    y = _labels(X, 3)
    want = SGDClassifier(random_state=0)
    for _ in range(2):
        for low in range(0, 400, 100):
            want.partial_fit(X[low : low + 100], y[low : low + 100], classes=[0, 1, 2])
    rows = da.from_array(X, chunks=(100, 4))
    with cluster_client.as_current():
        model = Incremental(SGDClassifier(random_state=0), epochs=2, shuffle=False)
        model.fit(rows, da.from_array(y, chunks=100))
    np.testing.assert_array_equal(model.estimator_.coef_, want.coef_)
    np.testing.assert_array_equal(model.predict(rows).compute(), want.predict(X))


def test_hyperband_searches_it(cluster_client):
    X, y = _data("classification")
    with cluster_client.as_current():
        search = HyperbandSearchCV(
            SGDClassifier(random_state=0),
            {"alpha": np.logspace(-5, 3, 9)},
            max_iter=9,
            random_state=0,
        ).fit(da.from_array(X, chunks=(1000, 30)), da.from_array(y, chunks=1000))
    assert search.best_params_["alpha"] < 100
    assert search.best_score_ > 0.8


# -- when to stop, and what is refused -----------------------------------------------------------


def test_early_stopping_looks_at_rows_it_has_not_learned():
    X, y = _data("classification")
    for model in (SGDClassifier(random_state=0), SGDRegressor(random_state=0)):
        model.set_params(early_stopping=True, validation_fraction=0.25, n_iter_no_change=2)
        model.fit(X, y)
        assert 3 <= model.n_iter_ < 100
        n_learned = (model.t_ - 1) / model.n_iter_
        assert abs(n_learned - 3000) < 150  # a draw for each row, from 1,000 rows held out on
        assert model.score(X, y) > (0.7 if is_classifier(model) else 0.2)
    with pytest.raises(ValueError, match="validation_fraction must leave rows"):
        SGDClassifier(early_stopping=True, validation_fraction=0.8).fit(X[:4], [0, 1, 0, 1])
    # targets that no row tells: the score does not rise, whatever the loss does
    noise = np.random.default_rng(0).integers(0, 2, len(X))
    model = SGDClassifier(early_stopping=True, n_iter_no_change=3, random_state=0).fit(X, noise)
    assert model.n_iter_ < 15


def test_classes_stop_each_for_itself():
    X = _rows()
    y = np.where(X[:, 0] > 2.2, 2, _labels(X))
    how = {"shuffle": False, "batch_size": 1, "learning_rate": "constant"}
    alone = [SGDClassifier(**how).fit(X, y == k) for k in range(3)]
    together = SGDClassifier(**how).fit(X, y)
    assert len({model.n_iter_ for model in alone}) > 1
    assert together.n_iter_ == max(model.n_iter_ for model in alone)
    for k, model in enumerate(alone):
        np.testing.assert_allclose(together.coef_[k], model.coef_[0], rtol=1e-9)


def test_warns_and_tells(capsys):
    X = _rows()
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        SGDRegressor(max_iter=2, verbose=1, batch_size=8).fit(X, _target(X))
    said = capsys.readouterr().out
    assert said.count("-- Epoch") == said.count(" rows/s.") == said.count("Avg. loss: ") == 2


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"loss": "absolute"}, "loss must be one of"),
        ({"penalty": "l3"}, "penalty must be one of"),
        ({"alpha": -1}, "alpha must be"),
        ({"alpha": 0, "learning_rate": "optimal"}, "alpha must be above 0"),
        ({"penalty": "elasticnet", "l1_ratio": None}, "l1_ratio must be"),
        ({"l1_ratio": 2}, "l1_ratio must be"),
        ({"fit_intercept": 1}, "fit_intercept must be"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"tol": -1}, "tol must be"),
        ({"shuffle": None}, "shuffle must be"),
        ({"epsilon": -1}, "epsilon must be"),
        ({"learning_rate": "pa3"}, "learning_rate must be one of"),
        ({"learning_rate": "pa1", "loss": "huber"}, "loss must be '"),
        ({"eta0": 0}, "eta0 must be"),
        ({"power_t": "1"}, "power_t must be"),
        ({"early_stopping": 2}, "early_stopping must be"),
        ({"validation_fraction": 1.0}, "validation_fraction must be"),
        ({"n_iter_no_change": 0}, "n_iter_no_change must be"),
        ({"warm_start": "yes"}, "warm_start must be"),
        ({"average": 0.5}, "average must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": "all"}, "batch_size must be"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [SGDClassifier, SGDRegressor])
def test_bad_parameters_raise_before_any_task(kind, settings, match):
    X = _rows()
    for rows, method in product((X, da.from_array(X, chunks=50)), ("fit", "partial_fit")):
        with counting() as counts, pytest.raises(ValueError, match=match):
            getattr(kind(**settings), method)(rows, _labels(X))
        assert counts.tasks == 0


def test_bad_rows():
    X = _rows()
    y = _labels(X)
    holed = X.copy()
    holed[80, 1] = np.nan
    for rows in (holed, da.from_array(holed, chunks=(50, 5))):
        for model in (SGDClassifier(), SGDRegressor()):
            with pytest.raises(ValueError, match="NaN"):
                model.fit(rows, y)
    with pytest.raises(ValueError, match="only one class"):
        SGDClassifier().fit(X, np.ones(90))
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        SGDClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="at least two labels"):
        SGDClassifier().partial_fit(X, y, classes=[0])
    with pytest.raises(ValueError, match="y must hold labels in classes"):
        SGDClassifier().partial_fit(X, y + 5, classes=[0, 1])
    with pytest.raises(ValueError, match="class_weight must be None or a dict"):
        SGDClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="early_stopping must be False"):
        SGDClassifier(early_stopping=True).partial_fit(X, y, classes=[0, 1])
    model = SGDClassifier().partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="same as on last call"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :3], y)
    with pytest.raises(ValueError, match="weight above 0"):
        SGDRegressor().fit(da.from_array(X, chunks=50), y, sample_weight=da.zeros(90, chunks=50))
    with pytest.raises(NotFittedError):
        SGDRegressor().predict(X)
