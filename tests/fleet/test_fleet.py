"""Fleets on threads: the client they give, their parameters, and the embedded fleet."""

import asyncio
import re
import socket
import subprocess
import sys
import textwrap
import threading

import dask.config
import pytest
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster, Security

from clusters import can_show_dashboards, local_client
from skfleet._cluster import current_client
from skfleet.engine import check_satisfiable, resources_for_device
from skfleet.engine._dask._engine import DaskEngine
from skfleet.exceptions import FleetError, PlacementError
from skfleet.fleet import Fleet, _connect, _default_client, default_client


@pytest.fixture
def no_embedded():
    """Start and end without the embedded fleet."""
    _default_client._close_embedded()
    yield
    _default_client._close_embedded()


def labels(client):
    return sorted(tuple(offer.items()) for offer in DaskEngine(client).offers.values())


def run_script(code, *, timeout=120, **options):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )


# The client


def test_with_gives_a_client_that_is_the_default():
    before = dask.config.get("scheduler", None)  # a test before may have left one
    with Fleet(n_workers=2, processes=False) as client:
        assert isinstance(client, Client)
        assert current_client() is default_client() is client
        assert client.submit(sum, [1, 2]).result() == 3
        assert len(client.nthreads()) == 2
    assert client.status == "closed"
    assert client.cluster.status.name == "closed"
    assert current_client() is None
    assert dask.config.get("scheduler", None) is before


def test_without_with():
    fleet = Fleet(processes=False)
    try:
        assert current_client() is fleet.client
        assert sum(fleet.client.nthreads().values()) == CPU_COUNT
    finally:
        fleet.close()
    fleet.close()
    assert current_client() is None
    assert repr(fleet) == "Fleet(closed)"
    assert fleet.dashboard_link is None


def test_nested_fleets_give_the_outer_client_back():
    with Fleet(n_workers=1, processes=False) as outer:
        with Fleet(n_workers=2, processes=False) as inner:
            assert current_client() is inner
        assert current_client() is outer
        assert outer.submit(sum, [1, 2]).result() == 3


def test_fleet_inside_a_client_block_takes_over_and_gives_back():
    with local_client(1, processes=False) as client:
        with Fleet(n_workers=1, processes=False) as inner:
            assert current_client() is inner
        assert current_client() is client


def test_error_in_the_block_closes():
    fleet = Fleet(n_workers=1, processes=False)
    with pytest.raises(ZeroDivisionError), fleet as client:
        raise ZeroDivisionError
    assert client.status == "closed"
    assert client.cluster.status.name == "closed"


def test_inside_a_running_event_loop():
    async def main():
        with Fleet(n_workers=1, processes=False) as client:
            return client.submit(sum, [1, 2]).result()

    assert asyncio.run(main()) == 3


def test_asynchronous_is_refused():
    with pytest.raises(TypeError, match=r"asynchronous must be False. Got True instead. Use"):
        Fleet(asynchronous=True)


# Parameters


def test_one_label_for_all():
    with Fleet(n_workers=2, processes=False, resources={"GPU": 1}) as client:
        assert labels(client) == [(("GPU", 1),), (("GPU", 1),)]


def test_a_label_for_each_and_placements_that_follow_it():
    with Fleet(processes=False, resources=[{"CPU": 1}, {"GPU": 1}]) as client:
        workers = DaskEngine(client).offers
        assert labels(client) == [(("CPU", 1),), (("GPU", 1),)]

        def address():
            from distributed import get_worker

            return get_worker().address

        for device, name in [("cpu", "CPU"), ("cuda", "GPU")]:
            resources = resources_for_device(device, workers)
            futures = [
                client.submit(address, pure=False, resources=resources.as_dict()) for _ in range(4)
            ]
            assert {name in workers[where] for where in client.gather(futures)} == {True}


def test_default_label_is_the_threads():
    with Fleet(n_workers=1, threads_per_worker=3, processes=False) as client:
        assert labels(client) == [(("CPU", 3),)]
        with pytest.raises(PlacementError):
            check_satisfiable(
                resources_for_device("cuda", {"a": {"GPU": 1}}), DaskEngine(client).offers
            )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_workers": 0}, "n_workers must be a positive whole number. Got 0 instead"),
        ({"n_workers": 1.5}, "n_workers must be a positive whole number. Got 1.5 instead"),
        ({"n_workers": True}, "n_workers must be a positive whole number. Got True instead"),
        ({"threads_per_worker": -1}, "threads_per_worker must be a positive whole number. Got -1"),
        (
            {"n_workers": 3, "resources": [{"CPU": 1}]},
            "resources must have one mapping for each of 3 workers. Got 1 instead",
        ),
        ({"resources": []}, "resources must have one mapping for each of the workers. Got 0"),
        (
            {"processes": False, "env": {"A": "1"}},
            "env must not be given with processes=False. Got {'A': '1'} instead. Set os.environ",
        ),
        ({"timeout": 3}, "timeout must not be given without an address. Got 3 instead"),
        (
            {"address": "tcp://127.0.0.1:9", "n_workers": 2},
            "n_workers must not be given with an address. Got 2 instead",
        ),
        (
            {"address": "tcp://127.0.0.1:9", "processes": False},
            "processes must not be given with an address. Got False instead",
        ),
        (
            {"address": "tcp://127.0.0.1:9", "dashboard_address": ":0"},
            "dashboard_address must not be given with an address. Got ':0' instead",
        ),
        (
            {"address": "tcp://127.0.0.1:9", "security": True},
            "security must not be given with an address. Got True instead",
        ),
    ],
)
def test_contradictions_raise(parameters, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Fleet(**parameters)


def test_sizes_fill_the_cores():
    from skfleet.fleet._local_cluster import _resolve_worker_counts

    assert _resolve_worker_counts(None, None, True, None) == (CPU_COUNT, 1)
    assert _resolve_worker_counts(None, None, False, None) == (1, CPU_COUNT)
    assert _resolve_worker_counts(None, CPU_COUNT, True, None) == (1, CPU_COUNT)
    assert _resolve_worker_counts(1, None, True, None) == (1, CPU_COUNT)
    assert _resolve_worker_counts(2 * CPU_COUNT, None, True, None) == (2 * CPU_COUNT, 1)
    assert _resolve_worker_counts(3, 5, True, None) == (3, 5)
    assert _resolve_worker_counts(None, None, True, [{}, {}, {}])[0] == 3


# The dashboard


def test_dashboard_that_is_asked_for_and_cannot_be_is_told_of(monkeypatch):
    monkeypatch.setattr("skfleet.fleet._local_cluster.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"dashboard_address needs bokeh: .*\[ui\]") as log:
        fleet = Fleet(n_workers=1, processes=False, dashboard_address=":0")
    fleet.close()
    assert log[0].filename == __file__


def test_import_loads_no_dashboard():
    done = run_script(
        "import sys, skfleet.fleet; assert 'bokeh' not in sys.modules, 'bokeh was imported'"
    )
    assert done.returncode == 0, done.stderr


# Scaling


def test_scale_up_and_down():
    fleet = Fleet(n_workers=1, threads_per_worker=1, processes=False)
    try:
        fleet.scale(3)
        assert len(fleet.client.nthreads()) == 3
        assert labels(fleet.client) == [(("CPU", 1),)] * 3
        fleet.scale(2)
        assert len(fleet.client.nthreads()) == 2
        with pytest.raises(
            ValueError, match=r"n must be a positive whole number of workers. Got 0"
        ):
            fleet.scale(0)
    finally:
        fleet.close()
    with pytest.raises(FleetError, match=r"Fleet.scale must be called on an open fleet"):
        fleet.scale(1)


def test_adapt_holds_its_bounds_and_scale_ends_it():
    with dask.config.set({"distributed.adaptive.interval": "20ms"}):
        fleet = Fleet(n_workers=1, threads_per_worker=1, processes=False)
        try:
            fleet.adapt(minimum=2, maximum=3)
            fleet.client.wait_for_workers(2, timeout=30)
            assert fleet.client.gather(fleet.client.map(abs, range(50))) == list(range(50))
            assert 2 <= len(fleet.client.nthreads()) <= 3
            fleet.scale(1)
            assert len(fleet.client.nthreads()) == 1
            assert fleet._adaptive is None
            with pytest.raises(ValueError, match=r"minimum must be between 0 and maximum=1. Got 2"):
                fleet.adapt(minimum=2, maximum=1)
        finally:
            fleet.close()


# A scheduler that runs already


def test_address_of_a_running_scheduler():
    with LocalCluster(
        processes=False,
        n_workers=1,
        threads_per_worker=1,
        protocol="tcp",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        fleet = Fleet(cluster.scheduler_address)
        with fleet as client:
            assert client.submit(sum, [1, 2]).result() == 3
            assert repr(fleet).startswith("Fleet(1 worker, 1 thread, ")
            assert cluster.scheduler_address in repr(fleet)
            for change in (lambda: fleet.scale(2), fleet.adapt):
                with pytest.raises(FleetError, match=r"that joined tcp://.* by its address"):
                    change()
        assert cluster.status.name == "running"
        assert len(cluster.scheduler_info["workers"]) == 1


def test_cluster_object_is_scaled_and_left_running():
    with LocalCluster(processes=False, n_workers=1, dashboard_address="127.0.0.1:0") as cluster:
        fleet = Fleet(cluster)
        fleet.scale(2)
        fleet.client.wait_for_workers(2, timeout=30)
        fleet.close()
        assert cluster.status.name == "running"


def test_nobody_at_the_address():
    with pytest.raises(
        FleetError, match=r"address must be that of a running .* Got 'tcp://127.0.0.1"
    ):
        Fleet("tcp://127.0.0.1:9", timeout=0.2)
    assert current_client() is None


@pytest.mark.parametrize(
    "address", ["localhost", "tcp://127.0.0.1", "nonsense://x:1", ":::", "tcp://127.0.0.1:port"]
)
def test_what_is_no_address(address, monkeypatch):
    monkeypatch.setattr(_connect, "Client", None)  # none is made: it would be hard to close
    with pytest.raises(FleetError, match=f"address must be that of a .* Got '{address}' instead"):
        Fleet(address)


def test_somebody_else_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
            connection.close()

        threading.Thread(target=answer).start()
        with pytest.raises(FleetError, match=r"address must be that of a running scheduler"):
            Fleet(f"tcp://127.0.0.1:{server.getsockname()[1]}", timeout=0.5)


def test_a_wrong_address_is_tried_for_less_than_ten_seconds(monkeypatch):
    waited = []

    async def nobody(address, timeout, **_):
        waited.append(timeout)
        raise OSError("nobody there")

    monkeypatch.setattr(_connect, "connect_comm", nobody)
    with pytest.raises(FleetError, match="connection was made: nobody there"):
        Fleet("tcp://10.0.0.1:8786")
    assert max(waited) < 10


def test_workers_that_are_not_up_are_counted(capsys, monkeypatch):
    with LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        Fleet(cluster).close()
        assert "no worker is up yet at inproc://" in capsys.readouterr().err
        # as of a batch system's cluster, whose jobs are in the queue
        monkeypatch.setattr(LocalCluster, "plan", {"job-0", "job-1", "job-2"})
        Fleet(cluster).close()
        (line,) = capsys.readouterr().err.splitlines()
        assert "none of 3 workers is up yet at inproc://" in line


def test_closed_fleet_cannot_be_entered():
    fleet = Fleet(n_workers=1, processes=False)
    fleet.close()
    with pytest.raises(FleetError, match=r"Fleet must be open to be entered. Got a closed one"):
        fleet.__enter__()


def test_dashboard_of_others_is_shown_where_there_is_one():
    has_bokeh = can_show_dashboards()
    with LocalCluster(
        processes=False, n_workers=1, dashboard_address="127.0.0.1:0", protocol="tcp"
    ) as cluster:
        for address in (cluster, cluster.scheduler_address):
            fleet = Fleet(address)
            assert (fleet.dashboard_link is not None) == has_bokeh
            assert ("dashboard" in repr(fleet)) == has_bokeh
            fleet.close()


def test_a_client_is_not_an_address():
    with (
        Fleet(n_workers=1, processes=False) as client,
        pytest.raises(TypeError, match=r"Got FleetClient instead. A distributed.Client needs"),
    ):
        Fleet(client)


# TLS


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    """Make a throw-away certificate that is its own authority."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    try:
        subprocess.run(
            [*command, "-subj", "/CN=fleet", "-keyout", str(key), "-out", str(certificate)],
            check=True,
            capture_output=True,
            timeout=60,
        )
    except FileNotFoundError:
        pytest.skip("the openssl command is absent")
    both = {"cert": str(certificate), "key": str(key)}
    return {
        "tls_ca_file": str(certificate),
        **{
            f"tls_{role}_{part}": path
            for role in ("client", "scheduler", "worker")
            for part, path in both.items()
        },
    }


def test_tls(credentials):
    security = Security(require_encryption=True, **credentials)
    with Fleet(n_workers=1, processes=False, security=security) as local:
        address = local.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        with Fleet(address, security=security) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        with pytest.raises(FleetError, match=r"security must have the credentials of a TLS"):
            Fleet(address)


# The embedded fleet


@pytest.mark.usefixtures("no_embedded")
def test_embedded_fleet_starts_once_and_says_so_once(capsys):
    first = default_client()
    assert first is default_client()
    assert first.submit(sum, [1, 2]).result() == 3
    assert sum(first.nthreads().values()) == CPU_COUNT
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "Fleet()" in said.err


@pytest.mark.usefixtures("no_embedded")
def test_embedded_fleet_is_nobodys_default():
    before = dask.config.get("scheduler", None)  # a test before may have left one
    embedded = default_client()
    assert current_client() is None
    assert dask.config.get("scheduler", None) is before
    assert embedded.submit(lambda: current_client().id).result() == embedded.id
    assert current_client() is None
    with Fleet(n_workers=1, processes=False) as client:
        assert default_client() is client
    assert default_client() is embedded


@pytest.mark.usefixtures("no_embedded")
def test_embedded_fleet_starts_again_after_it_was_closed():
    first = default_client()
    first.close()
    second = default_client()
    assert second is not first
    assert second.submit(sum, [1, 2]).result() == 3


@pytest.mark.usefixtures("no_embedded")
def test_embedded_fleet_starts_once_from_many_threads():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        assert len({client.id for client in pool.map(lambda _: default_client(), range(16))}) == 1


def test_embedded_fleet_ends_with_the_program_without_noise():
    done = run_script(
        """
        from skfleet.fleet import default_client
        print(default_client().submit(sum, [1, 2]).result())"""
    )
    assert (done.returncode, done.stdout) == (0, "3\n")
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_an_error_without_words_is_named(monkeypatch):
    async def connect(*args, **kwargs):
        raise TimeoutError

    monkeypatch.setattr("skfleet.fleet._connect.connect_comm", connect)
    with pytest.raises(FleetError, match=r"was made: TimeoutError\. Start one"):
        Fleet("tcp://127.0.0.1:9")
