"""What a terminal and a notebook show of a fleet."""

import re
import sys
import time

import pytest
from distributed import LocalCluster

from skfleet._cluster import latest_workers, state_of
from skfleet._display import format_bytes
from skfleet.fleet import Fleet, _fleet_summary
from skfleet.fleet._fleet_summary import MAX_ROWS, FleetSummary, memory_limit

ADDRESS = "tcp://10.0.0.1:8786"
FLEETS = []  # of the test that runs, for its tasks
GPU = {"resources": {"GPU": 1.0}, "gpu": {"name": "NVIDIA H200"}}


def worker(name, memory=4 * 10**9, n_threads=1, **more):
    metrics = {"memory": 250e6}
    info = {"name": name, "nthreads": n_threads, "memory_limit": memory, "metrics": metrics}
    return {**info, "resources": {"CPU": n_threads}, **more}


def summary(workers, *, is_answered=True, dashboard=None):
    by_address = {f"tcp://10.0.0.1:{4000 + i}": info for i, info in enumerate(workers)}
    return FleetSummary(by_address, is_answered, ADDRESS, dashboard)


def texts(html):
    """Return the texts of the cells of a table, row by row."""
    rows = re.findall("<tr>.*?</tr>", html)
    return [
        [re.sub("<.*?>", "", cell) for cell in re.findall("<t[hd].*?</t[hd]>", r)] for r in rows
    ]


@pytest.fixture
def fleet():
    fleet = Fleet(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
    yield fleet
    fleet.close()


def test_repr_of_a_fleet_on_threads_has_the_memory_of_one_process(fleet):
    workers = latest_workers(fleet.client, 30)[0]
    (limit,) = {info["memory_limit"] for info in workers.values()}
    address = fleet.client.scheduler.address
    assert repr(fleet) == f"Fleet(2 workers, 2 threads, {format_bytes(limit)}, {address})"
    header, *rows = texts(fleet._repr_html_())
    assert header == ["Worker", "Device", "Threads", "Memory limit", "Memory in use"]
    names = [f"{info['name']}, {address}" for address, info in workers.items()]
    assert sorted(row[0] for row in rows) == sorted(names)
    assert all(row[1:4] == ["CPU", "1", format_bytes(limit)] for row in rows)


def test_dashboard_is_linked(fleet, monkeypatch):
    link = "http://127.0.0.1:8787/status"
    monkeypatch.setattr(type(fleet._cluster), "shown_dashboard", link)
    assert repr(fleet).endswith(f", dashboard {link})")
    assert texts(fleet._repr_html_())[-1] == ["Dashboard", link]
    assert f'<a href="{link}"' in fleet._repr_html_()


def test_closed_fleet_says_so(fleet):
    fleet.close()
    assert repr(fleet) == "Fleet(closed)"
    assert texts(fleet._repr_html_()) == [["Status", "closed"]]


def test_fleet_whose_start_failed_can_be_shown():
    fleet = object.__new__(Fleet)
    assert repr(fleet) == "Fleet(not started)"
    assert texts(fleet._repr_html_()) == [["Status", "not started"]]


def test_client_of_with_is_shown_as_dask_does():
    with Fleet(n_workers=1, processes=False, dashboard_address=None) as client:
        assert "Client" in repr(client)
        assert "Scheduler Info" in client._repr_html_()


def show_in_task():
    return repr(FLEETS[0]), FLEETS[0]._repr_html_()


def test_inside_a_task_it_is_the_same(fleet, monkeypatch):
    monkeypatch.setitem(globals(), "FLEETS", [fleet])
    shown, html = fleet.client.submit(show_in_task, pure=False).result(timeout=30)
    assert shown == repr(fleet)
    assert len(texts(html)) == 3


def test_in_the_event_loop_it_is_what_is_known(fleet):
    async def show():
        return repr(fleet), fleet._repr_html_()

    known = repr(fleet)
    shown, html = fleet.client.sync(show)
    assert shown == known.replace(")", ", as last known)")
    assert len(texts(html)) == 3


def test_scheduler_that_does_not_answer_is_not_waited_for(fleet, monkeypatch):
    monkeypatch.setattr(_fleet_summary, "ANSWER_SECONDS", 0.2)
    known = repr(fleet)
    fleet.client.loop.add_callback(time.sleep, 1.5)
    start = time.monotonic()
    assert repr(fleet) == known.replace(")", ", as last known)")
    assert time.monotonic() - start < 1.2


def test_scheduler_that_never_answered_has_unknown_workers(fleet, monkeypatch):
    monkeypatch.setattr(_fleet_summary, "ANSWER_SECONDS", 0.2)
    state_of(fleet.client).workers = (0.0, {})
    fleet.client.loop.add_callback(time.sleep, 1.0)
    assert repr(fleet) == f"Fleet(workers unknown, {fleet.client.scheduler.address})"
    assert texts(fleet._repr_html_()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:0", ":0"])
def test_repr_has_sizes_and_a_dashboard_that_answers_on_the_loopback(address):
    pytest.importorskip("bokeh", reason="the dashboard needs Bokeh")
    fleet = Fleet(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=address)
    try:
        link, _, token = fleet.dashboard_link.partition("?token=")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/status", link)
        assert len(token) > 40
        assert repr(fleet).startswith("Fleet(2 workers, 2 threads, ")
        assert repr(fleet).endswith(f", dashboard {link})")
        assert f'<a href="{link}"' in fleet._repr_html_()
        assert token not in repr(fleet) + fleet._repr_html_()
    finally:
        fleet.close()
    assert "closed" in fleet._repr_html_()


@pytest.mark.parametrize("asked", [True, False])
def test_without_a_dashboard_nothing_is_said_of_it(asked, monkeypatch):
    if asked:  # but Bokeh is absent
        monkeypatch.setitem(sys.modules, "bokeh", None)
        monkeypatch.setattr("skfleet.fleet._local_cluster.find_spec", lambda name: None)
        with pytest.warns(UserWarning, match="needs bokeh"):
            fleet = Fleet(n_workers=1, processes=False, dashboard_address=":0")
    else:
        fleet = Fleet(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
    try:
        assert fleet.dashboard_link is None
        assert "dashboard" not in repr(fleet)
    finally:
        fleet.close()


def test_address_and_table_of_a_scheduler_that_runs_already():
    with LocalCluster(
        processes=False, n_workers=1, threads_per_worker=2, protocol="tcp", dashboard_address=":0"
    ) as cluster:
        fleet = Fleet(cluster.scheduler_address)
        try:
            assert repr(fleet).startswith("Fleet(1 worker, 2 threads, ")
            assert cluster.scheduler_address in repr(fleet)
            assert len(texts(fleet._repr_html_())) == 2 + (fleet.dashboard_link is not None)
        finally:
            fleet.close()


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([], "no worker"),
        ([worker(0)], "1 worker, 1 thread, 4.00 GB"),
        ([worker(0), worker(1)], "2 workers, 2 threads, 8.00 GB"),
        ([worker(0), worker(1, None)], "2 workers, 2 threads, no memory limit"),
        ([worker(0, 10**9), worker("gpu-0", 10**9, **GPU)],
         "1 CPU worker, 1 GPU worker, 2 threads, 2.00 GB"),
        ([worker(0, 5 * 10**8, 3, **GPU)], "1 GPU worker, 3 threads, 500 MB"),
        ([{"name": "a", "nthreads": 1}], "1 worker, 1 thread, no memory limit"),
    ],
)  # fmt: skip
def test_counts(workers, expected):
    assert str(summary(workers)) == f"Fleet({expected}, {ADDRESS})"


def test_workers_on_threads_of_a_process_share_its_memory():
    workers = {
        "inproc://10.0.0.1/7/4": worker(0, 8),
        "inproc://10.0.0.1/7/5": worker(1, 8),
        "inproc://10.0.0.1/9/5": worker(2, 3),
        "tcp://10.0.0.1:5000": worker(3, 1),
    }
    assert memory_limit(workers) == 12


def test_table_names_gpus_and_cuts_long_lists():
    many = [worker(name) for name in range(MAX_ROWS + 4)]
    rows = texts(summary([*many, worker("gpu-0", **GPU)]).html())
    assert len(rows) == 1 + MAX_ROWS + 1
    assert rows[10][0].startswith("9, tcp://")
    assert rows[11][0].startswith("10, tcp://")
    assert rows[-1][0] == "and 5 more workers"
    _, row = texts(summary([worker("gpu-0", **GPU)]).html())
    assert row == ["gpu-0, tcp://10.0.0.1:4000", "GPU, NVIDIA H200", "1", "4.00 GB", "250 MB"]


def test_names_and_links_are_escaped():
    bad = "<script>alert(1)</script>"
    html = summary(
        [worker(bad, resources={"GPU": 1}, gpu={"name": [bad, bad]})],
        dashboard=f'http://host/"{bad}',
    ).html()
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 4
    assert '<a href="http://host/&quot;&lt;script' in html
