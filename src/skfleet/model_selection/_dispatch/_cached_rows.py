"""Rows that several fits get, each as an object of its own."""

from __future__ import annotations

import math
from typing import Any

from skfleet._array import copy_of, is_equal, is_not_numpy
from skfleet.engine import MMAP_THRESHOLD, Pickled


class CachedRows:
    """Rows that several fits get, each as an object of its own.

    Small ones are copied. From `MMAP_THRESHOLD` on all objects are read-only views of one memory.
    """

    def __init__(self, rows: Any) -> None:
        # the items of a list may be shared, as in any list that is cut from another
        self._list = rows if type(rows) is list else None
        self._device_rows = rows if is_not_numpy(rows) else None
        is_pickled = self._list is None and self._device_rows is None
        self._pickled = Pickled.dumps(rows if is_pickled else None)
        self.is_read_only = self._pickled.nbytes >= MMAP_THRESHOLD
        self._is_of_copy = False

    @property
    def n_bytes(self) -> float:
        """Bytes of the rows; infinite for a list and for rows on a device."""
        is_pickled = self._list is None and self._device_rows is None
        return self._pickled.nbytes if is_pickled else math.inf

    def copy(self) -> Any:
        """Return an object with these rows."""
        if self._list is not None:
            return list(self._list)
        if self._device_rows is not None:
            return copy_of(self._device_rows)
        return self._pickled.loads(readonly=self.is_read_only)

    def is_content_of(self, rows: Any) -> bool:
        """Return whether a copy of these rows is as it was: a fit or a scorer may write into it."""
        if self._device_rows is not None:
            return is_equal(rows, self._device_rows)
        if not self._is_of_copy:
            # a copy may be pickled in other words than the rows that it is of
            self._pickled, self._is_of_copy = Pickled.dumps(self.copy()), True
        return self._pickled.is_equal(Pickled.dumps(rows))
