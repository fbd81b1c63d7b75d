"""Fits on workers that are started by SSH, while the workers of a host die, and whole hosts.

The hosts are servers of SSH on this machine alone (``local_ssh.py``). With machines of your own,
leave that line out and name them: ``SSHCluster`` and ``Fleet`` are used in the same way.
Run it with ``python examples/deploy/ssh_cluster.py``; it takes a few minutes.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

from credentials import security_of, write_credentials
from distributed import Client, SSHCluster
from distributed.deploy import SpecCluster
from local_ssh import Host, kill_host, local_hosts
from trial import Death, Trial, wait_until
from workloads import workloads

from skfleet import Fleet

N_WORKERS = 2  # of each host


def ssh_cluster(hosts: list[Host], credentials: Path) -> SpecCluster:
    """Start a scheduler on the first host, and workers on each of the others."""
    paths = write_credentials(credentials)  # on every host at the same place, as they are here
    # what goes to the hosts goes as JSON
    tls = {"tls_ca_file": paths["ca-file"], "require_encryption": True}
    for role in ("scheduler", "worker", "client"):
        tls |= {f"tls_{role}_cert": paths["cert"], f"tls_{role}_key": paths["key"]}
    both = {"security": tls, "protocol": "tls", "dashboard": False}
    return SSHCluster(
        ["127.0.0.1"] * len(hosts),
        connect_options=[host.connect_options for host in hosts],
        # the address of another machine, as far as Dask and scikit-fleet see; a port that is free
        scheduler_options={"host": "127.0.0.2", "port": 0, **both},
        worker_options={
            "n_workers": N_WORKERS,
            "nthreads": 1,
            "memory_limit": "1 GiB",
            "resources": {"CPU": 1},  # the label of CPU workers
            "env": {"OMP_NUM_THREADS": "1"},
            **both,
        },
        security=security_of(paths),
    )


def workers_of(client: Client, host: Host) -> list[str]:
    """Return the addresses of the workers of a host, which it starts in a folder of its own."""
    return [a for a, folder in client.run(os.getcwd).items() if folder == str(host.work)]


def first_host(client: Client, hosts: list[Host]) -> Host:
    """Return the host of the first worker, beside which a booster is trained."""
    return next(h for h in hosts if min(client.nthreads()) in workers_of(client, h))


def fit_while_hosts_die(trial: Trial, client: Client, hosts: list[Host], rows: Path) -> None:
    """Kill the workers of a host in a search, and hosts in the other fits."""
    search, parquet, xgboost, lightgbm = workloads(rows)
    n_workers = N_WORKERS * len(hosts)
    addresses = workers_of(client, hosts[0])
    processes = client.run(os.getpid, workers=addresses).values()

    def kill_workers() -> None:
        for process in processes:
            os.kill(process, signal.SIGKILL)

    death = Death("the workers of a host killed", kill_workers)
    trial.fit_with_a_death(search, client, addresses, death)
    wait_until(lambda: len(client.nthreads()) == n_workers)
    trial.log(f"their nannies have started them again: {n_workers} workers")

    for workload in (parquet, xgboost):
        host = first_host(client, hosts)
        death = Death("a host killed", lambda host=host: kill_host(host.server))
        trial.fit_with_a_death(workload, client, workers_of(client, host), death)
        n_workers -= N_WORKERS
        trial.check(f"{n_workers} workers are left", len(client.nthreads()) == n_workers)

    addresses = [min(client.nthreads())]
    (process,) = client.run(os.getpid, workers=addresses).values()
    death = Death("a worker killed", lambda: os.kill(process, signal.SIGKILL))
    trial.fit_with_a_death(lightgbm, client, addresses, death)


def main() -> None:
    """Start a cluster of four hosts, and make all fits on it."""
    logging.getLogger("distributed.deploy.ssh").setLevel(logging.WARNING)  # the hosts' whole logs
    with (
        Trial("ssh", ["asyncssh"], ["ssh -V"]) as trial,
        local_hosts(4) as hosts,
        TemporaryDirectory() as temporary,
    ):
        rows = Path("rows")  # the fits name these files by a relative path
        os.chdir(temporary)
        rows.mkdir()
        with ssh_cluster(hosts, Path(temporary, "credentials")) as cluster:
            with Fleet(cluster) as client:
                n_workers = N_WORKERS * len(hosts[1:])
                client.wait_for_workers(n_workers, timeout=60)
                info = client.scheduler_info(n_workers=-1)["workers"].values()
                labelled = [worker["resources"] for worker in info] == [{"CPU": 1}] * n_workers
                trial.check(f"three hosts, {n_workers} workers labelled CPU=1", labelled)
                places = [workers_of(client, host) for host in hosts[1:]]
                is_apart = [len(addresses) for addresses in places] == [N_WORKERS] * 3
                trial.check("each host works in a directory of its own", is_apart)
                fit_while_hosts_die(trial, client, hosts[1:], rows)
            trial.check("the closed fleet leaves the cluster", cluster.status.name == "running")
        os.chdir("/")


if __name__ == "__main__":
    main()
