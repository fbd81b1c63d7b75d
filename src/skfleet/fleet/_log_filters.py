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


# What distributed logs of messages and connections that its own closing cuts off, by logger.
_CUT_OFF = {
    "distributed.batched": "Batched Comm Closed",
    "distributed.comm.tcp": "Listener on %r: TLS handshake failed",
}


@contextmanager
def quiet_closing() -> Iterator[None]:
    """Leave out what distributed logs of messages and connections that its own closing cuts off."""

    def is_relevant(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_CUT_OFF[record.name])

    for name in _CUT_OFF:
        logging.getLogger(name).addFilter(is_relevant)
    try:
        yield
    finally:
        for name in _CUT_OFF:
            logging.getLogger(name).removeFilter(is_relevant)
