"""ParallelPostFit around models that compute on a GPU, on fleets where some workers have none."""

import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression as HostLogisticRegression
from sklearn.linear_model import Ridge as HostRidge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfleet import Fleet, _device
from skfleet._array import is_not_numpy, to_host
from skfleet._cluster import scheduler_workers
from skfleet._device import host_to_device_transfers, to_device
from skfleet.engine import counting
from skfleet.engine._gpu._cpu_models import to_cpu_estimator
from skfleet.engine._gpu._cuml_model import call_response_method
from skfleet.estimators import PCA, Incremental, ParallelPostFit
from skfleet.estimators import Ridge as FleetRidge
from skfleet.exceptions import PlacementError
from skfleet.fleet._local_cluster import start_local_cluster
from skfleet.model_selection import HyperbandSearchCV

X, y = load_diabetes(return_X_y=True)
labelled, labels = load_breast_cancer(return_X_y=True)
labelled = StandardScaler().fit_transform(labelled)
labels = np.array(["malignant", "benign"])[labels]
rows = da.from_array(X, chunks=(100, 10))


@pytest.fixture
def trained(cuml, monkeypatch):
    """A model fitted in this process, as where it has a GPU."""
    monkeypatch.setattr(cuml, "gpu_outside", True, raising=False)
    return cuml.Ridge().fit(X, y)


def workers_with(label, client):
    workers = scheduler_workers(client)
    return [address for address, worker in workers.items() if label in worker["resources"]]


@pytest.mark.parametrize("label", ["CPU", "GPU"])
@pytest.mark.parametrize("container", ["array", "frame"])
def test_each_kind_of_worker_answers_with_what_it_can_use(
    mixed_fleet, cuml, trained, label, container
):
    given = rows if container == "array" else dd.from_pandas(pd.DataFrame(X), npartitions=5)
    n_calls = len(getattr(cuml, "calls", ()))
    with mixed_fleet.as_current():
        answer = ParallelPostFit(trained).predict(given)
        n_announced = len(getattr(cuml, "calls", ()))
        found = mixed_fleet.compute(answer, workers=workers_with(label, mixed_fleet)).result()
    expected = HostRidge().fit(X, y).predict(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert type(found) is (np.ndarray if container == "array" else pd.Series)
    if hasattr(cuml, "calls"):
        assert n_announced - n_calls == 1
        assert len(cuml.calls) - n_announced == (5 if label == "GPU" else 0)


def test_rows_go_up_where_all_steps_take_them_and_answers_come_home(device, trained, cuml):
    before = host_to_device_transfers.n_arrays
    found = call_response_method(trained, "predict", X, {})
    assert host_to_device_transfers.n_arrays - before == 1
    assert type(found) is np.ndarray
    pipe = make_pipeline(StandardScaler(), cuml.Ridge()).fit(X, y)
    found = call_response_method(pipe, "predict", X, {})
    assert host_to_device_transfers.n_arrays - before == 1
    assert type(found) is np.ndarray
    there = call_response_method(trained, "predict", to_device(X), {})
    assert is_not_numpy(there)
    np.testing.assert_allclose(to_host(there), trained.as_sklearn().predict(X), rtol=1e-5)


@pytest.mark.parametrize("label", ["CPU", "GPU"])
def test_models_of_ours_answer_anywhere(mixed_fleet, device, label):
    model = make_pipeline(PCA(3), FleetRidge())
    expected = model.fit(X, y).predict(X)
    model.set_params(pca__device="cuda", ridge__device="cuda")
    before = host_to_device_transfers.n_arrays
    with mixed_fleet.as_current():
        answer = ParallelPostFit(model).predict(rows)
        found = mixed_fleet.compute(answer, workers=workers_with(label, mixed_fleet)).result()
    assert host_to_device_transfers.n_arrays - before == (
        6 if label == "GPU" else 1
    )  # one to see what comes
    assert type(found) is np.ndarray
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_large_models_are_lent_in_both_forms(mixed_fleet, cuml, trained, monkeypatch):
    from skfleet.inference import _model_cache

    monkeypatch.setattr(_model_cache, "MIN_SCATTER_BYTES", 1)
    expected = HostRidge().fit(X, y).predict(X)
    model = ParallelPostFit(trained)
    for label in ("CPU", "GPU"):
        with mixed_fleet.as_current():
            answer = model.predict(rows)
            found = mixed_fleet.compute(answer, workers=workers_with(label, mixed_fleet)).result()
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_model_without_an_equivalent_answers_on_gpu_workers(mixed_fleet, cuml, monkeypatch):
    if not hasattr(cuml, "OnlyHere"):
        pytest.skip("which of cuML's have none changes from version to version")
    monkeypatch.setattr(cuml, "gpu_outside", True)
    model = cuml.OnlyHere().fit(X, y)
    with mixed_fleet.as_current():
        answer = ParallelPostFit(model).predict(rows)
        found = mixed_fleet.compute(answer, resources={"GPU": 1}).result()
        np.testing.assert_allclose(found, HostRidge().fit(X, y).predict(X))
        task = mixed_fleet.compute(answer, workers=workers_with("CPU", mixed_fleet))
        with pytest.raises(PlacementError, match="OnlyHere must have an equivalent"):
            task.result()


@pytest.mark.parametrize(("penalty", "l1_ratio"), [("l2", 0.0), ("l1", 1.0), ("elasticnet", 0.4)])
def test_the_equivalent_of_a_logistic_regression_has_its_penalty(
    cuml, monkeypatch, penalty, l1_ratio
):
    monkeypatch.setattr(cuml, "gpu_outside", True, raising=False)
    ratio = {"l1_ratio": l1_ratio} if penalty == "elasticnet" else {}
    model = cuml.LogisticRegression(C=0.1, penalty=penalty, **ratio).fit(labelled, labels)
    equivalent = to_cpu_estimator(model)
    assert type(equivalent) is HostLogisticRegression
    assert equivalent.l1_ratio == l1_ratio
    again = clone(equivalent).set_params(solver="saga", tol=1e-6, max_iter=10_000, random_state=0)
    coef = again.fit(labelled, labels).coef_
    np.testing.assert_allclose(coef, to_host(equivalent.coef_), atol=2e-2)


def test_where_no_worker_has_a_gpu_it_raises_before_work(cuml, monkeypatch):
    if not hasattr(cuml, "OnlyHere"):
        pytest.skip("which of cuML's have none changes from version to version")
    monkeypatch.setattr(cuml, "gpu_outside", True)
    model = ParallelPostFit(cuml.OnlyHere().fit(X, y))
    with (
        start_local_cluster(processes=False, resources=[{"CPU": 1}]) as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
        pytest.raises(PlacementError, match="OnlyHere"),
    ):
        model.predict(rows)
    np.testing.assert_allclose(  # here there is one
        model.predict(rows).compute(scheduler="sync"), HostRidge().fit(X, y).predict(X)
    )


def test_models_of_other_libraries_are_fitted_on_a_gpu_worker(mixed_fleet, device, monkeypatch):
    xgboost = pytest.importorskip("xgboost")
    if not device:
        pytest.skip("this process has a GPU")
    seen = []
    whole = _device.device_library()
    monkeypatch.setattr("skfleet.estimators._method_dispatch.device_library", lambda: None)
    monkeypatch.setattr(
        xgboost.XGBRegressor, "fit", lambda self, X, y: seen.append(type(X)) or self, raising=True
    )
    with mixed_fleet.as_current():
        model = ParallelPostFit(xgboost.XGBRegressor(device="cuda")).fit(X, y)
    assert isinstance(model.estimator_, xgboost.XGBRegressor)
    assert [kind.__module__.partition(".")[0] for kind in seen] == [whole.xp.__name__]


def test_nobody_has_a_gpu_to_fit_on(cluster_client, cuml, monkeypatch):
    monkeypatch.setattr(_device, "_device_library", lambda named: None)
    with (
        cluster_client.as_current(),
        counting() as counts,
        pytest.raises(PlacementError, match="GPU=1"),
    ):
        ParallelPostFit(cuml.Ridge()).fit(X, y)
    assert counts.tasks == 0


@pytest.fixture
def processes(cuml, device, monkeypatch):
    """Real processes, of which one has a GPU; this one has none."""
    if not device:
        with Fleet(cpus=1, gpus=1, dashboard_address=None) as client:
            yield client
        return
    monkeypatch.delenv(_device.DEVICE_VARIABLE)
    labels = [{"CPU": 1}, {"GPU": 1}]
    env = {_device.DEVICE_VARIABLE: device}
    with Fleet(resources=labels, env=env, dashboard_address=None) as client:
        yield client


@pytest.mark.slow
def test_a_driver_without_a_gpu_trains_and_predicts_on_a_fleet_with_one(processes, cuml):
    rows_of_labels = da.from_array(labelled, chunks=(100, 30))
    for est, reference, method, given, target in (
        (cuml.Ridge(), HostRidge(), "predict", rows, y),
        (
            make_pipeline(StandardScaler(), cuml.LogisticRegression()),
            make_pipeline(StandardScaler(), HostLogisticRegression()),
            "predict",
            rows_of_labels,
            labels,
        ),
    ):
        host_rows = given.compute()
        model = ParallelPostFit(est).fit(host_rows, target)
        expected = getattr(reference.fit(host_rows, target), method)(host_rows)
        for again in (model, pickle.loads(pickle.dumps(model))):
            answers = [getattr(again, method)(host_rows)]
            for label in ("CPU", "GPU"):
                lazy = getattr(again, method)(given)
                place = workers_with(label, processes)
                answers.append(processes.compute(lazy, workers=place).result())
            for answer in answers:
                assert type(answer) is np.ndarray
                if answer.dtype.kind == "f":
                    np.testing.assert_allclose(answer, expected, rtol=1e-4)
                else:
                    assert np.mean(answer == expected) > 0.99
        if hasattr(cuml, "calls"):
            assert type(model.estimator_) is type(reference)
    if hasattr(cuml, "OnlyHere"):
        with counting() as counts, pytest.raises(TypeError, match="OnlyHere must have"):
            ParallelPostFit(cuml.OnlyHere()).fit(X, y)
        assert counts.tasks == 0


def test_what_cuml_cannot_learn_in_parts_is_refused_before_work(mixed_fleet, cuml, monkeypatch):
    def tried(estimator):
        for model in (
            Incremental(estimator),
            HyperbandSearchCV(estimator, {"alpha": [0.1, 1.0]}, max_iter=3),
        ):
            with mixed_fleet.as_current(), counting() as counts:
                with pytest.raises(TypeError) as raised:
                    model.fit(rows, y)
                yield str(raised.value)
            assert counts.tasks == 0

    for message in tried(cuml.Ridge()):
        assert "partial_fit. Got cuml.Ridge instead" in message
        assert "skfleet.estimators.SGDRegressor(device='cuda')" in message
    for message in tried(cuml.LogisticRegression()):
        assert "SGDClassifier(device='cuda')" in message
    monkeypatch.setattr(cuml.Ridge, "partial_fit", lambda self, X, y: self, raising=False)
    monkeypatch.setattr(_device, "_device_library", lambda named: None)
    for message in tried(cuml.Ridge()):
        assert "Got cuml.Ridge and no GPU here" in message
