"""A fleet answers nobody but its owner: credentials, ports, the token of the dashboard."""

import asyncio
import json
import logging
import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, Security
from distributed.comm import connect

from skfleet import Fleet, config_context
from skfleet.engine import Pickled
from skfleet.engine._dask._shared_memory import SharedMemoryPickled
from skfleet.estimators import boosting
from skfleet.exceptions import FleetError


def listening_ports():
    """Ports on which this process and its children listen."""
    own = psutil.Process()
    connections = [c for p in (own, *own.children(recursive=True)) for c in p.net_connections()]
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


@contextmanager
def open_fleet(**options):
    fleet = Fleet(**options)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def processes():
    """The default fleet of processes."""
    with open_fleet(n_workers=1) as fleet:
        yield fleet


# -- credentials -----------------------------------------------------------------------------------


def test_processes_answer_those_with_credentials_only(processes):
    address = processes.client.scheduler.address
    assert address.startswith("tls://127.0.0.1:")
    assert processes.client.submit(pow, 2, 3).result() == 8
    with Client(address, security=processes.security, set_as_default=False) as other:
        assert other.submit(pow, 2, 4).result() == 16
    with pytest.raises(TypeError, match="TLS"):
        connect_once(address, Security())
    for stranger in ((address, Security.temporary()), (address.replace("tls", "tcp"), Security())):
        with pytest.raises(OSError, match=r"."):
            connect_once(*stranger)
    with pytest.raises(FleetError, match=r"Got ones that .* \(self-signed .*\) with 'tls"):
        Fleet(address, security=Security.temporary())
    # it does not say that it waited
    with pytest.raises(FleetError, match=r"no connection was made: .* has an address of tls://"):
        Fleet(address.replace("tls", "tcp"))


def connect_once(address, security):
    """Connect as a client of Dask does, without what is left of a Client that fails."""

    async def attempt():
        comm = await connect(address, timeout=2, **security.get_connection_args("client"))
        await comm.close()

    asyncio.run(attempt())


def test_workers_and_nannies_answer_no_plain_message(processes):
    worker = processes.client.cluster.workers[0]
    for address in (worker.address, worker.worker_address):
        host, port = address.removeprefix("tls://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as plain:
            plain.sendall(b"\x00" * 64)
            with suppress(ConnectionResetError):
                assert plain.recv(64)[:1] in (b"", b"\x15")  # the end, or an alert of TLS


def test_no_secret_is_shown(processes, tmp_path):
    key = processes.security.tls_client_key
    shown = [repr(processes), processes._repr_html_(), repr(processes.security)]
    shown += [repr(processes.client), processes.client._repr_html_()]
    assert "PRIVATE KEY" in key
    assert not any(line in text for text in shown for line in key.splitlines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security": False}, None),
        ({"protocol": "tcp"}, "protocol='tcp' has no encryption, so any user of this machine"),
    ],
)
def test_without_encryption_a_line_says_so_unless_it_was_asked_for(options, message, caplog):
    with caplog.at_level(logging.WARNING, "skfleet"), open_fleet(n_workers=1, **options) as fleet:
        assert fleet.client.scheduler.address.startswith("tcp://127.0.0.1:")
    said = [record.getMessage() for record in caplog.records if record.name == "skfleet.fleet"]
    assert len(said) == (message is not None)
    assert all(text.startswith(message) for text in said)


def test_without_cryptography_a_line_says_so(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with caplog.at_level(logging.WARNING, "skfleet"), open_fleet(n_workers=1) as fleet:
        assert fleet.client.scheduler.address.startswith("tcp://127.0.0.1:")
    (record,) = (record for record in caplog.records if record.name == "skfleet.fleet")
    assert record.getMessage().startswith("cryptography cannot be imported, so any user")


@pytest.mark.parametrize(
    ("options", "scheme"),
    [
        ({}, "tls"),
        ({"security": False}, "tcp"),
        ({"protocol": "tcp"}, "tcp"),
        ({"processes": False}, "inproc"),
    ],
)
def test_encryption_that_is_configured_without_certificates(options, scheme):
    required = dask.config.set({"distributed.comm.require-encryption": True})
    with required, open_fleet(n_workers=1, **options) as fleet:
        assert fleet.client.scheduler.address.startswith(f"{scheme}://")
        assert fleet.client.submit(pow, 2, 3).result() == 8


def test_encryption_that_is_configured_needs_cryptography(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with (
        dask.config.set({"distributed.comm.require-encryption": True}),
        pytest.raises(ImportError, match="cryptography"),
    ):
        Fleet(n_workers=1)


# -- the file of a connection ----------------------------------------------------------------------


def test_a_fleet_is_joined_by_a_file(processes, tmp_path):
    path = tmp_path / "fleet.json"
    path.write_text("of an earlier fleet")
    path.chmod(0o644)
    processes.save_connection(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["fleet.json"]
    for address in (path, str(path)):
        with Fleet(address) as client:
            assert client.submit(pow, 2, 5).result() == 32
            assert client.scheduler.address == processes.client.scheduler.address
    assert processes.client.submit(pow, 2, 6).result() == 64


def test_files_that_others_may_read_are_refused(processes, tmp_path):
    path = tmp_path / "fleet.json"
    processes.save_connection(path)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match=r"Got .* of mode 640 instead.*chmod 600"):
        Fleet(path)


@pytest.mark.parametrize("content", [None, "no json", "[]", "{}"])
def test_other_files_are_refused(content, tmp_path):
    path = tmp_path / "fleet.json"
    if content is not None:
        path.write_text(content)
        path.chmod(0o600)
    with pytest.raises(FleetError, match=r"address must be a file of Fleet\.save_connection"):
        Fleet(path)


def test_a_file_has_its_own_credentials(processes, tmp_path):
    path = tmp_path / "fleet.json"
    processes.save_connection(path)
    with pytest.raises(ValueError, match="security must not be given with a file that has it"):
        Fleet(path, security=processes.security)


@pytest.mark.parametrize("is_tls", [True, False])
def test_a_file_of_dask_has_an_address(is_tls, tmp_path):
    path = tmp_path / "scheduler.json"
    with open_fleet(n_workers=1, security=is_tls) as fleet:
        path.write_text(json.dumps(fleet.client.scheduler_info()))  # as --scheduler-file does
        path.chmod(0o644)
        with Fleet(path, security=fleet.security if is_tls else None) as client:
            assert client.submit(pow, 2, 5).result() == 32
        if is_tls:
            with pytest.raises(FleetError, match=r"Got none with 'tls"):
                Fleet(path)


def test_an_address_of_tls_needs_credentials_before_any_connection():
    with pytest.raises(FleetError, match=r"Got none with 'tls://127.0.0.1:9' instead.*save_conn"):
        Fleet("tls://127.0.0.1:9")


def test_threads_and_closed_fleets_have_no_connection_to_save(tmp_path):
    with (
        open_fleet(n_workers=1, processes=False) as fleet,
        pytest.raises(FleetError, match="must be called on a fleet of processes"),
    ):
        fleet.save_connection(tmp_path / "fleet.json")
    with pytest.raises(FleetError, match="must be called on an open fleet"):
        fleet.save_connection(tmp_path / "fleet.json")
    assert not os.listdir(tmp_path)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="memfd is Linux's")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root runs as others")
def test_shared_rows_are_read_by_no_other_user():
    rows = SharedMemoryPickled.create(Pickled.dumps(np.arange(1000.0)))
    path = f"/proc/{rows._handle.pid}/fd/{rows._handle.descriptor}"
    command = {"args": ["/bin/cat", path], "capture_output": True}
    assert len(subprocess.run(**command).stdout) >= 8000
    done = subprocess.run(**command, user=65534, group=65534, extra_groups=[])
    assert done.returncode != 0
    assert not done.stdout


# -- HTTP ------------------------------------------------------------------------------------------


def test_threads_open_no_port():
    before = listening_ports()
    with open_fleet(n_workers=2, processes=False) as fleet:
        assert fleet.client.submit(pow, 2, 3).result() == 8
        assert listening_ports() == before
        assert fleet.dashboard_link is None


def test_processes_open_no_port_but_those_of_the_cluster():
    before = listening_ports()
    with open_fleet(n_workers=2) as fleet:
        assert len(listening_ports() - before) == 1 + 2 * 2  # workers, each with its nanny
        assert fleet.dashboard_link is None


@pytest.mark.parametrize(
    ("library", "kind"), [("xgboost", "XGBRegressor"), ("lightgbm", "LGBMRegressor")]
)
def test_boosting_on_one_machine_opens_no_port(library, kind):
    pytest.importorskip(library, reason="it is not installed")
    model = getattr(boosting, kind)(n_estimators=40, max_depth=3)
    seen, has_ended = set(), threading.Event()

    def look():
        while not has_ended.wait(0.02):
            with suppress(psutil.Error):  # of a process that has ended meanwhile
                seen.update(listening_ports())

    X = da.random.default_rng(0).normal(size=(20_000, 4), chunks=(2_500, 4))
    with Fleet(n_workers=2), config_context(single_task_below=0):
        before = listening_ports()
        thread = threading.Thread(target=look)
        thread.start()
        try:
            model.fit(X, X[:, 0])
        finally:
            has_ended.set()
            thread.join()
    assert seen
    assert seen <= before


PATHS = ["/", "/status", "/health", "/metrics", "/json/identity.json", "/individual-workers/ws",
         "/static/js/bokeh.min.js", "/sitemap.json"]  # fmt: skip


@pytest.fixture
def dashboard():
    """Fleet with a dashboard."""
    pytest.importorskip("bokeh", reason="the dashboard needs Bokeh")
    with open_fleet(n_workers=1, processes=False, dashboard_address=":0") as fleet:
        yield fleet


def base_of(fleet):
    return fleet.dashboard_link.partition("/status")[0]


def refusal(open_url, request):
    """Return status, address and text of an answer that is an error."""
    with pytest.raises(HTTPError) as error:
        open_url(request, timeout=30)
    with error.value as answer:
        return answer.code, answer.url, answer.read()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "query", ["", "?token=", "?token=wrong", "?token=%C3%A9", "?token=w&token=x"]
)
def test_without_the_token_nothing_is_answered(path, query, dashboard):
    request = Request(base_of(dashboard) + path + query)
    request.add_header("Cookie", f"skfleet-dashboard-{base_of(dashboard)[-5:]}=wrong")
    status, _, text = refusal(urlopen, request)
    assert status == 403
    assert b"open the link in fleet.dashboard_link" in text


def test_the_link_opens_the_dashboard(dashboard):
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    with browser.open(dashboard.dashboard_link, timeout=30) as page:
        assert page.url == base_of(dashboard) + "/status"
        assert b"Dask" in page.read()
    for path in ("/json/identity.json", "/health", "/static/js/bokeh.min.js"):
        with browser.open(base_of(dashboard) + path, timeout=30) as answer:
            assert answer.status == 200


def test_no_log_has_the_token(dashboard, caplog, monkeypatch):
    token = dashboard.dashboard_link.partition("=")[2]
    for name in ("tornado", "distributed", "bokeh"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        caplog.set_level(logging.DEBUG, name)
    caplog.set_level(logging.DEBUG, "tornado.access")
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    for _ in range(2):  # without the cookie, and with it
        with browser.open(dashboard.dashboard_link, timeout=30) as page:
            assert page.url == base_of(dashboard) + "/status"
    refusal(urlopen, Request(dashboard.dashboard_link, data=b"", method="POST"))
    refusal(urlopen, dashboard.dashboard_link + "x")
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if line.startswith("200 GET /status (")]
    assert not [line for line in lines if token in line]


def test_other_methods_are_refused(dashboard):
    status, _, _ = refusal(urlopen, Request(dashboard.dashboard_link, data=b"", method="POST"))
    assert status == 405


def test_a_link_to_another_host_is_none(dashboard):
    token = dashboard.dashboard_link.partition("?")[2]
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    status, url, _ = refusal(browser.open, f"{base_of(dashboard)}//elsewhere.example/?{token}")
    assert (status, url) == (404, f"{base_of(dashboard)}/elsewhere.example/")  # its own page
