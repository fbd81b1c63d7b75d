"""Fits on workers of the commands ``dask scheduler`` and ``dask worker``, with TLS.

Run it with ``python examples/deploy/command_line.py``; it takes a minute or two. The commands are
those of docs/guide/deploy_command_line.md, with ports that are free.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from credentials import security_of, write_credentials
from trial import Death, Trial, wait_until
from workloads import workloads

from skfleet import Fleet
from skfleet.exceptions import FleetError

HOST = "127.0.0.2"  # of another machine, as far as Dask and scikit-fleet can see


@contextmanager
def dask_command(*arguments: str, log: Path) -> Iterator[subprocess.Popen]:
    """Run a ``dask`` command, which ends with the ``with`` block."""
    command = [sys.executable, "-m", "dask", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def tls_options(paths: dict[str, str]) -> list[str]:
    """Return the options of both commands for the files of credentials."""
    return [text for name, path in paths.items() for text in (f"--tls-{name}", path)]


def worker(address: str, paths: dict[str, str], log: Path):
    """Run a command with two worker processes that are labelled as CPU workers."""
    workers = ["--host", HOST, "--nworkers", "2", "--nthreads", "1", "--memory-limit", "1 GiB"]
    labels = ["--resources", "CPU=1", "--no-dashboard"]
    return dask_command("worker", address, *workers, *labels, *tls_options(paths), log=log)


def connection_is_refused(address: str, security) -> bool:
    """Return whether a fleet cannot connect."""
    try:
        Fleet(address, security=security, timeout=5).close()
    except FleetError:
        return True
    return False


def main() -> None:
    """Run the commands and the fits."""
    with Trial("command_line", ["cryptography"]) as trial, ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        ours = write_credentials(folder / "credentials")
        others = write_credentials(folder / "credentials of others")
        (folder / "rows").mkdir()
        os.chdir(folder)

        file = folder / "scheduler.json"
        options = ["--host", HOST, "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
        log = folder / "log.txt"
        stack.enter_context(dask_command("scheduler", *options, *tls_options(ours), log=log))
        wait_until(lambda: file.exists() and bool(file.read_text()))
        address = json.loads(file.read_text())["address"]

        trial.check("without credentials no fleet connects", connection_is_refused(address, None))
        refused = connection_is_refused(address, security_of(others))
        trial.check("with certificates of another authority none does", refused)
        refused = connection_is_refused(address.replace("tls:", "tcp:"), None)
        trial.check("without TLS none does", refused)

        first, second = (stack.enter_context(worker(address, ours, log)) for _ in range(2))
        stack.enter_context(worker(address, others, log))  # refused
        fleet = Fleet(address, security=security_of(ours))
        with fleet as client:
            client.wait_for_workers(4, timeout=60)
            search, parquet, xgboost, lightgbm = workloads(folder / "rows")
            trial.fit(parquet)
            info = client.scheduler_info(n_workers=-1)["workers"].values()
            labelled = [one["resources"] for one in info] == [{"CPU": 1.0}] * 4
            trial.check("two commands, four workers labelled CPU=1", labelled)
            is_alone = len(client.nthreads()) == 4
            trial.check("workers with certificates of another authority do not join", is_alone)
            parents = client.run(os.getppid)
            addresses = [a for a, parent in parents.items() if parent == second.pid]

            def kill_second() -> None:
                os.killpg(second.pid, signal.SIGKILL)

            death = Death("a command killed", kill_second)
            trial.fit_with_a_death(search, client, addresses, death)
            stack.enter_context(worker(address, ours, log))
            client.wait_for_workers(4, timeout=60)
            for workload in (xgboost, lightgbm):
                trial.fit(workload)
        trial.check("the closed fleet leaves the commands running", first.poll() is None)


if __name__ == "__main__":
    main()
