"""A SLURM of several nodes on this machine, for trials: its daemons run as the user who starts it.

It needs Debian's packages slurmctld, slurmd, slurm-client and munge. Everything listens on the
loopback interface; files are in a temporary folder, and are gone at the end.
"""

from __future__ import annotations

import getpass
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
from trial import free_ports, require_commands, wait_until

CONFIG = """\
ClusterName=trial
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
# without control groups: processes of a job are found by their parents
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# a node that does not answer is down after 10 seconds, and is back when it answers again
SlurmdTimeout=10
ReturnToService=2
KillWait=2
"""
NODE = """\
NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=2000
"""
PARTITION = """\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class LocalSlurm:
    """The daemons, by name."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder, self.nodes = folder, nodes
        self.daemons: dict[str, subprocess.Popen] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground, with its log in the folder."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self.start(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill the daemon of a node and all processes of its jobs at once, as a power cut does."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()
        for process in processes_of(self.folder, name):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def stop(self) -> None:
        """Stop all daemons, and what is left of jobs."""
        for daemon in reversed(self.daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for name in self.nodes:
            for process in processes_of(self.folder, name):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@contextmanager
def local_slurm(n_nodes: int) -> Iterator[LocalSlurm]:
    """Start a SLURM of nodes with one core each; its commands work inside the ``with``."""
    commands = ("slurmctld", "slurmd", "sbatch", "munged")
    require_commands(*commands, packages="slurmctld slurmd slurm-client munge")
    nodes = [f"node{number}" for number in range(1, n_nodes + 1)]
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)  # of munge's socket, which is open to all; the other files are not
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        ports = free_ports(n_nodes + 1)
        config = [CONFIG.format(folder=folder, user=getpass.getuser(), ports=ports)]
        config += [NODE.format(name=n, port=p) for n, p in zip(nodes, ports[1:], strict=True)]
        (folder / "slurm.conf").write_text("".join([*config, PARTITION]))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        stack.callback(os.environ.pop, "SLURM_CONF")
        slurm = LocalSlurm(folder, nodes)
        stack.callback(slurm.stop)
        files = {"key": "key", "socket": "socket", "pid": "pid-file", "seed": "seed-file"}
        options = [f"--{option}={folder}/munge.{file}" for file, option in files.items()]
        slurm.start("munged", "munged", "--foreground", *options)
        wait_until((folder / "munge.socket").exists)
        slurm.start("slurmctld", "slurmctld", "-D")
        for node in nodes:
            slurm.start_node(node)
        wait_until(lambda: run("sinfo", "--noheader", "-o", "%D %t") == f"{n_nodes} idle")
        yield slurm


def run(*command: str) -> str:
    """Return what a command prints; nothing where it fails."""
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def processes_of(folder: Path, node: str) -> Iterator[psutil.Process]:
    """Yield the processes of a node's jobs; the step daemons first, which would report the end."""
    jobs = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            if environment.get("SLURM_CONF") == str(folder / "slurm.conf") and (
                environment.get("SLURMD_NODENAME") == node
            ):
                jobs.append(process)
    parents = {p.pid: p for job in jobs for p in job.parents() if p.name().startswith("slurmstepd")}
    yield from parents.values()
    yield from jobs
