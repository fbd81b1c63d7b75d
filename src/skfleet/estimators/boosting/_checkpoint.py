"""Snapshots of boosting in a directory, for training to go on after this process died."""

from __future__ import annotations

import logging
import os
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import fsspec

logger = logging.getLogger("skfleet.estimators")


class BoostingCheckpoint:
    """The last snapshot of a fit, in a directory of any location that fsspec knows.

    `inputs` are what the fit depends on, by their names in error messages.
    """

    def __init__(self, location: Any, inputs: Mapping[str, Any], factory: Any) -> None:
        self._location, self._inputs, self._factory = os.fspath(location), dict(inputs), factory
        self._files, self._root = fsspec.core.url_to_fs(self._location)

    @property
    def _path(self) -> str:
        return f"{self._root}/boosting.snapshot"

    def load(self) -> Any:
        """Return the snapshot, None where there is none; raise for one of another fit."""
        try:
            checksum, _, data = self._files.cat_file(self._path).partition(b"\n")
            if int(checksum, 16) != zlib.crc32(data):
                raise ValueError("another checksum")
            inputs, snapshot = pickle.loads(data)
        except FileNotFoundError:
            return None
        except Exception:
            logger.warning("%s is damaged, and is written anew", self._path)
            return None
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
        data = pickle.dumps((self._inputs, asdict(snapshot)))
        self._files.makedirs(self._root, exist_ok=True)
        new = f"{self._path}.new"
        self._files.pipe_file(new, b"%08x\n%s" % (zlib.crc32(data), data))
        self._files.mv(new, self._path)
