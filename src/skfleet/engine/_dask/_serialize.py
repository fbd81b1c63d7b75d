"""Objects pickled once, to cross to workers as bytes and be told apart by their content."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cloudpickle
from distributed.protocol import dask_deserialize, dask_serialize

from skfleet.engine._gpu._device_cache import DeviceArrayCache

# Up to this size everyone gets a copy of his own of what is shared; from here on all read the same
# memory, as in joblib's own process backends.
MMAP_THRESHOLD = 1_000_000


class Pickled:
    """An object pickled once, its large buffers apart, to be opened any number of times.

    Opening gives new objects each time, so calls that share a parcel cannot change one another's
    lists or frames.
    """

    __slots__ = ("__weakref__", "buffers", "header")

    def __init__(self, header: bytes, buffers: Sequence[Any]) -> None:
        self.header = header
        self.buffers = buffers

    @classmethod
    def dumps(cls, obj: Any, *, reduce: Callable[[Any], Any] | None = None) -> Pickled:
        """Pickle an object, by value where pickle alone cannot (lambdas, ``__main__``).

        ``reduce`` may say, as `pickle.Pickler.reducer_override`, how something in it travels.
        """
        buffers: list[pickle.PickleBuffer] = []
        if not cloudpickle.list_registry_pickle_by_value():
            try:
                header = _dumps(pickle.Pickler, obj, buffers, reduce)
            except Exception:
                pass
            else:
                if b"__main__" not in header:
                    return cls(header, buffers)
            buffers.clear()
        return cls(_dumps(cloudpickle.Pickler, obj, buffers, reduce), buffers)

    def loads(self, *, view: bool = False, own: bool = False) -> Any:
        """Rebuild the object: on copies of the buffers, on read-only views, or on the buffers.

        ``own`` is for a parcel that nobody else opens: only a buffer that is read-only is copied.
        """
        flat = self._flat()
        if view:
            return pickle.loads(self.header, buffers=[part.toreadonly() for part in flat])
        kept = [part if own and not part.readonly else bytearray(part) for part in flat]
        return pickle.loads(self.header, buffers=kept)

    def loads_shared(self) -> Any:
        """Open it for one of several who do: where it is large, all read the same memory."""
        return self.loads(view=self.nbytes >= MMAP_THRESHOLD)

    # in the place of a block that is not in memory yet
    load = loads_shared

    def digest(self) -> bytes:
        """Hash the content: equal digests, equal objects."""
        digest = hashlib.blake2b(self.header, digest_size=16)
        for part in self._flat():
            digest.update(part)
        return digest.digest()

    def _flat(self) -> list[memoryview]:
        """Give the buffers as flat bytes, in memory order: a Fortran array has one of its own."""
        return [pickle.PickleBuffer(buffer).raw() for buffer in self.buffers]

    @property
    def nbytes(self) -> int:
        """Size of the header and of all buffers."""
        return len(self.header) + sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def __sizeof__(self) -> int:
        return self.nbytes  # what Dask weighs when it places, moves and spills

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # What arrived as a memoryview cannot be pickled as it is.
        kind: Any = pickle.PickleBuffer if protocol >= 5 else bytes
        return Pickled, (bytes(self.header), [kind(part) for part in self._flat()])


def _dumps(
    kind: Any,
    obj: Any,
    buffers: list[pickle.PickleBuffer],
    reduce: Callable[[Any], Any] | None,
) -> bytes:
    """Pickle with a kind of pickler, which asks ``reduce`` before it does as it is used to."""
    if reduce is not None:
        ask, plain = reduce, kind is pickle.Pickler

        class Asking(kind):
            def reducer_override(self, obj: Any) -> Any:
                answer = ask(obj)
                if answer is NotImplemented and not plain:
                    return super().reducer_override(obj)
                return answer

        kind = Asking
    with io.BytesIO() as file:
        kind(file, protocol=5, buffer_callback=buffers.append).dump(obj)
        return file.getvalue()


class DeviceCachedArray(NamedTuple):
    """What a parcel holds, to be had in the memory of the host or on this process's device."""

    parcel: Pickled
    copies: DeviceArrayCache
    key: int  # of the parcel among the copies

    def on_host(self) -> Any:
        """Open it, large arrays read-only."""
        return self.parcel.loads_shared()

    def on_device(self) -> Any:
        """Give the array in it on the device; on the host where it has no place there."""
        return self.copies.give(self.key, self.on_host())


@dask_serialize.register(Pickled)
def _serialize(parcel: Pickled) -> tuple[dict, list]:
    """Give Dask the bytes as they are: through its scheduler it pickles without buffers apart."""
    return {}, [parcel.header, *parcel._flat()]


@dask_deserialize.register(Pickled)
def _deserialize(header: dict, frames: list) -> Pickled:
    """Take a parcel from the wire."""
    return Pickled(frames[0], frames[1:])
