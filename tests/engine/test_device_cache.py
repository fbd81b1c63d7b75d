"""The LRU cache of arrays on the device: its lifetime and its limit."""

import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

from skfleet._array import is_not_numpy, to_host
from skfleet._device import DEVICE_MEMORY_VARIABLE, host_to_device_transfers
from skfleet.engine._gpu import _device_cache
from skfleet.engine._gpu._device_cache import DeviceArrayCache, byte_limit, cached_bytes

pytestmark = pytest.mark.usefixtures("device")

ARRAYS = [np.full((10, 5), float(i)) for i in range(6)]
SIZE = ARRAYS[0].nbytes


def room_for(monkeypatch, n):
    monkeypatch.setattr(_device_cache, "byte_limit", lambda: n * SIZE)


def test_an_array_goes_up_once():
    copies, before = DeviceArrayCache(), host_to_device_transfers.n_arrays
    one, again = copies.get("X", ARRAYS[3]), copies.get("X", ARRAYS[3])
    assert again is one
    assert is_not_numpy(one)
    np.testing.assert_array_equal(to_host(one), ARRAYS[3])
    assert host_to_device_transfers.n_arrays - before == 1
    assert cached_bytes() == SIZE


@pytest.mark.parametrize(
    "X",
    [np.array(["a", "b"]), [[1.0]], pd.DataFrame({"a": [1.0]})],
    ids=["labels", "list", "frame"],
)
def test_what_no_device_takes_stays(X):
    copies = DeviceArrayCache()
    assert copies.get("X", X) is X
    assert cached_bytes() == 0


def test_what_does_not_fit_stays_on_the_host(monkeypatch):
    room_for(monkeypatch, 2.5)
    copies, before = DeviceArrayCache(), host_to_device_transfers.n_arrays
    for _ in range(3):
        given = [copies.get(i, X) for i, X in enumerate(ARRAYS)]
        assert [is_not_numpy(X) for X in given] == [True, True, False, False, False, False]
        assert given[2] is ARRAYS[2]
    assert host_to_device_transfers.n_arrays - before == 2
    copies.close()
    assert cached_bytes() == 0
    assert copies.get(5, ARRAYS[5]) is ARRAYS[5]
    assert is_not_numpy(DeviceArrayCache().get(5, ARRAYS[5]))


def test_where_there_is_less_room_the_least_recently_used_go(monkeypatch):
    room_for(monkeypatch, 3)
    one, other = DeviceArrayCache(), DeviceArrayCache()
    one.get("a", ARRAYS[0])
    other.get("b", ARRAYS[1])
    one.get("c", ARRAYS[2])
    one.get("a", ARRAYS[0])
    room_for(monkeypatch, 2)
    before = host_to_device_transfers.n_arrays
    one.get("c", ARRAYS[2])
    assert cached_bytes() == 2 * SIZE
    assert is_not_numpy(one.get("a", ARRAYS[0]))
    assert host_to_device_transfers.n_arrays == before
    assert other.get("b", ARRAYS[1]) is ARRAYS[1]
    room_for(monkeypatch, 0)
    assert one.get("a", ARRAYS[0]) is ARRAYS[0]
    assert cached_bytes() == 0


@pytest.fixture
def slow_upload(monkeypatch):
    """Uploads that begin and do not end before they may."""
    began, may_end, upload = threading.Semaphore(0), threading.Event(), _device_cache.to_device

    def to_device(X):
        began.release()
        assert may_end.wait(10)
        return upload(X)

    monkeypatch.setattr(_device_cache, "to_device", to_device)
    with ThreadPoolExecutor(4) as pool:
        yield began, may_end, pool
        may_end.set()


def test_nobody_waits_for_the_upload_of_another_array(slow_upload):
    began, may_end, pool = slow_upload
    copies = DeviceArrayCache()
    may_end.set()
    there = copies.get("there", ARRAYS[0])
    assert began.acquire(timeout=10)
    may_end.clear()
    coming = [pool.submit(copies.get, "X", ARRAYS[1]) for _ in range(2)]
    assert began.acquire(timeout=10)
    name = pickle.dumps(copies)
    assert pool.submit(pickle.loads, name).result(timeout=10) is copies
    assert pool.submit(copies.get, "there", ARRAYS[0]).result(timeout=10) is there
    assert pool.submit(DeviceArrayCache).result(timeout=10) is not copies
    assert not any(future.done() for future in coming)
    may_end.set()
    one, again = (future.result(timeout=10) for future in coming)
    assert again is one
    assert not began.acquire(blocking=False)
    assert cached_bytes() == 2 * SIZE


def test_threads_together_exceed_no_limit_and_copy_each_array_once(monkeypatch):
    room_for(monkeypatch, 3)
    copies, before = DeviceArrayCache(), host_to_device_transfers.n_arrays
    start = threading.Barrier(8)

    def get_all(seed):
        start.wait(10)
        order = np.random.default_rng(seed).permutation(6)
        return {int(i): copies.get(int(i), ARRAYS[i]) for i in order}

    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(get_all, range(8)))
    assert cached_bytes() == 3 * SIZE
    assert host_to_device_transfers.n_arrays - before == 3
    for i, X in enumerate(ARRAYS):
        assert len({id(one[i]) for one in given if is_not_numpy(one[i])}) <= 1
        np.testing.assert_array_equal(to_host(given[0][i]), X)


def test_an_upload_that_fails_or_ends_after_the_cache_leaves_nothing(slow_upload, monkeypatch):
    began, may_end, pool = slow_upload
    copies = DeviceArrayCache()
    coming = pool.submit(copies.get, "X", ARRAYS[1])
    assert began.acquire(timeout=10)
    copies.close()
    may_end.set()
    assert is_not_numpy(coming.result(timeout=10))
    assert cached_bytes() == 0

    def fail(X):
        raise MemoryError

    copies = DeviceArrayCache()
    with monkeypatch.context() as patch:
        patch.setattr(_device_cache, "to_device", fail)
        with pytest.raises(MemoryError):
            copies.get("X", ARRAYS[1])
    assert is_not_numpy(copies.get("X", ARRAYS[1]))


def test_the_byte_limit_is_a_share_of_what_is_free(monkeypatch):
    # what copies take is not free any more
    free = lambda held: held + (8 * SIZE - held)  # noqa: E731
    monkeypatch.setattr(_device_cache, "device_memory_available", free)
    copies = DeviceArrayCache()
    given = [is_not_numpy(copies.get(i, ARRAYS[i])) for i in range(6)]
    assert given == [True] * 4 + [False] * 2
    monkeypatch.undo()
    monkeypatch.setenv(DEVICE_MEMORY_VARIABLE, str(6 * SIZE))
    assert byte_limit() == 3 * SIZE


def test_what_has_one_name_has_the_same_copies_until_the_last_goes():
    copies = DeviceArrayCache()
    name = pickle.dumps(copies)
    assert pickle.loads(name) is copies
    copies.get("X", ARRAYS[0])
    del copies
    gc.collect()
    assert cached_bytes() == 0
    copies = pickle.loads(name)
    copies.get("X", ARRAYS[0])
    model = Ridge()
    copies.tie_to(model)
    del copies
    gc.collect()
    assert cached_bytes() == SIZE
    del model
    gc.collect()
    assert cached_bytes() == 0


@pytest.mark.parametrize("device", [pytest.param("", marks=pytest.mark.gpu)], indirect=True)
def test_page_locked_memory_goes_back_when_a_search_ends(device, monkeypatch):
    import cupy

    freed = []
    pool = SimpleNamespace(free_all_blocks=lambda: freed.append(True))
    monkeypatch.setattr(cupy, "get_default_pinned_memory_pool", lambda: pool)
    copies = DeviceArrayCache()
    copies.get("X", ARRAYS[0])
    assert not freed
    copies.close()
    assert freed == [True]
