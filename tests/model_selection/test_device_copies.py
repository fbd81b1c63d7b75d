"""Rows of a search cross to a GPU worker once, stay there as they fit, and go when it ends."""

import gc
import os
import signal
import threading
import time
from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.linear_model import Ridge as HostRidge
from sklearn.pipeline import make_pipeline

from clusters import wait_for_idle_workers
from skfleet import Fleet
from skfleet._array import is_not_numpy
from skfleet._device import DEVICE_VARIABLE, host_to_device_transfers, to_device
from skfleet.engine import device_responses
from skfleet.engine._gpu import _device_cache
from skfleet.engine._gpu._device_cache import cached_bytes
from skfleet.estimators import Incremental
from skfleet.estimators.cluster import KMeans, MiniBatchKMeans
from skfleet.estimators.decomposition import IncrementalPCA
from skfleet.estimators.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV, cross_validate
from skfleet.model_selection._adaptive import _data
from skfleet.model_selection._dispatch import _array_api_scorer, _step_cache
from skfleet.model_selection._dispatch._split_rows import SplitRows, TargetView

rng = np.random.default_rng(0)
X = rng.normal(size=(1_200, 10))
target = X @ rng.normal(size=10) + 0.1 * rng.normal(size=1_200)
labels = np.array(["no", "yes"])[(target > 0).astype(int)]
weight = rng.random(1_200)
N_BLOCKS = 5  # of the 1,020 rows that are learned, of 204 each
ALPHAS = {"alpha": np.logspace(-5, -1, 20)}
HYPERBAND = {"max_iter": 9, "batch_size": 250, "random_state": 0}


@pytest.fixture
def blocks(monkeypatch):
    """Cut the rows of a search into several blocks."""
    monkeypatch.setattr(_data, "MAX_BLOCK_ROWS", 250)


@pytest.fixture
def fleet(device, blocks, mixed_fleet):
    with mixed_fleet.as_current():
        yield mixed_fleet
    wait_for_idle_workers(mixed_fleet, 30)  # what is under way goes on, on the device of this test


def on(device, estimator):
    """Give an estimator that computes somewhere, as do all in it."""
    names = [name for name in estimator.get_params() if name.rpartition("__")[2] == "device"]
    return clone(estimator).set_params(**dict.fromkeys(names, device))


def assert_nothing_is_held():
    """Wait until workers have let go of a search, which they do by and by."""
    end = time.monotonic() + 10
    while cached_bytes() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert cached_bytes() == 0


def same(one, other):
    np.testing.assert_allclose(
        one.cv_results_["mean_test_score"], other.cv_results_["mean_test_score"], rtol=1e-6
    )
    assert one.best_params_ == other.best_params_
    for name, value in vars(one.best_estimator_).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            np.testing.assert_allclose(vars(other.best_estimator_)[name], value, rtol=1e-6)


def explained(model, X, y=None):
    return float(model.explained_variance_ratio_.sum())


CASES = {
    "SGDClassifier": (SGDClassifier(random_state=0, batch_size=8), ALPHAS, labels, {}),
    "weights": (
        SGDClassifier(random_state=0, batch_size=8),
        ALPHAS,
        labels,
        {"sample_weight": weight},
    ),
    "SGDRegressor": (SGDRegressor(random_state=0, batch_size=8), ALPHAS, target, {}),
    "MiniBatchKMeans": (
        MiniBatchKMeans(random_state=0),
        {"n_clusters": [2, 3, 4, 5, 6]},
        None,
        {"sample_weight": weight},
    ),
    "IncrementalPCA": (IncrementalPCA(), {"n_components": [1, 2, 3, 4]}, None, {}),
}


@pytest.mark.parametrize(
    ("rows", "name"),
    [("dask", "weights"), *(pytest.param("numpy", name, marks=pytest.mark.slow) for name in CASES)],
)
def test_rows_of_an_adaptive_search_go_up_once(fleet, name, rows, monkeypatch):
    model, space, y, per_row = CASES[name]
    scoring = explained if name == "IncrementalPCA" else None

    def given(values):
        is_kept = rows == "numpy" or values is None
        return values if is_kept else da.from_array(values, chunks=(240, *values.shape[1:]))

    found, on_device = {}, []

    def recorded(estimator):
        on_device.append(estimator)
        return device_responses(estimator)

    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    monkeypatch.setattr(_array_api_scorer, "device_responses", recorded)
    # a second attempt, on the host, would be an error
    monkeypatch.setattr(_array_api_scorer, "fall_back", nullcontext)
    before = host_to_device_transfers.n_arrays
    for device in ("cpu", "cuda"):
        assert host_to_device_transfers.n_arrays == before
        search = HyperbandSearchCV(on(device, model), space, scoring=scoring, **HYPERBAND)
        found[device] = search.fit(
            given(X), given(y), **{key: given(values) for key, values in per_row.items()}
        )
    # without a score on the rows for that, these stay where they are
    assert host_to_device_transfers.n_arrays - before == N_BLOCKS + 1
    assert found["cuda"].metadata_["partial_fit_calls"] > 40
    assert len(found["cuda"].metadata_["brackets"]) > 1
    # scores of one's own are the host's
    assert len(on_device) == (0 if scoring is explained else len(found["cuda"].history_))
    same(found["cpu"], found["cuda"])
    assert not any(map(is_not_numpy, vars(found["cuda"].best_estimator_).values()))
    assert_nothing_is_held()


@pytest.mark.slow
def test_both_ways_to_score_and_what_is_learned_at_the_end(fleet, monkeypatch):
    monkeypatch.setattr(_data, "MAX_TEST_FRACTION", 1e-12)  # the rows to score on are many parts
    how = {"refit_on_test": True, "scoring": "neg_log_loss", **HYPERBAND}
    found = {}
    before = host_to_device_transfers.n_arrays
    few, few_labels = X[:90], labels[:90]
    for device in ("cpu", "cuda"):
        model = SGDClassifier(loss="log_loss", random_state=0, batch_size=8, device=device)
        found[device] = HyperbandSearchCV(model, ALPHAS, **how).fit(few, few_labels)
    assert host_to_device_transfers.n_arrays - before == 1 + 14
    same(found["cpu"], found["cuda"])


@pytest.mark.slow
def test_pipelines_learn_on_the_device(fleet):
    learner = SGDClassifier(random_state=0, batch_size=8)
    pipe = make_pipeline(IncrementalPCA(n_components=5), learner)
    space = {"sgdclassifier__alpha": [1e-4, 1e-3, 1e-2]}
    found = {}
    before = host_to_device_transfers.n_arrays
    for device in ("cpu", "cuda"):
        search = HyperbandSearchCV(on(device, pipe), space, **HYPERBAND)
        found[device] = search.fit(X, labels)
    assert (
        host_to_device_transfers.n_arrays - before == N_BLOCKS + 1 + 1
    )  # and all at once, for the first step
    np.testing.assert_allclose(
        found["cpu"].cv_results_["mean_test_score"], found["cuda"].cv_results_["mean_test_score"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "share",
    [0.75, 0.25, 0.1],
)
def test_rows_that_do_not_fit_are_learned_from_the_host(fleet, monkeypatch, share):
    most, held = int(share * X.nbytes), []
    monkeypatch.setattr(_device_cache, "byte_limit", lambda: most)
    get = _device_cache.DeviceArrayCache.get

    def watching(self, key, X):
        given = get(self, key, X)
        held.append(cached_bytes())
        return given

    monkeypatch.setattr(_device_cache.DeviceArrayCache, "get", watching)
    found, n_uploads, n_bytes = {}, {}, {}
    for device in ("cpu", "cuda"):
        before = host_to_device_transfers.n_arrays, host_to_device_transfers.n_bytes
        model = SGDClassifier(random_state=0, batch_size=8, device=device)
        how = {**HYPERBAND, "max_iter": 27, "batch_size": 51}
        found[device] = HyperbandSearchCV(model, ALPHAS, **how).fit(X, labels)
        n_uploads[device] = host_to_device_transfers.n_arrays - before[0]
        n_bytes[device] = host_to_device_transfers.n_bytes - before[1]
    same(found["cpu"], found["cuda"])
    n_calls = found["cuda"].metadata_["partial_fit_calls"]
    n_fitting = int(most / X[:204].nbytes)
    assert N_BLOCKS + 1 < n_uploads["cuda"] <= n_calls
    # never more than to bring up the rows of each call, but for what stays
    assert n_bytes["cuda"] <= n_calls * X[:51].nbytes + max(held)
    assert max(held) <= most
    assert (max(held) > 0) == (n_fitting > 0)
    assert_nothing_is_held()


def broken(model, X, y):
    raise ZeroDivisionError("no score")


def test_nothing_is_held_after_a_search_that_failed(fleet):
    search = HyperbandSearchCV(
        SGDClassifier(device="cuda"), ALPHAS, scoring=broken, error_score="raise", **HYPERBAND
    )
    before = host_to_device_transfers.n_arrays
    with pytest.raises(ZeroDivisionError) as error:
        search.fit(X, labels)
    assert host_to_device_transfers.n_arrays > before
    assert_nothing_is_held()
    assert error.traceback  # whose frames still refer to the search


@pytest.fixture
def ctrl_c():
    """Ctrl-C as it is in a terminal: a process in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_nothing_is_held_after_a_search_that_was_interrupted(fleet):
    def interrupt():
        while not cached_bytes():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    search = HyperbandSearchCV(
        SGDClassifier(device="cuda"), ALPHAS, **{**HYPERBAND, "max_iter": 81}
    )
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, labels)
    thread.join()
    assert_nothing_is_held()


def test_rows_of_a_grid_search_go_when_it_ends(fleet):
    before = host_to_device_transfers.n_arrays
    grid = {"alpha": [0.1, 1.0, 10.0]}
    with parallel_config("skfleet", client=fleet):
        search = GridSearchCV(Ridge(device="cuda"), grid, refit=False, share_fits=False)
        search.fit(X, target)
    assert host_to_device_transfers.n_arrays - before == 2  # rows and targets
    assert_nothing_is_held()
    with parallel_config("skfleet", client=fleet), pytest.raises(ZeroDivisionError) as error:
        search.set_params(scoring=broken, error_score="raise").fit(X, target)
    assert_nothing_is_held()
    assert error.traceback


def test_rows_of_splits_that_are_made_here_do_not_stay(fleet):
    held = []

    def score(model, X, y):
        held.append(cached_bytes())
        return model.score(X, y)

    search = GridSearchCV(Ridge(device="cuda"), {"alpha": [0.1, 1.0]}, n_jobs=1, scoring=score)
    before = host_to_device_transfers.n_arrays
    with fleet.as_current():
        search.fit(X, target)
    assert host_to_device_transfers.n_arrays - before > 10
    assert held == [0] * 10
    assert_nothing_is_held()


def test_rows_of_a_grid_search_that_do_not_fit_stay_on_the_host(fleet, monkeypatch):
    monkeypatch.setattr(_device_cache, "byte_limit", lambda: X.nbytes - 1)
    grid, before = {"alpha": [0.1, 1.0, 10.0]}, host_to_device_transfers.n_arrays
    with parallel_config("skfleet", client=fleet):
        search = GridSearchCV(Ridge(device="cuda"), grid, refit=False, share_fits=False)
        search.fit(X, target)
    assert host_to_device_transfers.n_arrays - before > 15  # those of each fit
    expected = GridSearchCV(Ridge(), grid, refit=False, n_jobs=1).fit(X, target)
    np.testing.assert_allclose(
        search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-6
    )


def test_models_that_come_home_are_free_of_the_device(fleet):
    with parallel_config("skfleet", client=fleet):
        found = cross_validate(
            KMeans(2, n_init=1, random_state=0, device="cuda"), X, cv=2, return_estimator=True
        )
    for model in found["estimator"]:
        assert not any(map(is_not_numpy, vars(model).values()))


@pytest.mark.parametrize("early_stopping", [False, True])
def test_incremental_brings_blocks_up_once_for_all_epochs(fleet, early_stopping):
    rows, y = da.from_array(X, chunks=(240, 10)), da.from_array(labels, chunks=240)
    found = {}
    before = host_to_device_transfers.n_arrays
    for device in ("cpu", "cuda"):
        model = SGDClassifier(random_state=0, batch_size=8, device=device)
        how = {"epochs": 4, "batch_size": 100, "early_stopping": early_stopping}
        found[device] = Incremental(model, random_state=0, **how).fit(rows, y)
    assert host_to_device_transfers.n_arrays - before == 5
    np.testing.assert_allclose(found["cpu"].estimator_.coef_, found["cuda"].estimator_.coef_)
    assert_nothing_is_held()


def test_incremental_mixes_rows_on_the_host(fleet):
    rows, y = da.from_array(X, chunks=(240, 10)), da.from_array(labels, chunks=240)
    found = {}
    for device in ("cpu", "cuda"):
        model = SGDClassifier(random_state=0, batch_size=8, device=device)
        how = {"epochs": 2, "shuffle": "rows", "buffer_blocks": 2}
        found[device] = Incremental(model, random_state=0, **how).fit(rows, y)
    np.testing.assert_allclose(found["cpu"].estimator_.coef_, found["cuda"].estimator_.coef_)


def _seen(dask_worker):
    """Tell of a worker process what it is, and what it has brought up and holds."""
    gc.collect()
    return {
        "pid": os.getpid(),
        "is_gpu": "GPU" in dask_worker.state.total_resources,
        "uploads": host_to_device_transfers.n_arrays,
        "held": cached_bytes(),
    }


def gpu_worker(client):
    """Return what the GPU worker has to tell, None while it is not there."""
    workers = [one for one in client.run(_seen, on_error="ignore").values() if one]
    return next((one for one in workers if one["is_gpu"]), None)


def processes():
    """Start a fleet of worker processes, one of which has a stand-in for a GPU."""
    return Fleet(
        resources=[{"CPU": 1}, {"GPU": 1}],
        env={DEVICE_VARIABLE: "array_api_strict:device1"},
        dashboard_address=None,
    )


def fit_on_both(client, while_it_runs=lambda: None, **how):
    """Search on the host of a fleet and on its GPU."""
    how = {**HYPERBAND, **how}
    expected = HyperbandSearchCV(SGDClassifier(random_state=0, batch_size=8), ALPHAS, **how).fit(
        X, labels
    )
    thread = threading.Thread(target=while_it_runs)
    thread.start()
    model = SGDClassifier(random_state=0, batch_size=8, device="cuda")
    found = HyperbandSearchCV(model, ALPHAS, **how).fit(X, labels)
    thread.join()
    same(expected, found)


def wait_until_free(client):
    """Wait until the GPU worker holds no copy."""
    end = time.monotonic() + 20
    while (seen := gpu_worker(client)) is None or seen["held"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    return seen


@pytest.mark.slow
def test_a_worker_process_gets_rows_once_and_lets_them_go(blocks):
    with processes() as client:
        fit_on_both(client)
        assert gpu_worker(client)["uploads"] == N_BLOCKS + 1
        wait_until_free(client)
        with parallel_config("skfleet", client=client):
            grid = {"alpha": [0.1, 1.0, 10.0]}
            GridSearchCV(Ridge(device="cuda"), grid, refit=False, share_fits=False).fit(X, target)
        # rows and targets
        assert wait_until_free(client)["uploads"] == N_BLOCKS + 1 + 2


@pytest.mark.slow
def test_a_killed_gpu_worker_gets_the_rows_again(blocks):
    killed = []

    with processes() as client:

        def kill():
            end = time.monotonic() + 60
            while time.monotonic() < end:
                seen = gpu_worker(client)
                if seen and seen["uploads"] > N_BLOCKS:
                    os.kill(seen["pid"], signal.SIGKILL)
                    killed.append(seen["pid"])
                    return
                time.sleep(0.02)

        fit_on_both(client, kill, max_iter=27)
        seen = wait_until_free(client)
        assert killed
        assert seen["pid"] not in killed
        assert seen["uploads"] == N_BLOCKS + 1


@pytest.mark.parametrize("return_train_score", [False, True])
@pytest.mark.parametrize("is_regression", [False, True])
def test_targets_to_train_on_are_cut_on_the_device(
    monkeypatch, fleet, return_train_score, is_regression
):
    cut, on_device = [], []
    cut_targets = TargetView._cut

    def counted(self, name, part):
        targets = cut_targets(self, name, part)
        cut.append(name)
        on_device.append(is_not_numpy(targets))
        return targets

    monkeypatch.setattr(TargetView, "_cut", counted)
    codes = (target > 0.3).astype(np.int32)
    model, y = (Ridge(), target) if is_regression else (LogisticRegression(tol=1e-8), codes)
    grid = {"fit_intercept": [True, False], "alpha" if is_regression else "C": [0.1, 1.0, 10.0]}
    scoring = None if is_regression else "roc_auc"  # a scorer of the host
    how = {"cv": 3, "scoring": scoring, "return_train_score": return_train_score}
    here = GridSearchCV(model, grid, **how).fit(X, y)
    before = host_to_device_transfers.n_bytes
    there = GridSearchCV(on("cuda", model), grid, refit=False, **how).fit(X, y)
    if not is_regression:  # which has scores in closed form
        copied = host_to_device_transfers.n_bytes - before
        assert copied == X.nbytes + (0 if return_train_score else y.nbytes)
    for name in ("mean_test_score", "mean_train_score")[: 1 + return_train_score]:
        found, expected = (one.cv_results_[name] for one in (there, here))
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    if not is_regression:
        assert 3 <= cut.count("train") <= 18
        assert any(on_device) == (not return_train_score)
    assert_nothing_is_held()


def test_targets_that_fits_of_a_split_have_together_are_read_only(device, monkeypatch):
    monkeypatch.setattr(_step_cache, "MMAP_THRESHOLD", 0)
    train, test = np.arange(800), np.arange(800, 1_200)
    split = SplitRows(0, to_device(X), train, test, is_shared=True)
    targets = split.targets_for(HostRidge(), {}, target, {"scorer": None})
    assert not split.was_read_only
    part = targets[split.parts["train"]]
    np.testing.assert_array_equal(part, target[train])
    assert not part.flags.writeable
    assert split.was_read_only
