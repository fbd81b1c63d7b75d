"""Objects pickled once (`Pickled`), sent to workers as bytes and compared by their digest."""

from __future__ import annotations

import hashlib
import io
import pickle
import uuid
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import cloudpickle
import numpy as np
from distributed.protocol import dask_deserialize, dask_serialize

# Bytes from which on all tasks of a process read one copy, read-only; joblib's `max_nbytes`.
MMAP_THRESHOLD = 1_000_000


class Pickled:
    """An object pickled once, its large buffers out of band, to be loaded any number of times.

    Each load gives new objects, so calls that share one cannot change one another's lists or
    frames.
    """

    __slots__ = ("__weakref__", "buffers", "header")

    def __init__(
        self, header: bytes, buffers: Sequence[pickle.PickleBuffer | memoryview | bytes | bytearray]
    ) -> None:
        self.header, self.buffers = header, buffers

    @classmethod
    def dumps(cls, obj: object, *, reduce: Callable[[Any], object] | None = None) -> Pickled:
        """Pickle an object, by value where pickle alone cannot (lambdas, ``__main__``).

        ``reduce`` is a `pickle.Pickler.reducer_override`.
        """
        buffers: list[pickle.PickleBuffer] = []
        if not cloudpickle.list_registry_pickle_by_value():
            try:
                header = _dumps(pickle.Pickler, obj, buffers, reduce)
            except Exception:
                pass  # cloudpickle may succeed, or raises the error to show
            else:
                # A class of the caller's script, by reference: workers have another __main__.
                if b"__main__" not in header:
                    return cls(header, buffers)
            buffers.clear()
        return cls(_dumps(cloudpickle.Pickler, obj, buffers, reduce), buffers)

    def loads(self, *, readonly: bool = False, steal: bool = False) -> Any:
        """Rebuild the object: on copies of the buffers, on read-only views, or on the buffers.

        ``steal`` is for the last load: only a buffer that is read-only is copied.
        """
        views = self._views()
        if readonly:
            return pickle.loads(self.header, buffers=[view.toreadonly() for view in views])
        buffers = [view if steal and not view.readonly else bytearray(view) for view in views]
        return pickle.loads(self.header, buffers=buffers)

    def loads_shared(self) -> Any:
        """Rebuild the object for one of several readers: a large one on the same memory."""
        return self.loads(readonly=self.nbytes >= MMAP_THRESHOLD)

    # `open_block` calls it where this stands for a block's values.
    load = loads_shared

    def digest(self) -> bytes:
        """Return a hash of the content: equal digests, equal objects."""
        digest = hashlib.blake2b(self.header, digest_size=16)
        for view in self._views():
            digest.update(view)
        return digest.digest()

    def is_equal(self, other: Pickled) -> bool:
        """Return whether another object was pickled to the same bytes."""
        if self.header != other.header or len(self.buffers) != len(other.buffers):
            return False
        pairs = zip(self._views(), other._views(), strict=True)
        return all(_is_equal(*map(_as_bytes, pair)) for pair in pairs)

    def _views(self) -> list[memoryview]:
        """Return the buffers as flat bytes in memory order, which Fortran arrays have too."""
        return [pickle.PickleBuffer(buffer).raw() for buffer in self.buffers]

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def __sizeof__(self) -> int:
        return self.nbytes  # by which Dask places, moves and spills results

    def __reduce_ex__(self, protocol: Any) -> tuple[object, ...]:
        # A buffer that was received is a memoryview, which cannot be pickled.
        kind: Any = pickle.PickleBuffer if protocol >= 5 else bytes
        return Pickled, (bytes(self.header), [kind(view) for view in self._views()])


def _as_bytes(view: memoryview) -> np.ndarray:
    return np.frombuffer(view, dtype=np.uint8)


def _is_equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether bytes are equal; those of the same memory are not read."""
    is_same = a.ctypes.data == b.ctypes.data and len(a) == len(b)
    return is_same or np.array_equal(a, b)


def _dumps(
    pickler: Any,
    obj: object,
    buffers: list[pickle.PickleBuffer],
    reduce: Callable[[Any], object] | None,
) -> bytes:
    """Pickle with a class of pickler, with ``reduce`` before its own `reducer_override`."""
    if reduce is not None:
        override, is_plain = reduce, pickler is pickle.Pickler

        class ReducingPickler(pickler):
            def reducer_override(self, obj: object) -> object:
                reduced = override(obj)
                if reduced is NotImplemented and not is_plain:
                    return super().reducer_override(obj)
                return reduced

        pickler = ReducingPickler
    with io.BytesIO() as file:
        pickler(file, protocol=5, buffer_callback=buffers.append).dump(obj)
        return file.getvalue()


class LocalReference:
    """A reference that unpickles as the object itself in its process, and as a copy elsewhere.

    It has to live as long as its pickles are loaded.
    """

    def __init__(self, obj: object) -> None:
        self._obj, self._token = obj, uuid.uuid4().hex
        _references[self._token] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _resolve, (self._token, self._obj)


_references: WeakValueDictionary[str, LocalReference] = WeakValueDictionary()


def _resolve(token: str, copy: object) -> object:
    reference = _references.get(token)
    return copy if reference is None else reference._obj


@dask_serialize.register(Pickled)
def _serialize(parcel: Pickled) -> tuple[dict, list]:
    """Return the bytes as frames: Dask pickles what passes its scheduler in one piece."""
    return {}, [parcel.header, *parcel._views()]


@dask_deserialize.register(Pickled)
def _deserialize(header: dict, frames: list) -> Pickled:
    return Pickled(frames[0], frames[1:])
