"""Pickled objects in shared memory (memfd), which all processes of one machine map."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from distributed.protocol import dask_deserialize, dask_serialize

from skfleet.engine._dask._serialize import Pickled

_ALIGNMENT = 64
# Bytes of a write.
_PIECE_BYTES = 64 * 2**20


class _MemfdHandle(NamedTuple):
    """The unnamed file of a process in which buffers lie, and their sizes in order."""

    pid: int
    descriptor: int
    identity: tuple[int, int]
    sizes: tuple[int, ...]


class SharedMemoryPickled(Pickled):
    """A pickled object with its buffers in memory that other processes of this machine map.

    It is pickled as the handle of that memory, which lives as long as this object or any mapping of
    it. Mappings are read-only.
    """

    __slots__ = ("_handle",)

    def __init__(self, header: bytes, handle: _MemfdHandle, buffers: Any) -> None:
        super().__init__(header, buffers)
        self._handle = handle

    @classmethod
    def create(cls, parcel: Pickled) -> SharedMemoryPickled:
        """Copy a pickled object to shared memory."""
        parts = parcel._views()
        sizes = tuple(part.nbytes for part in parts)
        descriptor = os.memfd_create("skfleet", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, max(1, _offsets(sizes)[-1]))
            for offset, part in zip(_offsets(sizes), parts, strict=False):
                _write(descriptor, offset, part)
            status = os.fstat(descriptor)
            handle = _MemfdHandle(os.getpid(), descriptor, (status.st_dev, status.st_ino), sizes)
            mapped = cls(parcel.header, handle, _map(descriptor, sizes))
        except BaseException:
            os.close(descriptor)
            raise
        # Others open the file through this process's descriptor, so it stays open as long as this.
        weakref.finalize(mapped, os.close, descriptor)
        return mapped

    @classmethod
    def attach(cls, header: bytes, handle: _MemfdHandle) -> SharedMemoryPickled:
        """Map the memory of another process, or of this one."""
        buffers: Any
        try:
            descriptor = os.open(f"/proc/{handle.pid}/fd/{handle.descriptor}", os.O_RDONLY)
            try:
                status = os.fstat(descriptor)
                # The process may have closed it, and reused the descriptor for another file.
                if (status.st_dev, status.st_ino) != handle.identity:
                    raise OSError("its memory is gone")
                buffers = _map(descriptor, handle.sizes)
            finally:
                os.close(descriptor)
        except OSError as error:
            buffers = _UnmappedBuffers(handle.pid, error)
        return cls(header, handle, buffers)

    @property
    def nbytes(self) -> int:
        # known where the memory is gone too: Dask asks for the size of an object that came too late
        return len(self.header) + sum(self._handle.sizes)

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        return SharedMemoryPickled.attach, (bytes(self.header), self._handle)


class _UnmappedBuffers:
    """Buffers that could not be mapped: iterating over them raises the error."""

    def __init__(self, pid: int, error: OSError) -> None:
        self._problem = f"process {pid} must be one of this machine, to read its memory: {error}"

    def __iter__(self) -> Iterator[memoryview]:
        raise OSError(self._problem)


def _offsets(sizes: tuple[int, ...]) -> list[int]:
    """Return the offset of each buffer, and the size of all."""
    return list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))


def _write(descriptor: int, offset: int, part: memoryview) -> None:
    """Write a buffer to a file: through a mapping each page would fault."""
    n_written = 0
    while n_written < part.nbytes:
        piece = part[n_written : n_written + _PIECE_BYTES]
        n_written += os.pwrite(descriptor, piece, offset + n_written)


def _map(descriptor: int, sizes: tuple[int, ...]) -> list[memoryview]:
    """Map buffers, read-only."""
    view = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    return [view[low : low + size] for low, size in zip(_offsets(sizes), sizes, strict=False)]


@dask_serialize.register(SharedMemoryPickled)
def _serialize(parcel: SharedMemoryPickled) -> tuple[dict, list]:
    """Send the handle instead of the bytes."""
    return {"handle": tuple(parcel._handle)}, [parcel.header]


@dask_deserialize.register(SharedMemoryPickled)
def _deserialize(header: dict, frames: list) -> SharedMemoryPickled:
    pid, descriptor, identity, sizes = header["handle"]
    return SharedMemoryPickled.attach(
        frames[0], _MemfdHandle(pid, descriptor, tuple(identity), tuple(sizes))
    )
