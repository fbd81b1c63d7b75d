"""Where the libraries listen while ranks train: SECURITY.md says it."""

import os
import threading
from contextlib import suppress

import dask.array as da
import psutil
import pytest

from skfleet.estimators import boosting

pytestmark = pytest.mark.slow
ANYWHERE, LOOPBACK = "0.0.0.0", "127.0.0.1"


def listening():
    """Hosts and ports at which this process and its children listen."""
    found = set()
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            found |= {
                (link.laddr.ip, link.laddr.port)
                for link in process.net_connections()
                if link.status == psutil.CONN_LISTEN
            }
    return found


@pytest.fixture
def new_hosts():
    """A function that does something, and returns where was listened meanwhile."""

    def call(work):
        before, seen, has_ended = listening(), set(), threading.Event()

        def look():
            while not has_ended.wait(0.005):
                seen.update(listening() - before)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            work()
        finally:
            has_ended.set()
            thread.join()
        return {host for host, _ in seen}

    return call


@pytest.mark.skipif(
    os.name != "posix", reason="which addresses other systems bind was not looked at"
)
@pytest.mark.parametrize(
    ("kind", "hosts"),
    [
        ("XGBRegressor", {ANYWHERE, LOOPBACK}),  # the latter is that of the tracker
        ("LGBMRegressor", {ANYWHERE}),
    ],
)
@pytest.mark.usefixtures("on_ranks", "processes")
def test_ranks_listen_on_all_interfaces_and_the_tracker_on_its_own(kind, hosts, new_hosts):
    X = da.random.default_rng(0).normal(size=(20_000, 4), chunks=(2_500, 4))
    model = getattr(boosting, kind)(n_estimators=300, max_depth=3)
    seen = set()
    for _ in range(20):  # some are open for a moment, between two looks
        seen |= new_hosts(lambda: model.fit(X, X[:, 0]))
        if seen >= hosts:
            break
    assert seen == hosts
