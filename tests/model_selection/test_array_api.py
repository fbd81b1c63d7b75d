"""Searches over scikit-learn's own estimators on GPU workers, by its Array API dispatch."""

import dask.array as da
import numpy as np
import pytest
import sklearn
from joblib import parallel_config
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV as Reference
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeRegressor

from skfleet import Fleet, _device, config_context
from skfleet._array import is_not_numpy
from skfleet._cluster import scheduler_workers
from skfleet._device import host_to_device_transfers
from skfleet.engine import device_of
from skfleet.engine._gpu._cpu_models import to_cpu_estimator
from skfleet.estimators import ParallelPostFit
from skfleet.estimators import Ridge as FleetRidge
from skfleet.exceptions import PlacementError
from skfleet.model_selection import GridSearchCV, cross_validate

pytestmark = [
    pytest.mark.usefixtures("device", "scipy_lets"),
    # NumPy's warning in the stand-in, which scikit-learn silences for NumPy alone
    pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning"),
]

X, y = load_diabetes(return_X_y=True)
measured, labels = load_breast_cancer(return_X_y=True)
measured = StandardScaler().fit_transform(measured)
names = np.array(["malignant", "benign"])[labels]

SVD = Ridge(solver="svd")


@pytest.fixture
def scipy_lets(monkeypatch):
    """What scikit-learn asks for. SciPy itself would have to find it when it is imported."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")


def asked():
    return config_context(device="cuda"), sklearn.config_context(array_api_dispatch=True)


def kinds_of(search, client):
    workers = scheduler_workers(client)
    return [next(iter(workers[fit.worker]["resources"])) for fit in search.timeline_.itertuples()]


def arrays_in(value):
    """Give all arrays in a model, wherever they are."""
    if isinstance(value, list | tuple):
        return [array for one in value for array in arrays_in(one)]
    if hasattr(value, "get_params"):
        return arrays_in(list(vars(value).values()))
    return [value] if hasattr(value, "shape") else []


@pytest.mark.parametrize(
    ("estimator", "parameters", "expected"),
    [
        (Ridge(), {}, "cuda"),
        (make_pipeline(StandardScaler(), PCA(svd_solver="full"), Ridge()), {}, "cuda"),
        (PCA(svd_solver="arpack"), {}, "cpu"),
        (PCA(svd_solver="arpack"), {"svd_solver": "full"}, "cuda"),
        (make_pipeline(PCA(svd_solver="full")), {"pca__svd_solver": "arpack"}, "cpu"),
        (LogisticRegression(), {"solver": "newton-cg"}, "cpu"),
        (make_pipeline(OneHotEncoder(), Ridge()), {}, "cpu"),
        (Pipeline([("m", OneHotEncoder())]), {"m": SVD}, "cuda"),
        (Pipeline([("s", "passthrough"), ("m", SVD)]), {}, "cuda"),
        (FeatureUnion([("a", StandardScaler()), ("b", OneHotEncoder())]), {}, "cpu"),
        (GaussianProcessRegressor(RBF()), {}, "cpu"),
    ],
    ids=str,
)
def test_the_tag_says_where(estimator, parameters, expected):
    device, dispatch = asked()
    assert device_of(estimator, parameters) == "cpu"
    with dispatch:
        assert device_of(estimator, parameters) == "cpu"
        with device:
            assert device_of(estimator, parameters) == expected


@pytest.mark.parametrize(
    ("estimator", "grid", "rows", "target", "scoring"),
    [
        (SVD, {"alpha": [0.1, 1.0]}, X, y, None),
        (SVD, {"alpha": [0.1, 1.0]}, X, y, "neg_mean_absolute_error"),
        (LinearDiscriminantAnalysis(), {"tol": [1e-4, 1e-3]}, measured, labels, None),
        (LinearDiscriminantAnalysis(), {"tol": [1e-4, 1e-3]}, measured, labels, "roc_auc"),
        (GaussianNB(), {"var_smoothing": [1e-9, 1e-2]}, measured, names, "accuracy"),
        (PCA(svd_solver="full"), {"n_components": [2, 3]}, X, None, None),
        (
            make_pipeline(StandardScaler(), PCA(svd_solver="full"), SVD),
            {"pca__n_components": [2, 3]},
            X,
            y,
            None,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scores_are_those_of_the_host(mixed_fleet, estimator, grid, rows, target, scoring):
    rows = rows + 0.0  # rows of their own, to be counted
    device, dispatch = asked()
    before = host_to_device_transfers.n_arrays
    with device, dispatch, parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(
            estimator, grid, cv=3, scoring=scoring, share_fits=False, error_score="raise"
        ).fit(rows, target)
    assert (
        host_to_device_transfers.n_arrays - before <= 2
    )  # the rows for all fits, and to fit the winner
    assert kinds_of(search, mixed_fleet) == ["GPU"] * 6
    expected = Reference(estimator, grid, cv=3, scoring=scoring).fit(rows, target)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-6
    )
    best = arrays_in(search.best_estimator_)
    assert best
    assert not any(map(is_not_numpy, best))
    if hasattr(expected, "predict") and target is not None and target.dtype.kind == "f":
        np.testing.assert_allclose(search.predict(rows), expected.predict(rows), rtol=1e-6)
    elif target is not None:
        np.testing.assert_array_equal(search.predict(rows), expected.predict(rows))


def test_candidates_without_support_stay_on_cpu_workers(mixed_fleet):
    pipe = Pipeline([("m", SVD)])
    grid = [
        {"m": [SVD], "m__alpha": [0.1, 1.0]},
        {"m": [DecisionTreeRegressor(random_state=0)], "m__max_depth": [1, 2]},
        {"m": [FleetRidge()], "m__alpha": [0.1]},
    ]
    device, dispatch = asked()
    with device, dispatch, parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(pipe, grid, cv=3, share_fits=False, refit=False).fit(X, y)
    assert sorted(kinds_of(search, mixed_fleet)) == ["CPU"] * 6 + ["GPU"] * 9
    grid[2] = {"m": [Ridge()], "m__alpha": [0.1]}
    expected = Reference(pipe, grid, cv=3, refit=False).fit(X, y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-6
    )


def test_weights_go_along_and_models_come_home(mixed_fleet):
    weights = np.linspace(0.1, 1.0, len(y))
    device, dispatch = asked()
    told = {"params": {"sample_weight": weights}, "return_estimator": True, "cv": 3}
    with device, dispatch, parallel_config("skfleet", client=mixed_fleet):
        found = cross_validate(SVD, X, y, **told)
    expected = sklearn.model_selection.cross_validate(SVD, X, y, **told)
    np.testing.assert_allclose(found["test_score"], expected["test_score"], rtol=1e-6)
    for one, other in zip(found["estimator"], expected["estimator"], strict=True):
        assert type(one.coef_) is np.ndarray
        np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6)


def test_a_fit_that_fails_is_the_users(mixed_fleet):
    device, dispatch = asked()
    search = GridSearchCV(Ridge(), {"solver": ["svd", "lsqr"]}, cv=2, error_score="raise")
    with (
        device,
        dispatch,
        parallel_config("skfleet", client=mixed_fleet),
        pytest.raises(ValueError, match="svd"),
    ):
        search.set_params(share_fits=False).fit(X, y)


def test_nobody_has_a_gpu(cluster_client):
    device, dispatch = asked()
    with (
        device,
        dispatch,
        parallel_config("skfleet", client=cluster_client),
        pytest.raises(PlacementError, match="GPU=1"),
    ):
        GridSearchCV(SVD, {"alpha": [0.1, 1.0]}).fit(X, y)


def test_a_driver_without_a_gpu_fits_there_and_predicts_anywhere(mixed_fleet, monkeypatch):
    monkeypatch.setattr("skfleet.estimators._method_dispatch.device_library", lambda: None)
    device, dispatch = asked()
    before = host_to_device_transfers.n_arrays
    with device, dispatch, mixed_fleet.as_current():
        model = ParallelPostFit(make_pipeline(StandardScaler(), SVD)).fit(X, y)
        answer = model.predict(da.from_array(X, chunks=(100, 10))).compute()
    assert host_to_device_transfers.n_arrays - before == 1
    assert not any(map(is_not_numpy, arrays_in(model.estimator_)))
    np.testing.assert_allclose(answer, make_pipeline(StandardScaler(), SVD).fit(X, y).predict(X))


def test_models_are_changed_only_where_something_lies_on_a_device():
    model = make_pipeline(StandardScaler(), LinearRegression()).fit(X, y)
    assert to_cpu_estimator(model) is model
    library = _device.device_library()
    model[-1].coef_ = there = library.xp.asarray(model[-1].coef_, device=library.device)
    model[0].more_ = {"a": [there], "b": 1}
    home = to_cpu_estimator(model)
    assert home is not model
    assert model[-1].coef_ is there
    assert type(home[-1].coef_) is type(home[0].more_["a"][0]) is np.ndarray
    assert home[0].mean_ is model[0].mean_


@pytest.mark.slow
@pytest.mark.parametrize("lets", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_worker_processes_need_the_variable_of_scipy(device, monkeypatch, lets):
    if not device:
        pytest.skip("tried with a stand-in for the device")
    monkeypatch.delenv(_device.DEVICE_VARIABLE)
    env = {_device.DEVICE_VARIABLE: device, "SCIPY_ARRAY_API": lets}
    config, dispatch = asked()
    search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2, error_score="raise")
    search.set_params(share_fits=False)
    with (
        Fleet(resources=[{"CPU": 1}, {"GPU": 1}], env=env, dashboard_address=None) as client,
        config,
        dispatch,
    ):
        if lets == "0":
            with pytest.raises(RuntimeError, match="SCIPY_ARRAY_API=1"):
                search.fit(measured, names)
            return
        search.fit(measured, names)
        assert kinds_of(search, client) == ["GPU"] * 4
    expected = Reference(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2).fit(measured, names)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )
    np.testing.assert_allclose(
        search.best_estimator_.coef_, expected.best_estimator_.coef_, rtol=1e-6
    )
