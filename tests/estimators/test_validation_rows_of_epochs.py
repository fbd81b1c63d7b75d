"""Validation rows that are passed to SGDClassifier, SGDRegressor and Incremental."""

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn import linear_model as reference
from sklearn.base import clone, is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.naive_bayes import GaussianNB

from skfleet import config_context
from skfleet.engine import counting, draw_holdout, engine_for, with_row_offsets
from skfleet.estimators import Incremental, SGDClassifier, SGDRegressor
from skfleet.estimators.meta import _incremental

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 4))
NOISE = RNG.normal(size=600)
LABELS = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + NOISE, [-1, 1])]
TARGETS = X[:, 0] - 2 * X[:, 1] + 3 * NOISE
WEIGHTS = RNG.uniform(0.1, 3, 600)
FIT, VAL = np.arange(400), np.arange(400, 600)

STOPS = {"early_stopping": True, "n_iter_no_change": 4, "random_state": 3}
# Batches, whose epochs are the same with and without a score after each.
MODELS = {
    "classifier": SGDClassifier(**STOPS, batch_size=8),
    "binary": SGDClassifier(loss="log_loss", penalty="l1", **STOPS, batch_size=8),
    "regressor": SGDRegressor(**STOPS, eta0=0.1, batch_size=8),
    "incremental": Incremental(
        reference.SGDClassifier(random_state=0), epochs=60, batch_size=50, **STOPS
    ),
    "incremental regressor": Incremental(
        reference.SGDRegressor(random_state=0, eta0=0.1), epochs=60, batch_size=50, **STOPS
    ),
}


def _y(name):
    return LABELS == "a" if name == "binary" else (TARGETS if "regressor" in name else LABELS)


def _without_stopping(model, n_epochs):
    """Return a clone that makes so many epochs."""
    if isinstance(model, Incremental):
        return clone(model).set_params(early_stopping=False, epochs=n_epochs)
    return clone(model).set_params(early_stopping=False, tol=None, max_iter=n_epochs)


def _coef(model):
    return model.estimator_.coef_ if isinstance(model, Incremental) else model.coef_


def _scores_by_hand(model, X_fit, y, X_val, y_val, n_epochs, weight=None, weight_val=None):
    """Return the validation scores after each number of epochs, of fits without early stopping."""
    metric = accuracy_score if is_classifier(model) else r2_score
    scores = []
    for n in range(1, n_epochs + 1):
        fitted = _without_stopping(model, n).fit(X_fit, y, sample_weight=weight)
        scores.append(metric(y_val, fitted.predict(X_val), sample_weight=weight_val))
    return np.array(scores)


def _stop_by_hand(scores, patience=4, tol=1e-3):
    best, n_bad = -np.inf, 0
    for n, score in enumerate(scores, 1):
        n_bad = n_bad + 1 if score < best + tol else 0
        best = max(best, score)
        if n_bad >= patience:
            return n
    return None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["binary", "regressor", "incremental", "incremental regressor"])
def test_stops_where_the_scores_of_separate_fits_say(name, weighted):
    model, y = clone(MODELS[name]), _y(name)
    weight, weight_val = (WEIGHTS[FIT], WEIGHTS[VAL]) if weighted else (None, None)
    parts = X[FIT], y[FIT], X[VAL], y[VAL]
    model.fit(
        *parts[:2], sample_weight=weight, X_val=X[VAL], y_val=y[VAL], sample_weight_val=weight_val
    )
    scores = _scores_by_hand(model, *parts, model.n_iter_, weight, weight_val)
    assert model.n_iter_ == _stop_by_hand(scores)
    np.testing.assert_allclose(model.history_.score, scores, rtol=1e-12)
    last = _without_stopping(model, model.n_iter_).fit(*parts[:2], sample_weight=weight)
    np.testing.assert_array_equal(_coef(model), _coef(last))
    best = _without_stopping(model, np.argmax(scores) + 1).fit(*parts[:2], sample_weight=weight)
    assert weighted or model.n_iter_ > best.n_iter_
    for _ in range(2):  # again for the same
        assert model.restore_best_epoch() is model
    assert model.n_iter_ == best.n_iter_
    np.testing.assert_array_equal(_coef(model), _coef(best))
    np.testing.assert_array_equal(model.predict(X), best.predict(X))
    if isinstance(model, Incremental):
        assert model.n_samples_seen_ == best.n_samples_seen_
    else:
        assert model.t_ == best.t_


@pytest.mark.parametrize("model", [MODELS["classifier"], MODELS["regressor"]], ids=str)
def test_drawn_rows_passed_by_hand_stop_the_same_fit(model):
    y = LABELS if is_classifier(model) else TARGETS
    # without a shuffle the seed of the holdout is the only number that the fit draws
    model = clone(model).set_params(shuffle=False, batch_size=1)
    drawn = clone(model).fit(X, y, sample_weight=WEIGHTS)
    seed = np.random.RandomState(3).randint(2**31 - 1)
    rows = model._validate_rows(X, y, y_numeric=not is_classifier(model))
    engine, labels = engine_for(rows), "rows" if is_classifier(model) else None
    holdout = draw_holdout(engine, with_row_offsets(engine, rows), 0.1, seed, labels)
    is_val = holdout.mask(rows.blocks[0])
    assert 50 < is_val.sum() < 70
    passed = clone(model).fit(
        X[~is_val], y[~is_val], sample_weight=WEIGHTS[~is_val],
        X_val=X[is_val], y_val=y[is_val], sample_weight_val=WEIGHTS[is_val],
    )  # fmt: skip
    assert 4 < drawn.n_iter_ < 1000
    np.testing.assert_allclose(passed.history_.score, drawn.history_.score, rtol=1e-12)
    np.testing.assert_allclose(passed.coef_, drawn.coef_, rtol=1e-12)


def test_the_best_epoch_of_several_classes_has_the_best_mean_score():
    n_other = 0
    for seed in range(6):
        model = clone(MODELS["classifier"]).set_params(random_state=seed)
        model.fit(X[FIT], LABELS[FIT], X_val=X[VAL], y_val=LABELS[VAL])
        scores, stops = [], []
        for label in model.classes_:
            y = (label == LABELS)[FIT], (label == LABELS)[VAL]
            single = clone(model).fit(X[FIT], y[0], X_val=X[VAL], y_val=y[1])
            stops.append(single.n_iter_)
            scores.append(single.history_.score.to_numpy())
        assert model.n_iter_ == max(stops)
        # a class that has stopped keeps its last score
        padded = [np.r_[s, np.full(max(stops) - len(s), s[-1])] for s in scores]
        best = np.argmax(np.mean(padded, axis=0)) + 1
        n_other += best != np.argmax(model.history_.score) + 1  # of classes that go on
        assert model.restore_best_epoch().n_iter_ == best
        for k, stop in enumerate(stops):
            single = _without_stopping(model, min(best, stop))
            single.fit(X[FIT], (model.classes_[k] == LABELS)[FIT])
            np.testing.assert_allclose(model.coef_[k], single.coef_[0], rtol=1e-12)
    assert n_other


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "on_cluster"),
    [(name, False) for name in MODELS]
    + [("incremental", True)]
    + [
        pytest.param(name, True, marks=pytest.mark.slow) for name in MODELS if name != "incremental"
    ],
)
def test_lazy_rows(name, on_cluster, cluster_client):
    y = _y(name)
    model = clone(MODELS[name]).set_params(shuffle=False)
    expected = clone(model)
    lazy = [da.from_array(v[FIT], chunks=50) for v in (X, y)]
    lazy[0] = lazy[0].rechunk((50, 4))
    val = da.from_array(X[VAL], chunks=(70, 2)), da.from_array(y[VAL], chunks=90)
    if isinstance(model, Incremental):
        expected.fit(X[FIT], y[FIT], X_val=X[VAL], y_val=y[VAL])
    else:
        expected.fit(*lazy, X_val=X[VAL], y_val=y[VAL])
    with cluster_client.as_current(), config_context(engine="auto" if on_cluster else "local"):
        for rows in (val, (X[VAL], y[VAL]), (val[0], y[VAL])):
            fitted = clone(model).fit(*lazy, X_val=rows[0], y_val=rows[1])
            np.testing.assert_allclose(fitted.history_.score, expected.history_.score, rtol=1e-9)
            np.testing.assert_allclose(_coef(fitted), _coef(expected), rtol=1e-9)
            fitted = pickle.loads(pickle.dumps(fitted)).restore_best_epoch()
            assert fitted.n_iter_ == np.argmax(expected.history_.score) + 1 or name == "classifier"


def test_validation_rows_are_loaded_once():
    loads = []

    def load(block):
        loads.append(len(block))
        return block

    val = da.from_array(X[VAL], chunks=(100, 4)).map_blocks(load, dtype=float, meta=X[:0])
    rows = da.from_array(X[FIT], chunks=(100, 4))
    for name in ("regressor", "incremental regressor"):
        loads.clear()
        model = clone(MODELS[name])
        model.fit(rows, TARGETS[FIT], X_val=val, y_val=TARGETS[VAL])
        assert model.n_iter_ > 1
        assert loads == [100, 100]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_refused_before_any_task(name, lazy):
    y = _y(name)
    model = clone(MODELS[name])
    rows = da.from_array(X, chunks=(100, 4)) if lazy else X
    val = {"X_val": X, "y_val": y}
    refused = [
        ({"X_val": X}, ValueError, "must come together. Got X_val alone"),
        ({"y_val": y}, ValueError, "must come together. Got y_val alone"),
        ({"sample_weight_val": WEIGHTS}, ValueError, "Got sample_weight_val alone"),
        ({**val, "X_val": X[:, :3]}, ValueError, "X has 3 features, but .* is expecting 4"),
        ({**val, "y_val": y[:-1]}, ValueError, "599"),
        ({**val, "sample_weight_val": WEIGHTS[:-1]}, ValueError, "599"),
        ({**val, "X_val": X[:0], "y_val": y[:0]}, ValueError, "minimum of 1 is required"),
    ]
    if not lazy:
        lazy_val = {**val, "X_val": da.from_array(X, chunks=(100, 4))}
        refused.append((lazy_val, TypeError, "X_val must be in this process"))
    for params, error, match in refused:
        with counting() as counts, pytest.raises(error, match=match):
            model.fit(rows, y, **params)
        assert counts.tasks == 0
        assert not hasattr(model, "coef_")
    with counting() as counts, pytest.raises(ValueError, match="must be True where X_val"):
        clone(model).set_params(early_stopping=False).fit(rows, y, **val)
    assert counts.tasks == 0


@pytest.mark.parametrize("name", ["classifier", "incremental"])
def test_labels_that_no_training_row_has(name):
    y_val = np.where(np.arange(200) == 7, "d", LABELS[VAL])
    rows = X[FIT], X[VAL], y_val
    lazy = (da.from_array(v, chunks=(50, 4)[: v.ndim]) for v in rows)
    for X_fit, X_val, labels in (rows, lazy):
        with pytest.raises(ValueError, match="y_val must have labels of the training rows"):
            clone(MODELS[name]).fit(X_fit, LABELS[FIT], X_val=X_val, y_val=labels)


def test_names_of_columns_are_checked_as_for_predict():
    frame = pd.DataFrame(X, columns=list("wxyz"))
    other = frame.rename(columns={"z": "v"})
    for name in ("regressor", "incremental regressor"):
        model = clone(MODELS[name]).fit(
            frame.iloc[FIT], TARGETS[FIT], X_val=frame.iloc[VAL], y_val=TARGETS[VAL]
        )
        assert model.feature_names_in_.tolist() == list("wxyz")
        with pytest.raises(ValueError, match="Feature names unseen at fit time:\n- v"):
            model.fit(frame, TARGETS, X_val=other, y_val=TARGETS)


def test_weights_that_leave_nothing():
    X_val, y_val = da.from_array(X, chunks=(100, 4)), da.from_array(TARGETS, chunks=100)
    with pytest.raises(ValueError, match="and so must sample_weight_val"):
        clone(MODELS["regressor"]).fit(
            X_val, y_val, X_val=X_val, y_val=y_val, sample_weight_val=da.zeros(600, chunks=100)
        )


def test_averages_of_the_best_epoch():
    model = SGDClassifier(average=True, loss="log_loss", **STOPS, batch_size=8)
    y = LABELS == "a"
    model.fit(X[FIT], y[FIT], X_val=X[VAL], y_val=y[VAL])
    n_epochs = model.n_iter_
    expected = _without_stopping(model, model.restore_best_epoch().n_iter_).fit(X[FIT], y[FIT])
    assert model.n_iter_ < n_epochs
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    for fitted in (model, expected):
        fitted.set_params(early_stopping=False).partial_fit(X[VAL], y[VAL])
    np.testing.assert_array_equal(model.coef_, expected.coef_)


@pytest.mark.parametrize("name", MODELS)
def test_the_best_epoch_is_that_of_the_last_fit(name):
    y = _y(name)
    model = clone(MODELS[name])
    message = "restore_best_epoch must follow a fit with X_val"
    with pytest.raises(ValueError, match=message):
        model.restore_best_epoch()
    model.fit(X[FIT], y[FIT], X_val=X[VAL], y_val=y[VAL])
    model.fit(X, y)  # draws rows of its own
    with pytest.raises(ValueError, match=message):
        model.restore_best_epoch()
    model.fit(X[FIT], y[FIT], X_val=X[VAL], y_val=y[VAL])
    if not isinstance(model, Incremental):
        model.set_params(early_stopping=False)
    model.partial_fit(X[FIT], y[FIT])
    with pytest.raises(ValueError, match=message):
        model.restore_best_epoch()


class Fragile(GaussianNB):
    """Fails at rows with a number above 1,000."""

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        if np.max(X) > 1000:
            raise RuntimeError("too large")
        return super().partial_fit(X, y, classes, sample_weight)


@pytest.mark.parametrize("kind", ["validation rows", "held-out rows"])
def test_a_fit_goes_on_with_the_score_that_was_interrupted(kind, monkeypatch):
    score, n_calls = _incremental.validation_score, 0

    def interrupted_once(*args):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise KeyboardInterrupt
        return score(*args)

    monkeypatch.setattr(_incremental, "validation_score", interrupted_once)
    model = Incremental(
        SGDClassifier(random_state=0), epochs=3, random_state=0, early_stopping=True
    )
    val = {"X_val": X[VAL], "y_val": LABELS[VAL]} if kind == "validation rows" else {}
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[FIT], LABELS[FIT], **val)
    assert list(model.history_.epoch) == [1]
    model.fit(X[FIT], LABELS[FIT], resume=True, **val)
    assert n_calls == 4
    expected = clone(model).fit(X[FIT], LABELS[FIT], **val)
    for name in ("epoch", "n_samples_seen", "score"):
        np.testing.assert_array_equal(model.history_[name], expected.history_[name])
    np.testing.assert_array_equal(model.estimator_.coef_, expected.estimator_.coef_)


def test_a_model_that_was_trained_on_is_not_resumed():
    bad = X[FIT].copy()
    bad[330, 0] = 1e6
    model = Incremental(Fragile(), epochs=3, batch_size=100, shuffle=False)
    with pytest.raises(RuntimeError, match="too large"):
        model.fit(bad, LABELS[FIT])
    model.partial_fit(X[FIT], LABELS[FIT])
    with pytest.raises(ValueError, match="no fit of this estimator was interrupted"):
        model.fit(X[FIT], LABELS[FIT], resume=True)


def test_a_resumed_fit_has_the_same_best_epoch():
    bad = X[FIT].copy()
    bad[330, 0] = 1e6
    model = Incremental(Fragile(), epochs=9, batch_size=100, shuffle=False, **STOPS)
    val = {"X_val": X[VAL], "y_val": LABELS[VAL]}
    expected = clone(model).fit(X[FIT], LABELS[FIT], **val)
    with pytest.raises(RuntimeError, match="too large"):
        model.fit(bad, LABELS[FIT], **val)
    with pytest.raises(ValueError, match="X_val must be as in the fit that was interrupted"):
        model.fit(X[FIT], LABELS[FIT], resume=True)
    model.fit(X[FIT], LABELS[FIT], resume=True, **val)
    np.testing.assert_array_equal(model.history_.score, expected.history_.score)
    for fitted in (model, expected):
        fitted.restore_best_epoch()
    assert model.n_iter_ == expected.n_iter_ < len(expected.history_)
    np.testing.assert_array_equal(model.estimator_.theta_, expected.estimator_.theta_)
