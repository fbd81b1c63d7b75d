"""Every entry where there is no worker, or where the default client does not run: none waits."""

import contextlib
from unittest import mock

import dask.array as da
import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.linear_model import LogisticRegression, SGDClassifier

from clusters import local_client
from skfleet import config_context
from skfleet._cluster._client import current_client
from skfleet.estimators import (
    PCA,
    BlockwiseVotingClassifier,
    GaussianMixture,
    Incremental,
    KMeans,
    NearestNeighbors,
    RandomForestRegressor,
    Ridge,
)
from skfleet.exceptions import FleetError, NoWorkersError
from skfleet.fleet import _default_client
from skfleet.metrics import accuracy_score
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV

X = np.random.default_rng(0).normal(size=(60, 3))
y = (X[:, 0] > 0).astype(int)
DX, DY = da.from_array(X, chunks=(20, 3)), da.from_array(y, chunks=20)
UNKNOWN = DX[da.ones(60, chunks=20, dtype=bool)]


def call_joblib():
    with joblib.parallel_config("skfleet"):
        assert joblib.Parallel()(joblib.delayed(abs)(-i) for i in range(4)) == [0, 1, 2, 3]


def hyperband():
    space = {"alpha": [1e-4, 1e-3, 1e-2]}
    return HyperbandSearchCV(SGDClassifier(), space, max_iter=3, random_state=0)


ENTRIES = {
    "Ridge": lambda: Ridge().fit(DX, DY),
    "rows of unknown length": lambda: Ridge().fit(UNKNOWN, y),
    "KMeans": lambda: KMeans(2).fit(DX),
    "GaussianMixture": lambda: GaussianMixture(2).fit(DX),
    "neighbors": lambda: NearestNeighbors().fit(DX),
    "forest": lambda: RandomForestRegressor(2).fit(DX, DY),
    "PCA": lambda: PCA(2).fit(DX),
    "Incremental": lambda: Incremental(SGDClassifier()).fit(DX, DY, classes=[0, 1]),
    "voting": lambda: BlockwiseVotingClassifier(LogisticRegression()).fit(DX, DY),
    "metric": lambda: accuracy_score(DY, DY),
    "search": lambda: GridSearchCV(LogisticRegression(), {"C": [1, 2]}, cv=2).fit(X, y),
    "search on Dask": lambda: GridSearchCV(LogisticRegression(), {"C": [1, 2]}, cv=2).fit(DX, DY),
    "search of ours on Dask": lambda: GridSearchCV(Ridge(), {"alpha": [1, 2]}, cv=2).fit(DX, DY),
    "adaptive search": lambda: hyperband().fit(X, y),
    "adaptive search on Dask": lambda: hyperband().fit(DX, DY),
    "Parallel": call_joblib,
}
entries = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


@pytest.fixture(autouse=True)
def impatience():
    """Wait for a moment, and start without the embedded fleet."""
    with config_context(wait_for_workers_timeout=0.05):
        yield
    _default_client._close_embedded()


@pytest.fixture(scope="module")
def no_workers():
    with local_client(0, processes=False, set_as_default=False) as client:
        yield client


@pytest.fixture(scope="module")
def gone():
    """A client whose scheduler has gone, and that looks for it."""
    cluster = LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=":0")
    client = Client(cluster.scheduler_address, set_as_default=False)
    cluster.close()
    yield client
    client.close()


@contextlib.contextmanager
def never_started():
    """A client whose cluster did not start, which distributed leaves the default one."""
    taken = mock.patch("distributed.deploy.LocalCluster", side_effect=OSError("port is taken"))
    with taken, pytest.raises(OSError, match="port is taken"):
        Client(dashboard_address=":0")
    client = Client.current()
    assert client.scheduler is None
    yield client
    client.close()


@entries
def test_without_workers_the_scheduler_is_named(entry, no_workers):
    address = no_workers.scheduler.address
    message = f"scheduler {address} must have a worker. Got none after 0.05 seconds instead."
    with no_workers.as_current(), pytest.raises(NoWorkersError, match=message):
        entry()


@entries
def test_scheduler_that_is_gone_is_named(entry, gone):
    message = rf"client {gone.id} must be .* at {gone.scheduler.address} has not answered for 0.05"
    with gone.as_current(), pytest.raises(FleetError, match=message):
        entry()


@entries
def test_client_that_never_started_is_passed_over_with_a_line(entry, capsys):
    with never_started() as client:
        for _ in range(2):
            entry()
        said = capsys.readouterr().err
    assert said.count(f"the default client {client.id} never started and is passed over.") == 1
    assert len(said.splitlines()) <= 2  # and that the embedded fleet starts


def test_client_closed_in_its_own_block_is_passed_over_with_a_line(capsys):
    with Client(n_workers=1, processes=False, dashboard_address=":0") as client:
        client.close()
        ENTRIES["rows of unknown length"]()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the default client {client.id} is closed and is passed over." in line


def test_the_client_before_takes_over(cluster_client):
    with local_client(1, processes=False) as first:
        first._previous_as_current.var.set(None)  # no block around, as in a notebook
        with never_started():
            assert current_client() is first


def test_rows_of_this_process_need_no_client(gone, no_workers, capsys):
    for client in (gone, no_workers):
        with client.as_current():
            assert Ridge().fit(X, y).predict(DX).compute(scheduler="threads").shape == (60,)
    assert capsys.readouterr().err == ""


def test_client_given_to_the_backend_is_named(gone):
    with (
        joblib.parallel_config("skfleet", client=gone),
        pytest.raises(FleetError, match=f"client {gone.id} must be connected to its scheduler"),
    ):
        joblib.Parallel()(joblib.delayed(abs)(i) for i in range(3))


def test_planned_workers_are_counted():
    with local_client(0, processes=False) as client:
        client.cluster.worker_spec = dict.fromkeys(range(2), client.cluster.new_spec)
        with pytest.raises(NoWorkersError, match=r"Got none of the 2 that its cluster was asked"):
            ENTRIES["Ridge"]()
        client.cluster.worker_spec = {}
        assert client.status == "running"


@pytest.mark.parametrize("seconds", [-1, "10", True, float("nan")])
def test_patience_is_checked(seconds):
    message = "wait_for_workers_timeout must be a number of seconds from 0 on"
    with pytest.raises(ValueError, match=message), config_context(wait_for_workers_timeout=seconds):
        pass
    with pytest.raises(ValueError, match=message):
        joblib.parallel_config("skfleet", wait_for_workers_timeout=seconds)
