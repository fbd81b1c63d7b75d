"""Calls that are submitted together, values that are kept for tasks, and news ahead of the end."""

import dask.array as da
import numpy as np
import pytest
from distributed import Client, get_worker, wait
from threadpoolctl import threadpool_info

from skfleet import Fleet, config_context
from skfleet._cluster._client import scheduler_workers
from skfleet.blocks import Block, row_blocks
from skfleet.engine import (
    Call,
    LocalEngine,
    ResourceRequest,
    counting,
    fleet_engine,
    open_scattered,
)
from skfleet.engine._dask import _scatter
from skfleet.exceptions import PlacementError


@pytest.fixture(params=["here", "cluster"])
def engine(request):
    if request.param == "here":
        return LocalEngine()
    return fleet_engine(request.getfixturevalue("cluster_client"))


def add(*values):
    return sum(values)


def total(handles, kept):
    return (
        sum(float(np.sum(open_scattered(handle.X).X)) for handle in handles)
        + open_scattered(kept)["more"]
    )


def first(pair):
    return pair[0]


def fail(*_):
    raise KeyError("here")


def wait_for(engine, task, summarize=None):
    watch = engine.completion_queue()
    watch.add(task, summarize)
    while True:
        ended = watch.next(1.0)
        if ended:
            return ended[0]


def test_calls_take_one_another_as_arguments(engine):
    one = Call(add, (1, 2), "one")
    two = Call(add, (one, 10), "two")
    three = Call(add, (one, two), "three")
    with counting() as counts:
        tasks = engine.submit_all([one, two, three])
    assert engine.gather(tasks) == [3, 13, 16]
    assert counts.tasks == 3
    assert engine.gather(engine.submit_all([Call(add, (tasks[2], 1))])) == [17]


@pytest.mark.parametrize("is_large", [False, True])
def test_kept_values_go_to_workers_that_may_open_them(monkeypatch, is_large):
    monkeypatch.setattr(_scatter, "_LARGEST_TASK", 100 if is_large else 10**6)
    labels = [{"CPU": 1.0}, {"CPU": 1.0}, {"GPU": 1.0}]
    with Fleet(processes=False, resources=labels, dashboard_address=None) as client:
        (gpu,) = (a for a, w in scheduler_workers(client).items() if w["resources"].get("GPU"))
        with config_context(device="cuda"):
            engine = fleet_engine(client)
        for _ in range(3):
            kept = engine.scatter(np.ones(1000))
            wait(kept.task)
            assert set(client.who_has([kept.task])[kept.task.key]) == {gpu}


def test_kept_values_are_opened_in_tasks(engine):
    rows = engine.scatter(Block(np.arange(6.0)))
    more = engine.scatter({"more": 0.5})
    handles = [Block(rows, number=0), Block(rows, number=1)]
    assert engine.gather(engine.submit_all([Call(total, (handles, more))])) == [30.5]
    assert engine.gather([engine.submit(total, handles, more)]) == [30.5]
    engine.rescatter(rows)
    assert engine.gather([engine.submit(total, handles, more)]) == [30.5]


def pair(value):
    return value, np.zeros(1000)


def test_what_a_task_tells_comes_home_and_not_its_value(engine):
    call = Call(pair, (7,), "pair", first)
    (task,) = engine.submit_all([call])
    assert wait_for(engine, task, first).value == 7


def test_news_that_did_not_come_are_fetched(cluster_client):
    engine = fleet_engine(cluster_client)
    (task,) = engine.submit_all([Call(pair, (7,), "pair")])  # nothing is told
    assert wait_for(engine, task, first).value == 7


def test_failures_are_told_apart():
    with Client(n_workers=1, processes=False, dashboard_address=":0", set_as_default=False) as c:
        engine = fleet_engine(c)
        ended = wait_for(engine, engine.submit(fail))
        assert isinstance(ended.error, KeyError)
        assert not ended.was_lost
        assert not ended.killed_workers
        (task,) = engine.submit_all([Call(fail, (1,), "fail", first)])
        assert isinstance(wait_for(engine, task, first).error, KeyError)


def test_nobody_is_waited_for_too_long(engine):
    assert engine.completion_queue().next(0.01) == []


def test_slots_and_placements(cluster_client):
    engine = fleet_engine(cluster_client)
    assert engine.count_slots(ResourceRequest()) == sum(engine.client.nthreads().values())
    assert engine.count_slots(ResourceRequest.of({"TPU": 1})) == 0
    for one in (engine, LocalEngine()):
        one.check(ResourceRequest())
        with pytest.raises(PlacementError, match="TPU=1"):
            one.check(ResourceRequest.of({"TPU": 1}))


def blas_threads():
    return max(
        (one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"), default=0
    )


@pytest.mark.usefixtures("two_library_threads")
def test_who_asks_for_cpus_may_use_them():
    labels = {"CPU": 2}
    with Client(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        resources=labels,
        dashboard_address=":0",
        set_as_default=False,
    ) as client:
        engine = fleet_engine(client)
        two = ResourceRequest.of({"CPU": 2})
        assert engine.count_slots(two) == 1
        assert engine.gather(engine.submit_all([Call(blas_threads, ())])) == [1]
        many = engine.gather(engine.submit_all([Call(blas_threads, ())], resources=two))
        assert many == [2]


def where(_):
    return get_worker().address


def test_tasks_on_blocks_that_share_work_go_where_they_are_asked_to(mixed_fleet):
    X = da.random.default_rng(0).normal(size=(40, 2), chunks=(5, 2))
    gpu = ResourceRequest.of({"GPU": 1})
    with mixed_fleet.as_current():
        blocks = row_blocks(X / X.std(axis=0)).blocks
        engine = fleet_engine(mixed_fleet)
        places = engine.gather(engine.map(where, blocks, name="where", resources=gpu))
        assert {tuple(engine.offers[place]) for place in places} == {("GPU",)}
