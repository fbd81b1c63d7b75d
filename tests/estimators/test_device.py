"""Fits on the device that was asked for, by a stand-in that refuses hidden copies to the host."""

import warnings
from functools import partial

import dask.array as da
import numpy as np
import pytest
from distributed import get_task_stream
from joblib import parallel_config
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning

from skfleet import _device, config_context
from skfleet._array import is_not_numpy
from skfleet._cluster import scheduler_workers
from skfleet._device import host_to_device_transfers
from skfleet.engine import counting
from skfleet.estimators import BlockwiseVotingClassifier, Incremental
from skfleet.estimators.cluster import KMeans, MiniBatchKMeans, SpectralClustering
from skfleet.estimators.decomposition import PCA, IncrementalPCA, TruncatedSVD
from skfleet.estimators.linear_model import (
    ElasticNet,
    ElasticNetCV,
    GammaRegressor,
    Lasso,
    LassoCV,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from skfleet.estimators.mixture import GaussianMixture
from skfleet.exceptions import PlacementError
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV, cross_val_score

pytestmark = pytest.mark.usefixtures("device")

X, target = make_regression(400, 8, noise=3, random_state=0)
counts = np.abs(target) + 1
labels = np.array(["no", "yes"])[make_classification(400, 8, random_state=0)[1]]

# Each estimator, its targets, and how many arrays its rows are.
CASES = [
    (LinearRegression(), target, 2),
    (Ridge(), target, 2),
    (Lasso(), target, 2),
    (ElasticNet(), target, 2),
    (RidgeCV(), target, 2),
    (LassoCV(), target, 2),
    (ElasticNetCV(), target, 2),
    (PoissonRegressor(), counts, 2),
    (GammaRegressor(), counts, 2),
    (TweedieRegressor(power=1.5), counts, 2),
    (LogisticRegression(), labels, 1),
    (LogisticRegression(l1_ratio=1.0), (labels == "yes").astype(int), 2),
    (RidgeClassifier(), labels, 1),
    (SGDClassifier(max_iter=5, tol=None, random_state=0, batch_size=8), labels, 1),
    (SGDRegressor(max_iter=5, tol=None, random_state=0, batch_size=8), target, 2),
    (KMeans(3, n_init=1, random_state=0), None, 1),
    (MiniBatchKMeans(3, random_state=0), None, 1),
    (GaussianMixture(3, tol=1.0, random_state=0), None, 1),
    (SpectralClustering(3, n_landmarks=40, random_state=0), None, 2),  # and the coordinates
    (PCA(3), None, 1),
    (TruncatedSVD(3, random_state=0), None, 1),
    (IncrementalPCA(3), None, 1),
]


def _name(case):
    return repr(case[0])


def assert_same(one, other):
    for name, value in vars(one).items():
        if name.endswith("_") and not name.startswith("_"):
            found = vars(other)[name]
            assert type(found) is type(value), name
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                np.testing.assert_allclose(found, value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.sampled(27)
@pytest.mark.parametrize("case", CASES, ids=_name)
@pytest.mark.parametrize("rows", ["numpy", "dask"])
@pytest.mark.parametrize("where", ["here", "fleet"])
def test_same_answer_and_each_array_goes_up_once(case, rows, where, request):
    estimator, y, n_arrays = case
    given = X if rows == "numpy" else da.from_array(X, chunks=(150, 8))
    expected = type(estimator)(**estimator.get_params()).fit(given, y)
    on_device = type(estimator)(**estimator.get_params()).set_params(device="cuda")
    before = host_to_device_transfers.n_arrays
    if where == "fleet":
        with request.getfixturevalue("mixed_fleet").as_current():
            on_device.fit(given, y)
    else:
        on_device.fit(given, y)
    assert_same(expected, on_device)
    assert host_to_device_transfers.n_arrays - before == n_arrays * (1 if rows == "numpy" else 3)
    assert not any(is_not_numpy(value) for value in vars(on_device).values())


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_single_precision_is_near_the_double_of_the_host(case):
    estimator, y, _ = case
    expected, found = clone(estimator).fit(X, y), clone(estimator).set_params(device="cuda")
    found.fit(X.astype(np.float32), y)
    for name, value in vars(expected).items():
        if name.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            there = vars(found)[name]
            assert there.dtype in (np.float32, np.float64)
            scale = np.abs(value).max()
            np.testing.assert_allclose(there, value, rtol=1e-3, atol=1e-3 * scale, err_msg=name)


@pytest.mark.parametrize("rows", ["numpy", "dask"])
def test_only_gpu_workers_are_given_the_rows(mixed_fleet, rows):
    given = X if rows == "numpy" else da.from_array(X, chunks=(150, 8))
    workers = scheduler_workers(mixed_fleet)
    with mixed_fleet.as_current(), get_task_stream(mixed_fleet) as stream:
        LogisticRegression(device="cuda").fit(given, labels)
    ran = {(task["key"].rpartition("-")[0], task["worker"]) for task in stream.data}
    assert {"fit-LogisticRegression", "load-block"} & {name for name, _ in ran}
    # a worker without one may be asked to pass rows on
    assert {name for name, a in ran if "GPU" not in workers[a]["resources"]} <= {"hold"}


def test_rows_of_this_process_cost_one_task(mixed_fleet):
    with mixed_fleet.as_current(), counting() as counts:
        LogisticRegression(device="cuda").fit(X, labels)
    assert counts.tasks <= 2  # the rows, and the fit


def test_config_is_for_estimators_that_leave_it_open(mixed_fleet):
    before = host_to_device_transfers.n_arrays
    with mixed_fleet.as_current(), config_context(device="cuda"):
        Ridge(device="cpu").fit(X, target)
        assert host_to_device_transfers.n_arrays == before
        Ridge().fit(X, target)
    assert host_to_device_transfers.n_arrays == before + 2


@pytest.mark.parametrize(
    "learner",
    [
        Incremental(SGDClassifier(random_state=0)),
        BlockwiseVotingClassifier(SGDClassifier(random_state=0)),
        HyperbandSearchCV(
            SGDClassifier(random_state=0), {"alpha": [1e-4, 1e-2]}, max_iter=3, random_state=0
        ),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_config_reaches_those_that_train_others_elsewhere(mixed_fleet, learner):
    rows, y = da.from_array(X, chunks=(150, 8)), da.from_array((labels == "yes") + 0, chunks=150)
    before = host_to_device_transfers.n_arrays
    with mixed_fleet.as_current(), parallel_config("skfleet", client=mixed_fleet):
        for device in ("cpu", "cuda"):
            with config_context(device=device):
                clone(learner).fit(rows, y)
            assert (host_to_device_transfers.n_arrays > before) == (device == "cuda")


def test_score_runs_there_too(mixed_fleet):
    model = KMeans(3, n_init=1, random_state=0).fit(X)
    there = KMeans(3, n_init=1, random_state=0, device="cuda")
    with mixed_fleet.as_current():
        assert there.fit(X).score(X) == pytest.approx(model.score(X))
        density = PCA(3, device="cuda").fit(X).score(X)
    assert density == pytest.approx(PCA(3).fit(X).score(X))


def test_partial_fit_goes_on_from_what_was_learned(mixed_fleet):
    model = IncrementalPCA(3, device="cuda")
    with mixed_fleet.as_current():
        model.partial_fit(X[:200]).partial_fit(X[200:])
    expected = IncrementalPCA(3).partial_fit(X[:200]).partial_fit(X[200:])
    assert_same(expected, model)


def test_parameters_stay_the_callers_own(mixed_fleet):
    alpha = np.float64(0.5)
    here, there = Ridge(alpha, device="cuda").fit(X, target), Ridge(alpha, device="cuda")
    with mixed_fleet.as_current():
        there.fit(X, target)
    assert here.alpha is alpha
    assert there.alpha is alpha


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", [{}, {"epochs": 3}, {"early_stopping": True}, "voting"], ids=str)
@pytest.mark.parametrize("on_dask", [True, False])
def test_wrappers_train_where_their_estimator_computes(mixed_fleet, how, on_dask):
    rows, y = X, labels
    if on_dask:
        rows, y = da.from_array(X, chunks=(100, 8)), da.from_array(labels, chunks=100)
    workers = scheduler_workers(mixed_fleet)
    before = host_to_device_transfers.n_arrays
    if how == "voting":
        wrapper = partial(BlockwiseVotingClassifier, n_blocks=4)
    else:
        wrapper = partial(Incremental, batch_size=100, random_state=0, **how)
    with mixed_fleet.as_current(), get_task_stream(mixed_fleet) as stream:
        found = wrapper(SGDClassifier(random_state=0, batch_size=8, device="cuda")).fit(rows, y)
    expected = wrapper(SGDClassifier(random_state=0, batch_size=8)).fit(rows, y)
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    ran = {(task["key"].rpartition("-")[0], task["worker"]) for task in stream.data}
    elsewhere = {name for name, address in ran if "GPU" not in workers[address]["resources"]}
    assert elsewhere <= {"labels", "labels-combine"}  # they are looked up where the targets are
    assert host_to_device_transfers.n_arrays - before == 4


@pytest.mark.parametrize("on_dask", [False, True])
@pytest.mark.parametrize("kind", [SGDClassifier, Incremental])
def test_validation_rows(kind, on_dask, mixed_fleet):
    stops = {"early_stopping": True, "n_iter_no_change": 3, "random_state": 0}
    if kind is SGDClassifier:
        stops["batch_size"] = 8
        expected, found = SGDClassifier(**stops), SGDClassifier(**stops, device="cuda")
    else:
        expected, found = (
            Incremental(
                SGDClassifier(random_state=0, batch_size=8, device=device), epochs=20, **stops
            )
            for device in ("cpu", "cuda")
        )
    rows = X[:300], labels[:300], X[300:], labels[300:]
    if on_dask:
        rows = [da.from_array(v, chunks=(300, 8)[: v.ndim]) for v in rows]
    val = {"X_val": rows[2], "y_val": rows[3]}
    expected.fit(*rows[:2], **val)
    with mixed_fleet.as_current():
        found.fit(*rows[:2], **val)
    np.testing.assert_allclose(found.history_.score, expected.history_.score)
    for model in (expected, found):
        model.restore_best_epoch()
    assert found.n_iter_ == expected.n_iter_ < len(found.history_)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-6)
    assert type(found.coef_) is np.ndarray


def test_warnings_come_home(mixed_fleet):
    with mixed_fleet.as_current(), pytest.warns(ConvergenceWarning):
        PoissonRegressor(max_iter=1, tol=1e-12, device="cuda").fit(X, counts)


def test_a_failed_fit_changes_nothing(mixed_fleet):
    model = Ridge(device="cuda")
    with mixed_fleet.as_current():
        model.fit(X, target)
        before = dict(vars(model))
        with pytest.raises(ValueError, match="NaN"):
            model.fit(np.full_like(X, np.nan), target)
    assert vars(model) == before


def test_refuses_what_cannot_be(mixed_fleet):
    with pytest.raises(ValueError, match="device must be one of"):
        Ridge(device="gpu").fit(X, target)
    for rows in (sparse.csr_array(X), da.from_array(X, chunks=(150, 8)).map_blocks(_csr)):
        with (
            mixed_fleet.as_current(),
            pytest.raises(ValueError, match="X must be dense to be on a GPU"),
        ):
            Ridge(device="cuda").fit(rows, target)


def _csr(block):
    return sparse.csr_array(block)


def test_refuses_where_nobody_has_a_gpu(monkeypatch, cluster_client):
    monkeypatch.setattr(_device, "_device_library", lambda named: None)
    for rows in (X, da.from_array(X, chunks=(150, 8))):
        with pytest.raises(PlacementError):
            Ridge(device="cuda").fit(rows, target)
        with (
            cluster_client.as_current(),
            counting() as counts,
            pytest.raises(PlacementError, match="GPU"),
        ):
            Ridge(device="cuda").fit(rows, target)
        assert counts.tasks == 0


def test_task_on_a_worker_labelled_gpu_without_one_does_not_wait_for_itself(
    monkeypatch, mixed_fleet
):
    monkeypatch.setattr(_device, "_device_library", lambda named: None)
    model = Ridge(device="cuda")
    task = mixed_fleet.submit(model.fit, X, target, resources={"GPU": 1}, pure=False)
    with pytest.raises(PlacementError, match="GPU=1"):
        task.result(timeout=20)


def test_rows_larger_than_the_workers_memory_are_streamed(mixed_fleet):
    rows = da.from_array(X, chunks=(100, 8))
    expected = LogisticRegression().fit(X, labels)
    before = host_to_device_transfers.n_arrays
    with mixed_fleet.as_current(), config_context(keep_blocks=False), warnings.catch_warnings():
        model = LogisticRegression(device="cuda").fit(rows, labels)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-4, atol=1e-4)
    assert host_to_device_transfers.n_arrays - before > 4


def test_targets_and_weights_on_a_device_come_to_rows_on_the_host(device):
    weight, codes = counts / counts.max(), (labels == "yes").astype(int)
    expected = Ridge().fit(X, target, weight)
    y, w = _device.to_device(target), _device.to_device(weight)
    np.testing.assert_allclose(Ridge().fit(X, y, w).coef_, expected.coef_)
    expected = LogisticRegression().fit(X, codes)
    found = LogisticRegression().fit(X, _device.to_device(codes))
    np.testing.assert_allclose(found.coef_, expected.coef_)


def test_searches_bring_rows_on_a_device_to_the_host(device, mixed_fleet):
    codes = (labels == "yes").astype(int)
    rows, y = _device.to_device(X), _device.to_device(codes)
    grid, how = {"C": [0.1, 1.0]}, {"cv": 3, "n_jobs": 2}
    expected = GridSearchCV(LogisticRegression(), grid, **how).fit(X, codes)
    with mixed_fleet.as_current():
        found = GridSearchCV(LogisticRegression(), grid, **how).fit(rows, y)
        scores = cross_val_score(LogisticRegression(), rows, y, cv=3)
    for name in ("mean_test_score", "param_C"):
        assert list(found.cv_results_[name]) == list(expected.cv_results_[name])
    np.testing.assert_allclose(
        scores, cross_val_score(LogisticRegression(), X, codes, cv=3), rtol=1e-12
    )


@pytest.mark.parametrize("case", [case for case in CASES if case[1] is not None], ids=_name)
def test_targets_on_a_device_are_those_of_the_host(case, device):
    model, y, _ = case
    if y.dtype.kind not in "if":
        y = (labels == "yes").astype(int)
    expected = clone(model).fit(X, y)
    assert_same(clone(model).fit(_device.to_device(X), _device.to_device(y)), expected)


@pytest.mark.parametrize("wrapped", [BlockwiseVotingClassifier, Incremental])
def test_wrappers_take_targets_on_a_device(wrapped, device):
    y = (labels == "yes").astype(int)
    model = wrapped(SGDClassifier(max_iter=5, tol=None, random_state=0, batch_size=8))
    expected = clone(model).fit(X, y).predict(X)
    found = model.fit(_device.to_device(X), _device.to_device(y))
    np.testing.assert_array_equal(found.predict(X), expected)
    np.testing.assert_array_equal(found.classes_, [0, 1])
