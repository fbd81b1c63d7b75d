"""Searches over models of which some compute on a GPU, with a stand-in for the device."""

import pickle
import warnings
from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from joblib import parallel_config
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LinearRegression as HostLinearRegression
from sklearn.linear_model import LogisticRegression as HostLogisticRegression
from sklearn.linear_model import Ridge as HostRidge
from sklearn.model_selection import GridSearchCV as Reference
from sklearn.model_selection import KFold, cross_val_predict, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from skfleet import _device, config_context
from skfleet._cluster import scheduler_workers
from skfleet._device import host_to_device_transfers
from skfleet.engine import counting, device_of, device_responses, run_on_gpu_worker
from skfleet.engine._gpu._device_cache import cached_bytes
from skfleet.estimators.cluster import KMeans
from skfleet.estimators.linear_model import (
    ElasticNet,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
)
from skfleet.exceptions import PlacementError
from skfleet.fleet._local_cluster import start_local_cluster
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HyperbandSearchCV,
    cross_validate,
)
from skfleet.model_selection._dispatch import _array_api_scorer
from skfleet.model_selection._dispatch._routes import _closed_form

pytestmark = pytest.mark.usefixtures("device")

X, y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
names = np.array(["malignant", "benign"])[y]
X_reg, y_reg = load_diabetes(return_X_y=True)


def kinds_of(search, client):
    """Count the fits that each kind of worker made."""
    workers = scheduler_workers(client)
    used = {"CPU": 0, "GPU": 0}
    for fit in search.timeline_.itertuples():
        (label,) = workers[fit.worker]["resources"]
        used[label] += 1
    return used


@pytest.mark.parametrize(
    ("estimator", "parameters", "expected"),
    [
        (HostLogisticRegression(), None, "cpu"),
        (LogisticRegression(), None, "cpu"),
        (LogisticRegression(device="cuda"), None, "cuda"),
        (LogisticRegression(device="cuda"), {"device": "cpu"}, "cpu"),
        (LogisticRegression(), {"device": "cuda"}, "cuda"),
        (make_pipeline(StandardScaler(), Ridge(device="cuda")), None, "cuda"),
        (make_pipeline(StandardScaler(), Ridge()), {"ridge__device": "cuda"}, "cuda"),
        (make_pipeline(StandardScaler(), Ridge(device="cuda")), {"ridge": HostRidge()}, "cpu"),
        (Pipeline([("m", HostRidge())]), {"m__device": "cuda", "m": Ridge()}, "cuda"),
    ],
    ids=str,
)
def test_placement(estimator, parameters, expected):
    assert device_of(estimator, parameters) == expected


def test_placement_of_other_libraries(cuml):
    assert device_of(cuml.Ridge()) == "cuda"
    xgboost, lightgbm = pytest.importorskip("xgboost"), pytest.importorskip("lightgbm")
    assert device_of(xgboost.XGBClassifier()) == "cpu"
    assert device_of(xgboost.XGBClassifier(device="cuda")) == "cuda"
    assert device_of(xgboost.XGBClassifier(device="cuda:0")) == "cuda"
    assert device_of(xgboost.XGBClassifier(tree_method="gpu_hist")) == "cuda"
    assert device_of(lightgbm.LGBMClassifier()) == "cpu"
    assert device_of(lightgbm.LGBMClassifier(device="gpu")) == "cuda"
    assert device_of(lightgbm.LGBMClassifier(device_type="cuda")) == "cuda"


def test_placement_follows_the_configuration():
    with config_context(device="cuda"):
        assert device_of(Ridge()) == "cuda"
        assert device_of(Ridge(device="cpu")) == "cpu"
        assert device_of(HostRidge()) == "cpu"


def test_a_mixed_grid_keeps_workers_of_both_kinds_busy(mixed_fleet, cuml):
    grid = [
        {"m": [DecisionTreeClassifier(random_state=0)], "m__max_depth": [1, 2, 3]},
        {"m": [LogisticRegression(device="cuda")], "m__C": [0.1, 1.0]},
        {"m": [cuml.LogisticRegression()], "m__C": [0.5]},
    ]
    plain = [
        grid[0],
        {"m": [HostLogisticRegression()], "m__C": [0.1, 1.0]},
        {"m": [HostLogisticRegression()], "m__C": [0.5]},
    ]
    pipe = Pipeline([("m", GaussianNB())])
    before = host_to_device_transfers.n_arrays
    with parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(pipe, grid, cv=4, refit=False).fit(X, names)
    assert host_to_device_transfers.n_arrays - before == 1  # the rows, once for all fits and scores
    assert kinds_of(search, mixed_fleet) == {"CPU": 12, "GPU": 12}
    expected = Reference(pipe, plain, cv=4, refit=False).fit(X, names)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], atol=2e-3
    )


@pytest.mark.parametrize("n_rows", [40, 442])
def test_scores_are_those_of_the_host_and_the_winner_is_a_host_model(mixed_fleet, cuml, n_rows):
    rows, targets = X_reg[:n_rows], y_reg[:n_rows]
    grid = {"alpha": [0.01, 0.1, 1.0]}
    before = host_to_device_transfers.n_arrays
    with parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(
            cuml.Ridge(), grid, cv=5, scoring=["r2", "neg_mean_absolute_error"], refit="r2"
        ).fit(rows, targets)
    assert host_to_device_transfers.n_arrays - before == 1  # for the fits, and to fit the winner
    expected = Reference(HostRidge(), grid, cv=5, scoring="r2").fit(rows, targets)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_r2"], expected.cv_results_["mean_test_score"], rtol=1e-5
    )
    assert type(search.best_estimator_) is HostRidge
    np.testing.assert_allclose(search.predict(rows), expected.predict(rows), rtol=1e-5)
    assert search.n_features_in_ == rows.shape[1]


def test_our_winner_is_fitted_there_and_comes_home(mixed_fleet):
    with mixed_fleet.as_current(), parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(LogisticRegression(device="cuda"), {"C": [0.1, 1.0]}).fit(X, names)
    expected = Reference(LogisticRegression(), {"C": [0.1, 1.0]}).fit(X, names)
    assert search.best_params_ == expected.best_params_
    np.testing.assert_allclose(
        search.best_estimator_.coef_, expected.best_estimator_.coef_, rtol=1e-6
    )
    assert isinstance(search.best_estimator_.coef_, np.ndarray)


def test_pipelines_whose_first_steps_are_the_hosts(mixed_fleet):
    pipe = make_pipeline(StandardScaler(), LogisticRegression(device="cuda"))
    grid = {"logisticregression__C": [0.1, 1.0]}
    with mixed_fleet.as_current(), parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(pipe, grid, cv=3).fit(X, y)
    reference = make_pipeline(StandardScaler(), HostLogisticRegression())
    expected = Reference(reference, grid, cv=3).fit(X, y)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], atol=2e-3
    )
    assert kinds_of(search, mixed_fleet) == {"CPU": 0, "GPU": 6}


@pytest.mark.parametrize("estimator", [Ridge, ElasticNet])
def test_rows_on_dask_are_scored_from_sums_made_on_the_device(mixed_fleet, estimator):
    rows = da.from_array(X_reg, chunks=(150, 10))
    grid = {"alpha": [0.01, 0.1, 1.0]}
    before = host_to_device_transfers.n_arrays
    with (
        mixed_fleet.as_current(),
        parallel_config("skfleet", client=mixed_fleet),
        counting() as counts,
    ):
        search = GridSearchCV(estimator(device="cuda"), grid, cv=3, refit=False).fit(rows, y_reg)
    assert host_to_device_transfers.n_arrays - before == 6  # X and y of three blocks
    assert counts.passes == 1
    expected = GridSearchCV(estimator(), grid, cv=3, refit=False).fit(X_reg, y_reg)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
    )


@pytest.mark.parametrize("scoring", ["r2", "neg_mean_absolute_error"])
@pytest.mark.parametrize(
    ("estimator", "grid"),
    [
        (Ridge, {"alpha": [0.01, 0.1, 1.0, 10.0]}),
        (ElasticNet, {"alpha": [0.01, 0.1, 1.0], "l1_ratio": [0.2, 0.8]}),
        (LinearRegression, {"fit_intercept": [True, False]}),
    ],
    ids=["ridge", "elastic-net", "least-squares"],
)
def test_rows_of_this_process_are_scored_from_sums_on_one_worker(
    mixed_fleet, estimator, grid, scoring
):
    how = {"cv": 5, "scoring": scoring, "return_train_score": True}
    before = host_to_device_transfers.n_arrays
    with mixed_fleet.as_current(), counting() as counts:
        search = GridSearchCV(estimator(device="cuda"), grid, **how).fit(X_reg, y_reg)
    assert (
        host_to_device_transfers.n_arrays - before == 1
    )  # the rows, once for all scores and the last fit
    assert counts.tasks == 2
    assert cached_bytes() == 0
    assert search.timeline_.empty  # no fit was made
    expected = GridSearchCV(estimator(), grid, n_jobs=1, **how).fit(X_reg, y_reg)
    tight = {"rtol": 1e-6} if estimator is not ElasticNet else {"rtol": 1e-3}  # its own tol
    for name, values in expected.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_allclose(search.cv_results_[name], values, **tight)
    with parallel_config("skfleet", client=mixed_fleet):
        host = GridSearchCV(estimator(), grid, **how).fit(X_reg, y_reg)
    for name, values in host.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_allclose(search.cv_results_[name], values, rtol=1e-6)


@pytest.mark.parametrize("cv", [KFold(5), KFold(5, shuffle=True, random_state=0)])
@pytest.mark.parametrize("ours", [Ridge(device="cuda"), RidgeClassifier(device="cuda")])
def test_splits_are_sent_as_a_small_number_for_each_row_at_most(mixed_fleet, monkeypatch, cv, ours):
    sent = []

    def counted(*args):
        sent.append(args)
        return run_on_gpu_worker(*args)

    monkeypatch.setattr(_closed_form, "run_on_gpu_worker", counted)
    targets = y_reg > 150 if is_classifier(ours) else y_reg
    search = GridSearchCV(ours, {"alpha": [0.1, 1.0]}, cv=cv, refit=False)
    with parallel_config("skfleet", client=mixed_fleet):
        search.fit(X_reg, targets)
    ((*_, folds, _n_slots, _params, _names, _train),) = sent
    assert len(folds) == 5
    per_row = len(X_reg) if cv.shuffle else 0
    assert len(pickle.dumps(folds)) < 1000 + per_row
    expected = Reference(
        clone(ours).set_params(device="cpu"), search.param_grid, cv=cv, refit=False
    )
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"],
        expected.fit(X_reg, targets).cv_results_["mean_test_score"],
    )


@pytest.mark.parametrize("estimator", [Ridge, ElasticNet])
def test_sums_over_rows_in_single_precision_are_of_doubles(mixed_fleet, estimator):
    grid, rows = {"alpha": [0.01, 0.1, 1.0]}, (X_reg * 20).astype(np.float32)
    how = {"cv": 5, "refit": False, "scoring": ["r2", "neg_mean_absolute_error"]}
    before = host_to_device_transfers.n_bytes
    with parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(estimator(device="cuda"), grid, **how).fit(rows, y_reg)
    assert host_to_device_transfers.n_bytes - before == rows.nbytes
    assert search.timeline_.empty  # no fit was made
    doubles = rows.astype(float)
    expected = GridSearchCV(estimator(), grid, n_jobs=1, **how).fit(doubles, y_reg)
    tol = 1e-9 if estimator is Ridge else 1e-3  # its own
    for name, values in expected.cv_results_.items():
        if name.startswith("split"):
            np.testing.assert_allclose(search.cv_results_[name], values, rtol=tol)


def test_what_sums_do_not_tell_is_fitted_on_the_gpu_worker(mixed_fleet, caplog):
    grid, rows, targets = {"alpha": [0.1, 1.0]}, X_reg[:12], y_reg[:12]
    with parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(Ridge(device="cuda"), grid, cv=3, refit=False).fit(rows, targets)
    assert kinds_of(search, mixed_fleet) == {"CPU": 0, "GPU": 6}
    assert "more rows than there are columns" in str(search.shared_fits_)
    assert "Compute Failed" not in caplog.text
    expected = Reference(HostRidge(), grid, cv=3, refit=False).fit(rows, targets)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("ours", "host", "scoring"),
    [
        (LogisticRegression, HostLogisticRegression, "accuracy"),
        (LogisticRegression, HostLogisticRegression, None),
        (LogisticRegression, HostLogisticRegression, ["accuracy", "neg_log_loss"]),
        ("cuml", HostRidge, ["r2", "neg_mean_squared_error", "neg_mean_absolute_error"]),
        ("cuml", HostRidge, None),
    ],
)
def test_scores_by_name_are_computed_on_the_device(
    mixed_fleet, cuml, monkeypatch, ours, host, scoring
):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    on_device = []

    def recorded(estimator):
        on_device.append(estimator)
        return device_responses(estimator)

    monkeypatch.setattr(_array_api_scorer, "device_responses", recorded)
    # scores on the host, instead of those on the device, would be an error
    monkeypatch.setattr(_array_api_scorer, "fall_back", nullcontext)
    model, rows, targets = (
        (cuml.Ridge(), X_reg, y_reg) if ours == "cuml" else (ours(device="cuda", tol=1e-8), X, y)
    )
    grid = {"alpha": [0.1, 1.0]} if ours == "cuml" else {"C": [0.1, 1.0]}
    how = {"cv": 3, "scoring": scoring, "refit": False, "return_train_score": True}
    with parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(model, grid, **how).fit(rows, targets)
    assert len(on_device) == 12  # of training and test rows of six fits
    reference = host() if ours == "cuml" else host(tol=1e-8, max_iter=10_000)
    expected = Reference(reference, grid, **how).fit(rows, targets)
    for name in scoring if isinstance(scoring, list) else ["score"]:
        for side in ("test", "train"):
            key = f"mean_{side}_{name}"
            np.testing.assert_allclose(
                search.cv_results_[key], expected.cv_results_[key], rtol=1e-4
            )


@pytest.mark.parametrize("error_score", [np.nan, "raise"])
def test_what_scikit_learn_raises_of_scores_is_its_own(mixed_fleet, error_score):
    folds = [(np.arange(100), np.flatnonzero(y[100:] == 1)[:40] + 100)]  # tests on one class
    scoring = ["accuracy", "neg_log_loss"]
    how = {"cv": folds, "scoring": scoring, "refit": False, "error_score": error_score}
    results = []
    for model, search in (
        (LogisticRegression(device="cuda"), GridSearchCV),
        (HostLogisticRegression(), Reference),
    ):
        run = search(model, {"C": [1.0]}, **how)
        with parallel_config("skfleet", client=mixed_fleet), warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            try:
                results.append(run.fit(X, y).cv_results_["mean_test_accuracy"])
            except ValueError as error:
                results.append(str(error)[:40])
    assert results[0] == results[1]


def test_other_searches_and_cross_validation(mixed_fleet):
    model = LogisticRegression(device="cuda")
    with mixed_fleet.as_current(), parallel_config("skfleet", client=mixed_fleet):
        halving = HalvingGridSearchCV(model, {"C": [0.1, 1.0]}, cv=3, random_state=0).fit(X, y)
        scores = cross_val_score(model, X, y, cv=3)
        clusters = GridSearchCV(
            KMeans(n_init=1, random_state=0, device="cuda"), {"n_clusters": [2, 3]}, cv=3
        ).fit(X)
    assert kinds_of(halving, mixed_fleet)["CPU"] == 0
    np.testing.assert_allclose(scores, cross_val_score(LogisticRegression(), X, y, cv=3))
    assert np.isfinite(clusters.cv_results_["mean_test_score"]).all()


def test_unsatisfiable_requests_raise_before_work(cluster_client, cuml):
    for model, grid in (
        (LogisticRegression(), {"device": ["cpu", "cuda"]}),
        (Pipeline([("m", GaussianNB())]), {"m": [GaussianNB(), cuml.LogisticRegression()]}),
    ):
        with (
            parallel_config("skfleet", client=cluster_client),
            counting() as counts,
            pytest.raises(PlacementError, match="GPU=1"),
        ):
            GridSearchCV(model, grid).fit(X, y)
        assert counts.tasks == 0


def test_a_search_in_one_process_asks_for_no_worker(cluster_client):
    with cluster_client.as_current(), config_context(engine="local"):
        search = GridSearchCV(Ridge(device="cuda"), {"alpha": [0.1, 1.0]}, n_jobs=1)
        search.fit(X_reg, y_reg)
    expected = Reference(HostRidge(), {"alpha": [0.1, 1.0]}).fit(X_reg, y_reg)
    np.testing.assert_allclose(search.best_estimator_.coef_, expected.best_estimator_.coef_)


def test_the_configuration_holds_in_the_fits(mixed_fleet):
    rows, grid = X_reg + 0.0, {"alpha": [0.1, 1.0]}
    before = host_to_device_transfers.n_arrays
    with parallel_config("skfleet", client=mixed_fleet), config_context(device="cuda"):
        search = GridSearchCV(Ridge(), grid, cv=3, refit=False, share_fits=False).fit(rows, y_reg)
    assert host_to_device_transfers.n_arrays - before == 2  # rows and targets
    assert kinds_of(search, mixed_fleet) == {"CPU": 0, "GPU": 6}


def test_what_the_backend_was_told_is_for_all(mixed_fleet):
    with parallel_config("skfleet", client=mixed_fleet, device="cuda"):
        search = GridSearchCV(GaussianNB(), {"var_smoothing": [1e-9, 1e-3]}, cv=3).fit(X, y)
    assert kinds_of(search, mixed_fleet) == {"CPU": 0, "GPU": 6}


def test_a_fleet_of_gpu_workers_alone_makes_all_fits(monkeypatch):
    with (
        start_local_cluster(processes=False, resources=[{"GPU": 1}]) as cluster,
        Client(cluster, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        search = GridSearchCV(
            Pipeline([("m", HostLinearRegression())]),
            {"m": [HostRidge(), Ridge(device="cuda")]},
            share_fits=False,
        ).fit(X_reg, y_reg)
        assert kinds_of(search, client) == {"CPU": 0, "GPU": 10}


def test_the_winner_within_a_pipeline_is_a_host_model_too(mixed_fleet, cuml):
    pipe = Pipeline([("scale", StandardScaler()), ("m", cuml.Ridge())])
    with parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(pipe, {"m__alpha": [0.1, 1.0]}, cv=2).fit(X_reg, y_reg)
    assert kinds_of(search, mixed_fleet) == {"CPU": 0, "GPU": 4}
    assert type(search.best_estimator_["m"]) is HostRidge
    expected = Pipeline([("scale", StandardScaler()), ("m", HostRidge())])
    expected.set_params(**search.best_params_).fit(X_reg, y_reg)
    np.testing.assert_allclose(search.predict(X_reg), expected.predict(X_reg), rtol=1e-5)


def test_rows_stay_on_the_host_where_a_worker_has_no_array_library(mixed_fleet, cuml, monkeypatch):
    monkeypatch.setattr(
        _device, "_device_library", lambda named: None
    )  # as where XGBoost is installed without CuPy
    before = host_to_device_transfers.n_arrays
    with parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(cuml.Ridge(), {"alpha": [0.1, 1.0]}, cv=2, refit=False)
        search.fit(X_reg, y_reg)
    assert host_to_device_transfers.n_arrays == before
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert kinds_of(search, mixed_fleet) == {"CPU": 0, "GPU": 4}


def test_a_model_without_an_equivalent_says_so(mixed_fleet, cuml):
    if not hasattr(cuml, "OnlyHere"):
        pytest.skip("which of cuML's have none changes from version to version")
    with (
        parallel_config("skfleet", client=mixed_fleet),
        pytest.raises(TypeError, match="without as_sklearn"),
    ):
        GridSearchCV(cuml.OnlyHere(), {"alpha": [0.1, 1.0]}, cv=2).fit(X_reg, y_reg)


def test_models_of_cross_validation_come_home_as_host_models(mixed_fleet, cuml):
    with parallel_config("skfleet", client=mixed_fleet):
        found = cross_validate(cuml.Ridge(), X_reg, y_reg, cv=2, return_estimator=True)
    assert [type(model) for model in found["estimator"]] == [HostRidge, HostRidge]


def test_a_time_budget_holds_for_workers_of_both_kinds(mixed_fleet):
    grid = {"m": [GaussianNB(), LogisticRegression(device="cuda")]}
    pipe = Pipeline([("m", GaussianNB())])
    with mixed_fleet.as_current(), parallel_config("skfleet", client=mixed_fleet):
        search = GridSearchCV(pipe, grid, cv=3, refit=False, time_budget=30.0).fit(X, y)
    assert kinds_of(search, mixed_fleet) == {"CPU": 3, "GPU": 3}


def test_cross_val_predict_of_a_mixed_fleet(mixed_fleet):
    with mixed_fleet.as_current(), parallel_config("skfleet", client=mixed_fleet):
        found = cross_val_predict(Ridge(device="cuda"), X_reg, y_reg, cv=3)
    np.testing.assert_allclose(found, cross_val_predict(HostRidge(), X_reg, y_reg, cv=3))


def test_adaptive_searches_train_where_a_candidate_computes(cluster_client):
    from skfleet.estimators.cluster import MiniBatchKMeans

    search = HyperbandSearchCV(
        MiniBatchKMeans(device="cuda", random_state=0), {"n_clusters": [2, 3]}, max_iter=3
    )
    with cluster_client.as_current(), pytest.raises(PlacementError, match="GPU=1"):
        search.fit(X)
