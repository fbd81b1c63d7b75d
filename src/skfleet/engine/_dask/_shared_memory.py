"""Parcels for processes of one machine: in memory that they all map, and not in a copy for each."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from distributed.protocol import dask_deserialize, dask_serialize

from skfleet.engine._dask._serialize import Pickled

__all__ = ["SharedMemoryPickled", "machine"]

_ALIGNMENT = 64


def machine() -> str | None:
    """Name what processes must have in common to map each other's memory; None where they cannot.

    That is the boot of the machine, the namespace of process numbers, and the user.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
    except (OSError, AttributeError):
        return None


class _Place(NamedTuple):
    """Where buffers lie: a file without a name of some process, and their sizes in order."""

    pid: int
    descriptor: int
    identity: tuple[int, int]
    sizes: tuple[int, ...]


class SharedMemoryPickled(Pickled):
    """A parcel whose buffers lie in memory that other processes of this machine map.

    What travels is where they lie. The memory is there as long as this object, or any process that
    has mapped it. There it can be read only.
    """

    __slots__ = ("_place",)

    def __init__(self, header: bytes, place: _Place, buffers: Any) -> None:
        super().__init__(header, buffers)
        self._place = place

    @classmethod
    def create(cls, parcel: Pickled) -> SharedMemoryPickled:
        """Copy a parcel to such memory."""
        parts = parcel._flat()
        sizes = tuple(part.nbytes for part in parts)
        descriptor = os.memfd_create("skfleet", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, max(1, sum(map(_padded, sizes))))
            with mmap.mmap(descriptor, 0) as memory, memoryview(memory) as view:
                for start, part in zip(_starts(sizes), parts, strict=True):
                    view[start : start + part.nbytes] = part
            status = os.fstat(descriptor)
            place = _Place(os.getpid(), descriptor, (status.st_dev, status.st_ino), sizes)
            mapped = cls(parcel.header, place, _map(descriptor, sizes))
        except BaseException:
            os.close(descriptor)
            raise
        weakref.finalize(mapped, os.close, descriptor)
        return mapped

    @classmethod
    def attach(cls, header: bytes, place: _Place) -> SharedMemoryPickled:
        """Map the memory of another process, or of this one."""
        buffers: Any
        try:
            descriptor = os.open(f"/proc/{place.pid}/fd/{place.descriptor}", os.O_RDONLY)
            try:
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) != place.identity:
                    raise OSError("its memory is gone")
                buffers = _map(descriptor, place.sizes)
            finally:
                os.close(descriptor)
        except OSError as error:
            buffers = _UnmappedBuffers(place.pid, error)
        return cls(header, place, buffers)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return SharedMemoryPickled.attach, (bytes(self.header), self._place)


class _UnmappedBuffers:
    """Stands for buffers that could not be mapped: whoever wants them is told so."""

    def __init__(self, pid: int, error: OSError) -> None:
        self._problem = f"process {pid} must be one of this machine, to read its memory: {error}"

    def __iter__(self) -> Iterator[Any]:
        raise OSError(self._problem)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _starts(sizes: tuple[int, ...]) -> list[int]:
    """Give the place of each buffer."""
    starts, start = [], 0
    for size in sizes:
        starts.append(start)
        start += _padded(size)
    return starts


def _map(descriptor: int, sizes: tuple[int, ...]) -> list[memoryview]:
    """Map buffers to be read."""
    view = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    return [view[start : start + size] for start, size in zip(_starts(sizes), sizes, strict=True)]


@dask_serialize.register(SharedMemoryPickled)
def _serialize(parcel: SharedMemoryPickled) -> tuple[dict, list]:
    """Give Dask the place instead of the bytes."""
    return {"place": tuple(parcel._place)}, [parcel.header]


@dask_deserialize.register(SharedMemoryPickled)
def _deserialize(header: dict, frames: list) -> SharedMemoryPickled:
    """Take a place from the wire, and map what lies there."""
    pid, descriptor, identity, sizes = header["place"]
    return SharedMemoryPickled.attach(
        frames[0], _Place(pid, descriptor, tuple(identity), tuple(sizes))
    )
