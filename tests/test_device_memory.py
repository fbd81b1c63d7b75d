"""What is free on a device, by the allocators that CuPy may have."""

import sys
from types import SimpleNamespace

import pytest
from distributed import Client

from skfleet import _device
from skfleet._device import DEVICE_MEMORY_VARIABLE, DeviceLibrary, device_memory_available
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._resources import ResourceRequest
from skfleet.fleet._local_cluster import start_local_cluster

FREE, TOTAL, IDLE = 10, 100, 30


class Pool:
    """One of CuPy's, which says what it has and does not use."""

    def malloc(self, size):
        """Allocate nothing."""

    def free_bytes(self):
        return IDLE


class Handle:
    """A resource of RMM over a pool of the driver."""

    def pool_handle(self):
        return 77


class Adaptor:
    """A resource of RMM over another."""

    def get_upstream(self):
        return Handle()


class CudaMemoryResource:
    """RMM's default, without a pool."""


def rmm_cupy_allocator(size):
    """Allocate nothing."""


rmm_cupy_allocator.__module__ = "rmm.allocators.cupy"


@pytest.fixture
def cupy(monkeypatch):
    default = Pool()
    attributes = {(77, 5): 50, (77, 7): 50 - IDLE}  # taken from the driver, in use
    runtime = SimpleNamespace(
        memGetInfo=lambda: (FREE, TOTAL),
        memPoolGetAttribute=lambda handle, attribute: attributes[handle, attribute],
    )
    module = SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime, get_allocator=lambda: default.malloc),
        get_default_memory_pool=lambda: default,
    )
    library = DeviceLibrary(SimpleNamespace(__name__="array_api_compat.cupy"), None)
    monkeypatch.delenv(DEVICE_MEMORY_VARIABLE, raising=False)
    monkeypatch.setattr(_device, "device_library", lambda: library)
    monkeypatch.setitem(sys.modules, "cupy", module)
    _device._warn_of_slow_allocator.cache_clear()
    return module


def allocate_from_rmm(cupy, monkeypatch, resource):
    cupy.cuda.get_allocator = lambda: rmm_cupy_allocator
    rmm = SimpleNamespace(mr=SimpleNamespace(get_current_device_resource=lambda: resource))
    monkeypatch.setitem(sys.modules, "rmm", rmm)


def test_methods_of_pools_have_no_module(cupy):
    class Malloc:
        __module__ = None  # as of a method of a Cython class

    cupy.cuda.get_allocator = Malloc
    assert device_memory_available() == FREE


@pytest.mark.parametrize("is_default", [True, False])
def test_what_a_pool_of_cupy_does_not_use_is_free(cupy, is_default):
    other = Pool()
    if not is_default:
        cupy.cuda.get_allocator = lambda: other.malloc
    assert device_memory_available() == FREE + IDLE
    assert device_memory_available(5) == FREE + IDLE + 5


@pytest.mark.parametrize(
    ("resource", "idle"),
    [(Handle(), IDLE), (Adaptor(), IDLE), (object(), 0)],
    ids=["pool", "adaptor", "other"],
)
def test_what_a_pool_of_rmm_does_not_use_is_free_if_it_tells(cupy, monkeypatch, resource, idle):
    allocate_from_rmm(cupy, monkeypatch, resource)
    assert device_memory_available() == FREE + idle


def test_an_allocator_without_a_pool_is_warned_of_once(cupy, monkeypatch):
    allocate_from_rmm(cupy, monkeypatch, CudaMemoryResource())
    with pytest.warns(RuntimeWarning, match="CudaAsyncMemoryResource"):
        assert device_memory_available() == FREE
    assert device_memory_available() == FREE


def test_gpu_workers_say_what_is_free(monkeypatch):
    monkeypatch.setenv(DEVICE_MEMORY_VARIABLE, "1000")
    labels = [{"CPU": 1}, {"GPU": 1}, {"GPU": 1}]
    with (
        start_local_cluster(processes=False, resources=labels) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        engine = DaskEngine(client, ResourceRequest.of({"GPU": 1}))
        assert engine.free_bytes() == 1000  # half of what two workers have
