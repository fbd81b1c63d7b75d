"""A child process that holds one object, whose methods its parent calls (`ChildProcess`).

For native libraries that end or block their process when another one dies: a child can be killed at
any time, and takes nothing else along.
"""

from __future__ import annotations

import contextlib
import gc
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
from collections.abc import Callable
from typing import IO, Any

import cloudpickle

# The child takes over the parent's import path, so that it can load what the parent pickles.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from skfleet.engine._child_process import main; main()"
)
_LENGTH = struct.Struct("!Q")
# Calls of a child process itself, not of its object.
_LOAD, _CREATE, _CLEAR = "load ", "create ", ""
# Lines of the standard error stream that an error shows.
N_ERROR_LINES = 20
EXIT_SECONDS = 10.0


class ChildLostError(RuntimeError):
    """A child process that died, hung, or is not here."""


class ChildProcess:
    """A process that holds one object at a time, with `n_threads` threads for native libraries.

    `directory`, for its temporary files, is removed with it. The process ends with its parent.
    """

    def __init__(self, n_threads: int, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self.n_threads, self.directory = n_threads, directory
        self._lock = threading.Lock()
        self._n_pending = 0  # answers
        self._frames: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
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

    def load(self, factory: Callable[..., Any]) -> None:
        """Let the process import a factory's module; an error is raised by the next call."""
        self._send(_LOAD, (factory,))

    def create(self, factory: Callable[..., Any], *args: Any) -> None:
        """Let the process hold ``factory(*args)``; an error is raised by the next call."""
        self._send(_CREATE, (factory, *args))

    def call(self, method: str, *args: Any, timeout: float) -> Any:
        """Return the result of a method, or raise its error.

        A ChildLostError is raised if the process dies, or reports no progress for `timeout`
        seconds; it is killed then.
        """
        with self._lock:
            return self._call(method, args, timeout)

    def _call(self, method: str, args: tuple[Any, ...], timeout: float) -> Any:
        self._send(method, args)
        error, result = None, None
        while self._n_pending:
            try:
                kind, value = self._frames.get(timeout=timeout)
            except queue.Empty:
                self.kill()
                text = f"{method or 'the end'} made no progress for {timeout:g} seconds"
                raise ChildLostError(text) from None
            if kind == "end":
                self._frames.put((kind, value))  # for further calls
                raise ChildLostError(self._describe_end())
            if kind == "progress":
                continue
            self._n_pending -= 1
            if kind == "result":
                result = value
            elif error is None:
                error = value
        if error is not None:
            raise error
        return result

    def clear(self, timeout: float) -> bool:
        """Close and drop the object; return whether the process can hold another one."""
        if not self._lock.acquire(blocking=False):  # a call goes on
            return False
        try:
            self._call(_CLEAR, (), timeout)
            for entry in os.scandir(self.directory):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
        except Exception:
            return False
        finally:
            self._lock.release()
        return True

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

    def _send(self, method: str, args: tuple[Any, ...]) -> None:
        stream = self._process.stdin
        assert stream is not None
        data = cloudpickle.dumps((method, args))
        self._n_pending += 1
        try:
            _write_frame(stream, data)
        except (OSError, ValueError) as error:
            raise ChildLostError(self._describe_end()) from error

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


def report_progress() -> None:
    """Report to the parent, in a child's method, that work goes on."""
    if _output is not None:
        _write_frame(_output, pickle.dumps(("progress", None)))


# The stream to the parent, in a child.
_output: IO[bytes] | None = None


# 1. What libraries print goes to the standard error stream: the other one has the results.
# 2. A thread reads the calls: at their end the parent is dead, whatever the main thread does.
# 3. The main thread makes the object, and calls its methods one after the other.
def main() -> None:
    """Serve the parent's calls in a child process."""
    global _output
    _output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(calls,), daemon=True).start()
    server = _Server()
    while True:
        _write_frame(_output, server.answer(calls.get()))


class _Server:
    """The object that a child process holds."""

    _target: Any = None

    def answer(self, data: bytes) -> bytes:
        """Return the result of a call, or its error, pickled."""
        try:
            method, args = pickle.loads(data)
            return cloudpickle.dumps(("result", self._call(method, args)))
        except Exception as error:
            return _pickle_error(error)

    def _call(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == _LOAD:  # by unpickling
            return None
        if method == _CREATE:
            self._target = args[0](*args[1:])
            return None
        if method == _CLEAR:
            if self._target is not None:
                self._target.close()
            self._target = None
            gc.collect()
            return None
        return getattr(self._target, method)(*args)


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
