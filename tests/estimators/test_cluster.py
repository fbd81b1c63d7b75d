"""KMeans against scikit-learn's, in every world, for any cut, and counted."""

import contextlib
import gc
import pickle
import time
import warnings

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import cluster as reference
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import config_context
from skfleet.blocks import BlockCache
from skfleet.engine import _disk_cache, counting
from skfleet.estimators import KMeans, MiniBatchKMeans
from skfleet.estimators.cluster import _compiled_lloyd
from skfleet.estimators.cluster import _init as starts
from skfleet.estimators.cluster._distances import Bounds

_DRAWN_BY_NUMBER = "rows are drawn by their numbers, so repeating a row draws others"


def _expected_failures(_):
    # scikit-learn's own fail these two for the same reason.
    return {
        "check_sample_weight_equivalence_on_dense_data": _DRAWN_BY_NUMBER,
        "check_sample_weight_equivalence_on_sparse_data": _DRAWN_BY_NUMBER,
    }


@parametrize_with_checks(
    [KMeans(n_clusters=3, random_state=0), MiniBatchKMeans(n_clusters=3, random_state=0)],
    expected_failed_checks=_expected_failures,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    X, _ = make_blobs(600, 4, centers=6, cluster_std=1.5, random_state=0)
    return X


def _start(X, k):
    return X[np.random.default_rng(3).choice(len(X), k, replace=False)]


def _both(X, k=6, *, to=lambda X: X, weight=None, algorithm="auto", **settings):
    given = {"n_clusters": k, "init": _start(X, k), "n_init": 1, **settings}
    theirs = reference.KMeans(**given).fit(to(X), sample_weight=weight)
    ours = KMeans(algorithm=algorithm, **given).fit(to(X), sample_weight=weight)
    return ours, theirs


@pytest.mark.parametrize("algorithm", ["auto", "lloyd", "elkan"])
@pytest.mark.parametrize("tol", [0, 1e-4])
@pytest.mark.parametrize("weighted", [False, True])
def test_same_centres_as_scikit_learn_from_the_same_start(blobs, weighted, tol, algorithm):
    weight = np.random.default_rng(0).uniform(0, 3, len(blobs)) if weighted else None
    ours, theirs = _both(blobs, weight=weight, tol=tol, algorithm=algorithm)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-6)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.inertia_, theirs.inertia_, rtol=1e-10)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_allclose(ours.transform(blobs), theirs.transform(blobs), atol=1e-6)
    np.testing.assert_allclose(
        ours.score(blobs, sample_weight=weight), theirs.score(blobs, sample_weight=weight)
    )


@pytest.mark.parametrize("to", [sparse.csr_array, sparse.csr_matrix], ids=lambda f: f.__name__)
def test_same_centres_as_scikit_learn_on_sparse_rows(blobs, to):
    X = np.where(blobs > 2, blobs, 0)
    ours, theirs = _both(X, to=to)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, atol=1e-6)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)


def test_single_precision_stays_single(blobs):
    ours, theirs = _both(blobs, to=lambda X: X.astype(np.float32))
    assert ours.cluster_centers_.dtype == theirs.cluster_centers_.dtype == np.float32
    assert ours.transform(blobs.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-4, atol=1e-4)


def test_every_world_gives_the_same_answer(world, blobs):
    weight = np.random.default_rng(0).uniform(0.5, 3, len(blobs))
    model = KMeans(6, init="k-means||", random_state=0)
    want = model.fit(blobs, sample_weight=weight).cluster_centers_.copy()
    inertia, labels = model.inertia_, model.labels_
    model.fit(world.X(blobs), sample_weight=world.column(weight))
    np.testing.assert_allclose(model.cluster_centers_, want, rtol=1e-8)
    np.testing.assert_allclose(model.inertia_, inertia, rtol=1e-8)
    np.testing.assert_array_equal(world.host(model.labels_), labels)
    np.testing.assert_array_equal(world.host(model.predict(world.X(blobs))), labels)
    assert world.host(model.transform(world.X(blobs))).shape == (len(blobs), 6)


@pytest.mark.parametrize(
    ("model", "inits"),
    [
        (KMeans(5, n_init=1), ["k-means++", "k-means||", "random"]),
        (MiniBatchKMeans(5, batch_size=40), ["k-means++", "random"]),
    ],
)
@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 300), max_size=16), nth=st.integers(0, 5), seed=st.integers(0, 5)
)
def test_any_cut_gives_the_same_answer(model, inits, cuts, nth, seed):
    X, _ = make_blobs(300, 3, centers=5, random_state=seed)
    edges = [0, *sorted(cuts), 300]
    rows = da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), 3))
    model.set_params(init=inits[nth % len(inits)], random_state=seed)
    want = model.fit(X).cluster_centers_.copy()
    np.testing.assert_allclose(model.fit(rows).cluster_centers_, want, rtol=1e-8)


def _fifty_blobs(seed):
    return make_blobs(4000, 5, centers=50, cluster_std=0.5, random_state=seed)[0], 50


def _digits(seed):
    return load_digits().data, 10


@pytest.mark.parametrize("make", [pytest.param(_fifty_blobs, marks=pytest.mark.slow), _digits])
def test_default_starts_are_as_good_as_scikit_learns(make):
    """On few rows k-means++ is scikit-learn's one start; k-means|| is as good as ten of them."""
    inertia = {name: [] for name in ("k-means++", "k-means||", "one", "ten")}
    for seed in range(8):
        X, k = make(seed)
        rows = da.from_array(X, chunks=(900, -1))
        for init in ("k-means++", "k-means||"):
            inertia[init].append(KMeans(k, init=init, random_state=seed).fit(rows).inertia_)
        for name, n_init in {"one": 1, "ten": 10}.items():
            ones = reference.KMeans(k, n_init=n_init, random_state=seed).fit(X)
            inertia[name].append(ones.inertia_)
    mean = {name: np.mean(values) for name, values in inertia.items()}
    assert mean["k-means++"] <= 1.15 * mean["one"]  # of other draws, whose standard error is 5 %
    assert mean["k-means||"] <= 1.05 * mean["ten"]


def test_a_cluster_that_a_sample_misses_is_found(monkeypatch):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(3000, 2)), 1000 + rng.normal(size=(3, 2))])
    X = X[rng.permutation(len(X))]
    monkeypatch.setattr(starts, "MAX_LOCAL_ROWS", 100)
    monkeypatch.setattr(starts, "SAMPLE_ROWS_PER_CLUSTER", 10)
    model = KMeans(4, random_state=0).fit(X)
    assert np.sum((model.cluster_centers_ > 900).all(axis=1)) == 1


@pytest.mark.parametrize(
    ("to", "shift"),
    [(np.asarray, 0), (np.asarray, 1e3), (sparse.csr_array, 0)],
    ids=["dense", "far-away", "sparse"],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_bounds_spare_rows_and_change_nothing(to, shift, dtype, monkeypatch):
    X, _ = make_blobs(20_000, 6, centers=12, cluster_std=1.5, random_state=1)
    X = to((X + shift).astype(dtype))
    looked = []
    look = Bounds._refresh

    def counted(self, rows, which, *args):
        looked.append(len(which))
        return look(self, rows, which, *args)

    monkeypatch.setattr(Bounds, "_refresh", counted)
    monkeypatch.setattr(_compiled_lloyd, "MAX_BYTES", 0)
    settings = {"init": X[:12].toarray() if sparse.issparse(X) else X[:12], "tol": 0}
    fast = KMeans(12, algorithm="auto", **settings).fit(X)
    plain = KMeans(12, algorithm="lloyd", **settings).fit(X)
    np.testing.assert_array_equal(fast.labels_, plain.labels_)
    rtol = 1e-12 if dtype is np.float64 else 1e-5  # sums are changed by the rows that move
    np.testing.assert_allclose(fast.cluster_centers_, plain.cluster_centers_, rtol=rtol)
    assert fast.n_iter_ == plain.n_iter_ > 8
    assert fast.inertia_ == pytest.approx(plain.inertia_, rel=rtol)
    assert sum(looked) < fast.n_iter_ * X.shape[0] / 3


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    n=st.integers(30, 400),
    d=st.integers(1, 6),
    k=st.integers(2, 20),
    kind=st.sampled_from(["normal", "integers", "line"]),
)
def test_bounds_change_no_label_whatever_the_rows(seed, n, d, k, kind):
    rng = np.random.default_rng(seed)
    X = {
        "normal": lambda: rng.normal(size=(n, d)),
        "integers": lambda: rng.integers(0, 4, size=(n, d)).astype(float),
        "line": lambda: np.arange(n)[:, None] * np.ones((n, d)),
    }[kind]()
    start = X[rng.choice(n, k, replace=False)] + 1e-3 * rng.normal(size=(k, d))
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", ConvergenceWarning)
        patch.setattr(_compiled_lloyd, "MAX_BYTES", 0)
        fast = KMeans(k, init=start, tol=0).fit(X)
        plain = KMeans(k, init=start, tol=0, algorithm="lloyd").fit(X)
    np.testing.assert_allclose(fast.inertia_, plain.inertia_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fast.cluster_centers_, plain.cluster_centers_, atol=1e-9)


def test_sparse_rows_with_wide_indices(blobs):
    X = sparse.csr_array(np.where(blobs > 2, blobs, 0))
    want = KMeans(5, random_state=0).fit(X)
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    wide = da.from_array(X, chunks=(len(blobs), 4), asarray=False)
    got = KMeans(5, random_state=0).fit(wide)
    np.testing.assert_allclose(got.cluster_centers_, want.cluster_centers_)
    np.testing.assert_array_equal(got.labels_.compute(), want.labels_)


def test_many_rows_start_with_k_means_parallel(monkeypatch, blobs):
    monkeypatch.setattr(starts, "MAX_LOCAL_ROWS", 100)
    many = KMeans(6, random_state=0).fit(blobs).cluster_centers_
    explicit = KMeans(6, init="k-means||", random_state=0).fit(blobs).cluster_centers_
    np.testing.assert_array_equal(many, explicit)


@pytest.mark.parametrize(("init", "start"), [("k-means++", 0), ("k-means||", 4), ("random", 0)])
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
def test_passes(init, start, keep, cluster_client):
    X, _ = make_blobs(900, 4, centers=6, cluster_std=3, random_state=0)
    rows = da.from_array(X, chunks=(50, 4))
    with cluster_client.as_current(), config_context(keep_blocks=keep), counting() as counts:
        model = KMeans(6, init=init, n_init=1, random_state=0, tol=0).fit(rows)
    # the last pass over streamed rows, which found that the centres stay, knew all that is asked
    assert counts.passes == 1 + start + model.n_iter_ + keep
    if keep:  # 18 blocks are loaded once, then two workers reduce them and one task merges
        assert counts.tasks <= 18 + 3 * counts.passes


def test_rows_that_every_pass_reads_are_first_clustered_on_a_large_sample(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 4)) + 1.5 * rng.normal(size=(12, 4))[rng.integers(0, 12, 60_000)]
    n_passes = {}
    for n_distances in (0, 200_000):
        monkeypatch.setattr(starts, "LARGE_SAMPLE_DISTANCES", n_distances)
        monkeypatch.setattr(starts, "MAX_LOCAL_ROWS", 1_000)
        with config_context(engine="local", keep_blocks=False, disk_cache=False):
            lazy = da.from_array(X, chunks=(6_000, 4)).map_blocks(np.copy)
            n_passes[n_distances] = KMeans(6, random_state=0).fit(lazy).n_iter_
    assert n_passes[200_000] < n_passes[0] / 2


def test_bounds_live_beside_the_rows_and_go_with_the_fit(cluster_client):
    X, _ = make_blobs(5000, 4, centers=6, random_state=0)
    # Equal to the last bit: who holds a block, and with it the order of the sums, may change.
    with cluster_client.as_current(), config_context(deterministic=True):
        rows = da.from_array(X, chunks=(500, 4)).persist()
        want = KMeans(6, init=X[:6], algorithm="lloyd").fit(rows).cluster_centers_
        got = KMeans(6, init=X[:6]).fit(rows)
        np.testing.assert_array_equal(got.cluster_centers_, want)
    for _ in range(100):  # the workers are told a little later
        gc.collect()
        left = sum(isinstance(o, Bounds) for o in gc.get_objects())
        if not left:
            break
        time.sleep(0.05)
    assert not left


def test_bounds_live_beside_rows_on_the_disk(cluster_client, monkeypatch):
    X, _ = make_blobs(20_000, 6, centers=12, cluster_std=1.5, random_state=1)
    rows, looked = da.from_array(X, chunks=(2_000, 6)), []
    look = Bounds._refresh

    def counted(self, rows, which, *args):
        looked.append(len(which))
        return look(self, rows, which, *args)

    monkeypatch.setattr(Bounds, "_refresh", counted)
    options = {"keep_blocks": False, "disk_cache": True}
    for client, engine in ((cluster_client, "auto"), (contextlib.nullcontext(), "local")):
        looked.clear()
        place = client.as_current() if engine == "auto" else client
        with place, config_context(**options, engine=engine):
            model = KMeans(12, init=X[:12], tol=0).fit(rows)
            assert 0 < sum(looked) < model.n_iter_ * len(X) / 3, engine
            want = KMeans(12, init=X[:12], tol=0, algorithm="lloyd").fit(rows)
        np.testing.assert_allclose(model.cluster_centers_, want.cluster_centers_, rtol=1e-12)
        assert model.n_iter_ == want.n_iter_


def test_rows_without_memory_for_bounds_have_none(cluster_client, monkeypatch):
    monkeypatch.setattr(_disk_cache, "MAX_CACHE_FRACTION", 0.0)
    monkeypatch.setattr(Bounds, "update", None)
    X, _ = make_blobs(2_000, 6, centers=12, random_state=1)
    rows = da.from_array(X, chunks=(500, 6))
    with cluster_client.as_current(), config_context(keep_blocks=False, disk_cache=True):
        assert KMeans(12, init=X[:12]).fit(rows).n_iter_ >= 1


def test_notes_are_not_copied():
    notes = BlockCache({0: Bounds(0, 3)})
    assert pickle.loads(pickle.dumps(notes)) == {}


def test_inertia_is_the_sum_of_squares(blobs):
    model = KMeans(4, random_state=0).fit(blobs)
    squares = ((blobs - model.cluster_centers_[model.labels_]) ** 2).sum()
    np.testing.assert_allclose(model.inertia_, squares, rtol=1e-12)


def test_far_from_the_origin_no_centre_falls_on_it():
    X, _ = make_blobs(500, 3, centers=10, random_state=0)
    X += 1e4
    start = np.vstack([X[:9], [[0.0, 0.0, 0.0]]])  # nobody's nearest: an empty cluster
    for model in (KMeans(10, init=start), KMeans(10, init="k-means||", random_state=0)):
        centers = model.fit(X).cluster_centers_
        assert (np.abs(centers - 1e4) < 100).all()


def test_empty_clusters_get_the_farthest_rows():
    X = np.array([[0.0], [0.1], [0.2], [9.0], [20.0]])
    start = np.array([[0.0], [-50.0], [-60.0]])
    ours = KMeans(3, init=start, max_iter=1, tol=0).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs = reference.KMeans(3, init=start, max_iter=1, tol=0).fit(X)
    np.testing.assert_allclose(
        np.sort(ours.cluster_centers_, axis=0), np.sort(theirs.cluster_centers_, axis=0)
    )


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_fewer_distinct_rows_than_clusters_warns(init):
    X = np.repeat([[0.0, 1.0], [5.0, 5.0]], 20, axis=0)
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        model = KMeans(4, init=init, n_init=1, random_state=0).fit(X)
    assert model.inertia_ == 0


def test_fewer_rows_with_a_weight_than_clusters():
    X = np.arange(10.0)[:, None]
    weight = np.where(np.arange(10) < 2, 1.0, 0.0)
    for init in ("k-means++", "k-means||", "random"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = KMeans(3, init=init, n_init=1, random_state=0).fit(X, sample_weight=weight)
        assert model.cluster_centers_.shape == (3, 1)
        assert model.inertia_ == 0


def test_constant_rows():
    with pytest.warns(ConvergenceWarning):
        model = KMeans(2, random_state=0).fit(np.ones((10, 3)))
    np.testing.assert_allclose(model.cluster_centers_, 1)


def test_callable_start(blobs):
    model = KMeans(6, init=lambda X, k, random_state: X[:k], random_state=0).fit(blobs)
    np.testing.assert_allclose(
        model.cluster_centers_, KMeans(6, init=blobs[:6]).fit(blobs).cluster_centers_
    )
    with pytest.raises(ValueError, match="callable"):
        model.fit(da.from_array(blobs))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_clusters": 0}, "n_clusters must be"),
        ({"n_clusters": 2.5}, "n_clusters must be"),
        ({"init": "kmeans"}, "init must be one of"),
        ({"init": np.zeros((3, 2))}, "initial centers"),
        ({"init": np.full((8, 4), np.nan)}, "init must be finite"),
        ({"n_init": 0}, "n_init must be"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"tol": -1}, "tol must be"),
        ({"algorithm": "yinyang"}, "algorithm must be"),
        ({"n_clusters": 1000}, "should be >= n_clusters"),
    ],
    ids=str,
)
@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_bad_parameters_raise_before_any_task(settings, match, lazy, blobs):
    X = da.from_array(blobs, chunks=(100, 4)) if lazy else blobs
    with counting() as counts, pytest.raises(ValueError, match=match):
        KMeans(**settings).fit(X)
    assert counts.tasks == 0


def test_bad_rows(blobs):
    holed = blobs.copy()
    holed[7, 1] = np.nan
    for rows in (holed, da.from_array(holed, chunks=(100, 4))):
        with pytest.raises(ValueError, match="NaN"):
            KMeans(3).fit(rows)
    with pytest.raises(ValueError, match="non-negative"):
        KMeans(3).fit(blobs, sample_weight=-np.ones(len(blobs)))
    rows = da.from_array(blobs, chunks=(100, 4))
    for init in ("k-means++", "k-means||", "random", blobs[:3]):
        with pytest.raises(ValueError, match="weight above 0"):
            KMeans(3, init=init).fit(rows, sample_weight=da.zeros(len(blobs), chunks=70))
    with pytest.raises(NotFittedError):
        KMeans(3).predict(blobs)
    with pytest.raises(ValueError, match="features"):
        KMeans(3, random_state=0).fit(blobs).predict(da.from_array(blobs[:, :2]))


def test_lazy_labels_stay_behind_when_pickled(blobs, cluster_client):
    with cluster_client.as_current():
        rows = da.from_array(blobs, chunks=(200, 4)).persist()
        model = KMeans(6, random_state=0).fit(rows)
        assert model.labels_.shape == (600,)
        assert model.labels_.dtype == np.int32
        labels = model.labels_.compute()
    again = pickle.loads(pickle.dumps(model))
    assert not hasattr(again, "labels_")
    np.testing.assert_array_equal(again.predict(blobs), labels)


@pytest.mark.parametrize("model", [KMeans, MiniBatchKMeans])
def test_several_starts_from_the_same_centres_warn(model):
    X = np.arange(20.0).reshape(10, 2)
    with pytest.warns(RuntimeWarning, match=f"performing only one init in {model.__name__}"):
        model(2, init=X[:2], n_init=3).fit(X)


def test_elkan_with_one_cluster_warns():
    with pytest.warns(RuntimeWarning, match="algorithm='elkan' doesn't make sense for a single"):
        KMeans(1, algorithm="elkan").fit(np.arange(20.0).reshape(10, 2))


def test_centres_have_no_distance_to_themselves():
    X = np.random.default_rng(0).normal(5, 1, size=(60, 7))
    model = KMeans(5, random_state=0).fit(X)
    np.testing.assert_array_equal(np.diag(model.transform(model.cluster_centers_)), 0)


@pytest.mark.parametrize("algorithm", ["lloyd", "elkan"])
def test_more_centres_than_distinct_rows_end_at_once(algorithm):
    X = np.array([[0.0, 0], [1, 1], [1, 1], [1, 0], [0, 1]])
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(4\)"):
        model = KMeans(5, init=X, algorithm=algorithm).fit(X)
    assert model.n_iter_ == 1
    np.testing.assert_array_equal(model.cluster_centers_, X)
