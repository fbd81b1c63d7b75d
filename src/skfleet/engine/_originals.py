"""Objects kept once and given out many times, with memory that is copied only where written."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from skfleet.engine._parcel import Parcel

__all__ = ["Original"]

# A smaller buffer costs less to copy, into memory that malloc has at hand, than to map.
MAP_FROM = 16 * 2**20


class Original:
    """An object of which any number of copies can be had, and changed, for little memory.

    Large buffers lie in anonymous shared memory and are mapped privately for each copy: the system
    copies a page when somebody writes to it, and not before. Where there is no such memory (other
    systems than Linux) each copy has its own.

    Parameters
    ----------
    obj : object
        Anything that can be pickled.
    """

    def __init__(self, obj: Any) -> None:
        self._list = obj if type(obj) is list else None
        if self._list is not None:
            return  # a copy of a list has the same objects in it
        parcel = Parcel.pack(obj)
        self._header = parcel.header
        self._buffers: list[_Mapped | bytes] = []
        for part in parcel._flat():
            if part.nbytes >= MAP_FROM and hasattr(os, "memfd_create"):
                mapped = _Mapped(part.nbytes)
                memoryview(mapped.shared)[: part.nbytes] = part
                mapped.seal()
                self._buffers.append(mapped)
            else:
                self._buffers.append(bytes(part))

    @classmethod
    def of_rows(cls, X: Any, rows: Any) -> Original | None:
        """Cut rows of a plain array without a second copy; None where this is not possible."""
        if (
            type(X) is not np.ndarray
            or not X.flags.c_contiguous
            or X.dtype.hasobject
            or not hasattr(os, "memfd_create")
            or getattr(rows, "dtype", np.dtype(bool)).kind not in "iu"
        ):
            return None
        shape = (len(rows), *X.shape[1:])
        nbytes = int(np.prod(shape)) * X.dtype.itemsize
        if nbytes < MAP_FROM or rows.min() < 0 or rows.max() >= len(X):
            return None
        mapped = _Mapped(nbytes)
        out = np.ndarray(shape, dtype=X.dtype, buffer=mapped.shared)
        # checked above; with mode="raise" NumPy would fill a copy first
        np.take(X, rows, axis=0, out=out, mode="clip")
        buffers: list[pickle.PickleBuffer] = []
        original = cls.__new__(cls)
        original._list = None
        original._header = pickle.dumps(out, protocol=5, buffer_callback=buffers.append)
        original._buffers = [mapped]
        buffers.clear()
        del out
        mapped.seal()
        return original

    def copy(self) -> Any:
        """Give a copy: writing to it changes neither the original nor another copy."""
        if self._list is not None:
            return list(self._list)
        parts: Sequence[Any] = [
            buffer.private() if isinstance(buffer, _Mapped) else bytearray(buffer)
            for buffer in self._buffers
        ]
        return pickle.loads(self._header, buffers=parts)


class _Mapped:
    """Bytes in anonymous shared memory."""

    def __init__(self, nbytes: int) -> None:
        self._fd = os.memfd_create("skfleet", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, nbytes)
        self._nbytes = nbytes
        self.shared: Any = mmap.mmap(self._fd, nbytes)

    def seal(self) -> None:
        """Let go of the mapping through which the bytes were written."""
        self.shared = None

    def private(self) -> mmap.mmap:
        """Map the bytes anew, for somebody who may write."""
        return mmap.mmap(
            self._fd,
            self._nbytes,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )

    def __del__(self) -> None:
        os.close(self._fd)
