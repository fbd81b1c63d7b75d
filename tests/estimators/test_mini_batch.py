"""MiniBatchKMeans against scikit-learn's, in every world, for any cut, and counted."""

import pickle

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import cluster as reference
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError

from random_examples import n_examples
from skfleet.engine import counting
from skfleet.estimators import Incremental, KMeans, MiniBatchKMeans
from skfleet.estimators.cluster import _mini_batch_kmeans as mini_batch
from skfleet.estimators.cluster._mini_batch_step import MiniBatchState, mini_batch_step


@pytest.fixture(scope="module")
def digits():
    return load_digits().data


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("to", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_same_steps_as_scikit_learns_from_the_same_start(digits, weighted, to):
    weight = np.random.default_rng(0).uniform(0.5, 2, len(digits))
    given_start = {"init": digits[:10], "reassignment_ratio": 0.0}
    ours = MiniBatchKMeans(10, **given_start)
    theirs = reference.MiniBatchKMeans(10, **given_start)
    for low in range(0, 1797, 200):
        here = slice(low, low + 200)
        w = weight[here] if weighted else None
        theirs.partial_fit(to(digits[here]), sample_weight=w)
        ours.partial_fit(to(digits[here]), sample_weight=w)
        ours = pickle.loads(pickle.dumps(ours))
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-9)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_)
    assert ours.n_steps_ == theirs.n_steps_ == 9
    np.testing.assert_array_equal(ours.predict(digits), theirs.predict(digits))


def test_blocks_are_batches(digits):
    settings = {"init": digits[:10], "reassignment_ratio": 0.0}
    want = MiniBatchKMeans(10, **settings)
    for low in range(0, 1797, 200):
        want.partial_fit(digits[low : low + 200])
    rows = da.from_array(digits, chunks=(200, 64))
    got = MiniBatchKMeans(10, **settings).partial_fit(rows)
    np.testing.assert_array_equal(got.cluster_centers_, want.cluster_centers_)
    assert got.n_steps_ == 9
    assert got.labels_.shape == (1797,)
    wrapped = Incremental(MiniBatchKMeans(10, compute_labels=False, **settings), shuffle=False)
    wrapped.fit(rows)
    np.testing.assert_allclose(wrapped.estimator_.cluster_centers_, want.cluster_centers_)


def test_as_good_as_scikit_learns(digits):
    blobs, _ = make_blobs(20_000, 6, centers=30, random_state=0)
    for X, k in ((digits, 10), (blobs, 30)):
        ours, theirs = (
            [kind(k, random_state=seed).fit(X).inertia_ for seed in range(8)]
            for kind in (MiniBatchKMeans, reference.MiniBatchKMeans)
        )
        assert np.mean(ours) <= 1.05 * np.mean(theirs)


def test_every_world_gives_the_same_answer(world):
    X, _ = make_blobs(600, 4, centers=6, cluster_std=1.5, random_state=0)
    weight = np.random.default_rng(0).uniform(0.5, 3, len(X))
    model = MiniBatchKMeans(6, random_state=0, batch_size=100)
    want = model.fit(X, sample_weight=weight).cluster_centers_.copy()
    inertia, labels = model.inertia_, model.labels_
    model.fit(world.X(X), sample_weight=world.column(weight))
    np.testing.assert_allclose(model.cluster_centers_, want, rtol=1e-8)
    np.testing.assert_allclose(model.inertia_, inertia, rtol=1e-8)
    np.testing.assert_array_equal(world.host(model.labels_), labels)
    model.partial_fit(world.X(X), sample_weight=world.column(weight))
    assert model.n_features_in_ == 4


@pytest.mark.parametrize("labels", [True, False])
def test_passes(monkeypatch, labels, cluster_client):
    X, _ = make_blobs(5000, 4, centers=6, cluster_std=3, random_state=0)
    rows = da.from_array(X, chunks=(500, 4))
    model = MiniBatchKMeans(6, random_state=0, batch_size=50, compute_labels=labels)
    with cluster_client.as_current(), counting() as counts:
        model.fit(rows)
    assert counts.passes == 1 + labels
    # a sample of a tenth holds ten batches: 30 of them take three
    monkeypatch.setattr(mini_batch, "MIN_SAMPLE_BYTES", 0)
    model.set_params(max_no_improvement=None, max_iter=1, batch_size=50)
    with cluster_client.as_current(), counting() as counts:
        model.fit(rows)
    assert model.n_steps_ == 100
    assert 9 + labels <= counts.passes <= 12 + labels
    if not labels:
        assert not hasattr(model, "labels_")
        exact = -model.score(X)
        assert abs(model.inertia_ - exact) <= 0.2 * exact


def test_centres_of_little_weight_begin_anew():
    X, _ = make_blobs(2000, 2, centers=8, cluster_std=0.2, random_state=3)
    far = np.full((4, 2), 1e3)
    start = np.vstack([X[:4], far])
    stuck = MiniBatchKMeans(8, init=start, reassignment_ratio=0.0, random_state=0).fit(X)
    model = MiniBatchKMeans(8, init=start, random_state=0).fit(X)
    assert (np.abs(stuck.cluster_centers_) > 500).any()
    assert (np.abs(model.cluster_centers_) < 500).all()


def test_verbose(digits, capsys):
    MiniBatchKMeans(10, random_state=0, verbose=1).fit(digits)
    assert "Minibatch step 1/" in capsys.readouterr().out


def test_callable_start_and_far_from_the_origin(digits):
    def first(X, k, random_state):
        return X[:k]

    settings = {"batch_size": 200, "reassignment_ratio": 0.0, "random_state": 0}
    near = MiniBatchKMeans(10, init=digits[:10], **settings).fit(digits)
    called = MiniBatchKMeans(10, init=first, **settings).fit(digits)
    np.testing.assert_allclose(called.cluster_centers_, near.cluster_centers_)
    far = MiniBatchKMeans(10, init=digits[:10] + 1e6, **settings).fit(digits + 1e6)
    np.testing.assert_allclose(far.cluster_centers_ - 1e6, near.cluster_centers_, atol=1e-6)
    far.partial_fit(digits[:500] + 1e6)
    near.partial_fit(digits[:500])
    np.testing.assert_allclose(far.cluster_centers_ - 1e6, near.cluster_centers_, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_clusters": 0}, "n_clusters must be"),
        ({"init": "k-means||"}, "init must be one of"),
        ({"init": np.zeros((3, 2))}, "initial centers"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"tol": -1}, "tol must be"),
        ({"max_no_improvement": -1}, "max_no_improvement must be"),
        ({"init_size": 0}, "init_size must be"),
        ({"n_init": 0}, "n_init must be"),
        ({"reassignment_ratio": -0.1}, "reassignment_ratio must be"),
        ({"compute_labels": 2}, "compute_labels must be"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_bad_parameters_raise_before_any_task(settings, match, method, digits):
    for X in (digits, da.from_array(digits, chunks=(100, 64))):
        with counting() as counts, pytest.raises(ValueError, match=match):
            getattr(MiniBatchKMeans(**settings), method)(X)
        assert counts.tasks == 0


def test_bad_rows(digits):
    holed = digits.copy()
    holed[7, 1] = np.nan
    model = MiniBatchKMeans(3, random_state=0)
    for rows in (holed, da.from_array(holed, chunks=(100, 64))):
        for method in (model.fit, model.partial_fit):
            with pytest.raises(ValueError, match="NaN"):
                method(rows)
    with pytest.raises(NotFittedError):
        model.predict(digits)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="should be >= n_clusters"):
            method(digits[:2])
        lazy = da.from_array(digits, chunks=(100, 64))
        with pytest.raises(ValueError, match="weight above 0"):
            method(lazy, sample_weight=da.zeros(len(digits), chunks=70))
    nothing = da.from_array(digits, chunks=(900, 64))
    nothing = nothing[nothing[:, 0] > 99]
    with pytest.raises(ValueError, match="at least one row"):
        model.partial_fit(nothing)
    model.partial_fit(digits)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(digits[:, :5])


@settings(max_examples=n_examples(5, 60), deadline=None)
@given(
    weight=st.sampled_from([1.0, 2.5, 1 / 3]),
    init=st.sampled_from(["k-means++", "random"]),
    to=st.sampled_from([np.asarray, sparse.csr_array, lambda X: da.from_array(X, chunks=(50, 64))]),
    model=st.sampled_from([MiniBatchKMeans, KMeans]),
    batch_size=st.integers(30, 400),
)
def test_equal_weights_are_no_weights(weight, init, to, model, batch_size):
    X = load_digits().data[:300]
    options = {"batch_size": batch_size, "max_iter": 3} if model is MiniBatchKMeans else {}
    model = model(4, init=init, n_init=2, random_state=0, **options)
    weights = np.full(300, weight)
    weights = da.from_array(weights, chunks=50) if to(X[:1]).__class__ is da.Array else weights
    plain = model.fit(to(X)).cluster_centers_
    weighted = model.fit(to(X), sample_weight=weights).cluster_centers_
    np.testing.assert_allclose(weighted, plain, atol=1e-9)


def test_a_small_init_size_warns_and_is_three_rows_a_cluster(digits):
    model = MiniBatchKMeans(20, init_size=10, random_state=0)
    with pytest.warns(RuntimeWarning, match="init_size=10 should be larger than n_clusters=20"):
        centers = model.fit(digits).cluster_centers_
    larger = MiniBatchKMeans(20, init_size=60, random_state=0).fit(digits)
    np.testing.assert_array_equal(centers, larger.cluster_centers_)


def test_verbose_says_why_steps_end(digits, capsys):
    options = {"n_clusters": 3, "init": digits[:3], "verbose": 1, "random_state": 0}
    MiniBatchKMeans(**options, max_no_improvement=None, tol=0.1).fit(digits)
    assert "Converged (small centers change)" in capsys.readouterr().out
    MiniBatchKMeans(**options, max_no_improvement=2).fit(digits)
    assert "Converged (lack of improvement in inertia)" in capsys.readouterr().out


@pytest.mark.parametrize("ratio", [0.0, 0.9])
def test_a_step_draws_from_a_generator_of_its_own(digits, ratio):
    rng = np.random.RandomState(0)
    state = MiniBatchState(digits[:10], np.arange(1.0, 11), None, rng, n_since_reassignment=10**6)
    before = rng.get_state()[1].copy()
    after = mini_batch_step(state, digits[:200], None, ratio)
    np.testing.assert_array_equal(rng.get_state()[1], before)
    assert (after.rng is rng) == (ratio == 0)  # nothing drawn, nothing copied
