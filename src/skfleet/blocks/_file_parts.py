"""Pieces of Parquet files that are read in parts, since a worker could not hold one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from skfleet.blocks._block import Block, BlockRef, open_block

# The parts in which a piece is read at most: halves of halves of halves.
MAX_PARTS = 8
# The numbers of parts by the readers of files, of so many that were halved last.
MAX_HALVED = 64
_n_parts: OrderedDict[str, int] = OrderedDict()
_lock = threading.Lock()


def halve_pieces(value: object) -> int:
    """Halve the pieces of files among references to blocks, for all later tasks of this process.

    Return in how many parts each is read now; 0 where none can be halved again.
    """
    files = {ref.X.files for ref in _references(value) if getattr(ref.X, "files", "")}
    with _lock:
        most = max((_n_parts.get(name, 1) for name in files), default=MAX_PARTS)
        if most >= MAX_PARTS:
            return 0
        for name in files:
            _n_parts[name] = 2 * most
            _n_parts.move_to_end(name)
        while len(_n_parts) > MAX_HALVED:
            _n_parts.popitem(last=False)
    return 2 * most


def in_parts(value: Any) -> Any:
    """Return arguments of a task whose references say in how many parts a piece is read."""
    if not _n_parts:
        return value
    if isinstance(value, BlockRef):
        n_parts = _n_parts.get(getattr(value.X, "files", ""), 1)
        return value if n_parts == 1 else value._replace(X=value.X._replace(n_parts=n_parts))
    return type(value)(map(in_parts, value)) if type(value) in (list, tuple) else value


def _references(value: Any) -> Iterator[BlockRef]:
    """Yield the references to blocks among the arguments of a task."""
    if isinstance(value, BlockRef):
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from _references(item)


def parts_of(ref: BlockRef) -> list[Any]:
    """Return the parts in which a block is read, one where it is read whole."""
    return ref.X.parts() if getattr(ref.X, "n_parts", 1) > 1 else [ref.X]


def open_parts(refs: Iterable[BlockRef]) -> Iterator[Block]:
    """Yield blocks, those that are read in parts part by part: one is in memory at a time."""
    for ref in refs:
        row_offset = ref.row_offset
        for part in parts_of(ref):
            block = open_block(ref._replace(X=part, row_offset=row_offset))
            row_offset = None if row_offset is None else row_offset + block.n_rows
            yield block
            del block  # before the next one is loaded
