"""Hosts with SSH on this machine, for trials: one server for each, with keys made for them.

It needs Debian's package openssh-server. Each host listens on the loopback interface, at a port of
its own, and has a working directory of its own. All is in a temporary folder, and gone at the end.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from trial import free_ports, require_commands, wait_until

CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {keys}.pub
# the keys are in a temporary folder, which sshd takes for one that others can write
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin prohibit-password
ForceCommand cd {folder}/work && eval "$SSH_ORIGINAL_COMMAND"
"""


@dataclass
class Host:
    """A server and how to connect to it, in words of `asyncssh.connect`."""

    server: subprocess.Popen
    work: Path
    connect_options: dict[str, object]


@contextmanager
def local_hosts(n: int) -> Iterator[list[Host]]:
    """Start hosts, and end them and all that runs on them."""
    require_commands("sshd", "ssh-keygen", packages="openssh-server openssh-client")
    sshd = shutil.which("sshd")  # which must be started by its whole path
    with TemporaryDirectory(prefix="ssh-") as name, ExitStack() as stack:
        folder = Path(name)
        empty = Path("/run/sshd")  # sshd of root needs it; Debian's service makes it at boot
        if os.getuid() == 0 and not empty.exists():
            empty.mkdir(mode=0o755)
            stack.callback(empty.rmdir)
        keys = new_key(folder / "client_key")
        hosts = []
        for number, port in enumerate(free_ports(n)):
            own = folder / f"host{number}"
            (own / "work").mkdir(parents=True)
            host_key = new_key(own / "host_key")
            config, log = own / "sshd_config", own / "log.txt"
            config.write_text(CONFIG.format(port=port, folder=own, keys=keys))
            known, public = own / "known_hosts", Path(f"{host_key}.pub").read_text()
            known.write_text(f"[127.0.0.1]:{port} {public}")
            server = subprocess.Popen([sshd, "-D", "-f", str(config), "-E", str(log)])
            stack.callback(kill_host, server)
            options = {"port": port, "username": getpass.getuser(), "known_hosts": str(known)}
            options |= {"client_keys": [str(keys)]}
            hosts.append(Host(server, own / "work", options))
            wait_until(lambda port=port: answers(port))
        yield hosts


def new_key(path: Path) -> Path:
    """Make a key and its public part."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "trial", "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def answers(port: int) -> bool:
    """Return whether a server listens."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def kill_host(server: subprocess.Popen) -> None:
    """Kill a server and all that was started through it at once, as a power cut does."""
    with suppress(psutil.NoSuchProcess):
        tree = psutil.Process(server.pid)
        for process in [tree, *tree.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
    server.wait()
