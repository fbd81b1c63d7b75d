"""Lines of distributed's log that say nothing to the user of a healthy fleet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from distributed import SchedulerPlugin


class QuietShuffles(SchedulerPlugin):
    """Filters what distributed warns of at the begin and end of every healthy shuffle."""

    name = "skfleet-quiet-shuffles"
    _logger = logging.getLogger("distributed.shuffle._scheduler_plugin")

    def __init__(self) -> None:
        self._logger.addFilter(self.filter)

    async def close(self) -> None:
        self._logger.removeFilter(self.filter)

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(("Shuffle %s initialized", "Shuffle %s deactivated"))


@contextmanager
def quiet_closing() -> Iterator[None]:
    """Leave out the tracebacks of distributed on messages that its own closing cuts off."""

    def is_relevant(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Batched Comm Closed")

    logger = logging.getLogger("distributed.batched")
    logger.addFilter(is_relevant)
    try:
        yield
    finally:
        logger.removeFilter(is_relevant)
