"""Fleets of real processes: their environment, their end, and scripts that start them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import pytest
from distributed import LocalCluster, Nanny

from skfleet._cluster._client import current_client, seceded
from skfleet.exceptions import FleetError, FleetVersionError, MissingMainGuardError
from skfleet.fleet import Fleet
from skfleet.fleet._local_cluster import _FleetNanny

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def worker_look():
    """What a task finds in its process."""
    import os
    import sys

    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info

    libraries = [info["num_threads"] for info in threadpool_info()]
    return dict(os.environ), libraries, sys.getswitchinterval(), os.getpid()


def settings():
    """Give the environment of this process, but for a name of distributed's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("__DASK")}


def is_running(pid):
    """Whether a process runs: zombies, which nobody waited for, do not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_gone(pids, seconds=30):
    deadline = time.monotonic() + seconds
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {[p for p in pids if is_running(p)]}"
        time.sleep(0.05)


def output_of(process):
    """What a script prints, less a line that depends on how busy the machine is."""
    out, err = process.communicate(timeout=120)
    return out, re.sub(r"scikit-fleet: still waiting for .*\n", "", err)


on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@pytest.fixture
def script(tmp_path):
    """Write a script and start it; its process group dies with the test."""
    started = []

    def start(code, *, name="script.py", **options):
        path = tmp_path / name
        path.write_text(code)
        process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell starts what it runs in the background with this signal ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **options,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


GUARDED = """
import os, sys
from skfleet.fleet import Fleet

if __name__ == "__main__":
    with Fleet(n_workers=2) as client:
        print(*client.run(os.getpid).values(), flush=True)
        sys.stdin.read()
"""


@pytest.mark.slow
@on_linux
def test_workers_are_pinned_and_leave_the_driver_alone(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("SCIPY_ARRAY_API", raising=False)
    before, default_switch_interval = settings(), sys.getswitchinterval()
    with Fleet(n_workers=2, threads_per_worker=2, env={"MINE": "yes"}) as client:
        assert settings() == before
        found = list(client.run(worker_look).values())
        assert len(found) == 2
        for environment, libraries, switch_interval, _ in found:
            assert {environment[name] for name in THREAD_VARIABLES} == {"2"}
            assert environment["SCIPY_ARRAY_API"] == "1"
            assert int(environment["MALLOC_TRIM_THRESHOLD_"]) >= 2**24
            assert environment["MINE"] == "yes"
            assert libraries
            assert max(libraries) <= 2
            assert switch_interval < default_switch_interval
        assert sys.getswitchinterval() == default_switch_interval
        assert all(address.startswith("tls://127.0.0.1:") for address in client.nthreads())
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
    assert settings() == before
    wait_until_gone([pid for *_, pid in found])


@pytest.mark.slow
@on_linux
def test_restarted_worker_has_the_same_environment_and_label():
    with Fleet(resources=[{"CPU": 1}, {"GPU": 1}]) as client:
        before = settings()
        old = client.submit(os.getpid, resources={"GPU": 1}).result()
        os.kill(old, signal.SIGKILL)
        wait_until_gone([old])
        client.wait_for_workers(2, timeout=60)
        environment, *_, new = client.submit(worker_look, resources={"GPU": 1}).result(timeout=60)
        assert new != old
        assert {environment[name] for name in THREAD_VARIABLES} == {"1"}
        deadline = time.monotonic() + 10
        while settings() != before and time.monotonic() < deadline:
            time.sleep(0.05)  # a worker is there before its nanny has tidied up after its start
        assert settings() == before


@pytest.mark.slow
@on_linux
def test_worker_that_takes_long_to_start_again_is_waited_for():
    # From 15 s on, distributed closes the nanny of a worker that died and is not back.
    often = dask.config.set({"distributed.deploy.lost-worker-timeout": 0.05})
    with often, Fleet(n_workers=1) as client:
        for _ in range(2):
            old = client.submit(os.getpid, pure=False).result(timeout=60)
            os.kill(old, signal.SIGKILL)
            wait_until_gone([old])
        assert client.submit(os.getpid, pure=False).result(timeout=60) != old


@pytest.mark.slow
@on_linux
def test_retired_worker_is_replaced_when_the_fleet_is_scaled():
    with Fleet(n_workers=1) as client:
        (retired,) = client.nthreads()
        client.retire_workers([retired])
        deadline = time.monotonic() + 30
        while client.cluster.workers and time.monotonic() < deadline:
            time.sleep(0.05)
        client.cluster.scale(1)
        client.wait_for_workers(1, timeout=60)
        assert list(client.nthreads()) != [retired]


@on_linux
def test_error_in_the_block_leaves_no_process():
    fleet = Fleet(n_workers=1)
    pids = list(fleet.client.run(os.getpid).values())
    with pytest.raises(ZeroDivisionError), fleet:
        raise ZeroDivisionError
    wait_until_gone(pids)


def start_a_fleet():
    """Try to start processes from a worker process."""
    with Fleet(n_workers=1):
        pass


def start_a_fleet_of_threads():
    """Start threads from a worker process."""
    with Fleet(n_workers=1, processes=False) as client:
        return client.submit(sum, [1, 2]).result()


def nested_total(n):
    """Sum 0..n-1 with a task for each number, from inside a task."""
    client = current_client()
    with seceded():
        return sum(client.gather(client.map(int, range(n))))


@pytest.mark.slow
def test_nested_work_in_a_worker_process():
    with Fleet(n_workers=1, threads_per_worker=1) as client:
        totals = client.map(nested_total, range(1, 5))
        assert client.gather(totals) == [0, 1, 3, 6]


@pytest.mark.slow
def test_fleet_inside_a_worker_process():
    with Fleet(n_workers=1) as client:
        with pytest.raises(FleetError, match=r"Got a worker process instead. Use Fleet\(processes"):
            client.submit(start_a_fleet).result(timeout=60)
        assert client.submit(start_a_fleet_of_threads).result(timeout=60) == 3


def test_failing_start_restores_the_environment(monkeypatch):
    before = settings()

    async def fails(self):
        os.environ.update(self.pre_spawn_env)
        raise OSError("no process for you")

    monkeypatch.setattr(Nanny, "instantiate", fails)
    with pytest.raises(RuntimeError, match="failed to start"):
        Fleet(n_workers=2)
    assert settings() == before
    assert not _FleetNanny._lock.locked()


# Scripts


UNGUARDED = """
from skfleet.fleet import Fleet
with Fleet(n_workers=2) as client:
    print("never")
"""


@pytest.mark.slow
def test_script_without_its_guard_ends_with_one_line(script):
    process = script(UNGUARDED)
    out, err = output_of(process)
    assert process.returncode == 1
    assert out == ""
    assert len(err.splitlines()) == 1, err
    line = err.rstrip()
    assert 'if __name__ == "__main__":' in line
    assert "script.py" in line


@pytest.mark.slow
def test_missing_guard_can_be_caught(script):
    process = script(
        "from skfleet.fleet import Fleet\n"
        "try:\n    Fleet(n_workers=1)\n"
        "except RuntimeError as error:\n    print(type(error).__name__)\n"
    )
    out, err = output_of(process)
    assert (process.returncode, out, err) == (0, "MissingMainGuardError\n", "")


def test_missing_guard_error_says_its_message_in_both_ways():
    error = MissingMainGuardError("the message")
    assert isinstance(error, FleetError)
    assert str(error) == error.code == "the message"


@pytest.mark.slow
def test_guard_is_missed_in_somebody_elses_child_too(script):
    process = script(
        "import multiprocessing\n"
        "from skfleet.fleet import Fleet\n"
        "if __name__ == '__mp_main__':\n"
        "    Fleet(n_workers=1)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    child.start()\n"
        "    child.join()\n"
        "    print(child.exitcode)\n"
    )
    out, err = output_of(process)
    assert out == "1\n"
    assert "__main__" in err.splitlines()[-1]
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_script_from_standard_input(tmp_path):
    done = subprocess.run(
        [sys.executable, "-"],
        input=UNGUARDED,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "script must be a file that worker processes can import" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_guarded_script_prints_only_its_own(script):
    process = script(GUARDED, stdin=subprocess.PIPE)
    out, err = output_of(process)
    assert process.returncode == 0
    assert len(out.split()) == 2
    assert err == ""


FAILING = """
import dask.array as da, numpy as np
from skfleet.estimators import Ridge
from skfleet.fleet import Fleet

def fails(block):
    raise ValueError("a bad block")

if __name__ == "__main__":
    X, y = da.ones((80, 3), chunks=(10, 3)), da.ones(80, chunks=10)
    with Fleet(n_workers=2) as client:
        Ridge().fit(X, y)
        try:
            Ridge().fit(X.map_blocks(fails, meta=np.empty((0, 3))), y)
        except ValueError as error:
            print(error)
"""


@pytest.mark.slow
def test_failed_task_logs_one_line_and_healthy_work_none(script):
    process = script(FAILING)
    out, err = output_of(process)
    assert (process.returncode, out) == (0, "a bad block\n")
    assert len(err.splitlines()) == 1, err
    line = err.rstrip()
    assert line.startswith("task ")
    assert line.endswith("failed: ValueError('a bad block')")


@pytest.mark.slow
def test_fleet_is_closed_without_a_word_while_tasks_run(script):
    process = script(
        GUARDED.replace("sys.stdin.read()", "tasks = client.map(time.sleep, [90, 91])").replace(
            "import os", "import time, os"
        )
    )
    _, err = output_of(process)
    assert (process.returncode, err) == (0, "")


@on_linux
def test_interrupt_ends_script_and_workers_with_one_traceback(script):
    process = script(GUARDED, stdin=subprocess.PIPE)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
    process.wait(timeout=60)
    err = process.stderr.read()
    assert err.count("Traceback") == 1
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    wait_until_gone(pids)


@pytest.mark.slow
@on_linux
def test_workers_do_not_outlive_a_killed_script(script):
    process = script(GUARDED, stdin=subprocess.PIPE)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    wait_until_gone(pids, seconds=60)


@pytest.mark.slow
@on_linux
def test_interrupt_while_tasks_run(script):
    process = script(
        GUARDED.replace(
            "sys.stdin.read()", "print('go', flush=True); client.submit(busy).result()"
        ).replace("if __name__", "def busy():\n    import time\n    time.sleep(600)\n\nif __name__")
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=60)
    err = process.stderr.read()
    assert err.splitlines()[-1] == "KeyboardInterrupt"
    assert "Process Dask Worker process" not in err  # what a worker that dies of it prints
    wait_until_gone(pids)


# Workers started by others


@pytest.mark.slow
def test_worker_without_scikit_fleet_is_refused(tmp_path):
    """The question must reach a worker that cannot import the file that asks it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['skfleet'] = None  # importing it raises ImportError\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with LocalCluster(n_workers=0, processes=True, dashboard_address="127.0.0.1:0") as cluster:
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "distributed.cli.dask_worker",
                cluster.scheduler_address,
                "--no-dashboard",
                "--nworkers",
                "1",
                "--no-nanny",
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            cluster.wait_for_workers(1, timeout=60)
            with pytest.raises(FleetVersionError, match=r"scikit-fleet must be .* Got none on tcp"):
                Fleet(cluster.scheduler_address)
        finally:
            worker.kill()
            worker.wait()
