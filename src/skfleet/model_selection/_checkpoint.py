"""Finished fits, recorded where a search that begins again finds them."""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np

from skfleet.model_selection._tokenize import content_key, unfitted

__all__ = ["Checkpoint", "checkpoint_line"]

logger = logging.getLogger(__name__)

# Parameters of searches that candidates are made of.
_CANDIDATES = frozenset(
    ["estimator", "param_distributions", "param_grid", "parameters", "points_to_evaluate"]
)


class Checkpoint:
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
        keys = {name: _key(name, value) for name, value in search.items()}
        self._search = content_key(keys)
        told = {name: {"key": keys[name], "is": _describe(search[name])} for name in search}
        self._check(location, told)
        self._load()

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._found.values())

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
        return self._found.get(fit)

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


def checkpoint_line(n_known: int, n_all: int, what: str) -> str:
    """Say how much of a search came from the checkpoint."""
    return f"checkpoint: {n_known} of {n_all} {what} were made before, {n_all - n_known} remain"


def _key(name: str, value: Any) -> str:
    """Give the key of something that the results depend on; an error says what it is."""
    try:
        return content_key(unfitted(value) if name in _CANDIDATES else value)
    except TypeError as error:
        error.add_note(f"That is part of {name}.")
        raise


def _plain(value: Any) -> Any:
    """Give a number of NumPy's as one of Python's, which reads as the same."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


def _describe(value: Any) -> str:
    """Say in a few words what something is."""
    shape = getattr(value, "shape", None)
    if shape and all(isinstance(length, int) for length in shape):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(_text(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _text(value: Any) -> str:
    """Write something as Python does, distributions and functions by name, without addresses."""
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(_text, value))}]"
    if all(hasattr(value, name) for name in ("dist", "args", "kwds")):
        named = [f"{name}={argument!r}" for name, argument in value.kwds.items()]
        return f"{value.dist.name}({', '.join([*map(repr, value.args), *named])})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
