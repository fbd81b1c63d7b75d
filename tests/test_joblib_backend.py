import asyncio
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
import weakref
from functools import partial

import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.comm import CommClosedError
from joblib import Parallel, delayed, parallel_config
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from threadpoolctl import threadpool_info

import skfleet
from skfleet import joblib_backend
from skfleet._joblib import _parallel_call, _shared_arguments
from skfleet.engine._dask import _scatter
from skfleet.engine._dask._client import current_client
from skfleet.exceptions import FleetError, PlacementError
from skfleet.joblib_backend import FleetBackend


@pytest.fixture(scope="module")
def threads():
    """A fleet of one worker with four threads, in this process."""
    with (
        LocalCluster(
            processes=False, n_workers=1, threads_per_worker=4, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def processes():
    """A fleet of two worker processes."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(params=["threads", "processes"])
def client(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def sent(monkeypatch):
    """Count what is sent to the fleet apart from calls."""
    sizes = []
    send = _scatter.ScatteredObject._send

    def counting(self, parcel):
        sizes.append(parcel.nbytes)  # not the parcel: it holds the memory of the object
        return send(self, parcel)

    monkeypatch.setattr(_scatter.ScatteredObject, "_send", counting)
    return sizes


def double(x):
    return 2 * x


def fail(i, bad):
    if i == bad:
        raise KeyError(f"call {i}")
    return i


def total(X, *rest):
    return float(X.sum())


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


def test_exception_that_cannot_be_rebuilt_is_described(client):
    with (
        parallel_config("skfleet", client=client),
        pytest.raises(RuntimeError, match="raise_unrebuildable raised UnrebuildableError: lost"),
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
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        parallel_config("skfleet", client=client, wait_for_workers_timeout=0.1),
        pytest.raises(
            TimeoutError,
            match=r"scheduler inproc://.* must have a worker. Got none after 0.1 seconds",
        ),
    ):
        Parallel()(delayed(double)(i) for i in range(3))


def test_late_workers_are_waited_for():
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        cluster.scale(1)
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


# -- how many at once --------------------------------------------------------------------------

_running = {"now": 0, "most": 0, "all": 0}
_lock = threading.Lock()


def count_running(i, bad=None, seconds=0.05):
    with _lock:
        _running["now"] += 1
        _running["all"] += 1
        _running["most"] = max(_running["most"], _running["now"])
    try:
        if i == bad:
            raise KeyError("bad")
        time.sleep(seconds)
    finally:
        with _lock:
            _running["now"] -= 1


@pytest.mark.parametrize("n_jobs", [2, 3, -2])
@pytest.mark.parametrize("pre_dispatch", ["2*n_jobs", "all"])
def test_n_jobs_bounds_the_calls_in_flight(threads, n_jobs, pre_dispatch):
    _running.update(now=0, most=0, all=0)
    with parallel_config("skfleet", client=threads):
        Parallel(n_jobs=n_jobs, pre_dispatch=pre_dispatch, batch_size=1)(
            delayed(count_running)(i) for i in range(12)
        )
    assert _running["all"] == 12
    assert 1 <= _running["most"] <= (n_jobs if n_jobs > 0 else 3)


@pytest.mark.parametrize("n_jobs", [2, 3, -2])
def test_n_jobs_are_run_at_once(threads, n_jobs):
    n_at_once = n_jobs if n_jobs > 0 else 3
    _barriers["n_jobs"] = threading.Barrier(n_at_once, timeout=60)
    with parallel_config("skfleet", client=threads):
        # returns only if that many run at the same time
        Parallel(n_jobs=n_jobs, batch_size=1)(delayed(meet)("n_jobs") for _ in range(2 * n_at_once))


@pytest.mark.parametrize("n_jobs", [None, -1])
def test_default_is_the_whole_fleet(threads, n_jobs):
    _barriers["four"] = threading.Barrier(4, timeout=60)
    with parallel_config("skfleet", client=threads):
        # returns only if all four run at the same time
        Parallel(n_jobs=n_jobs, batch_size=1)(delayed(meet)("four") for _ in range(4))


_barriers = {}


def meet(name):
    _barriers[name].wait()


def test_one_job_runs_here(processes):
    with parallel_config("skfleet", client=processes):
        assert set(Parallel(n_jobs=1)(delayed(os.getpid)() for _ in range(3))) == {os.getpid()}


def test_fleet_of_one_thread_is_used():
    with (
        LocalCluster(
            processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        here = threading.get_ident()
        assert here not in Parallel()(delayed(threading.get_ident)() for _ in range(3))


def test_error_cancels_what_was_dispatched(threads):
    _running.update(now=0, most=0, all=0)
    with parallel_config("skfleet", client=threads):
        with pytest.raises(KeyError, match="bad"):
            Parallel(batch_size=1, pre_dispatch="all")(
                delayed(count_running)(i, 1, 0.2) for i in range(40)
            )
        Parallel()(delayed(double)(i) for i in range(3))
    assert _running["all"] < 10
    while _running["now"]:  # a thread cannot be stopped, and would disturb the next count
        time.sleep(0.01)
    assert _running["all"] < 10


def note_down(i, folder):
    (folder / str(i)).touch()
    if i == 1:
        raise KeyError("second")
    time.sleep(0.2)


@pytest.mark.parametrize("options", [{}, {"pre_dispatch": "all"}, {"batch_size": 1}])
def test_of_forty_calls_whose_second_raises_few_run(processes, tmp_path, options):
    with (
        parallel_config("skfleet", client=processes),
        pytest.raises(KeyError, match="second"),
    ):
        Parallel(**options)(delayed(note_down)(i, tmp_path) for i in range(40))
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) < 8


def test_timeout_of_a_call_raises(processes):
    with (
        parallel_config("skfleet", client=processes),
        pytest.raises(multiprocessing.TimeoutError),
    ):
        Parallel(timeout=0.3)(delayed(time.sleep)(2) for _ in range(4))
    time.sleep(2)  # a call that runs cannot be stopped


@pytest.mark.parametrize("n_calls", [4, 30])
def test_progress_is_drawn_until_all_is_done(processes, capsys, n_calls):
    with parallel_config("skfleet", client=processes, progress=True):
        Parallel()(delayed(double)(i) for i in range(n_calls))
    assert f"double: {n_calls} of {n_calls} tasks" in capsys.readouterr().out


def test_data_that_no_worker_takes_raise_at_once(threads, monkeypatch):
    def refuse(*args, **kwargs):
        raise TimeoutError("No valid workers found")

    monkeypatch.setattr(threads, "scatter", refuse)
    with (
        parallel_config("skfleet", client=threads),
        pytest.raises(FleetError, match="must be taken by a worker"),
    ):
        Parallel()(delayed(total)(np.ones(1_000_000)) for _ in range(3))


def test_device_of_the_configuration_is_the_default(threads):
    with (
        skfleet.config_context(device="cuda"),
        parallel_config("skfleet", client=threads),
        pytest.raises(PlacementError, match="GPU"),
    ):
        Parallel()(delayed(double)(i) for i in range(4))


def test_device_chooses_the_workers():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as plain,
        Client(plain, set_as_default=False) as client,
        parallel_config("skfleet", client=client, device="cuda"),
        pytest.raises(PlacementError, match="GPU"),
    ):
        Parallel()(delayed(double)(i) for i in range(4))
    with (
        skfleet.Fleet(n_workers=2, resources=[{"CPU": 1}, {"GPU": 1}]) as client,
        parallel_config("skfleet", client=client, device="cuda"),
    ):
        used = Parallel(batch_size=1)(delayed(os.getpid)() for _ in range(8))
    assert len(set(used)) == 1


def test_resources_bound_the_calls_in_flight():
    _running.update(now=0, most=0, all=0)
    with (
        LocalCluster(
            processes=False,
            n_workers=1,
            threads_per_worker=4,
            resources={"GPU": 2},
            dashboard_address=":0",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        parallel_config("skfleet", client=client, resources={"GPU": 1}),
    ):
        assert joblib.effective_n_jobs(-1) == 2
        _barriers["resources"] = threading.Barrier(2, timeout=60)
        Parallel(batch_size=1)(delayed(meet)("resources") for _ in range(4))
        Parallel(batch_size=1)(delayed(count_running)(i) for i in range(8))
        # a task that holds the resource runs nested calls itself
        nested = Parallel(batch_size=1)(delayed(nest)(3) for _ in range(4))
    assert 1 <= _running["most"] <= 2
    assert nested == [[0, 2, 4]] * 4


# -- shared arguments --------------------------------------------------------------------------


def test_equal_content_is_sent_once(processes, sent):
    X = np.arange(20_000.0)
    with parallel_config("skfleet", client=processes):
        for _ in range(5):
            assert Parallel()(delayed(total)(X, i) for i in range(4)) == [X.sum()] * 4
        same = X.copy()
        assert Parallel()(delayed(total)(same, i) for i in range(4)) == [X.sum()] * 4
        assert len(sent) == 1
        X[0] = 7
        assert Parallel()(delayed(total)(X, i) for i in range(4)) == [X.sum()] * 4
        assert len(sent) == 2


def test_shared_data_go_with_the_object(processes, sent):
    gc.collect()
    X = np.arange(30_000.0)
    before = len(_shared_arguments._by_content)
    with parallel_config("skfleet", client=processes):
        Parallel()(delayed(total)(X, i) for i in range(4))
    assert len(sent) == 1
    gc.collect()
    assert len(_shared_arguments._by_content) == before + 1
    del X
    gc.collect()
    assert len(_shared_arguments._by_content) == before


def test_workers_in_this_process_do_not_keep_data_alive(threads, sent):
    X = np.arange(30_000.0)
    alive = weakref.ref(X)
    with parallel_config("skfleet", client=threads):
        Parallel()(delayed(total)(X, i) for i in range(4))
    assert len(sent) == 1
    del X
    for _ in range(500):
        gc.collect()
        if alive() is None:
            break
        time.sleep(0.01)
    assert alive() is None


def test_small_arguments_travel_with_their_calls(client, sent):
    with parallel_config("skfleet", client=client):
        Parallel()(delayed(total)(np.ones(100), i) for i in range(4))
    assert sent == []


def test_large_list_is_sent_once_and_not_shared_by_calls(client, sent):
    words = [f"word {i}" for i in range(20_000)]
    with parallel_config("skfleet", client=client):
        lengths = Parallel(batch_size=1)(delayed(append_and_count)(words) for _ in range(6))
    assert lengths == [20_001] * 6
    assert len(words) == 20_000
    assert len(sent) == 1


def append_and_count(words):
    words.append("more")
    return len(words)


def test_large_closure_is_sent_once(client, sent):
    X = np.arange(200_000.0)

    def shifted(i):
        return X[i]

    with parallel_config("skfleet", client=client):
        assert Parallel(batch_size=1)(delayed(shifted)(i) for i in range(6)) == list(range(6))
    assert len(sent) == 1


def test_heavy_batch_is_sent_apart_from_the_graph(client, sent):
    arrays = [np.full(5_000, float(i)) for i in range(120)]
    with parallel_config("skfleet", client=client):
        totals = Parallel(batch_size=30, pre_dispatch="all")(
            delayed(total)(array) for array in arrays
        )
    assert totals == [5_000.0 * i for i in range(120)]
    assert len(sent) == 4


def test_large_array_is_read_only_and_small_one_a_copy(client):
    with parallel_config("skfleet", client=client):
        small = np.zeros(20_000)
        assert Parallel()(delayed(fill)(small) for _ in range(3)) == [20_000.0] * 3
        assert small.sum() == 0
        with pytest.raises(ValueError, match="read-only"):
            Parallel()(delayed(fill)(np.zeros(200_000)) for _ in range(3))


def fill(X):
    assert not X.any()
    X[:] = 1
    return X.sum()


def test_fortran_order_survives(client):
    X = np.asfortranarray(np.arange(40_000.0).reshape(200, 200))
    with parallel_config("skfleet", client=client):
        [(same, flags)] = Parallel()(delayed(look)(X) for _ in range(1))
    np.testing.assert_array_equal(same, X)
    assert flags


def look(X):
    return X, X.flags.f_contiguous and not X.flags.c_contiguous


def test_scatter_sends_small_objects_once_for_the_context(client, sent):
    x = np.arange(5)
    with parallel_config("skfleet", client=client, scatter=[x]):
        for _ in range(3):
            assert Parallel()(delayed(total)(x, i) for i in range(4)) == [10.0] * 4
    assert len(sent) == 1


# -- nested calls ------------------------------------------------------------------------------


def nest(n):
    return Parallel(n_jobs=2)(delayed(double)(i) for i in range(n))


def nest_deeper(n):
    return Parallel(n_jobs=2)(delayed(nest)(n) for _ in range(2))


def test_nested_calls_neither_hang_nor_change_results(client):
    with parallel_config("skfleet", client=client):
        assert Parallel()(delayed(nest)(3) for _ in range(6)) == [[0, 2, 4]] * 6
        assert Parallel()(delayed(nest_deeper)(3) for _ in range(3)) == [[[0, 2, 4]] * 2] * 3


def inner_n_jobs():
    return joblib.effective_n_jobs(-1), Parallel(n_jobs=2)(
        delayed(joblib.effective_n_jobs)(-1) for _ in range(2)
    )


def test_nested_call_uses_an_idle_fleet_and_deeper_ones_do_not(threads):
    with parallel_config("skfleet", client=threads):
        [(nested, deeper)] = Parallel()(delayed(inner_n_jobs)() for _ in range(1))
    assert nested == 3  # of the four threads the task itself holds one
    assert deeper == [1, 1]


def test_nested_error_comes_out(client):
    def outer():
        return Parallel(n_jobs=2)(delayed(fail)(i, 2) for i in range(4))

    with parallel_config("skfleet", client=client), pytest.raises(KeyError, match="call 2"):
        Parallel()(delayed(outer)() for _ in range(3))


# -- what comes home besides results -----------------------------------------------------------


def talk(i):
    print(f"task {i}")
    print(f"error {i}", file=sys.stderr)
    warnings.warn(f"warning {i}", RuntimeWarning, stacklevel=1)
    return i


def talk_nested():
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        return Parallel(n_jobs=2)(delayed(talk)(i) for i in range(2))


@pytest.mark.parametrize("function", [talk, None])
def test_output_and_warnings_come_home(processes, capsys, function):
    calls = [delayed(talk)(0), delayed(talk)(1)] if function else [delayed(talk_nested)()]
    with (
        parallel_config("skfleet", client=processes),
        pytest.warns(RuntimeWarning, match="warning") as caught,
    ):
        Parallel()(calls)
    assert {str(w.message) for w in caught} == {"warning 0", "warning 1"}
    printed = capsys.readouterr()
    assert sorted(printed.out.split("\n")) == ["", "task 0", "task 1"]
    assert "error 0" in printed.err
    assert "error 1" in printed.err


def test_warning_turned_into_an_error_raises(processes):
    def complain():
        warnings.warn("alas", RuntimeWarning, stacklevel=1)

    with parallel_config("skfleet", client=processes), pytest.raises(RuntimeWarning, match="alas"):
        Parallel()(delayed(complain)() for _ in range(2))


def limit_threadpools():
    np.ones((2, 2)) @ np.ones((2, 2))
    return max((pool["num_threads"] for pool in threadpool_info()), default=1)


@pytest.mark.parametrize(("inner", "expected"), [(None, 1), (2, 2)])
def test_libraries_use_the_share_of_a_task(threads, inner, expected):
    with parallel_config("skfleet", client=threads, inner_max_num_threads=inner):
        assert set(Parallel()(delayed(limit_threadpools)() for _ in range(4))) == {expected}


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
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        assert set(Parallel()(delayed(id_of_current_client)() for _ in range(2))) == {client.id}


@pytest.mark.parametrize("comes_back", [True, False])
def test_results_that_are_lost_before_they_are_fetched(monkeypatch, comes_back):
    """Distributed makes them again; without a worker for that, the call must not wait for ever."""
    fetch, n_fetched = _parallel_call.ParallelCall._fetch, 0
    make = _parallel_call.ParallelCall

    def lose(self, futures):
        nonlocal n_fetched
        n_fetched += 1
        if n_fetched == 1:
            cluster.scale(0)
            while client.nthreads():
                time.sleep(0.01)
            if comes_back:
                cluster.scale(1)
        return fetch(self, futures)

    monkeypatch.setattr(_parallel_call, "FLEET_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(_parallel_call.ParallelCall, "_fetch", lose)
    patient = partial(make, no_worker_timeout=10.0 if comes_back else 0.5)
    monkeypatch.setattr(
        joblib_backend,
        "ParallelCall",
        lambda *args, no_worker_timeout, **kwargs: patient(*args, **kwargs),
    )
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        parallel_config("skfleet", client=client),
    ):
        calls = (delayed(double)(i) for i in range(3))
        if comes_back:
            assert Parallel(batch_size=1)(calls) == [0, 2, 4]
        else:
            with pytest.raises(FleetError, match="no worker for it has been there"):
                Parallel(batch_size=1)(calls)
