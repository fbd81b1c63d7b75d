"""The CUDA kernel of k-means, emulated on the host, on a device, and the matrix path beside it."""

import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import Emulator

from skfleet import config_context
from skfleet._array import is_not_numpy, to_host, tree_to_host
from skfleet._cuda import DeviceLimits
from skfleet._device import device_library, to_device
from skfleet.blocks import Block, BlockCache, row_blocks
from skfleet.engine import LocalEngine, map_reduce
from skfleet.estimators import Incremental
from skfleet.estimators.cluster import KMeans, MiniBatchKMeans, _cuda_kernel, _device_assign
from skfleet.estimators.cluster._cuda_kernel import CompileOptions, LaunchConfig
from skfleet.estimators.cluster._distances import Centers
from skfleet.estimators.cluster._reductions import (
    LLOYD,
    Candidates,
    LloydStep,
    candidate_weights,
    farthest,
    lloyd,
    nearest_candidate,
)

SOURCE = Path(_cuda_kernel.__file__).with_name("nearest.cu")
H100 = DeviceLimits(2, 227 * 1024, 228 * 1024)
SMALL = DeviceLimits(1, 99 * 1024, 100 * 1024)  # where fewer sums fit beside rows


class KMeansEmulator(Emulator):
    """Takes the place of `launch`."""

    def launch(self, build, name, grid, shared, args):
        self.launched.append((name, grid, shared))
        self.run(build.options, name, grid, _cuda_kernel.THREADS, shared, args)


@pytest.fixture(scope="module")
def compiled(kernel_folder):
    return KMeansEmulator(kernel_folder, SOURCE)


@pytest.fixture
def emulator(compiled, monkeypatch):
    monkeypatch.setattr(_cuda_kernel, "launch", compiled.launch)
    monkeypatch.setattr(_cuda_kernel, "limits", lambda x: H100)
    monkeypatch.setattr(
        _cuda_kernel, "BLOCKS_PER_PROCESSOR", 1
    )  # so that blocks have several tiles
    return compiled.begin()


def whole_numbers(n, d, k, dtype, seed=0):
    """Return rows, centres, a mean and weights of which every sum and product is exact."""
    rng = np.random.default_rng(seed)
    rows, centers = rng.integers(-4, 5, (n, d)), rng.integers(-4, 5, (k, d))
    centers[k // 2 :] = centers[: k - k // 2]  # each of them twice: the first one wins
    mean, weight = rng.integers(-2, 3, d), rng.integers(0, 4, n) / 4
    return (*(values.astype(dtype) for values in (rows, centers, mean)), weight)


def expected(rows, centers, mean, weight):
    """Return labels, squared distances, the inertia, and sums of rows and weights."""
    rows = rows.astype(np.float64) - (0 if mean is None else mean)
    weight = np.ones(len(rows)) if weight is None else weight
    squared = ((rows[:, None] - centers[None].astype(np.float64)) ** 2).sum(axis=2)
    labels = squared.argmin(axis=1)
    sums = np.zeros((len(centers), rows.shape[1] + 1))
    np.add.at(sums, labels, weight[:, None] * np.hstack([rows, np.ones((len(rows), 1))]))
    least = squared.min(axis=1)
    return labels, least, weight @ least, sums


def assigned(rows, centers, mean, weight, rounding=0.0, **wanted):
    norms = (centers.astype(np.float64) ** 2).sum(axis=1).astype(centers.dtype)
    wanted = wanted or {"squared": True, "inertia": True, "sums": True}
    return _cuda_kernel.assign(rows, centers, norms, mean, weight, rounding, **wanted)


SHAPES = [
    (1, 1, 1, "float32"),
    (5, 3, 1, "float32"),
    (300, 3, 8, "float32"),
    (257, 50, 100, "float32"),
    (129, 63, 100, "float32"),
    (130, 64, 97, "float32"),
    (70, 65, 130, "float32"),
    (131, 130, 100, "float32"),
    (200, 5, 300, "float32"),
    (1, 1, 1, "float64"),
    (150, 50, 56, "float64"),
    (65, 31, 100, "float64"),
    (64, 32, 8, "float64"),
    (70, 130, 56, "float64"),
]


@pytest.mark.parametrize(("n", "d", "k", "dtype"), SHAPES)
def test_kernel_is_exact_on_whole_numbers(emulator, n, d, k, dtype):
    rows, centers, mean, weight = whole_numbers(n, d, k, dtype)
    for how, (about, w) in enumerate([(mean, weight), (None, None)]):
        emulator.reversed = bool(how)  # threads may run in any order
        found = assigned(rows, centers, about, w)
        for ours, theirs in zip(found, expected(rows, centers, about, w), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert found.labels.dtype == np.int32
        alone = assigned(rows, centers, about, w, sums=True)
        np.testing.assert_array_equal(alone.sums, found.sums)
    n_tiles = -(-n // CompileOptions.of(rows.dtype, k).tile)
    assert emulator.launched[0][1] == (min(n_tiles, 2), 1, 1)


def test_sums_in_a_kernel_of_their_own_are_the_same(emulator, monkeypatch):
    rows, centers, mean, weight = whole_numbers(300, 50, 100, "float32")
    both = assigned(rows, centers, mean, weight)
    assert [name for name, *_ in emulator.launched] == ["assign"]
    monkeypatch.setattr(_cuda_kernel, "limits", lambda x: SMALL)
    apart = assigned(rows, centers, mean, weight)
    assert [name for name, *_ in emulator.launched] == ["assign", "assign", "add_up"]
    assert emulator.launched[-1][1][1] > 1  # columns are parted
    np.testing.assert_array_equal(both.sums, apart.sums)


def test_sums_of_many_clusters_are_parted(emulator, monkeypatch):
    monkeypatch.setattr(_cuda_kernel, "limits", lambda x: SMALL)
    rows, centers, _, weight = whole_numbers(100, 20, 400, "float32")
    found = assigned(rows, centers, None, weight)
    name, grid, _ = emulator.launched[-1]
    assert (name, grid[1] > 1, grid[2] > 1) == ("add_up", True, True)
    np.testing.assert_array_equal(found.sums, expected(rows, centers, None, weight)[3])
    counts = _cuda_kernel.count(rows.dtype, None, found.labels, 400)
    np.testing.assert_array_equal(counts, np.bincount(found.labels, minlength=400))


def test_small_distances_are_exact_and_rounding_is_none(emulator):
    rng = np.random.default_rng(0)
    mean = np.full(7, 1000, dtype=np.float32)
    centers = rng.normal(size=(5, 7)).astype(np.float32)
    rows = mean + centers[rng.integers(0, 5, 50)] + np.float32(2**-9)
    found = assigned(rows, centers, mean, None, squared=True)
    exact = ((rows - mean - centers[found.labels]).astype(np.float64) ** 2).sum(axis=1)
    np.testing.assert_allclose(found.squared, exact, rtol=1e-6)
    assert found.squared.min() > 0
    none = assigned(rows, centers, mean, None, 1.0, squared=True, inertia=True)
    assert not none.squared.any()
    assert none.inertia == 0


def test_infinite_scores_have_labels(emulator):
    rows = np.full((3, 2), 3e38, dtype=np.float32)
    with np.errstate(over="ignore"):
        found = assigned(rows, np.full((2, 2), 1e38, dtype=np.float32), None, None, sums=True)
    assert set(found.labels) <= {0, 1}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_trial_finds_the_kernel_right(emulator, dtype):
    assert _cuda_kernel.self_test(np.zeros((0, 5), dtype), 9) == ""


@pytest.mark.parametrize(
    "spoil",
    [
        lambda args: args[5].fill(-1),  # labels
        lambda args: args[5].fill(0),
        lambda args: args[6].__imul__(1.01),  # squared distances
        lambda args: args[8].__imul__(1.01),  # sums
    ],
    ids=["out-of-range", "labels", "distances", "sums"],
)
def test_a_kernel_that_is_wrong_is_not_used(emulator, monkeypatch, spoil):
    def launch(build, name, grid, shared, args):
        emulator.launch(build, name, grid, shared, args)
        if name == "assign":
            spoil(args)

    monkeypatch.setattr(_cuda_kernel, "launch", launch)
    monkeypatch.setattr(_cuda_kernel, "device_limits", lambda number: H100)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(zeros=np.zeros))
    with pytest.warns(RuntimeWarning, match="without its CUDA kernel for 9 centres of 5 columns"):
        assert not _cuda_kernel.self_test_passes.__wrapped__(np.dtype(np.float32), 9, 5, 0)


def test_a_kernel_that_cannot_be_launched_is_not_used(monkeypatch):
    def launch(*args):
        raise OSError("CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(_cuda_kernel, "launch", launch)
    monkeypatch.setattr(_cuda_kernel, "limits", lambda x: H100)
    monkeypatch.setattr(_cuda_kernel, "device_limits", lambda number: H100)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(zeros=np.zeros))
    with pytest.warns(RuntimeWarning, match="OSError: CUDA_ERROR_INVALID_VALUE"):
        assert not _cuda_kernel.self_test_passes.__wrapped__(np.dtype(np.float32), 9, 5, 0)
    none = DeviceLimits(10, 48 * 1024, 64 * 1024)  # as little as a device of 2016 has
    monkeypatch.setattr(_cuda_kernel, "device_limits", lambda number: none)
    assert not _cuda_kernel.self_test_passes.__wrapped__(np.dtype(np.float32), 100, 5, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 8, 100, 1_000, 50_000])
@pytest.mark.parametrize("d", [0, 1, 50, 64, 4_096])
@pytest.mark.parametrize("limit", [H100, SMALL], ids=["large", "small"])
def test_plans_fit(dtype, k, d, limit):
    plan = LaunchConfig.of(np.dtype(dtype), k, d, limit)
    assert max(plan.shared, plan.sums_shared) <= limit.shared
    assert plan.build.centers <= _cuda_kernel.MAX_CENTERS_PER_THREAD[np.dtype(dtype).itemsize]
    x, y, z = plan.sums_grid(10**8, k, d, limit)
    assert y * plan.n_columns > d
    assert z * plan.n_clusters >= k
    assert max(y, z) < 2**16
    assert 8 * x * k * (d + 1) <= max(2**30, 8 * k * (d + 1))


@pytest.fixture
def on_device(monkeypatch):
    """The second device of array_api_strict, which refuses hidden copies."""
    monkeypatch.setenv("SKFLEET_DEVICE", "array_api_strict:device1")
    return device_library()


@pytest.fixture(params=["tiles", "kernel"])
def path(request, on_device, monkeypatch):
    """Both ways in which rows on a device are assigned."""
    if request.param == "kernel":
        request.getfixturevalue("emulator")
        monkeypatch.setattr(_cuda_kernel, "supports", lambda X, k: True)
    else:
        monkeypatch.setattr(_device_assign, "TILE_BYTES", 2**14)
    return request.param


@pytest.fixture
def syncs(monkeypatch):
    """What has waited for a device of array_api_strict, by name."""
    import array_api_strict

    kind, seen = type(array_api_strict.zeros(1)), []
    for name in ("__float__", "__bool__", "__int__", "__index__", "__complex__", "to_device"):
        monkeypatch.setattr(kind, name, _noting(getattr(kind, name), name, seen))
    return seen


def _noting(method, name, seen):
    def capture_output(self, *args, **kwargs):
        seen.append(name)
        return method(self, *args, **kwargs)

    return capture_output


def passed(centers, mean, X, weight, start):
    """Return what each pass finds out of a block, and the notes that it leaves."""
    near = Centers(centers, mean, X.dtype if not is_not_numpy(X) else np.float64)
    new = Centers(centers[2:] + 1, mean, near.dtype)
    both = Centers(np.concatenate([centers, new.values]), mean, near.dtype)
    block = Block(X, None, weight, 0, start, cache=BlockCache())
    first, second = Candidates(near, 0, near, 0), Candidates(both, len(near), new, 0)
    yield lambda: lloyd(block, LloydStep(near))
    yield lambda: lloyd(block, LloydStep(near, final=True))
    yield lambda: lloyd(block, LloydStep(near, final=True, with_sums=False))
    yield lambda: candidate_weights(block, first)
    yield lambda: candidate_weights(block, second)
    yield lambda: nearest_candidate(block, first)
    yield lambda: farthest(block, LloydStep(near), 3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("about", [False, True])
def test_a_pass_waits_for_nothing(path, syncs, weighted, about):
    rng = np.random.default_rng(0)
    X, centers = rng.normal(size=(150, 4)) + 5 * about, rng.normal(size=(6, 4))
    mean = np.full(4, 5.0) if about else None
    weight = rng.random(150) if weighted else None
    here = passed(centers, mean, X, weight, 3)
    there = passed(centers, mean, to_device(X), None if weight is None else to_device(weight), 3)
    waits = [0, 0, 0, 0, 0, 0, 5 if weighted else 4]  # the last one, which brings rows, is rare
    for ours, theirs, n in zip(there, here, waits, strict=True):
        syncs.clear()
        found = ours()
        assert syncs == ["to_device"] * n
        for a, b in zip(_parts(tree_to_host(found)), _parts(theirs()), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("with_sums", [False, True])
def test_rows_that_a_device_forgets_are_missed(
    on_device, emulator, monkeypatch, weighted, with_sums
):
    def launch(build, name, grid, shared, args):
        emulator.launch(build, name, grid, shared, args)
        for left in (args[4],) if name == "add_up" else (args[8],) * with_sums:
            left._array[0, 1] *= 0.9

    monkeypatch.setattr(_cuda_kernel, "supports", lambda X, k: True)
    monkeypatch.setattr(_cuda_kernel, "launch", launch)
    X = to_device(np.random.default_rng(0).normal(size=(60, 2)))
    weight = to_device(np.full(60, 0.5)) if weighted else None
    step = LloydStep(Centers(np.eye(2), None, np.float64), final=not with_sums, with_sums=with_sums)
    rows = row_blocks(X, None, weight)
    with pytest.raises(RuntimeError, match="Every row must count once"):
        map_reduce(LocalEngine(1), LLOYD, rows, step)


def _parts(found):
    return [found] if hasattr(found, "shape") else [p for p in found if getattr(p, "ndim", 0)]


@pytest.mark.parametrize("estimator", [KMeans(4, random_state=0), MiniBatchKMeans(4)], ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_fits_on_either_path_are_those_of_the_host(path, emulator, estimator, weighted):
    rng = np.random.default_rng(1)
    X = (rng.normal(size=(4, 3)) * 10)[rng.integers(0, 4, 200)] + rng.normal(size=(200, 3))
    weight = rng.random(200) if weighted else None
    settings = estimator.get_params() | {"random_state": 0}
    kind = type(estimator)
    expected = kind(**settings).fit(X, sample_weight=weight)
    found = kind(**settings | {"device": "cuda"}).fit(X, sample_weight=weight)
    assert ("assign" in {name for name, *_ in emulator.launched}) == (path == "kernel")
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    assert found.inertia_ == pytest.approx(expected.inertia_, rel=1e-9)
    labels = found.predict(to_device(X))
    assert is_not_numpy(labels)
    np.testing.assert_array_equal(to_host(labels), expected.predict(X))


def test_batches_are_learned_on_either_path(path):
    X = np.random.default_rng(2).normal(size=(120, 3))
    init = X[:5]
    expected = Incremental(MiniBatchKMeans(5, init=init)).fit(X)
    with config_context(device="cuda"):
        found = Incremental(MiniBatchKMeans(5, init=init, device="cuda")).fit(X)
    np.testing.assert_allclose(
        to_host(found.estimator_.cluster_centers_), expected.estimator_.cluster_centers_
    )


def test_rows_without_a_kernel_are_taken_by_tiles(on_device, monkeypatch):
    X = to_device(np.random.default_rng(3).normal(size=(1000, 4)))
    most = []
    take = _device_assign.rows_between
    monkeypatch.setattr(_device_assign, "TILE_BYTES", 2**14)
    monkeypatch.setattr(
        _device_assign,
        "rows_between",
        lambda rows, low, high: most.append(high - low) or take(rows, low, high),
    )
    centers = Centers(np.eye(4)[[0, 1, 2]], None, np.float64)
    found = _device_assign.assign(centers, X, squared=True, sums=True)
    assert len(most) > 10
    assert max(most) * 8 * (3 * 3 + 4 * 4) <= 2**14
    whole = expected(to_host(X), centers.values, None, None)
    np.testing.assert_array_equal(to_host(found.labels), whole[0])
    np.testing.assert_allclose(to_host(found.sums), whole[3])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_compiles_for_devices_without_spilling_registers(tmp_path, arch, itemsize):
    build = CompileOptions(itemsize, _cuda_kernel.MAX_CENTERS_PER_THREAD[itemsize])
    command = ["nvcc", *build.options, f"-arch={arch}", "-Xptxas", "-v", "-cubin"]
    command += ["-o", tmp_path / "nearest.cubin", SOURCE]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert said.count("0 bytes spill stores, 0 bytes spill loads") == 2
    assert "warning" not in said


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "d", "k", "dtype"), [*SHAPES, (100_003, 50, 100, "float32")])
@pytest.mark.parametrize("weighted", [False, True])
def test_kernel_on_a_device(n, d, k, dtype, weighted):
    import cupy

    rows, centers, mean, weight = whole_numbers(n, d, k, dtype)
    weight = weight if weighted else None
    X = cupy.asarray(rows)
    assert _cuda_kernel.supports(X, k)
    there = None if weight is None else cupy.asarray(weight)
    found = assigned(X, cupy.asarray(centers), cupy.asarray(mean), there)
    part = slice(None) if n < 1000 else slice(0, 1000)
    if n < 1000:
        for ours, theirs in zip(found, expected(rows, centers, mean, weight), strict=True):
            np.testing.assert_array_equal(to_host(ours), theirs)
    labels, squared, *_ = expected(rows[part], centers, mean, None)
    np.testing.assert_array_equal(to_host(found.labels)[part], labels)
    np.testing.assert_array_equal(to_host(found.squared)[part], squared)
    weights = np.bincount(to_host(found.labels), weight, k)
    np.testing.assert_array_equal(to_host(found.sums)[:, d], weights)


@pytest.mark.gpu
def test_kernel_reaches_rows_beyond_31_bits():
    import cupy

    if cupy.cuda.Device().mem_info[0] < 14 * 2**30:
        pytest.skip("needs 14 GB")
    d = 512
    X = cupy.zeros((2**31 // d + 300, d), dtype=cupy.float32)
    X[-1] = 3
    centers = cupy.asarray(np.repeat([[0], [3]], d, axis=1), dtype=cupy.float32)
    found = assigned(X, centers, None, None)
    assert int(found.labels.sum()) == 1
    assert int(found.labels[-1]) == 1
    np.testing.assert_array_equal(to_host(found.sums)[1], [3.0] * d + [1.0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("enabled", [True, False], ids=["kernel", "tiles"])
def test_fit_on_a_device_is_that_of_the_host(monkeypatch, dtype, enabled):
    monkeypatch.setattr(_cuda_kernel, "ENABLED", enabled)
    rng = np.random.default_rng(1)
    about, which = rng.normal(size=(20, 50)) * 5, np.arange(30_000) % 20
    # a row of each cluster to start from: a start between two would part them by a rounding error
    X = (about[which] + 10 * rng.normal(size=(30_000, 50))).astype(dtype)
    settings = {"n_clusters": 20, "init": X[:20], "random_state": 0}
    expected = KMeans(**settings).fit(X)
    assert expected.n_iter_ > 5
    found = KMeans(**settings, device="cuda").fit(X)
    tol = 1e-3 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, tol, tol)
    assert found.inertia_ == pytest.approx(expected.inertia_, rel=tol)
    assert np.mean(found.labels_ == expected.labels_) > 0.999


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["contiguous", "columns", "strided", "integers"])
def test_kernel_is_only_for_rows_one_after_the_other(order):
    import cupy

    X = cupy.random.default_rng(0).standard_normal((300, 6), dtype=cupy.float32)
    X = {
        "contiguous": X,
        "columns": cupy.asfortranarray(X),
        "strided": X[::2],
        "integers": X.astype(cupy.int32),
    }[order]
    assert _cuda_kernel.supports(X, 4) == (order == "contiguous")
    if order != "integers":
        centers = Centers(to_host(X[:4]).astype(np.float64), None, np.float32)
        found = _device_assign.assign(centers, X, squared=True)
        host = to_host(X).astype(np.float64)
        labels, squared, *_ = expected(host, centers.values, None, None)
        np.testing.assert_array_equal(to_host(found.labels), labels)
        np.testing.assert_allclose(to_host(found.squared), squared, rtol=1e-5, atol=1e-6)
