"""Products of columns by the CUDA kernel: its source is run on the host, and on a device."""

import re
import shutil
import subprocess
import sys
import types
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import Emulator
from sklearn.base import clone

from skfleet import _cuda, _cuda_gram, _linalg
from skfleet._array import to_host
from skfleet._cuda import DeviceLimits
from skfleet._cuda_gram import GramConstants
from skfleet.blocks import _block
from skfleet.estimators.decomposition import PCA
from skfleet.estimators.linear_model import Ridge


@pytest.fixture(scope="module")
def compiled(kernel_folder):
    return Emulator(kernel_folder, Path(_cuda_gram.__file__).with_name("gram.cu"))


@pytest.fixture(params=[False, True], ids=["in order", "in reverse"])
def emulator(request, compiled, monkeypatch):
    def launch(source, name, grid, n_threads, args, *, shared=0):
        compiled.launched.append(name)
        compiled.run(source.options, name, grid, n_threads, shared, args)

    compiled.begin().reversed = request.param
    monkeypatch.setattr(_cuda, "launch", launch)
    limits = DeviceLimits(2, 227 * 1024, 228 * 1024)
    monkeypatch.setattr(_cuda_gram, "limits", lambda x: limits)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(zeros=np.zeros))
    return compiled


def whole_numbers(n, d, m, dtype):
    """Rows, shifts, factors and more columns, of which every sum of products is exact."""
    rng = np.random.default_rng(n + d)
    sizes = (n, d), (d,), (n,), (n, m)
    return [rng.integers(-4, 5, size).astype(dtype) for size in sizes]


SHAPES = [(1, 1, 1), (31, 7, 1), (33, 8, 0), (1000, 50, 2), (700, 100, 1), (70, 125, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("used", ["all", "none"])
def test_products_are_exact_on_whole_numbers(emulator, monkeypatch, shape, dtype, used):
    n, d, m = shape
    X, shift, factor, V = whole_numbers(n, d, m, dtype)
    monkeypatch.setattr(_cuda_gram, "MIN_ROWS", _cuda_gram.ROWS)
    V = V if m else None
    if used == "none":
        shift = factor = None
    Z = X if shift is None else (X - shift) * factor[:, None]
    Z = np.asarray(Z, np.float64)
    product, cross = _cuda_gram.products(X, shift, factor, V)
    np.testing.assert_array_equal(product, Z.T @ Z)
    np.testing.assert_array_equal(cross, Z.T @ V if m else np.zeros((d, 0)))
    assert emulator.launched == ["gram", "collect"]
    assert product.dtype == np.float64


def test_single_precision_is_of_few_rows(emulator, monkeypatch):
    monkeypatch.setattr(_cuda_gram, "FLUSH", 32)
    monkeypatch.setattr(_cuda_gram, "THREADS_PER_PROCESSOR", {4: 1})
    X = np.ones((500, 3), np.float32)
    X[0] = 2**13  # its square leaves no room for a 1
    product, _ = _cuda_gram.products(X, None, None, None)
    apart = 2.0**26 + 499 - product
    assert abs(apart).max() < 64
    assert abs(float(np.float32(2**26)) - product).min() > 400


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_self_test_finds_the_kernel_right(emulator, dtype):
    for n_columns, used in (((20, 1), (True, False)), ((9, 0), (False, True))):
        constants = GramConstants(np.dtype(dtype), *n_columns, *used)
        assert _cuda_gram.self_test(constants, np.zeros((0, 1), dtype)) == ""


def test_a_kernel_that_is_wrong_is_not_used(emulator, monkeypatch):
    right = _cuda.launch

    def launch(source, name, grid, n_threads, args, *, shared=0):
        right(source, name, grid, n_threads, args, shared=shared)
        if name == "collect":
            args[1][0, 1] += 50

    monkeypatch.setattr(_cuda, "launch", launch)
    constants = GramConstants(np.dtype(np.float32), 20, 1, True, True)
    with pytest.warns(RuntimeWarning, match="21 columns do without their CUDA kernel: wrong"):
        assert not _cuda_gram._passes_self_test.__wrapped__(constants, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_limits_of_a_block_hold_for_all_sizes(dtype):
    for d in range(1, _cuda_gram.MAX_COLUMNS + 1):
        constants = GramConstants(np.dtype(dtype), d, 0, True, True)
        assert constants.tiles * constants.side >= d
        assert constants.n_numbers <= constants.threads * constants.side**2
        assert constants.threads <= 1024
        assert constants.shared <= 48 * 1024
        assert constants.n_blocks(10, 132) == 1


def test_products_of_many_rows_are_summed_in_double(monkeypatch):
    strict = pytest.importorskip("array_api_strict")
    monkeypatch.setattr(_linalg, "PRODUCT_ROWS", 4)
    x = np.ones((4001, 2), np.float32)
    x[0] = 2**12  # its square leaves no room for the sum of the next three
    X = strict.asarray(x)
    for found in (
        _linalg.products_down(X, X),
        _linalg.weighted_gram(X, None, None, X)[0],
        _linalg.gram(X),
    ):
        assert found.dtype == strict.float64
        assert float(found[0, 0]) == pytest.approx(2**24 + 4000, abs=4)


@pytest.mark.parametrize("n", [1, 255, 256, 300, 2047, 2048, 5000])
def test_few_rows_are_left_for_the_last_reduction(monkeypatch, n):
    strict = pytest.importorskip("array_api_strict")
    seen = []

    def reduce(x, axis):
        seen.append(x.shape)
        return strict.sum(x, axis=axis)

    X = strict.asarray(np.arange(3.0 * n).reshape(n, 3))
    found = _linalg.reduce_down(reduce, X)
    np.testing.assert_allclose(to_host(found), np.arange(3.0 * n).reshape(n, 3).sum(axis=0))
    assert max(shape[axis] for shape, axis in zip(seen, [1, 0] * 9, strict=False)) <= 2048
    assert seen[-1][0] < _linalg.RUN_ROWS // 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_columns", [8, 52, 101, 128])
def test_compiles_for_devices_and_spills_a_few_registers_at_most(tmp_path, arch, dtype, n_columns):
    source = GramConstants(np.dtype(dtype), n_columns - 1, 1, True, True).source
    command = ["nvcc", *source.options, f"-arch={arch}", "-Xptxas", "-v", "-cubin"]
    command += ["-o", tmp_path / "gram.cubin", files(source.package) / source.file]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    # addresses, once for many rows: none in the loop over rows
    assert max(map(int, re.findall(r"(\d+) bytes spill", said))) <= 128
    assert "warning" not in said


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (200_003, 50, 1), (100_001, 100, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("used", ["all", "none"])
def test_products_on_a_device(shape, dtype, used):
    import cupy

    X, shift, factor, V = map(cupy.asarray, map(np.asarray, whole_numbers(*shape, dtype)))
    if used == "none":
        shift = factor = None
    is_used = used == "all"
    assert _cuda_gram.supports(X, V.shape[1], centered=is_used, weighted=is_used)
    host = [None if a is None else to_host(a).astype(np.float64) for a in (X, shift, factor, V)]
    found = _linalg.weighted_gram(X, shift, factor, V)
    for ours, theirs in zip(found, _linalg.weighted_gram(*host), strict=True):
        np.testing.assert_array_equal(to_host(ours), theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("model", [Ridge(), PCA(3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_reads_rows_on_a_device_once(monkeypatch, model, dtype):
    import cupy

    launched, launch = [], _cuda.launch

    def counted(source, name, *args, **kwargs):
        launched.append(name)
        launch(source, name, *args, **kwargs)

    monkeypatch.setattr(_cuda, "launch", counted)
    monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", 10_000)
    X = np.random.default_rng(0).normal(size=(20_000, 9)).astype(dtype) + 3
    y = X @ np.arange(9.0)
    expected = clone(model).fit(X.astype(float), y)
    assert _cuda_gram.supports(cupy.asarray(X), 2 if isinstance(model, Ridge) else 1)
    launched.clear()
    fitted = clone(model).fit(cupy.asarray(X), cupy.asarray(y))
    assert launched.count("gram") == launched.count("collect") == 1
    shown = "coef_" if hasattr(expected, "coef_") else "explained_variance_"
    tol = 1e-3 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(to_host(vars(fitted)[shown]), vars(expected)[shown], tol, tol)
