"""A child process that holds one object, whose methods its parent calls (`ChildProcess`).

For native libraries that end or block their process when another one dies: a child can be killed at
any time, and takes nothing else along.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import shutil
import struct
import subprocess
import sys
import threading
import traceback
from collections import deque
from typing import IO

import cloudpickle

from skfleet.engine._remote_object import (
    EXIT_SECONDS,
    ObjectLostError,
    ObjectServer,
    RemoteObject,
    reporters,
)

# The child takes over the parent's import path, so that it can load what the parent pickles.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from skfleet.engine._child_process import main; main()"
)
_LENGTH = struct.Struct("!Q")
# Lines of the standard error stream that an error shows.
N_ERROR_LINES = 20


class ChildProcess(RemoteObject):
    """A process that holds one object at a time, with `n_threads` threads for native libraries.

    It ends with its parent.
    """

    def __init__(self, n_threads: int, directory: str) -> None:
        super().__init__(n_threads, directory)
        self._errors: deque[str] = deque(maxlen=N_ERROR_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                # threads that wait by spinning make a busy machine several times slower
                "OMP_WAIT_POLICY": "PASSIVE",
                "GOMP_SPINCOUNT": "1000",
                **os.environ,
                "OMP_NUM_THREADS": str(n_threads),
                "TMPDIR": directory,
            },
            start_new_session=True,  # an interrupt in the terminal is for the parent
        )
        for target in (self._read_frames, self._read_errors):
            threading.Thread(target=target, daemon=True).start()

    def kill(self) -> None:
        """End the process, and remove its directory."""
        with contextlib.suppress(OSError):
            self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        with contextlib.suppress(OSError):  # of what was not sent
            if self._process.stdin is not None:
                self._process.stdin.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _send(self, method: str, args: tuple[object, ...]) -> None:
        stream = self._process.stdin
        assert stream is not None
        data = cloudpickle.dumps((method, args))
        self._n_pending += 1
        try:
            _write_frame(stream, data)
        except (OSError, ValueError) as error:
            raise ObjectLostError(self._describe_end()) from error

    def _read_frames(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with contextlib.suppress(OSError, ValueError), stream:
            while (data := _read_frame(stream)) is not None:
                try:
                    self._frames.put(pickle.loads(data))
                except Exception as error:  # an exception's class may not be loadable
                    self._frames.put(("error", RuntimeError(f"unreadable result: {error!r}")))
        self._frames.put(("end", None))

    def _read_errors(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        with contextlib.suppress(OSError, ValueError), stream:
            for line in stream:
                self._errors.append(line.decode(errors="replace").rstrip())

    def _describe_end(self) -> str:
        """Return how the process ended, with the last lines that it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        code = self._process.returncode
        end = f"signal {-code}" if (code or 0) < 0 else f"exit code {code}"
        text = f"its process ended with {end}"
        return "\n".join([text, *self._errors])


# 1. What libraries print goes to the standard error stream: the other one has the results.
# 2. A thread reads the calls: at their end the parent is dead, whatever the main thread does.
# 3. The main thread makes the object, and calls its methods one after the other.
def main() -> None:
    """Serve the parent's calls in a child process."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(calls,), daemon=True).start()
    progress = pickle.dumps(("progress", None))
    reporters.append(lambda: _write_frame(output, progress))
    server = ObjectServer()
    while True:
        _write_frame(output, _answer(server, calls.get()))


def _answer(server: ObjectServer, data: bytes) -> bytes:
    """Return the result of a call, or its error, pickled."""
    try:
        return cloudpickle.dumps(("result", server.call(*pickle.loads(data))))
    except Exception as error:
        return _pickle_error(error)


def _read_calls(calls: queue.SimpleQueue[bytes]) -> None:
    with contextlib.suppress(OSError):
        while (data := _read_frame(sys.stdin.buffer)) is not None:
            calls.put(data)
    os._exit(1)


def _pickle_error(error: Exception) -> bytes:
    """Pickle an error with its traceback, or a RuntimeError of the same text."""
    text = "".join(traceback.format_exception(error))
    error.add_note(f"In a training process:\n{text}")
    try:
        data = cloudpickle.dumps(("error", error))
        pickle.loads(data)
    except Exception:
        data = cloudpickle.dumps(("error", RuntimeError(f"{type(error).__name__}: {error}")))
    return data


def _write_frame(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> bytes | None:
    """Return the next message; None at the end of the stream."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    data = stream.read(length)
    return data if len(data) == length else None
