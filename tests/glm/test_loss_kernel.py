"""The CUDA kernel of losses: emulated on the host, on a device, and what is encoded once for it."""

import shutil
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import Emulator

from skfleet import _cuda_gram
from skfleet._array import to_host
from skfleet._cuda import DeviceLimits
from skfleet.blocks import Block, BlockCache, _block, row_blocks
from skfleet.engine import LocalEngine
from skfleet.estimators.linear_model import LogisticRegression, PoissonRegressor
from skfleet.glm import _loss_kernel, _objective
from skfleet.glm._loss_kernel import LossConstants, loss_sums
from skfleet.glm._losses import BinaryLogistic, Multinomial, SquaredError, Tweedie
from skfleet.glm._objective import ClassEncoding, Objective, Scaling

SOURCE = Path(_loss_kernel.__file__).with_name("linear_loss.cu")
SMALL = DeviceLimits(1, 99 * 1024, 100 * 1024)
LOSSES = [
    BinaryLogistic(),
    SquaredError(),
    *(Tweedie(power) for power in (-3.0, 0.0, 1.0, 1.5, 1.9, 2.0, 4.0)),
    *(Tweedie(power, log_link=False) for power in (-3.0, 0.0, 1.0, 1.5, 2.0, 2.7)),
]
SHAPES = [(1, 1), (1, 5), (5, 2), (900, 1), (700, 3), (301, 17), (257, 33), (130, 100), (33, 700)]
WITHOUT_LIMIT = 10**9


class LossEmulator(Emulator):
    """Takes the place of `launch`."""

    def launch(self, build, name, grid, args):
        self.launched.append((name, grid))
        self.run(build.options, name, grid, _loss_kernel.THREADS, build.shared, args)


@pytest.fixture(scope="module")
def compiled(kernel_folder):
    return LossEmulator(kernel_folder, SOURCE)


@pytest.fixture
def emulator(compiled, monkeypatch):
    monkeypatch.setattr(_loss_kernel, "launch", compiled.launch)
    monkeypatch.setattr(_loss_kernel, "limits", lambda x: SMALL)
    monkeypatch.setattr(_loss_kernel, "BLOCKS_PER_PROCESSOR", 2)  # so that warps have several turns
    return compiled.begin()


def problem(n, d, dtype, loss, *, seed=0):
    """Return rows, a predictor with means, targets and weights, of which all means are possible."""
    rng = np.random.default_rng(seed)
    X, center = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=d).astype(dtype)
    coef = rng.normal(size=d) / np.sqrt(d)
    constant = 0.5 - min(0.0, ((X - center) @ coef).min(), (X @ coef).min())
    y = rng.integers(0, 2, n).astype(dtype) + (loss.valid_targets == "above 0")
    return X, coef, constant, center, y.astype(dtype), rng.random(n).astype(dtype)


def expected_sums(loss, X, coef, constant, center, y, weight, columns=None):
    """Return what NumPy finds, and the sizes of what it sums up."""
    Z = (X if center is None else X - center).astype(np.float64)
    weight = np.ones(len(X)) if weight is None else weight.astype(np.float64)
    y = y.astype(np.float64)
    value, slope, mean = loss.evaluate(y, (Z @ coef + constant)[:, None])
    slope, curve = slope[:, 0] * weight, loss.hessian(y, mean, 0, 0) * weight
    chosen = Z if columns is None else Z[:, columns]
    sums = [value @ weight, [slope.sum()], [slope @ Z], curve.sum(), curve @ chosen]
    sizes = [abs(value) @ weight, abs(slope).sum(), abs(slope) @ abs(Z), curve.sum()]
    root = np.sqrt(curve)
    rows = root[:, None] * chosen
    return [*sums, root, rows], [*sizes, curve @ abs(chosen), root + 1, abs(rows) + 1]


def check_sums(loss, X, coef, constant, center, y, weight, *, columns=None, **how):
    build = LossConstants.of(X.dtype, X.shape[1], loss, centered=center is not None)
    means = np.empty(0) if center is None else center
    predictor = np.concatenate([coef, [constant], means])
    found = loss_sums(build, X, predictor, y, weight, columns=columns, **how)
    sums, sizes = expected_sums(loss, X, coef, constant, center, y, weight, columns)
    tol = 200 * np.finfo(X.dtype).eps
    n_sums = 3 if not how["hessian"] else 6
    assert sum(part is not None for part in found) == n_sums
    for ours, theirs, size in zip(found, sums, sizes, strict=True):
        if ours is not None:
            assert ours.shape == np.shape(theirs)
            assert np.all(abs(ours - theirs) <= tol * size)
    assert found.value.dtype == found.coef_gradient.dtype == np.float64
    return found


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("centered", [False, True])
def test_sums_are_those_of_arrays(emulator, n, d, dtype, centered):
    loss = BinaryLogistic()
    X, coef, constant, center, y, weight = problem(n, d, dtype, loss)
    center = center if centered else None
    for how, w in enumerate([weight, None]):
        emulator.reversed = bool(how)  # threads may run in any order
        found = check_sums(loss, X, coef, constant, center, y, w, hessian=False)
        both = check_sums(loss, X, coef, constant, center, y, w, hessian=True)
        roots = check_sums(loss, X, coef, constant, center, y, w, hessian=True, scaled=False)
        for a, b, c in zip(found[:3], both, roots, strict=False):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)
        some = np.arange(d)[::-2]
        check_sums(loss, X, coef, constant, center, y, w, hessian=True, columns=some)
    assert [name for name, _ in emulator.launched[:4]] == [
        "gradient",
        "add_up",
        "hessian",
        "add_up",
    ]
    assert emulator.launched[0][1][0] <= 2


@pytest.mark.sampled(10)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_every_loss_is_that_of_arrays(emulator, loss, dtype):
    X, coef, constant, _, y, weight = problem(150, 6, dtype, loss)
    check_sums(loss, X, coef, constant, None, y, weight, hessian=True)
    build = LossConstants.of(np.dtype(dtype), 6, loss, centered=False)
    assert _loss_kernel.self_test(build, loss, np.zeros(0, dtype)) == ""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logistic_losses_of_large_predictors_are_finite(emulator, dtype):
    X = np.array([[-5e3], [5e3], [-5e3], [5e3], [0]], dtype=dtype)
    y = np.array([0, 1, 1, 0, 1], dtype=dtype)
    found = check_sums(BinaryLogistic(), X, np.ones(1), 0.0, None, y, None, hessian=True)
    assert found.value == pytest.approx(1e4 + np.log(2), rel=1e-6)
    assert found.curve == pytest.approx(0.25)


@pytest.mark.parametrize("loss", [Tweedie(1.0), Tweedie(1.5, log_link=False)], ids=repr)
def test_a_step_too_far_has_an_infinite_value(emulator, loss):
    X = np.array([[1.0], [2.0], [-3.0]], dtype=np.float32)
    far = 1e4 if loss.log_link else 1.0
    build = LossConstants.of(X.dtype, 1, loss, centered=False)
    y = np.ones(3, np.float32)
    assert loss_sums(build, X, np.array([far, 0.0]), y, None).value == np.inf
    assert np.isfinite(loss_sums(build, X, np.array([0.1, 1.0]), y, None).value)


def test_what_has_no_kernel():
    def build(d, loss=LOSSES[0], dtype=np.float32):
        return LossConstants.of(np.dtype(dtype), d, loss, centered=False)

    assert build(1024).columns == 32
    assert build(1025) is None
    assert build(768, dtype=np.float64).columns == 24
    assert build(769, dtype=np.float64) is None
    assert build(0) is None
    assert build(3, Multinomial(3)) is None
    assert build(3, SquaredError(2)) is None
    assert build(3, Tweedie(4.5)) is None
    assert build(3, type("Other", (Tweedie,), {})(1.0)) is None  # its loss may be another
    assert _loss_kernel.kernel_constants(np.ones((3, 2)), BinaryLogistic(), centered=False) is None


@pytest.mark.parametrize("d", [1, 2, 3, 31, 32, 33, 100, 513, 768])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constants_have_room_for_every_column(d, dtype):
    build = LossConstants.of(np.dtype(dtype), d, BinaryLogistic(), centered=True)
    assert d <= build.width < 2 * max(d, 2)
    assert build.rows * build.columns * build.itemsize <= 64 or build.rows == 1
    assert build.shared <= 48 * 1024
    assert build.grid(WITHOUT_LIMIT, DeviceLimits(132, 0, 0))[0] == 6 * 132
    assert build.grid(1, SMALL) == (1, 1, 1)


@pytest.mark.parametrize("name", ["gradient", "hessian", "add_up"])
def test_a_kernel_that_is_wrong_is_not_used(emulator, monkeypatch, name):
    def launch(build, launched, grid, args):
        emulator.launch(build, launched, grid, args)
        if launched == name:
            args[1 if name == "add_up" else 4][..., -1] *= 1.01

    monkeypatch.setattr(_loss_kernel, "launch", launch)
    cupy = types.SimpleNamespace(zeros=np.zeros, ndarray=type("ndarray", (), {}))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    loss = BinaryLogistic()
    build = LossConstants.of(np.dtype(np.float32), 6, loss, centered=False)
    with pytest.warns(RuntimeWarning, match="BinaryLogistic.* without its CUDA kernel.*wrong sums"):
        assert not _loss_kernel.self_test_passes.__wrapped__(build, loss, 0)


def objective(loss, X, y, weight, labels, *, offset=0.0):
    rows = replace(row_blocks(X, y, weight), checked=True)
    scaling = Scaling(np.full(X.shape[1], offset), np.linspace(1, 2, X.shape[1]))
    return Objective(LocalEngine(1), rows, loss, total_weight=10.0, scaling=scaling, labels=labels)


def counted(function, calls):
    def call(*args, **kwargs):
        calls.append(function.__name__)
        return function(*args, **kwargs)

    return call


@pytest.fixture
def counted_encodings(monkeypatch):
    """How often targets are encoded."""
    calls = []
    monkeypatch.setattr(_objective, "encode_targets", counted(_objective.encode_targets, calls))
    return calls


def test_targets_on_a_device_are_encoded_once(counted_encodings):
    strict = pytest.importorskip("array_api_strict")
    X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    names, weight = np.array([3, 7])[(X[:, 0] > 0).astype(int)], np.arange(60.0)
    labels = ClassEncoding(np.array([3, 7]), np.array([1.0, 2.0]))
    there = [strict.asarray(part, device=strict.Device("device1")) for part in (X, names, weight)]
    ours = objective(BinaryLogistic(), *there, labels)
    assert len(counted_encodings) == 1
    (block,) = ours._rows.blocks
    assert (block.y.dtype, block.sample_weight.dtype) == (strict.float32, strict.float32)
    theirs = objective(BinaryLogistic(), X, names, weight, labels)
    assert theirs._rows.blocks[0].sample_weight is weight
    coef = np.array([0.5, 1.0, -1.0, 0.2])
    for a, b in zip(*(o.evaluate(coef, hessian=True) for o in (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_caches_hold_targets_of_one_fit(counted_encodings):
    strict = pytest.importorskip("array_api_strict")
    y, cache = np.array([3, 7, 7]), BlockCache()
    X = strict.asarray(np.ones((3, 2), np.float32), device=strict.Device("device1"))
    block = Block(X, y, None, 0, 0, cache=cache)
    one = ClassEncoding(np.array([3, 7]), token="one")

    def encoded(block, labels):
        values, weight = _objective._cached_targets(block, labels, X)
        assert values.device == X.device
        return to_host(values).tolist(), None if weight is None else to_host(weight).tolist()

    assert encoded(block, one) == encoded(block, one) == ([0, 1, 1], None)
    assert len(counted_encodings) == 1
    other = ClassEncoding(np.array([3, 7]), np.array([1.0, 0.5]), token="other")
    assert encoded(block, other) == ([0, 1, 1], [1, 0.5, 0.5])
    assert encoded(block._replace(row_offset=3, y=y[::-1]), other) == ([1, 1, 0], [0.5, 0.5, 1])
    assert len(cache) == 2
    # without a place for them, or a token, they are encoded each time
    calls = len(counted_encodings)
    for here in (block._replace(row_offset=None), block._replace(cache=None)):
        encoded(here, other)
    encoded(block, ClassEncoding(np.array([3, 7])))
    assert len(counted_encodings) == calls + 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("d", [3, 50, 100, 512, "most"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiles_for_devices_without_spilling_registers(tmp_path, arch, d, dtype):
    most = 32 * _loss_kernel.MAX_COLUMNS_PER_THREAD[np.dtype(dtype).itemsize]
    for loss, centered in ((BinaryLogistic(), False), (Tweedie(1.7, log_link=False), True)):
        d = most if d == "most" else d
        build = LossConstants.of(np.dtype(dtype), d, loss, centered=centered)
        command = ["nvcc", *build.options, f"-arch={arch}", "-Xptxas", "-v", "-cubin"]
        command += ["-o", tmp_path / "loss.cubin", SOURCE]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        assert said.count("bytes spill stores") == said.count(" 0 bytes spill stores") >= 3
        assert "warning" not in said


@pytest.mark.gpu
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_derivatives_on_a_device_are_those_of_the_host(monkeypatch, loss, dtype, offset):
    import cupy

    X, coef, constant, _, y, weight = problem(1_200, 20, dtype, loss)
    coef = np.append(coef * np.linspace(1, 2, 20), constant)
    X = X + np.asarray(offset, X.dtype)
    labels = ClassEncoding(np.array([0, 1])) if loss == BinaryLogistic() else ClassEncoding()
    here = objective(loss, X.astype(np.float64), y, weight, labels, offset=offset)
    there = objective(loss, *map(cupy.asarray, (X, y, weight)), labels, offset=offset)
    launched, launch = [], _loss_kernel.launch
    monkeypatch.setattr(
        _loss_kernel, "launch", lambda *args: launched.append(args[1]) or launch(*args)
    )
    monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", 400 * X.itemsize * 20)
    monkeypatch.setattr(_cuda_gram, "ENABLED", not offset)  # or scaled rows, by pieces
    tol = 1e-3 if dtype == "float32" else 1e-6
    columns = np.array([0, 7, 19])
    for how in ({}, {"hessian": True}, {"hessian": True, "columns": columns}):
        launched.clear()
        found, exact = there.evaluate(coef, **how), here.evaluate(coef, **how)
        assert found.value == pytest.approx(exact.value, rel=tol)
        for ours, theirs in zip(found[1:], exact[1:], strict=True):
            if theirs is not None:
                np.testing.assert_allclose(ours, theirs, tol, tol * abs(theirs).max())
        n_pieces = 3 if "columns" in how or (how and offset) else 1
        assert launched[-2 * n_pieces :] == ["hessian" if how else "gradient", "add_up"] * n_pieces


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("enabled", [True, False], ids=["kernel", "arrays"])
@pytest.mark.parametrize("kind", [LogisticRegression, PoissonRegressor])
def test_fits_on_a_device_are_those_of_the_host(monkeypatch, dtype, enabled, kind):
    monkeypatch.setattr(_loss_kernel, "ENABLED", enabled)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2_000, 12)).astype(dtype)
    y = rng.poisson(np.exp(X[:, 0] / 2))
    y, weight = (y > 0) * 2 if kind is LogisticRegression else y, rng.random(2_000)
    expected = kind().fit(X.astype(np.float64), y, weight)
    found = kind(device="cuda").fit(X, y, weight)
    tol = 1e-3 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(found.coef_, expected.coef_, tol, tol)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, tol, tol)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["contiguous", "columns", "strided", "targets"])
def test_kernel_is_only_for_rows_one_after_the_other(order):
    import cupy

    X = cupy.random.default_rng(0).standard_normal((300, 6), dtype=cupy.float32)
    X = {"columns": cupy.asfortranarray(X), "strided": X[::2]}.get(order, X)
    y = cupy.asarray(np.arange(600, dtype=np.float32) % 2)
    y = y[::2] if order == "targets" else y[: len(X)]
    loss, rows = BinaryLogistic(), order in ("contiguous", "targets")
    constants = _loss_kernel.kernel_constants(X, loss, centered=False)
    assert (constants is not None) == rows
    ours = objective(loss, X, y, None, ClassEncoding(np.array([0.0, 1.0])))
    theirs = objective(loss, *map(to_host, (X, y)), None, ClassEncoding(np.array([0.0, 1.0])))
    coef = np.linspace(-1, 1, 7)
    found, exact = ours.evaluate(coef), theirs.evaluate(coef)
    np.testing.assert_allclose(found.gradient, exact.gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("d", "hessian", "most", "each"),
    [(10, False, 3, 0), (140, False, 3, 0), (10, True, 5, 0), (140, True, 10, 16)],
)
def test_a_pass_launches_few_kernels(monkeypatch, d, hessian, most, each):
    """An upload of coefficients and two launches, and as many for products of few columns."""
    cupy = pytest.importorskip("cupy")
    if not hasattr(cupy, "launched"):
        pytest.skip("operations are counted by the stand-in for CuPy")
    X = cupy.random.default_rng(0).standard_normal((3_000, d), dtype=cupy.float32)
    y, weight = cupy.asarray(np.arange(3_000) % 2), cupy.asarray(np.arange(3_000.0))
    labels = ClassEncoding(np.array([0, 1]), np.array([0.5, 1.0]))
    ours = objective(BinaryLogistic(), X, y, weight, labels)
    ours.evaluate(np.zeros(d + 1), hessian=hessian)  # with self-tests
    counts, waits = [], []
    for name in ("get", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(cupy.ndarray, name, counted(getattr(cupy.ndarray, name), waits))
    for n_pieces in (1, 3):
        monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", 4 * d * 3_000 // n_pieces)
        cupy.launched.clear()
        waits.clear()
        ours.evaluate(np.full(d + 1, 0.1), hessian=hessian)
        assert waits == ["get"] * (6 if hessian else 3)
        counts.append(len(cupy.launched))
    assert counts[0] <= most, cupy.launched
    assert counts[1] - counts[0] <= 2 * each, cupy.launched


@pytest.mark.gpu
@pytest.mark.parametrize("on_host", [True, False], ids=["host-targets", "device-targets"])
def test_dask_rows_on_a_device_move_their_targets_once(cluster_client, on_host, counted_encodings):
    import cupy
    import dask.array as da

    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4)).astype(np.float32)
    y = (X[:, 0] + rng.normal(size=400) > 0).astype(int)
    there = da.from_array(X, chunks=(100, 4)).map_blocks(cupy.asarray)
    targets = da.from_array(y, chunks=100)
    targets = targets if on_host else targets.map_blocks(cupy.asarray)
    with cluster_client.as_current():
        found = LogisticRegression().fit(there, targets)
    assert found.n_iter_[0] > 1
    assert len(counted_encodings) == 4  # blocks
    expected = LogisticRegression().fit(X, y)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-3)
