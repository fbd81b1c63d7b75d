import asyncio
import gc
import pickle
import subprocess
import sys
import threading
import time

import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.comm import CommClosedError
from joblib import Parallel, delayed, parallel_config
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

from clusters import local_client
from skfleet._cluster._client import current_client
from skfleet._joblib import _parallel_call
from skfleet.engine._dask import _scatter
from skfleet.exceptions import FleetError, PlacementError
from skfleet.joblib_backend import FleetBackend


def double(x):
    return 2 * x


def fail(i, bad):
    if i == bad:
        raise KeyError(f"call {i}")
    return i


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("stays here")


class UnrebuildableError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def make(cls):
    return cls()


def raise_unrebuildable():
    raise UnrebuildableError("lost", 2)


# -- results -----------------------------------------------------------------------------------


def test_results_come_in_order(client):
    with parallel_config("skfleet", client=client):
        assert Parallel()(delayed(double)(i) for i in range(200)) == [2 * i for i in range(200)]


def test_generators_yield_all_results(client):
    with parallel_config("skfleet", client=client):
        ordered = Parallel(return_as="generator")(delayed(double)(i) for i in range(20))
        unordered = Parallel(return_as="generator_unordered")(delayed(double)(i) for i in range(20))
        # both at once, on the one backend of the context
        assert list(ordered) == [2 * i for i in range(20)]
        assert sorted(unordered) == [2 * i for i in range(20)]


def test_abandoned_generator_leaves_the_fleet_usable(client):
    with parallel_config("skfleet", client=client):
        results = Parallel(return_as="generator")(delayed(double)(i) for i in range(50))
        assert next(results) == 0
        with pytest.warns(UserWarning, match="tasks"):
            results.close()
        assert Parallel()(delayed(double)(i) for i in range(3)) == [0, 2, 4]


def test_nothing_is_sent_after_the_end_of_a_call(client, monkeypatch):
    is_packing, go_on = threading.Event(), threading.Event()

    class TakesLong:
        def __reduce__(self):
            is_packing.set()
            assert go_on.wait(30)
            return int, ()

    def calls():
        yield delayed(double)(1)
        yield delayed(double)(TakesLong())  # is packed when the first is done

    sent = []
    submit = client.submit
    monkeypatch.setattr(client, "submit", lambda *a, **k: sent.append(k["name"]) or submit(*a, **k))
    monkeypatch.setattr(_parallel_call, "FLEET_CHECK_SECONDS", 0.1)
    with parallel_config("skfleet", client=client):
        results = Parallel(return_as="generator", n_jobs=2, pre_dispatch=1, batch_size=1)(calls())
        assert is_packing.wait(30)
        with pytest.warns(UserWarning, match="tasks"):
            results.close()
    senders = [thread for thread in threading.enumerate() if thread.name == "skfleet-joblib"]
    go_on.set()
    for sender in senders:
        sender.join(30)
        assert not sender.is_alive()
    assert sent == ["double"]


def test_result_arrays_are_writable(client):
    with parallel_config("skfleet", client=client):
        first, *_ = Parallel()(delayed(double)(np.ones(200_000)) for _ in range(2))
    first[0] = 5
    assert first[0] == 5


def test_lambdas_and_closures_travel(client):
    offset = 3
    with parallel_config("skfleet", client=client):
        assert Parallel()(delayed(lambda x: x + offset)(i) for i in range(3)) == [3, 4, 5]


def test_forest_equals_the_sequential_one(client):
    X, y = load_digits(return_X_y=True)
    forest = RandomForestClassifier(n_estimators=8, random_state=0)
    with parallel_config("skfleet", client=client):
        ours = forest.fit(X, y).predict_proba(X)
    expected = RandomForestClassifier(n_estimators=8, random_state=0, n_jobs=1).fit(X, y)
    np.testing.assert_allclose(ours, expected.predict_proba(X))


# -- errors ------------------------------------------------------------------------------------


def test_error_of_a_task_keeps_its_type_and_traceback(client):
    with parallel_config("skfleet", client=client):
        with pytest.raises(KeyError, match="call 3") as caught:
            Parallel()(delayed(fail)(i, 3) for i in range(10))
        assert "raise KeyError" in str(caught.value.__cause__)
        assert Parallel()(delayed(double)(i) for i in range(3)) == [0, 2, 4]


def test_unpicklable_argument_raises_and_names_the_task(client):
    with (
        parallel_config("skfleet", client=client),
        pytest.raises(RuntimeError, match="stays here") as caught,
    ):
        Parallel()(delayed(double)(x) for x in (1, Unpicklable()))
    assert "arguments of double must be picklable" in caught.value.__notes__[0]


def test_unpicklable_argument_in_a_late_batch_raises(client):
    # dispatched from the thread that delivers, where nobody would see an exception
    tasks = [1] * 50 + [Unpicklable()]
    with parallel_config("skfleet", client=client), pytest.raises(RuntimeError, match="stays here"):
        Parallel(batch_size=1)(delayed(double)(x) for x in tasks)


def test_unpicklable_result_raises_and_names_the_task(client):
    with (
        parallel_config("skfleet", client=client),
        pytest.raises(pickle.PicklingError, match="result of make must be picklable"),
    ):
        Parallel()(delayed(make)(Unpicklable) for _ in range(2))


def test_exception_with_a_constructor_of_its_own_is_rebuilt(client):
    with (
        parallel_config("skfleet", client=client),
        pytest.raises(UnrebuildableError, match="lost"),
    ):
        Parallel()(delayed(raise_unrebuildable)() for _ in range(2))


def test_error_in_the_task_iterator_comes_out(client):
    def tasks():
        for i in range(30):
            if i == 25:
                raise LookupError("no more")
            yield delayed(double)(i)

    with parallel_config("skfleet", client=client), pytest.raises(LookupError, match="no more"):
        Parallel()(tasks())


def test_missing_resource_raises_before_work(client):
    with (
        parallel_config("skfleet", client=client, resources={"GPU": 1}),
        pytest.raises(PlacementError, match="GPU=1"),
    ):
        Parallel()(delayed(double)(i) for i in range(3))


def test_unknown_worker_raises_before_work(client):
    with (
        parallel_config("skfleet", client=client, workers="tcp://nowhere:1"),
        pytest.raises(ValueError, match="workers must name workers of this fleet"),
    ):
        Parallel()(delayed(double)(i) for i in range(3))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"scatter": np.ones(3)}, "scatter must be a list or tuple"),
        ({"resource": {"GPU": 1}}, "options must be among"),
        ({"progress": "yes"}, "progress must be True or False"),
    ],
)
def test_wrong_parameters_raise(params, message):
    with pytest.raises(TypeError, match=message):
        joblib.parallel_config("skfleet", **params)


def test_unknown_device_raises():
    with pytest.raises(ValueError, match="device must be one of"):
        FleetBackend(device="tpu")


def test_asynchronous_client_is_refused(threads):
    async def make_backend():
        async with Client(threads.scheduler.address, asynchronous=True) as client:
            with pytest.raises(TypeError, match="synchronous"):
                FleetBackend(client=client)

    asyncio.run(make_backend())


def test_zero_jobs_raise(threads):
    with parallel_config("skfleet", client=threads), pytest.raises(ValueError, match="n_jobs == 0"):
        Parallel(n_jobs=0)(delayed(double)(i) for i in range(3))


def test_no_worker_in_time_raises():
    with (
        local_client(0, processes=False, set_as_default=False) as client,
        parallel_config("skfleet", client=client, wait_for_workers_timeout=0.1),
        pytest.raises(
            TimeoutError,
            match=r"scheduler inproc://.* must have a worker. Got none after 0.1 seconds",
        ),
    ):
        Parallel()(delayed(double)(i) for i in range(3))


def test_late_workers_are_waited_for():
    with (
        local_client(0, processes=False, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        client.cluster.scale(1)
        assert Parallel()(delayed(double)(i) for i in range(3)) == [0, 2, 4]


def test_closed_client_ends_the_call():
    release = threading.Event()
    waiting = threading.Event()
    _gates["closed"] = waiting, release
    cluster = LocalCluster(
        processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0"
    )
    client = Client(cluster, set_as_default=False)

    def close():
        waiting.wait()
        client.close()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        with parallel_config("skfleet", client=client), pytest.raises(FleetError, match="wait"):
            Parallel()(delayed(wait)("closed") for _ in range(4))
    finally:
        release.set()
        closer.join()
        cluster.close()


_gates = {}


def wait(name):
    entered, release = _gates[name]
    entered.set()
    release.wait()


def test_retries_run_a_failing_task_again(threads):
    _attempts.clear()
    with parallel_config("skfleet", client=threads, retries=2):
        assert Parallel(batch_size=1)(delayed(fail_once)(i) for i in range(3)) == [0, 1, 2]
    assert sorted(_attempts) == [0, 0, 1, 1, 2, 2]


def test_retries_end_in_the_error_of_the_task(threads):
    with (
        parallel_config("skfleet", client=threads, retries=1),
        pytest.raises(KeyError, match="call"),
    ):
        Parallel(batch_size=1)(delayed(fail)(i, 1) for i in range(3))


_attempts = []


def fail_once(i):
    _attempts.append(i)
    if _attempts.count(i) == 1:
        raise OSError("first")
    return i


# -- registration, names, travel ---------------------------------------------------------------


def test_import_registers_without_the_cluster_libraries():
    code = (
        "import sys, joblib, skfleet\n"
        "assert 'skfleet' in joblib.parallel.BACKENDS\n"
        "assert 'distributed' not in sys.modules\n"
        "with joblib.parallel_config('skfleet', scatter=[1]):\n"
        "    import distributed\n"
        "    try: distributed.Client.current()\n"
        "    except ValueError: pass\n"
        "    else: raise AssertionError('a client was started')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_a_client_the_embedded_fleet_starts_at_first_use():
    code = (
        "import joblib, skfleet\n"
        "def nest(i):\n"
        "    return sum(joblib.Parallel()(joblib.delayed(abs)(-j) for j in range(i)))\n"
        "with joblib.parallel_config('skfleet'):\n"
        "    for _ in range(2):\n"
        "        print(joblib.Parallel()(joblib.delayed(nest)(i) for i in range(4)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    assert done.stdout == "[0, 0, 1, 3]\n" * 2
    assert done.stderr.count("\n") == 1
    assert "Fleet(" in done.stderr


def test_keys_name_the_function_and_the_estimator(threads):
    X, y = load_digits(return_X_y=True)
    scheduler = threads.cluster.scheduler
    with parallel_config("skfleet", client=threads):
        RandomForestClassifier(n_estimators=8, random_state=0).fit(X, y)
        Parallel(batch_size=2)(delayed(double)(i) for i in range(8))
    assert any(name.startswith("parallel_build_trees") for name in scheduler.task_prefixes)
    assert any("DecisionTreeClassifier" in name for name in scheduler.task_prefixes)
    assert "batch_of_double_2_calls" in scheduler.task_prefixes


def test_backend_travels_without_its_client(threads):
    backend = FleetBackend(client=threads, scatter=[1], priority=3, inner_max_num_threads=2)
    backend.nesting_level = 1
    other = pickle.loads(pickle.dumps(backend))
    assert (other.nesting_level, other.inner_max_num_threads) == (1, 2)
    assert other._options == {"priority": 3}
    assert other._client_option is None


def test_task_runs_where_workers_says(processes):
    address = sorted(processes.nthreads())[1]
    with parallel_config("skfleet", client=processes, workers=address):
        assert set(Parallel()(delayed(worker_address)() for _ in range(6))) == {address}


def worker_address():
    return get_worker().address


def test_nothing_stays_on_the_scheduler(threads):
    scheduler = threads.cluster.scheduler
    with parallel_config("skfleet", client=threads):
        Parallel()(delayed(double)(i) for i in range(10))
    gc.collect()
    for _ in range(500):
        if not any("double" in str(key) for key in scheduler.tasks):
            break
        time.sleep(0.01)
    assert not any("double" in str(key) for key in scheduler.tasks)


def test_data_are_sent_again_when_a_worker_dies_while_it_takes_them(monkeypatch):
    with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
        scatter, failures = client.scatter, [CommClosedError("gone"), CommClosedError("gone")]

        def failing(*args, **kwargs):
            if failures:
                raise failures.pop()
            return scatter(*args, **kwargs)

        monkeypatch.setattr(client, "scatter", failing)
        monkeypatch.setattr(_scatter.time, "sleep", lambda seconds: None)
        with parallel_config("skfleet", client=client):
            sums = Parallel()(delayed(np.sum)(np.full(50_000, i)) for i in (1, 2))
        assert sums == [50_000, 100_000]
        assert not failures


def id_of_current_client():
    return current_client().id


def test_tasks_find_the_client_of_the_call_that_is_nobodys_default():
    # distributed would open another one, and make it the default of the process
    with (
        local_client(1, threads_per_worker=1, processes=False, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        assert set(Parallel()(delayed(id_of_current_client)() for _ in range(2))) == {client.id}


@pytest.mark.parametrize("comes_back", [True, False])
def test_results_that_are_lost_before_they_are_fetched(monkeypatch, comes_back):
    """Distributed makes them again; without a worker for that, the call must not wait for ever."""
    fetch, n_fetched = _parallel_call.ParallelCall._fetch, 0

    def lose(self, futures):
        nonlocal n_fetched
        n_fetched += 1
        if n_fetched == 1:
            client.cluster.scale(0)
            while client.nthreads():
                time.sleep(0.01)
            if comes_back:
                client.cluster.scale(1)
        return fetch(self, futures)

    monkeypatch.setattr(_parallel_call, "FLEET_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(_parallel_call.ParallelCall, "_fetch", lose)
    monkeypatch.setattr(_parallel_call, "NO_WORKER_SECONDS", 10.0 if comes_back else 0.5)
    with (
        local_client(1, processes=False, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        calls = (delayed(double)(i) for i in range(3))
        if comes_back:
            assert Parallel(batch_size=1)(calls) == [0, 2, 4]
        else:
            with pytest.raises(FleetError, match="no worker for it has been there"):
                Parallel(batch_size=1)(calls)
