"""Models of candidates, recorded where a search that begins again finds them."""

from __future__ import annotations

import logging
import os
import pickle
import zlib
from typing import Any
from uuid import uuid4

import cloudpickle
import fsspec

from skfleet.model_selection._adaptive._worker import Trained

__all__ = ["Models"]

logger = logging.getLogger(__name__)


class Models:
    """A directory of models, which workers write and read.

    A file is named by its candidate and the number of calls that it has had, and begins with a
    checksum: what was cut off, or damaged, does not count.

    Parameters
    ----------
    location : str or path-like
        Any location that fsspec knows, the same for all workers.
    search : str
        What tells this search from others.
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
        """Say whether the place where the search is recorded is seen from this process."""
        files, root = fsspec.core.url_to_fs(self.location)
        files.invalidate_cache()
        return bool(files.exists(f"{root}/search.json"))

    def find(self, candidate: int, n_calls: int) -> Trained | None:
        """Return a candidate as it was after so many calls or more; else as late as it is known."""
        files, root = self._files()
        files.invalidate_cache()
        known = sorted(self._known(files, root, candidate))
        enough = [n for n in known if n >= n_calls]
        for n in [*enough, *reversed([n for n in known if n < n_calls])]:
            found = self._read(files, f"{root}/{candidate}-{n}.model")
            if found is not None:
                return found
        return None

    def exact(self, candidate: int, n_calls: int) -> Trained | None:
        """Return a candidate as it was after just so many calls."""
        files, root = self._files()
        return self._read(files, f"{root}/{candidate}-{n_calls}.model")

    def put(self, candidate: int, trained: Trained) -> None:
        """Record a model. What was recorded within the same order, without a score, is dropped."""
        files, root = self._files()
        files.makedirs(root, exist_ok=True)
        content = cloudpickle.dumps(trained)
        path = f"{root}/{candidate}-{trained.n_calls}.model"
        draft = f"{root}/draft-{uuid4().hex}"
        files.pipe_file(draft, b"%08x" % zlib.crc32(content) + content)
        files.mv(draft, path)

    def keep(self, wanted: set[tuple[int, int]], candidate: int) -> None:
        """Drop what is recorded of a candidate, but for what is wanted."""
        files, root = self._files()
        files.invalidate_cache()
        for n in self._known(files, root, candidate):
            if (candidate, n) not in wanted:
                files.rm_file(f"{root}/{candidate}-{n}.model")

    @staticmethod
    def _known(files: Any, root: str, candidate: int) -> list[int]:
        """Return after how many calls a candidate was recorded."""
        paths = files.glob(f"{root}/{candidate}-*.model")
        return [int(path.rpartition("-")[2].removesuffix(".model")) for path in paths]

    @staticmethod
    def _read(files: Any, path: str) -> Trained | None:
        """Read a model; None where there is none, or it is damaged."""
        try:
            content = files.cat_file(path)
            if int(content[:8], 16) != zlib.crc32(content[8:]):
                raise ValueError("another checksum")
            found: Trained = pickle.loads(content[8:])
        except FileNotFoundError:
            return None
        except Exception:
            logger.warning("%s is damaged, and counts for nothing", path)
            return None
        return found
