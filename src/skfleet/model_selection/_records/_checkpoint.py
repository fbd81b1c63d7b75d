"""Checkpoint of a search: its finished fits in a directory."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from itertools import count, takewhile
from typing import Any
from uuid import uuid4

import numpy as np

from skfleet._checkpoint_store import CheckpointStore, with_checksum, without_checksum
from skfleet.model_selection._records._tokenize import content_key, unfitted

logger = logging.getLogger(__name__)

# Parameters that may change between a search and its resumption.
RUN_PARAMETERS = frozenset(
    ["checkpoint", "n_iter", "n_jobs", "pre_dispatch", "racing", "refit", "time_budget", "verbose"]
)
# The file that identifies the search.
_DESCRIPTION = "search.json"
# Parameters of searches with estimators that are cloned.
_CANDIDATES = frozenset(
    ["estimator", "param_distributions", "param_grid", "parameters", "points_to_evaluate"]
)


class Checkpoint:
    """The finished fits of a search, in a directory.

    ``search.json`` identifies the search. The other files have one line per fit, its result behind
    a checksum: a fit whose line is incomplete or damaged is made again.

    ``search`` are the inputs on which the results depend, by their names in error messages. Raises
    a ValueError if the location, any that fsspec knows, has the checkpoint of another search.
    """

    def __init__(self, location: str | os.PathLike[str], search: Mapping[str, Any]) -> None:
        self._store = CheckpointStore(location)
        self.results: dict[str, dict[str, Any]] = {}  # by the key of the fit
        self._batches: dict[int, int] = {}
        keys = {name: _key(name, value) for name, value in search.items()}
        self.name = content_key(keys)
        self._check(location, {k: {"key": keys[k], "is": _describe(search[k])} for k in keys})
        self._load()

    def _check(self, location: Any, inputs: dict[str, dict[str, str]]) -> None:
        """Raise if the location is of another search; write ``search.json`` if it is empty."""
        content = self._store.read(_DESCRIPTION)
        stored: dict[str, dict[str, str]] = {}
        changed: list[str] = []
        try:
            if content is not None:
                stored = json.loads(content)
                changed = [name for name in inputs if stored[name]["key"] != inputs[name]["key"]]
        except (ValueError, KeyError, TypeError):
            # no harm is done: each line has the key of its search too
            logger.warning("%s is damaged, and is written anew", self._store.path(_DESCRIPTION))
            stored = {}
        if changed:
            descriptions = {name: (stored[name]["is"], inputs[name]["is"]) for name in changed}
            changes = "; ".join(
                f"{name} has other contents" if old == new else f"{name} was {old}, is {new}"
                for name, (old, new) in descriptions.items()
            )
            raise ValueError(
                f"checkpoint must be of this very search. Got {os.fspath(location)!r} of one with "
                f"another {' and another '.join(changed)} instead ({changes}). Search with what it "
                "was begun with, or give another checkpoint."
            )
        if not stored:
            self._store.write(_DESCRIPTION, json.dumps(inputs, indent=1).encode())

    def _load(self) -> None:
        """Read all results, but for damaged ones."""
        n_damaged = 0
        for name in self._store.names("*.fits"):
            for line in (self._store.read(name) or b"").splitlines():
                try:
                    record = json.loads(without_checksum(line))
                    if record["search"] == self.name and "batch" in record:
                        self._batches[record["batch"]] = record["n_candidates"]
                    elif record["search"] == self.name:
                        self.results[record["fit"]] = record["result"]
                except (ValueError, KeyError, TypeError):
                    n_damaged += 1
        if n_damaged:
            place = self._store.location
            logger.warning("%d damaged records in %s count for nothing", n_damaged, place)

    @property
    def batches(self) -> list[int]:
        """The numbers of candidates that were chosen at once, from the first batch on."""
        numbers = takewhile(self._batches.__contains__, count())
        return [self._batches[number] for number in numbers]

    def add_batch(self, n_candidates: int) -> None:
        """Record that so many candidates are chosen at once."""
        number = len(self.batches)
        self._batches[number] = n_candidates
        self._write([{"search": self.name, "batch": number, "n_candidates": n_candidates}])

    def add(self, results: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Record results, but for failures and results that are not JSON."""
        self._write(
            {"search": self.name, "fit": fit, "result": dict(result)}
            for fit, result in results
            if result.get("fit_error") is None
        )

    def _write(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records to a file of their own, but for those that are not JSON."""
        lines = []
        for record in records:
            try:
                # NumPy's scalars become numbers; the method of other types is a TypeError
                text = json.dumps(record, default=np.generic.item).encode()
            except TypeError:
                logger.warning("a result that is more than numbers is not recorded")
                continue
            lines.append(with_checksum(text) + b"\n")
        if lines:
            self._store.add(f"{uuid4().hex}.fits", b"".join(lines))


def report_recorded(n_recorded: int, n_all: int, unit: str, *, is_printed: bool) -> None:
    """Log, and print, how many fits or calls were in the checkpoint."""
    n_remaining = n_all - n_recorded
    text = f"checkpoint: {n_recorded} of {n_all} {unit} were made before, {n_remaining} remain"
    logging.getLogger("skfleet.model_selection").info("%s", text)
    if is_printed:
        print(text)


def _key(name: str, value: Any) -> str:
    """Return the key of an input; an error names the input."""
    try:
        return content_key(unfitted(value) if name in _CANDIDATES else value)
    except TypeError as error:
        error.add_note(f"That is part of {name}.")
        raise


def _describe(value: Any) -> str:
    """Return a short description of an object."""
    shape = getattr(value, "shape", None)
    if shape and all(isinstance(length, int) for length in shape):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(_text(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _text(value: Any) -> str:
    """Return the repr of an object without memory addresses, with distributions by name."""
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(k)}: {_text(v)}' for k, v in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(_text, value))}]"
    if all(hasattr(value, name) for name in ("dist", "args", "kwds")):
        named = [f"{name}={argument!r}" for name, argument in value.kwds.items()]
        return f"{value.dist.name}({', '.join([*map(repr, value.args), *named])})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
