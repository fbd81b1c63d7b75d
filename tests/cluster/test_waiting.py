"""Waiting for tasks: workers that go for good, and those that died of memory."""

import gc
import threading
import time
from contextvars import copy_context
from threading import Thread
from types import SimpleNamespace

import pytest
from distributed import Client, Event, KilledWorker
from distributed.client import FutureCancelledError

from skfleet import config_context
from skfleet._cluster import _wait, interruptible_waits
from skfleet._cluster._wait import MEMORY_TOPIC, completed, death_error, gather
from skfleet._joblib._parallel_call import CallBatch, ParallelCall
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._dask._task_events import DaskCompletionQueue
from skfleet.exceptions import FleetError, NoWorkersError
from skfleet.fleet._local_cluster import start_local_cluster

_gates = {}


def wait(name):
    _gates[name].wait(30)


@pytest.fixture(scope="module")
def client():
    with (
        start_local_cluster(n_workers=2, threads_per_worker=1, processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def impatience(monkeypatch):
    monkeypatch.setattr(_wait, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(_wait, "NO_WORKERS_SECONDS", 0.1)
    with config_context(wait_for_workers_timeout=0.1):
        yield


def nobody(workers):
    return False


def test_values_come_in_order(client):
    assert gather(client, client.map(abs, [-3, 2, -1])) == [3, 2, 1]
    tasks = client.map(abs, [-5, 6])
    assert set(completed(client, tasks)) == set(tasks)


def test_first_error_is_raised_while_others_run(client):
    gate = _gates["others"] = threading.Event()
    slow, wrong = client.submit(wait, "others"), client.submit(divmod, 1, 0)
    with pytest.raises(ZeroDivisionError):
        gather(client, [slow, wrong])
    assert not gate.is_set()
    gate.set()


@pytest.mark.usefixtures("impatience")
@pytest.mark.parametrize("way", [gather, lambda *args: list(completed(*args))])
def test_workers_that_went_for_good_are_named(client, way):
    gate = _gates["gone"] = threading.Event()
    task = client.submit(wait, "gone", pure=False)
    message = f"scheduler {client.scheduler.address} must have a worker for the tasks that wait"
    with pytest.raises(NoWorkersError, match=message):
        way(client, [task], nobody)
    gate.set()


@pytest.mark.usefixtures("impatience")
def test_an_engine_says_that_its_workers_went():
    with (
        start_local_cluster(n_workers=1, threads_per_worker=1, processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        engine = DaskEngine(client)
        gate = _gates["left"] = threading.Event()
        task = engine.submit(wait, "left")
        closing = threading.Timer(0.2, cluster.scale, [0])
        closing.start()
        with pytest.raises(NoWorkersError, match="Got none for"):
            engine.gather([task])
        gate.set()


def killed(address):
    return KilledWorker("fit-1", SimpleNamespace(address=address, memory_limit=2**31), 3)


@pytest.fixture
def memory_death(client):
    """What a nanny reports of a worker that it ended for its memory."""
    address = next(iter(client.nthreads()))
    client.log_event(MEMORY_TOPIC, {"worker": address, "pid": 1, "rss": 3 * 2**30})
    deadline = time.monotonic() + 10
    while not client.get_events(MEMORY_TOPIC) and time.monotonic() < deadline:
        time.sleep(0.01)
    return address


def test_death_of_memory_is_named_with_what_to_do(client, memory_death):
    error = death_error(client, killed(memory_death), since=0)
    assert isinstance(error, FleetError)
    assert "fit must fit into the memory of a worker. Got 3.00 GiB of the 2.00 GiB that a" in str(
        error
    )
    assert "memory_limit=" in str(error)
    # the scheduler's clock may be behind
    late = death_error(client, killed(memory_death), since=time.time() + 60)
    assert "must fit into the memory" in str(late)


def test_other_deaths_are_not_laid_on_memory(client, memory_death):
    error = death_error(client, killed("tcp://other:1"), since=0, name="Ridge")
    assert str(error).startswith("Ridge must leave its worker alive. Got KilledWorker instead")
    assert death_error(client, ValueError("x"), since=0) is None


def test_data_lost_with_a_worker_that_died_of_memory(client, memory_death):
    lost = FutureCancelledError("hold-1", "lost dependencies")
    assert "hold must fit into the memory" in str(death_error(client, lost, since=0))
    assert death_error(client, lost, since=time.time() + 60) is None  # it died of that before
    by_hand = FutureCancelledError("hold-1", "unknown")
    assert death_error(client, by_hand, since=0) is None


@pytest.mark.parametrize(("n_sent", "is_sent_again"), [(1, True), (2, False)])
def test_batch_whose_rows_died_of_memory_is_sent_twice(
    client, memory_death, n_sent, is_sent_again, monkeypatch
):
    call = ParallelCall.__new__(ParallelCall)
    call.client, call._begin, sent = client, 0, []
    monkeypatch.setattr(ParallelCall, "_send", lambda self, batches: sent.extend(batches))
    batch = CallBatch([], print, n_sent=n_sent)
    lost = FutureCancelledError("hold-1", "lost dependencies")
    assert call._resend(batch, lost) is is_sent_again
    assert sent == [batch] * is_sent_again


@pytest.mark.parametrize("reason", ["lost dependencies", "unknown"])
def test_task_whose_rows_died_of_memory_may_have_killed_its_worker(client, memory_death, reason):
    def result():
        raise FutureCancelledError("train-1", reason)

    tasks = DaskCompletionQueue(client)
    tasks._start_time = 0
    outcome = tasks._result_of(SimpleNamespace(result=result))
    of_memory = reason == "lost dependencies"
    assert (outcome.killed_workers, outcome.was_lost) == (of_memory, not of_memory)
    assert ("must fit into the memory" in str(outcome.error)) is of_memory


def test_second_death_of_memory_is_a_tasks_last(client):
    gate = _gates["eats"] = threading.Event()
    task = client.submit(wait, "eats", pure=False)
    while not (where := [a for a, keys in client.processing().items() if keys]):
        time.sleep(0.01)
    scheduler = client.cluster.scheduler
    client.log_event(MEMORY_TOPIC, {"worker": where[0], "pid": 1, "rss": 1})
    deadline = time.monotonic() + 10
    while not scheduler.tasks[task.key].suspicious and time.monotonic() < deadline:
        time.sleep(0.01)
    # each death adds one, and distributed gives a task up above the allowed number
    assert scheduler.tasks[task.key].suspicious + 2 == scheduler.allowed_failures + 1
    gate.set()


def test_interrupted_wait_leaves_no_errors(cluster_client, monkeypatch, caplog):
    """Dask's own wait has a task for each future, of which each would log an error."""

    def interrupt(workers):
        raise KeyboardInterrupt

    engine, event = DaskEngine(cluster_client), Event(client=cluster_client)
    monkeypatch.setattr(_wait, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(engine, "_has_workers", interrupt)
    tasks = [cluster_client.submit(event.wait, seconds) for seconds in range(10, 18)]
    gc.collect()  # what earlier tests left behind logs its errors now
    caplog.clear()
    with pytest.raises(KeyboardInterrupt):
        engine.gather(tasks)
    event.set()
    cluster_client.submit(len, ()).result()
    del tasks
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_waits_of_other_threads_are_interrupted(client):
    gate = _gates["interrupted"] = threading.Event()
    raised, waits_of_others = [], []

    def wait_for(task):
        try:
            gather(client, [task])
        except KeyboardInterrupt:
            raised.append(task)

    with interruptible_waits() as waits:
        assert gather(client, client.map(abs, [-3, 2])) == [3, 2]
        tasks = [client.submit(wait, "interrupted", pure=False) for _ in range(2)]
        threads = [Thread(target=copy_context().run, args=(wait_for, task)) for task in tasks]
        for thread in threads:
            thread.start()
        elsewhere = Thread(target=lambda: waits_of_others.append(gather(client, tasks)))
        elsewhere.start()  # in a context of its own
        time.sleep(0.1)
        waits.interrupt()
        for thread in threads:
            thread.join(5)
        assert set(raised) == set(tasks)
        with pytest.raises(KeyboardInterrupt):  # nor does another wait begin
            gather(client, tasks)
    assert not gate.is_set()
    gate.set()
    elsewhere.join(5)
    assert waits_of_others == [[None, None]]
    assert gather(client, tasks) == [None, None]
