"""A trial of a cluster: fits in which a worker dies, and a log of what was seen.

The log goes to the standard output, and to a file of the folder ``logs`` once all has been right.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from distributed import Client

if TYPE_CHECKING:
    from workloads import Workload

PACKAGES = ["scikit-fleet", "scikit-learn", "dask", "distributed"]
PACKAGES += ["xgboost", "xgboost-cpu", "lightgbm"]
LOGS = Path(__file__).parent / "logs"


@dataclass
class Death:
    """What ends workers."""

    name: str
    cause: Callable[[], object]


class Trial:
    """A log of checks, which the end of its ``with`` block writes if all held."""

    def __init__(
        self, name: str, packages: Iterable[str] = (), commands: Iterable[str] = ()
    ) -> None:
        self.name = name
        self.lines: list[str] = []
        self.log(f"{name}, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores")
        versions = [platform.freedesktop_os_release()["PRETTY_NAME"]]
        versions += [f"Python {platform.python_version()}"]
        for package in [*PACKAGES, *packages]:
            with suppress(PackageNotFoundError):  # there is one of the two of XGBoost
                versions.append(f"{package} {version(package)}")
        versions += [f"{command.split()[0]} {version_of(command)}" for command in commands]
        self.log(", ".join(versions))

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.log("all right")
            LOGS.mkdir(exist_ok=True)
            (LOGS / f"{self.name}.txt").write_text("\n".join(self.lines) + "\n")

    def log(self, line: str) -> None:
        """Print a line, and keep it for the file."""
        self.lines.append(line)
        print(line, flush=True)

    def check(self, line: str, holds: bool) -> None:
        """Log what was seen; end the trial where it is wrong."""
        self.log(f"{line}: {'yes' if holds else 'NO'}")
        if not holds:
            raise SystemExit(1)

    def fit(self, workload: Workload) -> None:
        """Make a fit and compare its answer."""
        begin = time.perf_counter()
        answer = workload.on_fleet()
        self.compare(workload, answer, f"done in {time.perf_counter() - begin:.1f} s")

    def fit_with_a_death(
        self, workload: Workload, client: Client, addresses: list[str], death: Death
    ) -> None:
        """Make a fit in which workers die, and compare its answer.

        They die a second after one of them has begun a task of the fit, or training has begun.
        """
        begin = time.perf_counter()
        times: list[float] = []
        is_done = threading.Event()
        messages = Messages()

        def has_begun() -> bool:
            if workload.begin_message:
                return workload.begin_message in messages.text
            return any(client.processing(addresses).values())

        def die() -> None:
            while not has_begun():
                if is_done.wait(0.05):
                    return
            if not is_done.wait(1):
                death.cause()
                times.append(time.perf_counter() - begin)

        thread = threading.Thread(target=die)
        thread.start()
        try:
            with messages:
                answer = workload.on_fleet()
        finally:
            seconds = time.perf_counter() - begin
            is_done.set()
            thread.join()
        middle = bool(times) and times[0] < seconds
        self.check(f"{workload.name}: {death.name} in the middle", middle)
        for line in messages.text.splitlines():
            self.log(f"    {line}")
        self.compare(workload, answer, f"{death.name} after {times[0]:.1f} s of {seconds:.1f} s")

    def compare(self, workload: Workload, answer, text: str) -> None:
        """Compare an answer with that of this process."""
        difference = workload.difference(answer)
        text += f", greatest difference from the same in one process {difference:.1g}"
        self.check(f"{workload.name}: {text}, right", difference <= workload.tolerance)


class Messages(logging.Handler):
    """What boosting logs in a ``with`` block: where it runs, and what it has lost."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.text = ""
        self._logger = logging.getLogger("skfleet.estimators")
        self._level = self._logger.level

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message, without the addresses of workers."""
        self.text += re.sub(r"\w+://[\d.:]+", "a worker", record.getMessage()) + "\n"

    def __enter__(self) -> Messages:
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)


def require_commands(*commands: str, packages: str) -> None:
    """End the program where commands are missing, with the packages that have them."""
    os.environ["PATH"] += os.pathsep + "/usr/sbin"  # where daemons are; it is not on every PATH
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        raise SystemExit(
            f"This trial needs the commands {', '.join(missing)}. On Debian and Ubuntu, as root: "
            f"apt-get install {packages}"
        )


def version_of(command: str) -> str:
    """Return the version that a command prints, on either of its streams."""
    done = subprocess.run(command.split(), capture_output=True, text=True)
    number = re.search(r"\d+\.\d[\w.]*", done.stdout + done.stderr)
    return number.group() if number else "?"


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a function returns True."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not so in {seconds:g} seconds")
        time.sleep(0.2)


def free_ports(n: int) -> list[int]:
    """Return ports of the loopback interface on which nothing listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(n)]
        return [one.getsockname()[1] for one in sockets]
