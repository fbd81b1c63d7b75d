"""Store of partially trained models, part of the checkpoint of an adaptive search."""

from __future__ import annotations

import logging
import os
import pickle
import zlib
from typing import Any
from uuid import uuid4

import cloudpickle
import fsspec

from skfleet.model_selection._adaptive._worker import TrainedModel

logger = logging.getLogger(__name__)


class ModelStore:
    """A directory of pickled models that workers write and read.

    A file is named by its candidate and the number of calls that the model has had, and begins
    with a checksum: damaged and incomplete files are ignored.
    """

    def __init__(self, location: str | os.PathLike[str], search: str) -> None:
        self.location = os.fspath(location)
        if "://" not in self.location:
            self.location = os.path.abspath(self.location)
        self.search = search

    def _files(self) -> tuple[Any, str]:
        files, root = fsspec.core.url_to_fs(self.location)
        return files, f"{root}/models-{self.search}"

    def is_seen(self) -> bool:
        """Return whether this process sees the directory of the checkpoint."""
        files, root = fsspec.core.url_to_fs(self.location)
        files.invalidate_cache()
        return bool(files.exists(f"{root}/search.json"))

    def find(self, candidate: int, n_calls: int) -> TrainedModel | None:
        """Return the first model after `n_calls` calls or more; else the latest before them."""
        files, root = self._files()
        files.invalidate_cache()
        stored = self._stored_calls(files, root, candidate)
        for n in sorted(stored, key=lambda n: (n < n_calls, abs(n - n_calls))):
            trained = self._read(files, f"{root}/{candidate}-{n}.model")
            if trained is not None:
                return trained
        return None

    def exact(self, candidate: int, n_calls: int) -> TrainedModel | None:
        """Return the model after exactly `n_calls` calls, or None."""
        files, root = self._files()
        return self._read(files, f"{root}/{candidate}-{n_calls}.model")

    def put(self, candidate: int, trained: TrainedModel) -> None:
        """Write a model."""
        files, root = self._files()
        files.makedirs(root, exist_ok=True)
        content = cloudpickle.dumps(trained)
        path = f"{root}/{candidate}-{trained.n_calls}.model"
        # moved in place when it is complete, as the worker may die while it writes
        draft = f"{root}/draft-{uuid4().hex}"
        files.pipe_file(draft, b"%08x" % zlib.crc32(content) + content)
        files.mv(draft, path)

    def prune(self, needed: set[tuple[int, int]], candidate: int) -> None:
        """Delete the models of a candidate that are not among the needed (candidate, n_calls)."""
        files, root = self._files()
        files.invalidate_cache()
        for n in self._stored_calls(files, root, candidate):
            if (candidate, n) not in needed:
                files.rm_file(f"{root}/{candidate}-{n}.model")

    @staticmethod
    def _stored_calls(files: Any, root: str, candidate: int) -> list[int]:
        """Return the numbers of calls of the stored models of a candidate."""
        paths = files.glob(f"{root}/{candidate}-*.model")
        return [int(path.rpartition("-")[2].removesuffix(".model")) for path in paths]

    @staticmethod
    def _read(files: Any, path: str) -> TrainedModel | None:
        """Read a model; return None if the file is missing or damaged."""
        try:
            content = files.cat_file(path)
            if int(content[:8], 16) != zlib.crc32(content[8:]):
                raise ValueError("another checksum")
            trained: TrainedModel = pickle.loads(content[8:])
        except FileNotFoundError:
            return None
        except Exception:
            logger.warning("%s is damaged, and counts for nothing", path)
            return None
        return trained
