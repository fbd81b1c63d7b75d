"""Claims of fits that several batches have, so that each fit is made once in this process."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple
from uuid import uuid4


class FitClaims:
    """The batch that has begun each fit of a call, by the number of the fit.

    A fit of a slow batch is scheduled a second time, in another batch. The one that comes to it
    first makes it. That one may be run again, where its result was lost, and makes it again.
    """

    def __init__(self) -> None:
        self.token = uuid4().hex
        self._batches: dict[Hashable, int] = {}
        _claims[self.token] = self

    def claim(self, fit: Hashable, batch: int) -> bool:
        """Return whether a batch makes a fit."""
        return self._batches.setdefault(fit, batch) == batch


class BatchClaims(NamedTuple):
    """The claims that a batch makes in the process of the search; it has all fits elsewhere."""

    token: str
    batch: int
    fits: Sequence[Hashable]

    def claim(self, position: int) -> bool:
        """Return whether the batch makes the fit at a position."""
        claims = _claims.get(self.token)
        return claims is None or claims.claim(self.fits[position], self.batch)


_claims: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
