"""Incremental: what the same loop over partial_fit learns, wherever the blocks are."""

import inspect
import pickle
from itertools import pairwise

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.datasets import make_classification
from sklearn.linear_model import LinearRegression, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import Incremental

CUTS = (40, 0, 50, 30)


_IN_SEQUENCE = "stochastic gradient descent takes a step per row: a weight of two is not two steps"


def _expected_failures(_):
    # scikit-learn's own SGDClassifier and SGDRegressor fail these two for the same reason.
    return {
        "check_sample_weight_equivalence_on_dense_data": _IN_SEQUENCE,
        "check_sample_weight_equivalence_on_sparse_data": _IN_SEQUENCE,
    }


@parametrize_with_checks(
    [Incremental(SGDClassifier(random_state=0)), Incremental(SGDRegressor(random_state=0))],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 4))
    return X, np.array(["a", "b", "c"])[np.argmax(X[:, :3], axis=1)]


def _loop(estimator, X, y, cuts=CUTS, epochs=1, weight=None):
    """The plain loop that Incremental stands for."""
    model = clone(estimator)
    takes_classes = "classes" in inspect.signature(model.partial_fit).parameters
    told = {"classes": np.unique(y)} if takes_classes else {}
    edges = np.concatenate([[0], np.cumsum(cuts)])
    for _ in range(epochs):
        for low, high in pairwise(edges):
            if high > low:
                given = dict(told)
                if weight is not None:
                    given["sample_weight"] = weight[low:high]
                model.partial_fit(X[low:high], None if y is None else y[low:high], **given)
    return model


@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_learns_what_the_plain_loop_learns(on_cluster, weighted, data, cluster_client):
    X, y = data
    weight = np.random.default_rng(1).uniform(size=120) if weighted else None
    want = _loop(SGDClassifier(random_state=0), X, y, epochs=3, weight=weight)
    model = Incremental(SGDClassifier(random_state=0), epochs=3, shuffle=False)
    rows = da.from_array(X, chunks=(CUTS, 3))
    with cluster_client.as_current(), config_context(engine="auto" if on_cluster else "local"):
        model.fit(rows, da.from_array(y, chunks=35), sample_weight=weight)
    np.testing.assert_array_equal(model.estimator_.coef_, want.coef_)
    assert model.estimator_.t_ == want.t_
    assert model.n_samples_seen_ == 360
    np.testing.assert_array_equal(model.classes_, ["a", "b", "c"])
    np.testing.assert_array_equal(model.predict(rows).compute(), want.predict(X))


def test_learns_from_rows_in_this_process_in_batches(data):
    X, y = data
    want = _loop(SGDClassifier(random_state=0), X, y, cuts=(50, 50, 20))
    model = Incremental(SGDClassifier(random_state=0), shuffle=False, batch_size=50).fit(X, y)
    np.testing.assert_array_equal(model.estimator_.coef_, want.coef_)
    # the same cuts inside a block of a Dask array
    rows = da.from_array(X, chunks=(100, 4))
    lazy = clone(model).fit(rows, y)
    np.testing.assert_array_equal(lazy.estimator_.coef_, want.coef_)


def test_one_seed_one_order(data):
    X, y = data
    rows = da.from_array(X, chunks=(10, 4))

    def learn(seed):
        model = Incremental(SGDClassifier(random_state=0), epochs=2, random_state=seed)
        return model.fit(rows, y).estimator_.coef_

    np.testing.assert_array_equal(learn(1), learn(1))
    assert not np.array_equal(learn(1), learn(2))


class Diary(BaseEstimator):
    """Writes down which rows it saw; has neither fit nor score."""

    def partial_fit(self, X, y=None):
        self.seen_ = [
            *getattr(self, "seen_", []),
            *(X.toarray() if sparse.issparse(X) else np.asarray(X))[:, 0].astype(int),
        ]
        return self


def test_every_block_once_in_every_epoch_in_a_new_order():
    rows = da.from_array(np.arange(30.0).reshape(30, 1), chunks=(3, 1))
    seen = Incremental(Diary(), epochs=3, random_state=0).fit(rows).estimator_.seen_
    epochs = np.reshape(seen, (3, 30))
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(30))
    assert not np.array_equal(epochs[0], epochs[1])
    assert not np.array_equal(epochs[1], epochs[2])
    in_order = Incremental(Diary(), shuffle=False).fit(rows).estimator_.seen_
    np.testing.assert_array_equal(in_order, np.arange(30))


def test_partial_fit_goes_on(data):
    X, y = data
    want = _loop(SGDClassifier(random_state=0), X, y, cuts=(60, 60))
    model = Incremental(SGDClassifier(random_state=0), shuffle=False)
    model.partial_fit(X[:60], y[:60], classes=["a", "b", "c"])
    assert model.n_samples_seen_ == 60
    model.partial_fit(da.from_array(X[60:], chunks=(60, 4)), y[60:])
    np.testing.assert_array_equal(model.estimator_.coef_, want.coef_)
    assert model.n_samples_seen_ == 120
    model.fit(X, y)  # starts again
    assert model.n_samples_seen_ == 120


@pytest.mark.parametrize(
    "estimator", [GaussianNB(), SGDRegressor(random_state=0), StandardScaler()]
)
def test_any_estimator_with_partial_fit(estimator, data):
    X, y = data
    target = None if isinstance(estimator, StandardScaler) else y
    if isinstance(estimator, SGDRegressor):
        target = X[:, 0]
    want = _loop(estimator, X, target)
    model = Incremental(estimator, shuffle=False).fit(da.from_array(X, chunks=(CUTS, 4)), target)
    method = "transform" if target is None else "predict"
    got = getattr(model, method)(da.from_array(X, chunks=(CUTS, 4))).compute()
    np.testing.assert_array_equal(got, getattr(want, method)(X))


def test_frames_reach_the_estimator_as_frames(data):
    X, y = data
    frame = pd.DataFrame(X, columns=list("wxyz"))
    lazy = dd.from_pandas(frame, npartitions=3)
    model = Incremental(GaussianNB(), shuffle=False)
    model.fit(lazy, dd.from_pandas(pd.Series(y), npartitions=3))
    np.testing.assert_array_equal(model.feature_names_in_, list("wxyz"))
    np.testing.assert_array_equal(model.predict(lazy).compute(), model.estimator_.predict(frame))


def test_passes(data):
    X, y = data
    rows, labels = da.from_array(X, chunks=(CUTS, 4)), da.from_array(y, chunks=(CUTS,))
    with counting() as counts:
        Incremental(SGDClassifier(), epochs=2).fit(rows, labels)
    assert counts.passes == 3  # one over the labels alone
    with counting() as counts:
        Incremental(SGDClassifier(), epochs=2).fit(rows, labels, classes=["a", "b", "c"])
    assert counts.passes == 2
    with counting() as counts:
        Incremental(SGDClassifier(), epochs=2).fit(rows, y)
    assert counts.passes == 2


def test_the_users_estimator_is_never_changed(data):
    X, y = data
    mine = SGDClassifier(random_state=0)
    model = Incremental(mine).fit(X, y)
    assert not hasattr(mine, "coef_")
    before = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(before.estimator_.coef_, model.estimator_.coef_)


@pytest.mark.parametrize("on_cluster", [False, True])
@pytest.mark.parametrize("shuffle", ["blocks", "rows", False])
def test_a_failed_fit_keeps_what_it_learned_and_goes_on(shuffle, on_cluster, data, cluster_client):
    X, y = data
    holed = X.copy()
    holed[95, 0] = np.nan
    model = Incremental(
        SGDClassifier(random_state=0), epochs=3, shuffle=shuffle, buffer_blocks=2, random_state=3
    )
    good, bad = (da.from_array(v, chunks=(10, 4)) for v in (X, holed))
    with cluster_client.as_current(), config_context(engine="auto" if on_cluster else "local"):
        want = clone(model).fit(good, y)
        with pytest.raises(ValueError, match="NaN") as caught:
            model.fit(bad, y)
        assert any("While learning from block" in note for note in caught.value.__notes__)
        assert 0 < model.n_samples_seen_ < 120
        assert model.estimator_.t_ == 1 + model.n_samples_seen_
        model.fit(good, y, resume=True)
    np.testing.assert_array_equal(model.estimator_.coef_, want.estimator_.coef_)
    assert model.n_samples_seen_ == want.n_samples_seen_ == 360
    assert list(model.history_.epoch) == [1, 2, 3]
    with pytest.raises(ValueError, match="no fit of this estimator was interrupted"):
        model.fit(good, y, resume=True)


@pytest.mark.parametrize("on_cluster", [False, True])
def test_a_failure_in_the_first_block_changes_nothing(on_cluster, data, cluster_client):
    with cluster_client.as_current(), config_context(engine="auto" if on_cluster else "local"):
        _fail_in_the_first_block(*data)


def _fail_in_the_first_block(X, y):
    model = Incremental(SGDClassifier(random_state=0), shuffle=False).fit(X, y)
    coef = model.estimator_.coef_.copy()
    holed = X.copy()
    holed[5, 0] = np.nan
    for learn in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="NaN"):
            learn(da.from_array(holed, chunks=(CUTS, 4)), y)
        np.testing.assert_array_equal(model.estimator_.coef_, coef)
        assert model.n_samples_seen_ == 120


@pytest.mark.parametrize("container", ["array", "frame", "sparse", "memory"])
def test_rows_are_mixed_across_blocks(container):
    values = np.arange(60.0).reshape(60, 1)
    rows = da.from_array(values, chunks=(6, 1))
    if container == "frame":
        rows = dd.from_pandas(pd.DataFrame(values, columns=["a"]), npartitions=10)
    elif container == "sparse":
        rows = rows.map_blocks(sparse.csr_array)
    elif container == "memory":
        rows = values
    model = Incremental(
        Diary(), epochs=2, shuffle="rows", buffer_blocks=5, random_state=0, batch_size=6
    ).fit(rows)
    epochs = np.reshape(model.estimator_.seen_, (2, 60))
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(60))
        assert len(set(epoch[:6] // 6)) > 1  # the first batch comes from several blocks
        buffer = np.unique(epoch[:30] // 6)  # one block from each stretch of two
        np.testing.assert_array_equal(buffer // 2, np.arange(5))
    assert not np.array_equal(epochs[0], epochs[1])


def test_sorted_rows_want_to_be_mixed():
    X, y = make_classification(4000, 20, n_informative=10, class_sep=0.8, random_state=0)
    order = np.argsort(y, kind="stable")
    rows, labels = da.from_array(X[order], chunks=(40, 20)), da.from_array(y[order], chunks=40)
    mixed = np.random.default_rng(0).permutation(4000)

    def accuracy(shuffle, X_, y_):
        model = Incremental(
            SGDClassifier(alpha=1e-3, average=True, random_state=0),
            shuffle=shuffle,
            epochs=3,
            random_state=0,
            scoring="balanced_accuracy",
        )
        return model.fit(X_, y_).score(rows, labels)

    want = accuracy(False, da.from_array(X[mixed], chunks=(40, 20)), y[mixed])
    assert abs(accuracy("rows", rows, labels) - want) < 0.01
    assert accuracy(False, rows, labels) < want - 0.01


def test_stops_when_the_validation_score_gains_nothing(data, world):
    X, y = data
    X, y = np.tile(X, (5, 1)), np.tile(np.isin(y, ["a", "b"]).astype(int), 5)
    model = Incremental(
        SGDClassifier(random_state=0),
        epochs=50,
        early_stopping=True,
        n_iter_no_change=3,
        validation_fraction=0.3,
        random_state=0,
        scoring="f1",
    )
    if world.on_device or world.name.startswith("csr"):
        pytest.skip("SGDClassifier takes no such arrays, or is tried with its like")
    model.fit(world.X(X), world.column(y))
    history = model.history_
    assert 4 <= model.n_iter_ == len(history) < 50
    assert history.score.iloc[-1] < history.score.max() + 1e-3
    assert list(history.n_samples_seen.diff().dropna().unique()) == [history.n_samples_seen[0]]
    assert 0.6 * 600 < history.n_samples_seen[0] < 0.8 * 600
    assert history.seconds.is_monotonic_increasing


def test_validation_rows_are_the_same_however_the_rows_are_cut(data):
    X, y = data
    model = Incremental(GaussianNB(), early_stopping=True, random_state=0)
    scores = [model.fit(da.from_array(X, chunks=(n, 4)), y).history_.score[0] for n in (7, 40, 120)]
    assert scores[0] == scores[1] == scores[2]


def test_the_loss_is_told_where_the_estimator_has_one(data):
    X, _ = data
    model = Incremental(MiniBatchKMeans(3, random_state=0, n_init=1), epochs=2).fit(X)
    assert model.history_.loss.notna().all()
    assert model.history_.score.isna().all()


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        (Incremental(LinearRegression()), TypeError, "must have partial_fit"),
        (Incremental(SGDClassifier(), epochs=0), ValueError, "epochs must be"),
        (Incremental(SGDClassifier(), shuffle="all"), ValueError, "shuffle must be"),
        (Incremental(SGDClassifier(), buffer_blocks=0), ValueError, "buffer_blocks must be"),
        (Incremental(SGDClassifier(), validation_fraction=1), ValueError, "validation_fraction"),
        (Incremental(SGDClassifier(), tol="no"), ValueError, "tol must be"),
        (Incremental(SGDClassifier(), early_stopping=True, scoring="no"), ValueError, "scoring"),
        (Incremental(MiniBatchKMeans(), early_stopping=True), TypeError, "must be a classifier"),
        (Incremental(SGDClassifier(), shuffle=True), ValueError, "shuffle must be"),
        (Incremental(SGDClassifier(), batch_size=0), ValueError, "batch_size must be"),
    ],
    ids=str,
)
def test_bad_parameters_raise_before_any_task(model, error, match, data):
    X, y = data
    with counting() as counts, pytest.raises(error, match=match):
        model.fit(da.from_array(X, chunks=(CUTS, 4)), y)
    assert counts.tasks == 0


def test_no_target_raises_before_any_task(data):
    rows = da.from_array(data[0], chunks=(CUTS, 4))
    for model in (Incremental(SGDRegressor()), Incremental(SGDRegressor(), early_stopping=True)):
        with counting() as counts, pytest.raises(ValueError, match=r"y (to|must) be"):
            model.fit(rows)
        assert counts.tasks == 0


def test_clusterers_learn_too(data):
    X, _ = data
    model = Incremental(MiniBatchKMeans(3, random_state=0, n_init=1), shuffle=False)
    model.fit(da.from_array(X, chunks=(CUTS, 4)))
    assert model.predict(X).shape == (120,)
