"""Large arrays on their way to a CUDA device."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from skfleet import _array, _device, _staging_buffers
from skfleet._array import asarray_like, to_device_of, to_host
from skfleet._device import DeviceLibrary, host_to_device_transfers, to_device
from skfleet._staging_buffers import staging_buffers

MATRIX = np.random.default_rng(0).normal(size=(1000, 7))
LARGE = {
    "row by row": MATRIX,
    "columns": np.asfortranarray(MATRIX),
    "every other row": MATRIX[::2],
    "some columns": MATRIX[:, 1:5],
    "backwards": MATRIX[::-1],
    "of another machine": MATRIX.astype(MATRIX.dtype.newbyteorder()),
    "targets": MATRIX[:, 0],
    "flags": MATRIX > 0,
    "wide": MATRIX.reshape(2, 3500),
    "cube": MATRIX.reshape(100, 10, 7),
}
SIZES = pytest.mark.parametrize("x", LARGE.values(), ids=LARGE)


class Memory:
    """An array on a device, of CuPy's kind as far as uploads go."""

    def __init__(self, values):
        self.values, self.dtype = values, values.dtype

    def __getitem__(self, rows):
        return Memory(self.values[rows])

    def __iter__(self):
        return map(Memory, self.values)

    def __len__(self):
        return len(self.values)

    def set(self, values, stream):
        assert values.dtype == self.dtype
        assert values.dtype.isnative
        assert values.shape == self.values.shape
        assert values.flags.c_contiguous
        stream.n_bytes.append(values.nbytes)
        stream.queue.append((self.values, values))


class Stream:
    """A queue of copies, which the device makes as late as it may."""

    def __init__(self):
        self.queue, self.n_bytes, self.n_waiting = [], [], []

    def make(self, n):
        for _ in range(n):
            out, values = self.queue.pop(0)
            out[...] = values


class Event:
    """A place in the queue of the stream that it was recorded on."""

    def __init__(self, *, disable_timing):
        self.stream = None

    def record(self, stream):
        self.stream, self.copy = stream, stream.queue[-1]
        stream.n_waiting.append(len(stream.queue))

    def synchronize(self):
        if self.stream is not None and any(self.copy is one for one in self.stream.queue):
            ends = [one is self.copy for one in self.stream.queue]
            self.stream.make(ends.index(True) + 1)


class OutOfMemoryError(RuntimeError):
    pass


@pytest.fixture(params=["page-locked", "no page-locked memory"])
def stream(request, monkeypatch):
    """The stream of a stand-in for CuPy, whose buffers have 4,000 bytes."""
    stream = Stream()

    def alloc_pinned_memory(n_bytes):
        if request.param == "page-locked":
            return bytearray(n_bytes)
        raise OutOfMemoryError

    cupy = SimpleNamespace(
        empty=lambda shape, dtype: Memory(np.zeros(shape, dtype)),
        cuda=SimpleNamespace(
            alloc_pinned_memory=alloc_pinned_memory,
            Device=lambda: SimpleNamespace(id=0),
            Event=Event,
            get_allocator=lambda: None,
            get_current_stream=lambda: stream,
            runtime=SimpleNamespace(CUDARuntimeError=OutOfMemoryError),
        ),
    )
    library = DeviceLibrary(SimpleNamespace(__name__="array_api_compat.cupy"), None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_device, "device_library", lambda: library)
    monkeypatch.setattr(_staging_buffers, "BUFFER_BYTES", 4000)
    staging_buffers.cache_clear()
    yield stream
    staging_buffers.cache_clear()


@SIZES
def test_large_arrays_go_up_in_parts(monkeypatch, x, stream):
    monkeypatch.setattr(_device, "MAX_PINNED_BYTES", x.nbytes - 1)
    for _ in range(2):  # buffers are used again
        before = host_to_device_transfers.n_bytes
        np.testing.assert_array_equal(to_device(x).values, x)
        assert host_to_device_transfers.n_bytes - before == x.nbytes
        assert not stream.queue
    assert sum(stream.n_bytes) == 2 * x.nbytes
    assert max(stream.n_bytes) <= 4000
    # one buffer is filled while the device copies from the other one
    assert max(stream.n_waiting) == (2 if x.nbytes > 4000 else 1)


def test_an_array_of_ordinary_memory_may_change_when_it_was_copied(monkeypatch, stream):
    monkeypatch.setattr(_device, "MAX_PINNED_BYTES", 1000)
    x = MATRIX.copy()
    copied = to_device(x)
    x[:] = 0
    np.testing.assert_array_equal(copied.values, MATRIX)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "upload",
    [to_device_of, asarray_like, lambda x, ref: asarray_like(x, ref, dtype=np.float32)],
    ids=["to_device_of", "asarray_like", "asarray_like, of another type"],
)
@pytest.mark.parametrize("n", [100, 300_000])
def test_large_arrays_that_follow_rows_are_staged_too(monkeypatch, upload, n):
    cupy = pytest.importorskip("cupy")
    staged = []
    copy = _array.staged_copy
    monkeypatch.setattr(_array, "staged_copy", lambda x: staged.append(len(x)) or copy(x))
    x = np.random.default_rng(0).normal(size=n)
    there = upload(x, cupy.zeros(3))
    assert staged == ([n] if n > 100 else [])
    np.testing.assert_array_equal(to_host(there), x.astype(there.dtype))
    assert there.dtype == (np.float32 if upload(x[:1], cupy.zeros(3)).dtype == "f4" else x.dtype)


@pytest.mark.gpu
@SIZES
def test_large_arrays_take_no_page_locked_memory_of_their_size(monkeypatch, x):
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(_device, "MAX_PINNED_BYTES", 1000)
    monkeypatch.setattr(_staging_buffers, "BUFFER_BYTES", 4000)
    staging_buffers.cache_clear()
    pool = cupy.get_default_pinned_memory_pool()
    before = pool.n_free_blocks()
    there = to_device(x)
    staging_buffers.cache_clear()  # of so few bytes
    assert pool.n_free_blocks() <= before + 2
    assert there.flags.c_contiguous
    np.testing.assert_array_equal(to_host(there), x)
