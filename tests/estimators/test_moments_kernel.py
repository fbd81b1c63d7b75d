"""The CUDA kernel of moments and sums by label, emulated on the host and on a device."""

import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import Emulator

from skfleet._cuda import DeviceLimits
from skfleet.estimators import _moments_kernel
from skfleet.estimators._moments_kernel import MAX_THREADS, ThreadLayout, row_sums

SOURCE = Path(_moments_kernel.__file__).with_name("moments.cu")
H100 = DeviceLimits(132, 227 * 1024, 228 * 1024)
SMALL = DeviceLimits(1, 99 * 1024, 100 * 1024)


class MomentsEmulator(Emulator):
    """Takes the place of `launch`."""

    def launch(self, itemsize, name, grid, n_threads, shared, args):
        self.launched.append((name, grid, n_threads))
        self.run(_moments_kernel.source(itemsize).options, name, grid, n_threads, shared, args)


@pytest.fixture(scope="module")
def compiled(kernel_folder):
    return MomentsEmulator(kernel_folder, SOURCE)


@pytest.fixture
def emulator(compiled, monkeypatch):
    monkeypatch.setattr(_moments_kernel, "launch", compiled.launch)
    monkeypatch.setattr(_moments_kernel, "limits", lambda x: SMALL)
    return compiled.begin()


def whole_numbers(n, d, k, dtype, seed=0):
    """Return rows with gaps, weights and codes, of which all sums by label are exact."""
    rng = np.random.default_rng(seed)
    X = rng.integers(-4, 5, (n, d)).astype(dtype)
    gaps = np.where(rng.random((n, d)) < 0.2, np.nan, X).astype(dtype)
    return X, gaps, rng.integers(0, 4, n) / 4, rng.integers(0, max(k, 1), n)


def moments_of(X, weights=None):
    """Return the weights, means and squares of the values of columns in more than double."""
    X = X.astype(np.longdouble)
    weights = np.ones(len(X)) if weights is None else weights
    w = np.where(np.isnan(X), 0, weights[:, None])
    values, total = np.where(np.isnan(X), 0, X), w.sum(axis=0)
    mean = (w * values).sum(axis=0) / np.where(total > 0, total, 1)
    squares = (w * (values - mean) ** 2).sum(axis=0)
    mean = np.where(np.isnan(X).all(axis=0), np.nan, mean)
    return np.stack([total, mean, squares]).astype(np.float64)


def sums_of(X, codes, weights, k):
    weights = np.ones(len(X)) if weights is None else weights
    sums = np.zeros((k, X.shape[1] + 2))
    values = np.column_stack([weights[:, None] * X.astype(np.float64), weights, np.ones(len(X))])
    np.add.at(sums, codes, values)
    return sums


def assert_near(ours, theirs, eps=1e-12):
    np.testing.assert_allclose(ours, theirs, rtol=eps, atol=eps)


SHAPES = [
    (1, 1, 1, "float32"),
    (5, 3, 2, "float32"),
    (300, 1, 3, "float32"),
    (257, 30, 2, "float32"),
    (1001, 31, 5, "float32"),
    (130, 33, 100, "float32"),
    (5000, 50, 2, "float32"),
    (40, 254, 2, "float32"),
    (40, 255, 2, "float32"),
    (17, 600, 3, "float32"),
    (1, 1, 1, "float64"),
    (2049, 1, 2, "float64"),
    (515, 7, 4, "float64"),
    (65, 100, 10, "float64"),
    (9, 300, 1, "float64"),
]


@pytest.mark.parametrize(("n", "d", "k", "dtype"), SHAPES)
def test_sums_are_numpys(emulator, n, d, k, dtype):
    X, gaps, weights, codes = whole_numbers(n, d, k, dtype)
    for how, w in enumerate([None, weights]):
        emulator.reversed = bool(how)  # threads may run in any order
        both = row_sums(X, codes=codes, k=k, code_weights=w)
        assert_near(both.moments, moments_of(X))
        np.testing.assert_array_equal(both.by_label, sums_of(X, codes, w, k))
        alone = row_sums(X, moments=False, codes=codes, k=k, code_weights=w)
        assert alone.moments is None
        np.testing.assert_array_equal(alone.by_label, both.by_label)
        counts = row_sums(X, moments=False, codes=codes, k=k, code_weights=w, x_by_label=False)
        np.testing.assert_array_equal(counts.by_label, both.by_label[:, d:])
        of_values = row_sums(gaps, weights=w, skips_nan=True)
        assert of_values.by_label is None
        assert_near(of_values.moments, moments_of(gaps, w))
        assert_near(row_sums(X, weights=w).moments, moments_of(X, w))
    all_codes = row_sums(X, k=1, code_weights=weights).by_label
    np.testing.assert_array_equal(all_codes, sums_of(X, np.zeros(n, int), weights, 1))


def test_blocks_go_on_until_all_rows_are_summed(emulator):
    X, _, weights, codes = whole_numbers(20_011, 5, 3, "float32")
    found = row_sums(X, codes=codes, k=3, code_weights=weights)
    (_, grid, n_threads), (_, merging, _) = emulator.launched
    assert grid == (2, 1, 1)
    assert grid[0] * n_threads // 8 * 16 < 20_011  # they have more than one tile
    assert merging == (2 + 6, 1, 1)
    np.testing.assert_array_equal(found.by_label, sums_of(X, codes, weights, 3))
    assert_near(found.moments, moments_of(X))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_neither_large_means_nor_outliers_cost_digits(emulator, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 5))
    X[:, 1] += 1e5
    X[:, 2] += 1e9 * (dtype == "float64")
    X[0, 3] = X[1500, 4] = 1e9
    X = X.astype(dtype)
    np.testing.assert_allclose(row_sums(X).moments, moments_of(X), rtol=1e-12)
    weights = rng.random(3000)
    found = row_sums(X, weights=weights).moments
    np.testing.assert_allclose(found, moments_of(X, weights), rtol=1e-7)
    columns = [0, 1, 3, 4]
    np.testing.assert_allclose(found[:, columns], moments_of(X, weights)[:, columns], rtol=1e-11)
    weights[[0, 1500]] = 0  # outliers without a weight
    found, expected = row_sums(X, weights=weights).moments, moments_of(X, weights)
    assert expected[2].max() < 3000
    np.testing.assert_allclose(found[:, columns], expected[:, columns], rtol=1e-11)


@pytest.mark.parametrize("weighted", [False, True])
def test_equal_values_have_no_squares(emulator, weighted):
    X = np.full((3001, 2), 0.1)
    X[::3, 1] = np.nan
    weights = np.random.default_rng(0).random(3001) if weighted else None
    found = row_sums(X, weights=weights, skips_nan=True).moments
    np.testing.assert_array_equal(found[1:], [[0.1, 0.1], [0, 0]])


def test_columns_without_values_have_no_mean(emulator):
    X = np.full((40, 3), np.nan)
    X[7, 1] = 5
    X[:, 2] = 3
    weights = np.zeros(40)
    found = row_sums(X, skips_nan=True).moments
    np.testing.assert_array_equal(found, [[0, 1, 40], [np.nan, 5, 3], [0, 0, 0]])
    found = row_sums(X, weights=weights, skips_nan=True).moments
    np.testing.assert_array_equal(found, [[0, 0, 0], [np.nan, 0, 0], [0, 0, 0]])
    assert np.isnan(row_sums(X).moments[1]).tolist() == [True, True, False]


def test_weights_of_any_type_and_layout_are_taken(emulator):
    X, _, weights, codes = whole_numbers(60, 3, 4, "float32")
    strided = np.repeat(weights.astype(np.float32), 2)[::2]
    found = row_sums(X, weights=strided, codes=codes.astype(np.int32), k=4, code_weights=strided)
    assert_near(found.moments, moments_of(X, weights))
    np.testing.assert_array_equal(found.by_label, sums_of(X, codes, weights, 4))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [0, 1, 8])
def test_a_trial_finds_the_kernel_right(emulator, dtype, k):
    assert _moments_kernel.self_test(np.zeros((0, 5), dtype), k) == ""


def refuse(monkeypatch, launch, limits=H100):
    monkeypatch.setattr(_moments_kernel, "launch", launch)
    monkeypatch.setattr(_moments_kernel, "device_limits", lambda number: limits)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(zeros=np.zeros))
    return not _moments_kernel.self_test_passes.__wrapped__(np.dtype(np.float32), 5, 2, 0)


@pytest.mark.parametrize("which", [0, -1], ids=["moments", "sums"])
def test_a_kernel_that_is_wrong_is_not_used(emulator, monkeypatch, which):
    def launch(itemsize, name, grid, n_threads, shared, args):
        emulator.launch(itemsize, name, grid, n_threads, shared, args)
        if name == "merge_parts":
            args[3][which] *= 1.01

    with pytest.warns(RuntimeWarning, match="without their CUDA kernel for 5 columns and 2 lab"):
        assert refuse(monkeypatch, launch)


def test_a_kernel_that_cannot_be_launched_is_not_used(emulator, monkeypatch):
    def launch(*args):
        raise OSError("CUDA_ERROR_INVALID_VALUE")

    with pytest.warns(RuntimeWarning, match="OSError: CUDA_ERROR_INVALID_VALUE"):
        assert refuse(monkeypatch, launch)
    assert refuse(monkeypatch, launch, DeviceLimits(10, 1000, 4000))


@pytest.mark.parametrize("n_columns", [1, 2, 5, 32, 33, 102, 256, 257, 2002, 10**6])
@pytest.mark.parametrize("k", [0, 2, 30, 128])
@pytest.mark.parametrize("limit", [H100, SMALL], ids=["large", "small"])
def test_plans_fit(n_columns, k, limit):
    plan = ThreadLayout.of(n_columns, k, limit)
    assert plan.shared <= limit.shared
    assert plan.n_threads <= MAX_THREADS
    assert plan.n_threads % 32 == plan.n_threads % plan.n_slots == 0
    n_groups = plan.n_threads // plan.n_slots
    assert n_groups & (n_groups - 1) == 0
    assert plan.n_slots * plan.n_column_blocks >= n_columns
    assert plan.n_slots * (plan.n_column_blocks - 1) < n_columns
    x, y, z = plan.grid(10**8, 16, limit)
    assert (y, z) == (plan.n_column_blocks, 1)
    assert 1 <= x <= 16 * limit.n_processors
    assert y < 2**16


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_compiles_for_devices_without_spilling_registers(tmp_path, arch, itemsize):
    command = ["nvcc", *_moments_kernel.source(itemsize).options, f"-arch={arch}"]
    command += ["-Xptxas", "-v", "-cubin", "-o", tmp_path / "moments.cubin", SOURCE]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert said.count("0 bytes spill stores, 0 bytes spill loads") == 2
    assert "warning" not in said


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "d", "k", "dtype"), [*SHAPES, (100_003, 50, 2, "float32")])
def test_kernel_on_a_device(n, d, k, dtype):
    import cupy

    X, gaps, weights, codes = whole_numbers(n, d, k, dtype)
    there = cupy.asarray(X)
    assert _moments_kernel.supports(there, k)
    by_label = {"codes": cupy.asarray(codes), "k": k, "code_weights": cupy.asarray(weights)}
    found = row_sums(there, **by_label)
    assert_near(found.moments.get(), moments_of(X))
    np.testing.assert_array_equal(found.by_label.get(), sums_of(X, codes, weights, k))
    found = row_sums(cupy.asarray(gaps), weights=by_label["code_weights"], skips_nan=True)
    assert_near(found.moments.get(), moments_of(gaps, weights))


@pytest.mark.gpu
def test_kernel_reaches_rows_beyond_31_bits():
    import cupy

    if cupy.cuda.Device().mem_info[0] < 14 * 2**30:
        pytest.skip("needs 14 GB")
    d = 512
    X = cupy.zeros((2**31 // d + 300, d), dtype=cupy.float32)
    X[-1] = 3
    n = len(X)
    found = row_sums(X, k=1)
    np.testing.assert_array_equal(found.by_label.get()[0], [3.0] * d + [n, n])
    np.testing.assert_allclose(found.moments.get()[1], 3 / n, rtol=1e-12)
