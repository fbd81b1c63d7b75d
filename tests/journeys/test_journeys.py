"""The ways in, as scripts of a user: each in a process of its own, its whole screen as expected.

``NAME.py`` is the script and ``NAME.txt`` what it shows, standard output and errors together, with
``...`` for what differs from run to run. Whatever else is shown, a warning of Dask's say, fails.
"""

import difflib
import doctest
import errno
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
JOURNEYS = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_"))
SECONDS = 240
NEEDS = {"boosters_inside": ["lightgbm", "xgboost"], "packaging_wheel": ["pip"]}
# What ends a script that is stopped by its user; any other ends with 0.
STATUS = {"ctrl_c": -signal.SIGINT}
LONG = {"packaging_wheel"}  # with the versions of all libraries
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

pytestmark = pytest.mark.slow


def start(name, folder, screen, **options):
    """Start a script in a folder of its own, in a group of its own, with one screen for all."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    bin_of_python = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PATH": os.pathsep.join([str(bin_of_python), os.environ["PATH"]]),  # dask scheduler
        "COLUMNS": "100",
    }
    environment.pop("PYTHONWARNINGS", None)
    return subprocess.Popen(
        [sys.executable, str(HERE / f"{name}.py")],
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=screen,
        stderr=screen,
        cwd=folder,
        env=environment,
        start_new_session=True,
        **options,
    )


def shown_in_a_file(name, folder):
    """Run a script whose screen is no terminal; return what it shows, and its status."""
    screen = folder / "screen.txt"
    (folder / "here").mkdir()
    with screen.open("wb") as file:
        process = start(name, folder / "here", file)
        try:
            process.wait(SECONDS)
        finally:
            end(process)
    return screen.read_text(), process.returncode


def shown_in_a_terminal(name, folder, stop_after):
    """Run a script in a terminal, press Ctrl-C once it has shown some words, and see the rest."""
    ours, theirs = pty.openpty()

    def take_terminal():
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = start(name, folder, theirs, stdin=theirs, preexec_fn=take_terminal)
    os.close(theirs)
    screen, give_up, pressed = b"", time.monotonic() + SECONDS, False
    try:
        while time.monotonic() < give_up and (part := read(ours)) is not None:
            screen += part
            if not pressed and stop_after.encode() in screen:
                time.sleep(4.0)  # in the middle of what runs then
                os.write(ours, b"\x03")
                pressed = True
        process.wait(max(1.0, give_up - time.monotonic()))
    finally:
        end(process)
        os.close(ours)
    return screen.decode().replace("\r\n", "\n"), process.returncode


def read(terminal):
    """Read what a terminal shows, b"" if nothing for a while, None if nobody is left to write."""
    if not select.select([terminal], [], [], 0.5)[0]:
        return b""
    try:
        return os.read(terminal, 4096) or None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


def end(process):
    """Kill a script that runs still, with all that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def assert_shows(name, screen):
    """Compare with the expected screen, and show where they part."""
    expected = (HERE / f"{name}.txt").read_text()
    # a line that depends on how busy the machine is
    screen = re.sub(r"scikit-fleet: still waiting for .*\n", "", screen)
    if not doctest.OutputChecker().check_output(expected, screen, FLAGS):
        lines = difflib.unified_diff(
            expected.splitlines(), screen.splitlines(), "expected", "shown", lineterm=""
        )
        pytest.fail("\n".join([f"{name} shows something else:", *lines]), pytrace=False)


@pytest.mark.parametrize("name", JOURNEYS)
def test_the_screen_is_as_expected(name, tmp_path):
    for library in NEEDS.get(name, ()):
        pytest.importorskip(library)
    if name == "ctrl_c":
        screen, status = shown_in_a_terminal(name, tmp_path, stop_after="searching")
    else:
        screen, status = shown_in_a_file(name, tmp_path)
    assert_shows(name, screen)
    n_expected = len((HERE / f"{name}.txt").read_text().splitlines())
    assert name in LONG or len(screen.splitlines()) <= n_expected + 3  # "..." hides no page
    assert status == STATUS.get(name, 0)


def test_every_script_has_a_screen():
    screens = {path.stem for path in HERE.glob("*.txt")}
    assert screens == set(JOURNEYS)
    assert len(JOURNEYS) == 14
