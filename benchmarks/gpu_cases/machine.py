"""The device that cases run on, or NumPy in its place: clocks, rates, libraries, memory."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from skfleet import Fleet


@dataclass(frozen=True)
class Sizes:
    """How large the cases are."""

    n_rows: int = 10_000_000
    n_columns: int = 100
    cluster_columns: int = 50
    n_clusters: int = 100
    n_iter: int = 20
    n_slice: int = 100_000  # rows on which answers are compared with scikit-learn's in float64
    search_bytes: tuple[float, ...] = (28e3, 2.8e6, 28e6, 2.8e9)
    squares_bytes: float = 200e9
    squares_block: float = 1e9
    svd_rows: int = 10_000_000
    svd_columns: int = 20_000
    svd_block: int = 5_000  # rows
    copy_bytes: float = 4e9
    gemm: int = 8192
    repeats: int = 5
    patience: float = 60.0  # seconds, after which nothing is repeated and shares grow no more


FULL = Sizes()
QUICK = replace(
    FULL,
    n_rows=1_000_000,
    n_slice=20_000,
    search_bytes=FULL.search_bytes[:3],
    squares_bytes=2e9,
    squares_block=0.25e9,
    svd_rows=100_000,
    svd_columns=2_000,
    copy_bytes=1e9,
    repeats=3,
    patience=10.0,
)
TRIAL = Sizes(
    n_rows=4_000,
    n_columns=8,
    cluster_columns=4,
    n_clusters=5,
    n_iter=3,
    n_slice=1_000,
    search_bytes=(28e3,),
    squares_bytes=4e6,
    squares_block=1e6,
    svd_rows=4_000,
    svd_columns=64,
    svd_block=500,
    copy_bytes=1e6,
    gemm=64,
    repeats=2,
    patience=1.0,
)


class Times(NamedTuple):
    """Seconds of the first call and of the best after it, of how many, and the last answer."""

    first: float
    best: float
    runs: int
    value: Any


class Rates(NamedTuple):
    """What the device does at most: bytes read or written, and float32 operations, a second."""

    copy: float
    gemm: float


class Machine:
    """A CUDA device by way of CuPy, or this process with NumPy for a trial of the cases."""

    def __init__(self, library: str = "cupy") -> None:
        self.library = library
        self.xp = importlib.import_module(library)
        self.on_device = library != "numpy"
        self.allocator = "CuPy's pool" if self.on_device else "none"
        self.cuml: Any = None
        self.no_cuml = "not installed"
        if self.on_device:
            self._find_cuml()

    def _find_cuml(self) -> None:
        """Import cuML where it is installed, and say where not."""
        try:
            import cuml
        except ModuleNotFoundError as error:
            if error.name != "cuml":
                self.no_cuml = f"not importable: {error}"
            return
        except Exception as error:
            self.no_cuml = f"not importable: {type(error).__name__}: {error}"
            return
        self.cuml = cuml
        # cuML makes CuPy allocate with RMM, whose default asks the driver for every array. One pool
        # for both, so that neither is slowed down.
        try:
            import rmm

            rmm.mr.set_current_device_resource(rmm.mr.CudaAsyncMemoryResource())
            self.allocator = "RMM, cudaMallocAsync"
        except Exception as error:
            self.allocator = f"RMM's default: {type(error).__name__}: {error}"

    @property
    def on_gpu(self) -> dict[str, str]:
        """The parameters of an estimator that is to be fitted on GPU workers."""
        return {"device": "cuda"} if self.on_device else {}

    def gpu_fleet(self) -> Fleet:
        """Start a fleet with a GPU worker; in a trial one of that label."""
        if self.on_device:
            return Fleet(gpus=1, cpus=1)
        labels = [{"CPU": 1.0}, {"GPU": 1.0}]
        return Fleet(n_workers=2, processes=False, resources=labels, dashboard_address=None)

    def cpu_fleet(self) -> Fleet:
        """Start a fleet on all cores."""
        if self.on_device:
            return Fleet(gpus=0)
        return Fleet(n_workers=2, processes=False, dashboard_address=None)

    def wait(self) -> None:
        """Wait until the device has done what it was told."""
        if self.on_device:
            self.xp.cuda.Device().synchronize()

    def free(self) -> None:
        """Give memory back that nothing uses."""
        gc.collect()
        if self.on_device:
            self.wait()
            self.xp.get_default_memory_pool().free_all_blocks()

    def best_of(self, func: Callable[[], Any], repeats: int, patience: float) -> Times:
        """Call once to warm up, then take the best of a few while there is patience.

        A first call that takes longer than that is the only one.
        """
        self.wait()
        value = None
        taken: list[float] = []
        while len(taken) <= repeats and sum(taken) <= patience:
            value = None  # two models and their labels need not fit at a time
            began = time.perf_counter()
            value = func()
            self.wait()
            taken.append(time.perf_counter() - began)
        counted = taken[1:] or taken
        return Times(taken[0], min(counted), len(counted), value)

    def generator(self, seed: int) -> Any:
        """Return a generator of random numbers on the device, one that is cheap to start."""
        return generator(self.library, seed)

    @cached_property
    def rates(self) -> Rates:
        """Measure what the device does at most."""
        sizes = FULL if self.on_device else TRIAL
        copied, copying = self._copying(int(sizes.copy_bytes // 4), sizes.patience)
        self.free()
        multiplying = self._multiplying(sizes.gemm, sizes.patience)
        self.free()
        return Rates(copied / copying, 2 * sizes.gemm**3 / multiplying)

    def _copying(self, n: int, patience: float) -> tuple[int, float]:
        """Copy numbers, and return how many bytes were read and written, in what time."""
        source = self.xp.ones(n, dtype=self.xp.float32)
        target = self.xp.empty_like(source)
        times = self.best_of(lambda: self.xp.copyto(target, source), 10, patience)
        return 2 * source.nbytes, times.best

    def _multiplying(self, n: int, patience: float) -> float:
        """Return how long it takes to multiply square matrices."""
        A = self.generator(0).standard_normal((n, n), dtype=self.xp.float32)
        return self.best_of(lambda: A @ A, 10, patience).best


def generator(library: str, seed: int) -> Any:
    """Return a generator of random numbers of an array library."""
    random = importlib.import_module(library).random
    kind = random.Philox if library == "numpy" else random.Philox4x3210
    return random.Generator(kind(seed))
