"""Falling back on the plain way where a quicker one, or a look ahead, raises an error."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

# Where this is set, as by the tests, errors of wrong code in this package are raised.
STRICT_VARIABLE = "SKFLEET_STRICT_FALL_BACKS"

# How often this process fell back, by reason.
fall_backs: Counter[str] = Counter()

_PACKAGE = str(Path(__file__).parent)

# What wrong code raises, and nothing that users pass: that is refused by other types.
_OF_WRONG_CODE = (AssertionError, AttributeError, NameError)


@contextmanager
def fall_back(reason: str) -> Iterator[None]:
    """Go on behind the block where it raises an error, which is logged and counted.

    The caller returns from within the block, or goes on with the plain way behind it. `reason`
    says what is done then: "first steps are fitted one by one".
    """
    try:
        yield
    except Exception as error:
        if STRICT_VARIABLE in os.environ and _is_of_wrong_code(error):
            raise
        fall_backs[reason] += 1
        logger.debug("%s", reason, exc_info=True)


def _is_of_wrong_code(error: Exception) -> bool:
    """Return whether an error was raised by wrong code of this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_ours = trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
    return is_ours and isinstance(error, _OF_WRONG_CODE)
