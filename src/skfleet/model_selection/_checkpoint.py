"""Finished fits, recorded where a search that begins again finds them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import cloudpickle
import fsspec
import joblib
import numpy as np

__all__ = ["Records", "content_key"]

logger = logging.getLogger(__name__)


def content_key(*objects: Any) -> str:
    """Give what equal objects have in common, in any process."""
    try:
        return str(joblib.hash(objects))
    except Exception:  # joblib knows no functions of __main__
        return hashlib.blake2b(cloudpickle.dumps(objects)).hexdigest()


class Records:
    """The finished fits of a search, in a directory.

    ``search.json`` says of which search they are. Beside it are files of lines, each with the
    result of a fit behind a checksum: what was cut off, or damaged, is a fit that is made again.

    Parameters
    ----------
    location : str or path-like
        Any location that fsspec knows: a directory, ``s3://bucket/search``.
    search : mapping of str to object
        What the results depend on, by what to call it in an error.

    Raises
    ------
    ValueError
        When the records there are of another search.
    """

    def __init__(self, location: str | os.PathLike[str], search: Mapping[str, Any]) -> None:
        self._files, self._root = fsspec.core.url_to_fs(os.fspath(location))
        self._found: dict[str, dict[str, Any]] = {}
        self.n_used = 0
        keys = {name: content_key(value) for name, value in search.items()}
        self._search = content_key(keys)
        told = {name: {"key": keys[name], "is": _describe(search[name])} for name in search}
        self._check(location, told)
        self._load()

    def __len__(self) -> int:
        return len(self._found)

    @property
    def name(self) -> str:
        """What tells this search from others."""
        return self._search

    def _check(self, location: Any, told: dict[str, dict[str, str]]) -> None:
        """Raise if another search was here; else say which one this is."""
        path = f"{self._root}/search.json"
        try:
            before = json.loads(self._files.cat_file(path))
            changed = [name for name in told if before[name]["key"] != told[name]["key"]]
        except FileNotFoundError:
            changed, before = [], None
        except (ValueError, KeyError, TypeError):
            # Records tell of which search they are themselves.
            logger.warning("%s is damaged, and is written anew", path)
            changed, before = [], None
        if changed:
            was = {name: (before[name]["is"], told[name]["is"]) for name in changed}
            of = "; ".join(
                f"{name} has other contents" if one == other else f"{name} was {one}, is {other}"
                for name, (one, other) in was.items()
            )
            raise ValueError(
                f"checkpoint must be of this very search. Got {os.fspath(location)!r} of one with "
                f"another {' and another '.join(changed)} instead ({of}). Search with what it was "
                "begun with, or give another checkpoint."
            )
        if before is None:
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(path, json.dumps(told, indent=1).encode())

    def _load(self) -> None:
        """Read all records, without those that are damaged."""
        n_damaged = 0
        self._files.invalidate_cache()
        for path in self._files.glob(f"{self._root}/*.fits"):
            for line in self._files.cat_file(path).splitlines():
                try:
                    checksum, text = line.split(b" ", 1)
                    if int(checksum, 16) != zlib.crc32(text):
                        raise ValueError("another checksum")
                    record = json.loads(text)
                    if record["search"] == self._search:
                        self._found[record["fit"]] = record["result"]
                except (ValueError, KeyError, TypeError):
                    n_damaged += 1
        if n_damaged:
            logger.warning("%d damaged records in %s count for nothing", n_damaged, self._root)

    def get(self, fit: str) -> dict[str, Any] | None:
        """Give the result of a fit that was recorded."""
        result = self._found.get(fit)
        self.n_used += result is not None
        return result

    def add(self, results: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Record results. What failed, or is more than numbers, is made again another time."""
        lines = []
        for fit, result in results:
            if result.get("fit_error") is not None:
                continue
            try:
                record = {"search": self._search, "fit": fit, "result": dict(result)}
                text = json.dumps(record, default=_plain).encode()
            except TypeError:
                logger.warning("a result that is more than numbers is not recorded")
                continue
            lines.append(b"%08x %s\n" % (zlib.crc32(text), text))
        if lines:
            self._files.pipe_file(f"{self._root}/{uuid4().hex}.fits", b"".join(lines))


def _plain(value: Any) -> Any:
    """Give a number of NumPy's as one of Python's, which reads as the same."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


def _describe(value: Any) -> str:
    """Say in a few words what something is."""
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
