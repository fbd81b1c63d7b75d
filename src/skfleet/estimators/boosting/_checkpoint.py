"""Snapshots of boosting in a directory, for training to go on after this process died."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from skfleet._checkpoint_store import CheckpointStore

logger = logging.getLogger("skfleet.estimators")

_NAME = "boosting.snapshot"


class BoostingCheckpoint:
    """The last snapshot of a fit, in a directory of any location that fsspec knows.

    `inputs` are what the fit depends on, by their names in error messages.
    """

    def __init__(self, location: Any, inputs: Mapping[str, Any], factory: Any) -> None:
        self._location, self._inputs, self._factory = os.fspath(location), dict(inputs), factory
        self._store = CheckpointStore(location)

    def load(self) -> Any:
        """Return the snapshot, None where there is none; raise for one of another fit."""
        stored = self._store.load(_NAME)
        if stored is None:
            return None
        inputs, snapshot = stored
        changed = [name for name, value in self._inputs.items() if inputs.get(name) != value]
        if changed:
            raise ValueError(
                f"checkpoint must be of this very fit. Got {self._location!r} of one with another "
                f"{' and another '.join(changed)} instead. Fit with what it was begun with, or "
                "give another checkpoint."
            )
        logger.info("checkpoint: training goes on from round %d", snapshot["n_done"])
        return self._factory(**snapshot)

    def save(self, snapshot: Any) -> None:
        """Write a snapshot in the place of the last one."""
        self._store.dump(_NAME, (self._inputs, asdict(snapshot)))
