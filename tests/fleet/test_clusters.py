"""Fleets on the cluster objects of others: Dask's, and those that only resemble them."""

import time
from contextlib import contextmanager

import dask.config
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker
from distributed.deploy import Adaptive
from sklearn.datasets import load_iris
from sklearn.ensemble import GradientBoostingClassifier

from skfleet._cluster import current_client, state_of
from skfleet.exceptions import FleetError, FleetVersionError
from skfleet.fleet import Fleet, _connect
from skfleet.model_selection import GridSearchCV
from skfleet.model_selection._dispatch._routes import _on_workers


class Gateway:
    """A cluster object that is none of Dask's, as dask-gateway's: it opens clients and scales."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.clients = []

    def get_client(self):
        self.clients.append(Client(self._cluster.scheduler_address))
        return self.clients[-1]

    def scale(self, n):
        self._cluster.scale(n)


def test_whatever_opens_clients_and_scales_is_a_cluster(cluster):
    gateway, before = Gateway(cluster), current_client(is_required=False)
    fleet = Fleet(gateway)
    with fleet as client:
        assert gateway.clients == [client]
        assert current_client() is client
        assert client.submit(sum, [1, 2]).result() == 3
        fleet.scale(2)
        client.wait_for_workers(2, timeout=30)
        with pytest.raises(FleetError, match=r"a cluster that has `adapt`. Got a Gateway instead"):
            fleet.adapt()
        with pytest.raises(FleetError, match="adapt must be called on a cluster"):
            fleet.adapt(maximum=2)
    assert client.status == "closed"
    assert cluster.status.name == "running"
    assert current_client(is_required=False) is before


def test_a_list_of_workers_does_not_grow():
    """As that of an SSHCluster; Dask would log an error, and have one worker for ever."""
    options = {"dashboard_address": "127.0.0.1:0", "protocol": "inproc://"}
    workers = {0: {"cls": Worker, "options": {"nthreads": 1}}}
    with SpecCluster(workers, {"cls": Scheduler, "options": options}) as cluster:
        fleet = Fleet(cluster)
        with fleet as client:
            assert client.submit(sum, [1, 2]).result() == 3
            for change in (lambda: fleet.scale(2), fleet.adapt):
                with pytest.raises(FleetError, match="a list of them instead, as an SSHCluster"):
                    change()


def test_a_client_that_a_cluster_has_opened_names_the_memory_of_deaths(cluster, monkeypatch):
    explained = []

    @contextmanager
    def explained_deaths(client):
        explained.append(client)
        yield

    monkeypatch.setattr("skfleet.fleet._client.explained_deaths", explained_deaths)
    with Fleet(Gateway(cluster)) as client:
        assert client.gather(client.map(abs, [-1, -2])) == [1, 2]
    assert explained == [client]


def test_a_client_that_fails_its_checks_is_closed(cluster, monkeypatch):
    def check_workers(client):
        raise FleetVersionError("another version")

    monkeypatch.setattr(_connect, "check_workers", check_workers)
    gateway, before = Gateway(cluster), current_client(is_required=False)
    for address in (gateway, cluster):
        with pytest.raises(FleetVersionError):
            Fleet(address)
        assert current_client(is_required=False) is before
    assert [client.status for client in gateway.clients] == ["closed"]


@pytest.mark.parametrize("parameter", [{"timeout": 5}, {"security": True}, {"n_workers": 2}])
def test_what_a_cluster_decides_is_no_parameter(cluster, parameter):
    (name,) = parameter
    with pytest.raises(ValueError, match=f"{name} must not be given with a"):
        Fleet(Gateway(cluster), **parameter)


def test_what_is_no_cluster():
    class Scalable:
        scale = None

    with pytest.raises(TypeError, match=r"a cluster object, with get_client and scale. Got Scal"):
        Fleet(Scalable())


@pytest.mark.parametrize("kind", [lambda cluster: cluster, Gateway])
def test_labels_are_those_of_the_workers(cluster, kind):
    with Fleet(kind(cluster)) as client:
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert [worker["resources"] for worker in workers] == [{"CPU": 1}]


def wait_for(n_workers, client, seconds=30):
    end = time.monotonic() + seconds
    while len(client.nthreads()) != n_workers and time.monotonic() < end:
        time.sleep(0.02)
    assert len(client.nthreads()) == n_workers


def test_adapt_counts_work_that_is_not_sent_yet(cluster):
    with dask.config.set({"distributed.adaptive.interval": "20ms"}):
        fleet = Fleet(cluster)
        with fleet as client:
            fleet.adapt(minimum=1, maximum=3)
            waiting = state_of(client).waiting_seconds
            waiting[0] = 12.0  # seconds; Dask wants all work done in five
            wait_for(3, client)
            del waiting[0]
            wait_for(1, client)


def test_adapt_of_clusters_that_are_scaled_elsewhere(cluster):
    """It gets what its own `adapt` knows: of a KubeCluster that is no class."""

    class Adapted(Gateway):
        def adapt(self, *, minimum, maximum):
            self.bounds = minimum, maximum

    gateway = Adapted(cluster)
    fleet = Fleet(gateway)
    with fleet:
        fleet.adapt(minimum=1, maximum=3)
        assert gateway.bounds == (1, 3)
        fleet.scale(1)


def test_the_end_of_a_fleet_ends_the_adapting_that_it_began(cluster):
    with dask.config.set({"distributed.adaptive.interval": "20ms"}):
        fleet = Fleet(cluster)
        fleet.adapt(minimum=1, maximum=2)
        adaptive = fleet._adaptive
        assert isinstance(adaptive, Adaptive)
        fleet.close()
    assert adaptive.state == "stopped"
    assert cluster.status.name == "running"


def test_a_search_reports_what_it_has_not_sent(monkeypatch):
    reported = []

    class Reports(dict):
        def __setitem__(self, key, seconds):
            reported.append(seconds)
            super().__setitem__(key, seconds)

    monkeypatch.setattr(_on_workers, "_RECOUNT_SECONDS", 0.0)
    grid = {"max_depth": [1, 2, 3], "learning_rate": [0.1, 0.2, 0.4]}
    search = GridSearchCV(GradientBoostingClassifier(n_estimators=3, random_state=0), grid, cv=5)
    with Fleet(n_workers=1, threads_per_worker=1, processes=False) as client:
        state = state_of(client)
        state.waiting_seconds = Reports()
        search.fit(*load_iris(return_X_y=True))
        assert max(reported) > 0.0
        assert state.waiting_seconds == {}
