"""The client that work belongs to, outside tasks and inside them, and the check of its workers."""

import asyncio
import sys
from types import SimpleNamespace

import pytest
from distributed import Client, LocalCluster

from skfleet._cluster import _client, _memory, host_identity, state_of
from skfleet._cluster._client import (
    all_workers_on_this_host,
    check_synchronous,
    check_workers,
    current_client,
    register_client,
    scheduler_workers,
    seceded,
)
from skfleet.exceptions import FleetVersionError


def nested_total(n):
    """Sum 0..n-1 with a task for each number, from inside a task."""
    client = current_client()
    with seceded(), seceded():
        return sum(client.gather(client.map(int, range(n)))), client.id


def test_no_client_is_none():
    assert current_client() is None


def test_default_client_is_current(cluster):
    with Client(cluster) as client:
        assert current_client() is client
    assert current_client() is None


def test_client_made_later_is_current_and_the_earlier_comes_back(cluster):
    with Client(cluster) as first:
        with Client(cluster) as second:
            assert current_client() is second
        assert current_client() is first


def test_closed_client_is_not_current(cluster):
    client = Client(cluster)
    assert current_client() is client
    # Not within a `with` block: distributed would leave its scheduler in Dask's settings.
    client.close()
    assert current_client() is None


def test_task_finds_the_client_of_its_scheduler(cluster):
    with Client(cluster) as client:
        # one thread: without its slot given back, the task would wait for ever for the others
        assert client.submit(nested_total, 4).result(timeout=30) == (6, client.id)


def test_task_finds_an_offered_client_that_is_not_the_default(cluster):
    with Client(cluster, set_as_default=False) as client:
        register_client(client)
        assert current_client() is None
        assert client.submit(nested_total, 4).result(timeout=30) == (6, client.id)
        assert current_client() is None


def test_slot_released_outside_a_task_does_nothing():
    with seceded():
        assert not _client._is_seceded.get()


def test_slot_is_taken_back_after_an_error(cluster):
    def fails():
        with seceded():
            raise ZeroDivisionError

    with Client(cluster) as client:
        with pytest.raises(ZeroDivisionError):
            client.submit(fails).result(timeout=30)
        assert client.submit(nested_total, 3).result(timeout=30)[0] == 3


async def meet_an_asynchronous_client():
    """Open an asynchronous client, and see it refused."""
    async with (
        LocalCluster(
            processes=False, n_workers=1, asynchronous=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        for refused in (current_client, lambda: check_synchronous(client)):
            with pytest.raises(TypeError, match=r"client must be synchronous. Got an asynchronous"):
                refused()


def test_asynchronous_client_is_refused():
    asyncio.run(meet_an_asynchronous_client())


def test_workers_are_told_whatever_the_client_asks_meanwhile(cluster):
    with Client(cluster) as client:
        asking = True

        async def ask():  # what the client does itself every two seconds
            while asking:
                await client._update_scheduler_info()

        asked = asyncio.run_coroutine_threadsafe(ask(), client.loop.asyncio_loop)
        found = [len(scheduler_workers(client)) for _ in range(100)]
        asking = False
        asked.result(10)
        assert found == [1] * 100


def test_no_workers_without_a_scheduler(cluster):
    with Client(cluster) as client:
        pass
    assert scheduler_workers(client) == {}


def test_workers_of_this_process_are_not_asked(cluster, monkeypatch):
    with Client(cluster) as client:
        monkeypatch.setattr(client, "run", None)  # calling it would raise
        check_workers(client)


def made_client(answers, address="tcp://scheduler:1"):
    """A stand-in for a client whose workers answer what is given."""
    asked = []

    class Answering:
        scheduler = SimpleNamespace(address=address)

        def nthreads(self):
            return dict.fromkeys(answers, 1)

        def run(self, function, *, workers, on_error):
            asked.extend(workers)
            return {address: answers[address] for address in workers}

    return Answering(), asked


def ours():
    return _client._versions_lookup()()


def test_each_worker_is_asked_once():
    answers = {"a": ours(), "b": ours()}
    client, asked = made_client(answers)
    check_workers(client)
    check_workers(client)
    assert asked == ["a", "b"]
    answers["c"] = ours()
    check_workers(client)
    assert asked == ["a", "b", "c"]
    del answers["c"]
    check_workers(client)
    answers["c"] = ours()  # another process may be there now
    check_workers(client)
    assert asked == ["a", "b", "c", "c"]


def test_worker_that_left_while_asked_is_no_error():
    client, _ = made_client({"a": ours(), "b": OSError("gone")})
    check_workers(client)


@pytest.mark.parametrize(
    ("name", "found", "said"),
    [
        ("Python", "2.7", "Got 2.7 on b"),
        ("scikit-learn", "0.1", "Got 0.1 on b"),
        ("scikit-learn", None, "Got none on b"),
        ("scikit-fleet", "0.0", "Got 0.0 on b"),
        ("scikit-fleet", None, "Got none on b"),
    ],
)
def test_worker_with_other_versions_is_refused_every_time(name, found, said):
    client, _ = made_client({"a": ours(), "b": {**ours(), name: found}})
    for _ in range(2):
        with pytest.raises(FleetVersionError, match=said) as error:
            check_workers(client)
        assert str(error.value).startswith(f"{name} must be {ours()[name]} on every worker")
        assert "(1 of 2 workers differ)" in str(error.value)


@pytest.mark.skipif(host_identity() is None, reason="no memory can be shared here")
@pytest.mark.parametrize(
    ("address", "there", "expected"),
    [
        ("tcp://127.0.0.1:8786", host_identity(), True),
        ("tcp://127.0.0.1:8786", "another namespace", False),
        ("tcp://127.0.0.1:8786", None, False),
        ("tcp://10.0.0.1:8786", host_identity(), False),
    ],
)
def test_one_machine_is_what_all_workers_share_and_no_other_reaches(address, there, expected):
    client, _ = made_client({"a": ours(), "b": {**ours(), "machine": there}}, address)
    assert not all_workers_on_this_host(client)  # nobody was asked yet
    check_workers(client)
    assert all_workers_on_this_host(client) is expected


def test_versions_are_those_of_this_process():
    import sklearn

    import skfleet

    assert ours() == {
        "machine": host_identity(),
        "Python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "scikit-learn": sklearn.__version__,
        "scikit-fleet": skfleet.__version__,
    }


def test_a_worker_that_has_just_started_will_have_imported_what_fits_need(monkeypatch):
    workers = {
        f"tcp://127.0.0.1:{port}": {"memory_limit": 2 * 10**9, "metrics": metrics}
        for port, metrics in enumerate(({}, {"memory": 70 * 10**6}, {"memory": 10**9}))
    }
    monkeypatch.setattr(_memory, "scheduler_workers", lambda *args: workers)
    used = [memory.used for memory in _memory.worker_memory(None).values()]
    least = _memory.MIN_IMPORTED_BYTES + _memory.sparse_bytes()
    assert used == [least, least, 10**9]


def test_memory_of_threads_is_what_imports_leave(monkeypatch, cluster_client):
    client = cluster_client
    workers = {"a": {"memory_limit": 600_000_000, "nthreads": 2}, "b": {"memory_limit": None}}
    monkeypatch.setattr(_memory, "scheduler_workers", lambda *args: workers)
    monkeypatch.setattr(_memory, "sparse_bytes", lambda: 0)
    assert _memory.least_thread_memory(client) == 150_000_000
    monkeypatch.setattr(_memory, "sparse_bytes", lambda: _memory.SPARSE_BYTES)
    assert _memory.least_thread_memory(client) == 110_000_000
    monkeypatch.setattr(state_of(client), "imported_bytes", 500_000_000)  # it was measured
    assert _memory.least_thread_memory(client) == 50_000_000
