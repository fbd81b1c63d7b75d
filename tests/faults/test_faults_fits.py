"""A worker process dies in the middle of a fit: the answer is that of an undisturbed fit."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import dask.array as da
import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression as LogisticRegressionInMemory
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import Pipeline

from clusters import local_client
from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import (
    PCA,
    ElasticNetCV,
    GaussianMixture,
    Incremental,
    IncrementalPCA,
    KMeans,
    LogisticRegression,
    MiniBatchKMeans,
    NearestNeighbors,
    ParallelPostFit,
    PoissonRegressor,
    RandomForestRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SpectralClustering,
    TruncatedSVD,
)
from skfleet.estimators.preprocessing import StandardScaler
from skfleet.model_selection import GridSearchCV, cross_val_predict

pytestmark = pytest.mark.slow


@pytest.fixture
def processes():
    """A client of two worker processes."""
    with local_client(2, threads_per_worker=1) as client:
        yield client


@contextmanager
def killing_one_worker(client, after_passes):
    """Kill a worker process once a fit has begun that many passes; yield a list that says so."""
    victim = min(client.run(os.getpid).values())
    killed = []
    with counting() as counts:

        def kill():
            deadline = time.monotonic() + 120
            while counts.passes < after_passes and time.monotonic() < deadline:
                time.sleep(0.005)
            if counts.passes >= after_passes:
                os.kill(victim, signal.SIGKILL)
                killed.append(counts.passes)

        thread = threading.Thread(target=kill)
        thread.start()
        yield killed
        thread.join()


def _rows(n_rows=400_000):
    """Rows that a cluster makes itself, and labels that follow from them."""
    X = da.random.default_rng(0).normal(size=(n_rows, 20), chunks=(20_000, 20))
    return X, (X[:, 0] - X[:, 1] + 0.5 * X[:, 2] > 0.3).astype(int)


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
def test_kmeans_survives_a_killed_worker(processes, resident):
    X, _ = _rows()
    if resident:
        X = X.persist()
    start = np.random.default_rng(1).normal(size=(10, 20))
    model = KMeans(n_clusters=10, init=start, n_init=1, max_iter=15, tol=0)
    with config_context(keep_blocks=resident):
        undisturbed = model.fit(X).cluster_centers_.copy()
        with killing_one_worker(processes, after_passes=4) as killed:
            again = model.fit(X).cluster_centers_
    assert killed
    assert killed[0] < 15
    np.testing.assert_allclose(again, undisturbed, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("solver", ["newton-cholesky", "lbfgs"])
def test_logistic_regression_survives_a_killed_worker(processes, solver):
    X, y = _rows()
    model = LogisticRegression(C=1e-2, tol=1e-10, solver=solver)
    undisturbed = model.fit(X, y).coef_.copy()
    with killing_one_worker(processes, after_passes=2) as killed:
        again = model.fit(X, y).coef_
    assert killed
    # blocks regrouped by the kill add up in another order: L-BFGS stops within its own rounding
    assert np.linalg.norm(again - undisturbed) <= 1e-7 * np.linalg.norm(undisturbed)


def test_ridge_survives_a_killed_worker(processes):
    X, y = _rows(2_000_000)
    undisturbed = Ridge().fit(X, y).coef_
    with killing_one_worker(processes, after_passes=1) as killed:
        again = Ridge().fit(X, y).coef_
    assert killed
    np.testing.assert_allclose(again, undisturbed, rtol=1e-8)


LINEAR = {
    "proximal newton": (LogisticRegression(C=1e-2, l1_ratio=1.0, tol=1e-10), 2),
    "proximal gradient": (LogisticRegression(C=1e-4, l1_ratio=1.0, tol=1e-6, max_iter=500), 3),
    "poisson": (PoissonRegressor(alpha=1e-2, tol=1e-10), 2),
    "poisson by lbfgs": (PoissonRegressor(alpha=1e-2, tol=1e-10, solver="lbfgs"), 3),
    "folds": (ElasticNetCV(alphas=10), 1),
    "rows left out": (RidgeCV(), 1),
    "ridge classifier": (RidgeClassifier(class_weight="balanced"), 1),
}


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_models_survive_a_killed_worker(processes, name, resident, monkeypatch):
    model, after_passes = LINEAR[name]
    if name == "proximal gradient":
        monkeypatch.setattr("skfleet.glm._proximal_solvers.MAX_WORKING_SET", 0)
    X, y = _rows(1_000_000 if resident else 400_000)
    with config_context(keep_blocks=resident):
        undisturbed = model.fit(X, y).coef_.copy()
        with killing_one_worker(processes, after_passes) as killed:
            again = model.fit(X, y).coef_
    assert killed
    assert np.linalg.norm(again - undisturbed) <= 1e-5 * np.linalg.norm(undisturbed)


ATTRIBUTES = {
    KMeans: "cluster_centers_",
    MiniBatchKMeans: "cluster_centers_",
    GaussianMixture: "covariances_",
    SpectralClustering: "eigenvalues_",
}
AT_RANDOM = {"init_params": "random", "random_state": 0}
# models, after how many passes to kill, and what they find
UNSUPERVISED = {
    "k-means": (KMeans(10, init="k-means||", max_iter=10, tol=0, random_state=0), 3),
    "mini batches": (MiniBatchKMeans(10, random_state=0), 1),
    "mixture": (GaussianMixture(3, covariance_type="diag", max_iter=6, tol=0, **AT_RANDOM), 4),
    "spectral": (
        SpectralClustering(
            3, gamma=0.02, n_landmarks=20, assign_labels="cluster_qr", random_state=0
        ),
        2,
    ),
    "covariance": (PCA(5), 1),
    "triangle": (PCA(5, svd_solver="full"), 1),
    "randomized": (PCA(5, svd_solver="randomized", iterated_power=4, random_state=0), 2),
    "svd": (TruncatedSVD(5, algorithm="randomized", n_iter=4, random_state=0), 2),
    "incremental": (IncrementalPCA(5, batch_size=3_000), None),
}


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
@pytest.mark.parametrize("name", UNSUPERVISED)
@pytest.mark.filterwarnings("ignore:Best performing initialization did not converge")
def test_clusters_and_components_survive_a_killed_worker(processes, name, resident):
    model, after_passes = UNSUPERVISED[name]
    n_rows = 1_000_000 if resident else 400_000
    X = da.random.default_rng(0).normal(size=(n_rows, 20), chunks=(20_000, 10))
    X = X * np.linspace(3, 1, 20)
    attribute = ATTRIBUTES.get(type(model), "components_")
    with config_context(keep_blocks=resident):
        undisturbed = getattr(model.fit(X), attribute).copy()
        killing = (
            killing_one_worker_after(processes, 0.2)
            if after_passes is None
            else killing_one_worker(processes, after_passes)
        )
        with killing as killed:
            again = getattr(model.fit(X), attribute)
    assert killed
    np.testing.assert_allclose(again, undisturbed, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "last",
    [LogisticRegression(tol=1e-10), RandomForestClassifier(n_estimators=5, random_state=0)],
    ids=["on Dask rows", "on prepared rows"],
)
def test_searches_over_pipelines_survive_a_killed_worker(processes, last):
    X, y = _rows(100_000)
    name = "last__C" if hasattr(last, "C") else "last__max_depth"
    grid = {"scale__with_std": [True, False], name: [1, 3]}
    search = GridSearchCV(Pipeline([("scale", StandardScaler()), ("last", last)]), grid, cv=3)
    undisturbed = search.fit(X, y).cv_results_
    with killing_one_worker(processes, 3) as killed:
        again = search.fit(X, y).cv_results_
    assert killed
    for name in ("split0_test_score", "split2_test_score"):
        np.testing.assert_allclose(again[name], undisturbed[name], atol=1e-9)


def test_cross_val_predict_survives_a_killed_worker(processes):
    X, y = _rows(100_000)
    model = Pipeline([("scale", StandardScaler()), ("last", LogisticRegression(tol=1e-10))])
    options = {"cv": 3, "method": "predict_proba"}
    undisturbed = cross_val_predict(model, X, y, **options).compute()
    with killing_one_worker(processes, 3) as killed:
        again = cross_val_predict(model, X, y, **options).compute()
    assert killed
    np.testing.assert_allclose(again, undisturbed, atol=1e-9)


class Careful(SGDClassifier):
    """Learns slowly enough for a worker to die meanwhile."""

    def partial_fit(self, *args, **kwargs):
        time.sleep(0.03)
        return super().partial_fit(*args, **kwargs)


@contextmanager
def killing_one_worker_after(client, seconds):
    """Kill the first worker process that runs a task from some time on."""
    pids = client.run(os.getpid)
    killed, is_over = [], threading.Event()

    def kill():
        time.sleep(seconds)
        while not killed and not is_over.wait(0.01):
            busy = [address for address, keys in client.processing().items() if keys]
            for address in busy[:1]:
                os.kill(pids[address], signal.SIGKILL)
                killed.append(address)

    thread = threading.Thread(target=kill)
    thread.start()
    yield killed
    is_over.set()
    thread.join()


@pytest.mark.parametrize("shuffle", ["blocks", "rows"])
@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
def test_incremental_learns_each_block_exactly_once(processes, resident, shuffle):
    X, y = _rows(400_000)
    X, y = X.rechunk((5_000, 20)), y.rechunk(5_000)
    if resident:
        X, y = X.persist(), y.persist()
    model = Incremental(
        Careful(random_state=0), shuffle=shuffle, buffer_blocks=5, random_state=0, batch_size=5_000
    )
    processes.run(lambda: None)
    undisturbed = model.fit(X, y, classes=[0, 1]).estimator_
    with killing_one_worker_after(processes, 1.5) as killed:
        again = model.fit(X, y, classes=[0, 1]).estimator_
    assert killed
    assert again.t_ == undisturbed.t_ == 400_001
    np.testing.assert_array_equal(again.coef_, undisturbed.coef_)
    assert model.n_samples_seen_ == 400_000


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
def test_neighbors_survive_a_killed_worker(processes, resident):
    X, _ = _rows()
    queries = X[:2_000].compute()
    with config_context(keep_blocks=resident):
        model = NearestNeighbors(n_neighbors=3).fit(X)
        undisturbed = model.kneighbors(queries)
        with killing_one_worker_after(processes, 0.5) as killed:
            again = model.kneighbors(queries)
        lazy = model.kneighbors(da.from_array(queries, chunks=(500, 20)))
        assert killed
        for values, lazily, want in zip(again, lazy, undisturbed, strict=True):
            np.testing.assert_array_equal(values, want)
            np.testing.assert_array_equal(lazily.compute(), want)


@pytest.mark.parametrize("resident", [True, False], ids=["resident", "streamed"])
def test_forests_survive_a_killed_worker(processes, resident):
    X, y = _rows()
    model = RandomForestRegressor(8, max_samples=0.05, max_features=4, random_state=0)
    with config_context(keep_blocks=resident):
        undisturbed = model.fit(X, y).estimators_
        with killing_one_worker_after(processes, 0.3) as killed:
            again = model.fit(X, y).estimators_
    assert killed
    for tree, want in zip(again, undisturbed, strict=True):
        np.testing.assert_array_equal(tree.tree_.threshold, want.tree_.threshold)
        np.testing.assert_array_equal(tree.tree_.value, want.tree_.value)


class SlowToAnswer(LogisticRegressionInMemory):
    """Answers slowly enough for a worker to die meanwhile."""

    def predict(self, X):
        time.sleep(0.05)
        return super().predict(X)


def test_predict_survives_a_killed_worker(processes):
    X, y = _rows(40_000)
    X = X.rechunk((1_000, 20))
    model = ParallelPostFit(SlowToAnswer()).fit(X[:1_000].compute(), y[:1_000].compute())
    with killing_one_worker_after(processes, 0.8) as killed:
        got = model.predict(X).compute()
    assert killed
    np.testing.assert_array_equal(got, super(SlowToAnswer, model.estimator_).predict(X.compute()))
