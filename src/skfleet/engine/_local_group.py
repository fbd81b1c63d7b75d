"""A group of one object in this process, in place of processes on workers (`LocalLauncher`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from skfleet.blocks import BlockRef
from skfleet.engine._protocol import Engine


class LocalGroup:
    """One object, ``factory(0)``, whose methods are called in this process."""

    hosts = ("127.0.0.1",)

    def __init__(self, factory: Callable[[int], object]) -> None:
        self._target = factory(0)

    def call(
        self,
        method: str,
        args: Sequence[tuple[object, ...]],
        *,
        ranks: Sequence[int] | None = None,
        seconds: float = 0.0,
    ) -> list[Any]:
        """Return the result of a method, in a list."""
        return [getattr(self._target, method)(*args[0])]

    def close(self) -> None:
        """Drop the object."""
        self._target = None


class _NeverLostError(Exception):
    """A process lost its group: impossible in this process."""


class LocalLauncher:
    """Starts groups of one object in this process."""

    lost_error = _NeverLostError
    threads = (1,)

    def __init__(self, engine: Engine, factory: Callable[[int], object]) -> None:
        self.engine, self._factory = engine, factory
        self.memory_limits = [engine.memory_limit]

    def preload(self) -> None:
        """Do nothing: this process has loaded what it needs."""

    def start(self, n: int) -> LocalGroup:
        """Make the object."""
        return LocalGroup(self._factory)

    def store(self, blocks: Sequence[BlockRef]) -> list[BlockRef]:
        """Return the blocks as they are."""
        return list(blocks)

    restore = store
