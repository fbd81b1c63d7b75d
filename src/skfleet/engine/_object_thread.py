"""A thread that holds one object, whose methods other threads call (`ObjectThread`).

For objects that take arrays on a device, which would be copied on their way to another process.
"""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable
from typing import Any

from skfleet.engine._remote_object import (
    EXIT_SECONDS,
    ObjectLostError,
    ObjectServer,
    RemoteObject,
    surroundings,
)


class ObjectThread(RemoteObject):
    """A thread that holds one object at a time.

    One that hangs cannot be killed: then `on_hang` is called, which may end the process.
    """

    def __init__(self, n_threads: int, directory: str, on_hang: Callable[[], None]) -> None:
        super().__init__(n_threads, directory)
        self._on_hang = on_hang
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._is_dead = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """End the thread, and remove its directory."""
        self._is_dead = True
        self._calls.put(None)
        self._thread.join(EXIT_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._thread.is_alive():
            self._on_hang()

    def _send(self, method: str, args: tuple[object, ...]) -> None:
        if self._is_dead:
            raise ObjectLostError(self._describe_end())
        self._n_pending += 1
        self._calls.put((method, args))

    def _describe_end(self) -> str:
        return "its thread was ended"

    def _serve(self) -> None:
        surroundings.n_threads = self.n_threads
        surroundings.report = lambda: self._frames.put(("progress", None))
        server = ObjectServer()
        while (call := self._calls.get()) is not None:
            try:
                self._frames.put(("result", server.call(*call)))
            except Exception as error:
                self._frames.put(("error", error))
            del call
