"""An object elsewhere, whose methods are called by messages (`RemoteObject`)."""

from __future__ import annotations

import gc
import os
import queue
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from skfleet._fall_back import fall_back

# Calls of the place of an object, not of the object.
LOAD, CREATE, CLEAR = "load ", "create ", ""
EXIT_SECONDS = 10.0


class ObjectLostError(RuntimeError):
    """A remote object is lost: its process died or hung, or its method says so by this error."""


class RemoteObject(ABC):
    """A place for one object at a time, whose methods run there one after the other.

    `directory` is for its temporary files, and is removed with it.
    """

    def __init__(self, n_threads: int, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self.n_threads, self.directory = n_threads, directory
        self._lock = threading.Lock()
        self._n_pending = 0  # answers
        # Answers: "result", "error", "progress", or the "end" of the place.
        self._frames: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def load(self, factory: Callable[..., object]) -> None:
        """Let the place import a factory's module; an error is raised by the next call."""
        self._send(LOAD, (factory,))

    def create(self, factory: Callable[..., object], *args: object) -> None:
        """Let the place hold ``factory(*args)``; an error is raised by the next call."""
        self._send(CREATE, (factory, *args))

    def call(self, method: str, *args: object, timeout: float) -> Any:
        """Return the result of a method, or raise its error.

        An ObjectLostError is raised if the place ends, or reports no progress for `timeout`
        seconds; it is killed then.
        """
        with self._lock:
            return self._call(method, args, timeout)

    def _call(self, method: str, args: tuple[object, ...], timeout: float) -> Any:
        self._send(method, args)
        error, result = None, None
        while self._n_pending:
            try:
                kind, value = self._frames.get(timeout=timeout)
            except queue.Empty:
                self.kill()
                text = f"{method or 'the end'} made no progress for {timeout:g} seconds"
                raise ObjectLostError(text) from None
            if kind == "end":
                self._frames.put((kind, value))  # for further calls
                raise ObjectLostError(self._describe_end())
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
        """Close and drop the object; return whether the place can hold another one."""
        if not self._lock.acquire(blocking=False):  # a call goes on
            return False
        try:
            with fall_back("a place whose object cannot be dropped holds no other one"):
                self._call(CLEAR, (), timeout)
                for entry in os.scandir(self.directory):
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)
                return True
            return False
        finally:
            self._lock.release()

    @abstractmethod
    def kill(self) -> None:
        """End the place, and remove its directory."""

    @abstractmethod
    def _send(self, method: str, args: tuple[object, ...]) -> None:
        """Send a call, to be answered by a frame."""

    @abstractmethod
    def _describe_end(self) -> str:
        """Return how the place ended."""


class ObjectServer:
    """The other side of a `RemoteObject`: holds the object, and answers calls."""

    _target: Any = None

    def call(self, method: str, args: tuple[Any, ...]) -> object:
        """Return the result of a call."""
        if method == LOAD:  # by unpickling
            return None
        if method == CREATE:
            self._target = args[0](*args[1:])
            return None
        if method == CLEAR:
            if self._target is not None:
                self._target.close()
            self._target = None
            gc.collect()
            return None
        return getattr(self._target, method)(*args)


class _Surroundings(threading.local):
    """The place that a thread's methods run at."""

    report: Callable[[], None] | None = None
    n_threads: int | None = None


surroundings = _Surroundings()
# The reporter of all threads of a child process.
reporters: list[Callable[[], None]] = []


def report_progress() -> None:
    """Report, in a method of a remote object, that work goes on."""
    for report in [surroundings.report] if surroundings.report else reporters:
        report()


def thread_count() -> int:
    """Return the number of threads that the remote object whose method runs may use."""
    return surroundings.n_threads or int(os.environ["OMP_NUM_THREADS"])
