"""Large arrays on their way to a CUDA device."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from skfleet import _device
from skfleet._array import to_host
from skfleet._device import DeviceLibrary, host_to_device_transfers, to_device

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

    def __init__(self, shape, dtype, log):
        self.values, self.dtype, self.log = np.zeros(shape, dtype), np.dtype(dtype), log

    def __getitem__(self, rows):
        part = Memory(0, self.dtype, self.log)
        part.values = self.values[rows]
        return part

    def set(self, values):
        assert values.dtype == self.dtype
        assert values.dtype.isnative
        assert values.shape == self.values.shape
        assert values.flags.c_contiguous
        self.log.append(values)
        self.values[...] = values


@SIZES
def test_large_arrays_go_up_in_parts(monkeypatch, x):
    log = []
    stream = SimpleNamespace(synchronize=lambda: log.append("done"))
    cupy = SimpleNamespace(
        empty=lambda shape, dtype: Memory(shape, dtype, log),
        cuda=SimpleNamespace(get_allocator=lambda: None, get_current_stream=lambda: stream),
    )
    library = DeviceLibrary(SimpleNamespace(__name__="array_api_compat.cupy"), None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_device, "device_library", lambda: library)
    monkeypatch.setattr(_device, "_MAX_PINNED_BYTES", x.nbytes - 1)
    monkeypatch.setattr(_device, "_PIECE_BYTES", 4000)
    before = host_to_device_transfers.n_bytes
    np.testing.assert_array_equal(to_device(x).values, x)
    assert host_to_device_transfers.n_bytes - before == x.nbytes
    parts = log[::2]
    assert all(part.nbytes <= max(4000, x[0].nbytes) for part in parts)
    assert len(parts) > 1 or x.nbytes <= 4000
    # what is made contiguous is still there when the device has read it
    assert log[1::2] == ["done"] * len(parts)
    if x.flags.c_contiguous and x.dtype.isnative:
        assert all(np.shares_memory(part, x) for part in parts)


@pytest.mark.gpu
@SIZES
def test_large_arrays_take_no_page_locked_memory(monkeypatch, x):
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(_device, "_MAX_PINNED_BYTES", 1000)
    monkeypatch.setattr(_device, "_PIECE_BYTES", 4000)
    pool = cupy.get_default_pinned_memory_pool()
    before = pool.n_free_blocks()
    there = to_device(x)
    assert pool.n_free_blocks() <= before
    assert there.flags.c_contiguous
    np.testing.assert_array_equal(to_host(there), x)
