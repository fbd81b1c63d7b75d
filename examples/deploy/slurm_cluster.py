"""Fits on workers that are jobs of SLURM, while jobs are cancelled and a node dies.

SLURM runs on this machine alone, with three nodes of one core (``local_slurm.py``). On a cluster
that has a SLURM, leave that line out: ``SLURMCluster`` and ``Fleet`` are used in the same way.
Run it with ``python examples/deploy/slurm_cluster.py``; it takes a few minutes.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from dask_jobqueue import SLURMCluster
from distributed import Client
from local_slurm import LocalSlurm, local_slurm, run
from trial import Death, Trial, wait_until
from workloads import workloads

from skfleet import Fleet

N_NODES = 3


def slurm_cluster(folder: Path, **options) -> SLURMCluster:
    """Return a cluster that has no job yet; each job is a worker of one thread."""
    worker_arguments = ["--resources", "CPU=1", "--no-dashboard"]
    return SLURMCluster(
        cores=1,
        processes=1,
        memory="1 GiB",
        walltime="00:30:00",
        # the label of CPU workers, and more options of `dask worker`
        worker_extra_args=worker_arguments + options.pop("worker_extra_args", []),
        job_script_prologue=["export OMP_NUM_THREADS=1"],
        # credentials of this cluster alone, in files that all nodes can read and other users cannot
        security=True,
        shared_temp_directory=str(folder),
        local_directory=str(folder),
        log_directory=str(folder / "logs"),
        **options,
    )


def job_of_a_worker(cluster: SLURMCluster, client: Client) -> tuple[str, str, str]:
    """Return the job, the node and the address of the first worker, which boosting trains at."""
    address, worker = min(client.scheduler_info(n_workers=-1)["workers"].items())
    job = cluster.workers[worker["name"]].job_id
    return job, run("squeue", "--noheader", "--jobs", job, "--format", "%N"), address


def n_jobs() -> int:
    """Return the number of jobs that wait or run."""
    return len(run("squeue", "--noheader").splitlines())


def all_on_one_interface(trial: Trial, slurm: LocalSlurm, folder: Path, rows: Path) -> None:
    """Fit while jobs and a node die, and let the number of jobs follow the work."""
    search, parquet, *boosting = workloads(rows)
    scheduler_options = {"dashboard_address": "127.0.0.1:0"}
    with slurm_cluster(folder, interface="lo", scheduler_options=scheduler_options) as cluster:
        fleet = Fleet(cluster)
        with fleet as client:
            fleet.scale(N_NODES)
            client.wait_for_workers(N_NODES, timeout=120)
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            labelled = [worker["resources"] for worker in workers] == [{"CPU": 1.0}] * N_NODES
            trial.check(f"{N_NODES} jobs, each a worker labelled CPU=1", labelled)

            job, _, address = job_of_a_worker(cluster, client)
            death = Death("a job cancelled", lambda: run("scancel", job))
            trial.fit_with_a_death(search, client, [address], death)
            refill(trial, fleet, client)

            _, node, address = job_of_a_worker(cluster, client)
            death = Death("a node killed", lambda: slurm.kill_node(node))
            trial.fit_with_a_death(parquet, client, [address], death)
            slurm.start_node(node)
            refill(trial, fleet, client)

            for workload in boosting:
                job, _, address = job_of_a_worker(cluster, client)
                death = Death("a job cancelled", lambda job=job: run("scancel", job))
                trial.fit_with_a_death(workload, client, [address], death)
                refill(trial, fleet, client)

            fleet.adapt(minimum=1, maximum=N_NODES)
            wait_until(lambda: n_jobs() == 1 == len(client.nthreads()))
            trial.fit(search)
            n = n_jobs()
            trial.check(f"adapt began with one job, and had {n} at the end of the search", n > 1)
            wait_until(lambda: n_jobs() == 1)
            trial.check("one is left when there is no more work", n_jobs() == 1)
            job, _, _ = job_of_a_worker(cluster, client)
            run("scancel", job)
            wait_until(lambda: job not in run("squeue", "--noheader").split() and n_jobs() == 1)
            trial.check("adapt submits another when that is cancelled", n_jobs() == 1)
        trial.check("the closed fleet leaves the cluster's job", n_jobs() == 1)
    wait_until(lambda: n_jobs() == 0)
    trial.check("the closed cluster has cancelled its jobs", n_jobs() == 0)


def refill(trial: Trial, fleet: Fleet, client: Client) -> None:
    """Have as many jobs as before: Dask submits a lost one again at the next `scale`."""
    n = len(client.nthreads())

    def has_all() -> bool:
        fleet.scale(N_NODES)
        time.sleep(1)
        return len(client.nthreads()) == N_NODES

    begin = time.perf_counter()
    wait_until(has_all, 180)
    seconds = time.perf_counter() - begin
    trial.log(f"{n} workers were left; scale({N_NODES}) had {N_NODES} again after {seconds:.0f} s")


def an_address_for_each_node(trial: Trial, slurm: LocalSlurm, folder: Path, rows: Path) -> None:
    """Train on several ranks: workers with addresses of their own are machines of their own."""
    xgboost = next(one for one in workloads(rows) if one.name == "XGBoost")
    # node2 has 127.0.0.2, as a node of a cluster has an address of its own; no --interface then
    options = {"worker_extra_args": ["--host", "127.0.0.${SLURMD_NODENAME#node}"]}
    scheduler_options = {"host": "127.0.0.9", "dashboard_address": "127.0.0.1:0"}
    with slurm_cluster(folder, scheduler_options=scheduler_options, **options) as cluster:
        fleet = Fleet(cluster)
        with fleet as client:
            fleet.scale(N_NODES)
            client.wait_for_workers(N_NODES, timeout=120)
            _, node, address = job_of_a_worker(cluster, client)
            death = Death("a node killed", lambda: slurm.kill_node(node))
            trial.fit_with_a_death(xgboost, client, [address], death)


def main() -> None:
    """Run all fits, on workers with the same address and with addresses of their own."""
    with (
        Trial("slurm", ["dask-jobqueue"], ["slurmd -V", "munged --version"]) as trial,
        local_slurm(N_NODES) as slurm,
        TemporaryDirectory() as temporary,
    ):
        folder, rows = Path(temporary), Path(temporary, "rows")
        rows.mkdir()
        all_on_one_interface(trial, slurm, folder, rows)
        an_address_for_each_node(trial, slurm, folder, rows)
        gc.collect()  # the files of the credentials, which end with the cluster


if __name__ == "__main__":
    main()
