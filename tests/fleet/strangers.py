"""What a second user can reach of a fleet: a process of that user, and what there is to try."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import psutil
import pytest

NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}
SOURCE = Path(__file__).with_name("stranger.py")


def _options():
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    environment = {"PYTHONPATH": os.pathsep.join(sorted(folders)), "PATH": os.defpath}
    return {**NOBODY, "cwd": "/", "env": environment}


@cache
def python_of_others():
    """Return a Python of this version by which another user runs distributed, or None."""
    version = "python{}.{}".format(*sys.version_info)
    names = {sys.executable: 0, os.path.realpath(sys.executable): 1, shutil.which(version): 2}
    system = (f"/usr/bin/{version}", f"/usr/local/bin/{version}")
    check = "import sys, distributed, cryptography; sys.exit(sys.version_info[:2] != {})"
    check = check.format(sys.version_info[:2])
    for path in filter(None, (*names, *system)):
        with suppress(OSError):  # in a folder that is closed for others, or missing
            if not subprocess.run(
                [path, "-c", check], capture_output=True, **_options()
            ).returncode:
                return path
    return None


def skip_without_other_user():
    """Skip where no process of another user can be run."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root runs processes of other users")
    if python_of_others() is None:
        pytest.skip("no Python with distributed is in folders that other users may open")


class Stranger:
    """A process of another user."""

    def __init__(self, process, errors):
        self._process, self._errors = process, errors

    def attempt(self, **targets):
        """Let it try, and return what it got: how, of what, and its beginning."""
        self._process.stdin.write(json.dumps(targets) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            pytest.fail(f"the other user's process has ended: {self._errors.read()}")
        answer = json.loads(line)
        assert answer["user"] == NOBODY["user"]
        self.command_lines = answer["lines"]
        return [tuple(got) for got in answer["got"]]


@contextmanager
def open_stranger():
    """Start a process of another user, and end it."""
    skip_without_other_user()
    command = [python_of_others(), "-c", SOURCE.read_text()]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        TemporaryFile("w+") as errors,  # a pipe that nobody reads would be full at some time
        subprocess.Popen(command, stderr=errors, **pipes, **_options()) as process,
    ):
        try:
            yield Stranger(process, errors)
        finally:
            process.kill()


class Earlier(NamedTuple):
    """What other tests of this process have running."""

    pids: frozenset[int] = frozenset()
    ports: frozenset[tuple[str, int]] = frozenset()
    sockets: frozenset[str] = frozenset()


NOTHING = Earlier()


def earlier():
    """Return what runs already in this process and below it."""
    processes = processes_of_fleet()
    ports, sockets = listening(processes)
    pids = {process.pid for process in processes} - {os.getpid()}
    return Earlier(frozenset(pids), frozenset(ports), frozenset(sockets))


def processes_of_fleet(before=NOTHING):
    """Return this process and all new ones below it, which a fleet consists of."""
    own = psutil.Process()
    children = (child for child in own.children(recursive=True) if child.pid not in before.pids)
    return [own, *filter(is_ours, children)]


def is_ours(process):
    """Return whether a process is one of this user."""
    try:
        return process.uids().effective == os.geteuid()
    except psutil.Error:  # it has ended
        return False


def listening(processes, before=NOTHING):
    """Return the new ports at which processes listen, and the names of their new sockets."""
    ports, sockets = set(), set()
    for process in processes:
        with suppress(psutil.Error):
            for link in process.net_connections("inet"):
                is_udp = link.type.name == "SOCK_DGRAM"
                if link.status == psutil.CONN_LISTEN or (is_udp and not link.raddr):
                    ports.add((link.laddr.ip, link.laddr.port))
            sockets |= {link.laddr for link in process.net_connections("unix") if link.laddr}
    return ports - before.ports, sockets - before.sockets


def reachable(ports):
    """Return addresses by which another process reaches ports: of all interfaces the loopback's."""
    anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return sorted((anywhere.get(host, host), port) for host, port in ports)


def tree(folder):
    """Return all paths below a folder."""
    return [str(path) for path in (Path(folder), *Path(folder).rglob("*"))]
