"""Calls in flight: how many, on which workers, and nested ones."""

import multiprocessing
import os
import threading
import time

import joblib
import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config

import skfleet
from clusters import local_client
from skfleet.exceptions import FleetError, PlacementError


def double(x):
    return 2 * x


def fail(i, bad):
    if i == bad:
        raise KeyError(f"call {i}")
    return i


def total(X, *rest):
    return float(X.sum())


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
        local_client(1, processes=False, threads_per_worker=1, set_as_default=False) as client,
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
    with parallel_config("skfleet", client=processes), pytest.raises(KeyError, match="second"):
        Parallel(**options)(delayed(note_down)(i, tmp_path) for i in range(40))
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) < 8


def test_timeout_of_a_call_raises(processes):
    with parallel_config("skfleet", client=processes), pytest.raises(multiprocessing.TimeoutError):
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


@pytest.mark.slow
def test_device_chooses_the_workers(processes):
    with (
        parallel_config("skfleet", client=processes, device="cuda"),
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
        local_client(
            1, processes=False, threads_per_worker=4, resources={"GPU": 2}, set_as_default=False
        ) as client,
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
