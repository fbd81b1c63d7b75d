"""The CUDA kernel of stochastic gradient descent, emulated on the host, and on a device."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulated_kernels import Emulator

from skfleet._cuda import DeviceLimits
from skfleet.estimators import SGDClassifier, SGDRegressor
from skfleet.glm import (
    REGRESSION_LOSSES,
    SGD_LOSSES,
    SGDConfig,
    SGDTargets,
    SGDWeights,
    _sgd_kernel,
    descend,
)
from skfleet.glm._sgd_kernel import DescentLaunch, DescentOptions
from skfleet.glm._sgd_steps import descend_by_batches

SOURCE = Path(_sgd_kernel.__file__).with_name("descent.cu")
H100 = DeviceLimits(132, 227 * 1024, 228 * 1024)
SMALL = DeviceLimits(1, 40 * 1024, 48 * 1024)  # where no batch is staged


class DescentEmulator(Emulator):
    """Takes the place of `launch`."""

    def launch(self, build, name, grid, shared, args):
        self.launched.append((name, grid, build.is_staged))
        self.run(build.options, name, grid, _sgd_kernel.THREADS, shared, args)


@pytest.fixture(scope="module")
def compiled(kernel_folder):
    return DescentEmulator(kernel_folder, SOURCE)


@pytest.fixture
def emulator(compiled, monkeypatch):
    monkeypatch.setattr(_sgd_kernel, "launch", compiled.launch)
    monkeypatch.setattr(_sgd_kernel, "limits", lambda x: H100)
    return compiled.begin()


def configured(loss, **settings):
    usual = {"epsilon": 0.1, "l1": 0.0, "l2": 0.0, "alpha": 1e-2, "learning_rate": "constant"}
    usual |= {"eta0": 0.05, "power_t": 0.25, "fit_intercept": True, "average": 0}
    return SGDConfig(loss=loss, **usual | {"batch_size": 16, "track_objective": False} | settings)


def problem(loss, n, d, dtype="float64", *, weighted=True, seed=0):
    """Return initial weights, rows and targets: of three classes, or of a regression."""
    rng, k = np.random.default_rng(seed), 1 if loss in REGRESSION_LOSSES else 3
    rows = (rng.normal(size=(n, d)) / np.sqrt(d)).astype(dtype)
    weight = rng.random(n) if weighted else None
    targets = SGDTargets(rng.normal(size=n), weight)
    if k == 3:
        sides = rng.random((2, 3)) if weighted else None
        targets = SGDTargets(rng.integers(0, 3, n), weight, np.arange(3), sides)
    coef, applied = rng.normal(size=(k, d)), rng.random((k, d)) / 10
    start = SGDWeights(coef, rng.normal(size=k), coef + 1, np.ones(k), applied)
    return start._replace(l1_due=rng.random(k), value=2.0, penalty=3.0, t=5.0), rows, targets


def compare(start, rows, targets, config, order=None, tol=1e-11):
    learned = _sgd_kernel.descend(start, rows, targets, config, order)
    expected = descend_by_batches(start, rows, targets, config, order)
    for name, ours, theirs in zip(SGDWeights._fields, learned, expected, strict=True):
        if theirs is None:
            assert ours is None
            continue
        np.testing.assert_allclose(ours, theirs, tol, tol, err_msg=name)
        assert np.shape(ours) == np.shape(theirs), name
    assert not np.allclose(learned.coef, start.coef)


def with_everything(loss, **settings):
    usual = {"l1": 1e-2, "l2": 3e-2, "average": 30, "track_objective": True}
    return configured(loss, **usual | settings)


@pytest.mark.parametrize("loss", SGD_LOSSES)
def test_losses_are_those_of_the_host(emulator, loss):
    order = np.random.default_rng(1).permutation(41)
    compare(*problem(loss, 41, 5), with_everything(loss), order)
    emulator.reversed = True  # threads may run in any order
    compare(*problem(loss, 41, 5, weighted=False), configured(loss))
    k = 1 if loss in REGRESSION_LOSSES else 3
    names = [("schedule", (1, 1, 1), True), ("descend", (k, 1, 1), True)]
    assert emulator.launched == names * 2


SHAPES = [  # rows, columns, rows of a batch
    (1, 1, 16),
    (1, 3, 1),
    (5, 2, 1),
    (40, 1, 16),
    (37, 33, 7),
    (300, 50, 256),
    (530, 6, 257),
    (513, 3, 512),
    (20, 700, 8),
]


@pytest.mark.parametrize(("n", "d", "size"), SHAPES)
@pytest.mark.parametrize("is_staged", [True, False], ids=["staged", "from-memory"])
@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_shapes_of_batches(emulator, monkeypatch, n, d, size, is_staged, loss):
    if not is_staged:
        monkeypatch.setattr(DescentLaunch, "of", _from_memory(DescentLaunch.of))
    order = np.random.default_rng(2).permutation(n) if size % 2 else None
    emulator.reversed = bool(size % 2)
    compare(*problem(loss, n, d), with_everything(loss, batch_size=size), order)
    assert {staged for *_, staged in emulator.launched} == {is_staged}


def _from_memory(of):
    def without_tiles(dtype, d, size, limits):
        fits = of(dtype, d, size, limits)
        least = fits.shared - dtype.itemsize * 2 * fits.capacity * (fits.stride - 1)
        return of(dtype, d, size, limits._replace(shared=max(least, fits.shared - 1)))

    return without_tiles


@pytest.mark.parametrize("is_staged", [True, False], ids=["staged", "from-memory"])
@pytest.mark.parametrize(
    ("loss", "kind", "dtype"),
    [
        ("hinge", "pa1", "float32"),
        ("epsilon_insensitive", "pa2", "float64"),
        pytest.param("epsilon_insensitive", "pa1", "float64", marks=pytest.mark.slow),
        pytest.param("hinge", "pa2", "float32", marks=pytest.mark.slow),
    ],
)
def test_passive_aggressive_steps(emulator, monkeypatch, loss, kind, dtype, is_staged):
    if not is_staged:
        monkeypatch.setattr(DescentLaunch, "of", _from_memory(DescentLaunch.of))
    start, rows, targets = problem(loss, 40, 9, dtype)
    rows[::3] = 0  # teach nothing
    config = with_everything(loss, learning_rate=kind, eta0=0.7)
    compare(start, rows, targets, config, tol=1e-11 if dtype == "float64" else 1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learning_rate": "invscaling"},
        {"learning_rate": "optimal"},
        {"fit_intercept": False},
        {"l2": 0.1},
        {"l2": 30.0},  # the weights decay to zero
        {"l1": 0.05},
        {"average": 1},
        {"average": 45},
        {"average": 10**6},
        {"track_objective": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_settings_by_themselves(emulator, loss, settings):
    start, rows, targets = problem(loss, 60, 4)
    compare(start, rows, targets, configured(loss, **settings))
    rates = np.linspace(0.2, 1.0, len(start.intercept))  # after decays of "adaptive"
    start = start._replace(mean_coef=None, mean_intercept=None, rate=rates)
    if not settings.get("average"):
        compare(start, rows, targets, configured(loss, **settings))


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_single_precision_is_that_of_the_rows(emulator, loss):
    order = np.random.default_rng(3).permutation(90)
    start, rows, targets = problem(loss, 90, 7, "float32")
    compare(start, rows, targets, with_everything(loss), order, tol=1e-5)
    as_columns = targets._replace(values=np.repeat(targets.values, 2)[::2])
    compare(start, rows, as_columns, with_everything(loss), order, tol=1e-5)


def test_weights_that_leave_the_numbers_do_so_here_too(emulator):
    start, rows, targets = problem("squared_error", 40, 3)
    rows[20] = np.nan
    for size in (1, 16):
        compare(start, rows, targets, configured("squared_error", batch_size=size))
    rows[20] = 1e200
    learned = _sgd_kernel.descend(start, rows, targets, configured("squared_error"))
    assert not np.isfinite(learned.coef).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [H100, SMALL], ids=["large", "small"])
def test_launches_fit(dtype, limit):
    for size in (1, 8, 39, 256, 512, 513):
        for d in (1, 2, 50, 100, 999, 4000, 100_000):
            _check_launch(np.dtype(dtype), d, size, limit)


def _check_launch(dtype, d, size, limit):
    config = DescentLaunch.of(dtype, d, size, limit)
    if config is None:
        assert size > 512 or d * (24 + 2 * dtype.itemsize) > limit.shared / 2
        return
    assert size <= 512
    assert size <= config.capacity <= max(2 * size - 1, 16)
    assert config.shared <= limit.shared
    assert config.stride >= d
    for address in (0, 4 * dtype.itemsize, 3 * dtype.itemsize):
        copied = config.copy_bytes(d, dtype.itemsize, address)
        assert copied >= dtype.itemsize
        assert not (config.stride * dtype.itemsize) % copied
        assert not (d * dtype.itemsize) % copied
        assert not address % copied


def test_usual_batches_are_staged():
    assert DescentLaunch.of(np.dtype(np.float32), 100, 256, H100).is_staged
    assert DescentLaunch.of(np.dtype(np.float64), 50, 256, H100).is_staged
    assert not DescentLaunch.of(np.dtype(np.float64), 100, 256, H100).is_staged


@pytest.mark.parametrize("wrong", [0.0, 0.01])
def test_self_test_tells_a_wrong_kernel(emulator, monkeypatch, wrong):
    def launch(build, name, grid, shared, args):
        emulator.launch(build, name, grid, shared, args)
        if name == "descend":
            args[9][:, 3] += wrong

    monkeypatch.setattr(_sgd_kernel, "launch", launch)
    for loss, rate in [("log_loss", "optimal"), ("squared_error", "invscaling")]:
        problem = _sgd_kernel.self_test(np.zeros((0, 5)), loss, rate, 16)
        assert problem == ("wrong coef" if wrong else "")


@pytest.fixture
def launched(monkeypatch):
    """The kernels that are launched, those of self-tests first."""
    names = []
    launch = _sgd_kernel.launch

    def record(build, name, *args):
        names.append(name)
        launch(build, name, *args)

    monkeypatch.setattr(_sgd_kernel, "launch", record)
    return names


def _target(kind, n_classes, X):
    signal = X[:, 0] - X[:, 1] + np.random.default_rng(5).normal(size=len(X))
    if kind is SGDRegressor:
        return signal.astype(X.dtype)
    return np.digitize(signal, [-1, 1] if n_classes == 3 else [0])


ESTIMATORS = [
    (SGDClassifier, 2, {}),
    (SGDClassifier, 2, {"loss": "log_loss", "penalty": "l1", "alpha": 1e-3}),
    (SGDClassifier, 3, {"loss": "modified_huber", "learning_rate": "invscaling"}),
    (SGDClassifier, 3, {"average": True, "class_weight": {1: 2.0}}),
    (SGDClassifier, 3, {"loss": "perceptron", "learning_rate": "constant", "eta0": 0.01}),
    (SGDClassifier, 2, {"learning_rate": "pa1", "penalty": None}),
    (SGDRegressor, 0, {}),
    (SGDRegressor, 0, {"loss": "huber", "penalty": "elasticnet", "learning_rate": "adaptive"}),
]


def _names(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("kind", "n_classes", "settings"), ESTIMATORS, ids=_names)
def test_fits_come_to_the_kernel(emulator, monkeypatch, kind, n_classes, settings):
    X = np.random.default_rng(4).normal(size=(100, 4))
    y = _target(kind, n_classes, X)
    settings = settings | {"max_iter": 2, "tol": None, "random_state": 0, "device": "cpu"}
    settings["batch_size"] = 8  # "auto" is one row here
    expected = kind(**settings).fit(X, y)
    assert not emulator.launched
    monkeypatch.setattr(_sgd_kernel, "supports", lambda X, targets, config: True)
    found = kind(**settings).fit(X, y)
    assert [name for name, *_ in emulator.launched] == ["schedule", "descend"] * 2
    np.testing.assert_allclose(found.coef_, expected.coef_, 1e-9, 1e-12)
    emulator.launched.clear()
    for model in (expected, found):
        model.partial_fit(X, y)
    assert len(emulator.launched) == 4
    np.testing.assert_allclose(found.intercept_, expected.intercept_, 1e-9, 1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kind", "n_classes", "settings"), ESTIMATORS, ids=_names)
def test_fits_on_a_device_are_those_of_the_host(launched, kind, n_classes, settings, dtype):
    X = np.random.default_rng(4).normal(size=(1_000, 6)).astype(dtype)
    y = _target(kind, n_classes, X)
    weight = np.random.default_rng(6).random(len(X))
    settings = settings | {"max_iter": 3, "tol": None, "random_state": 0, "batch_size": 8}
    expected = kind(**settings).fit(X, y, sample_weight=weight)
    found = kind(**settings, device="cuda").fit(X, y, sample_weight=weight)
    assert launched[-6:] == ["schedule", "descend"] * 3
    tol = 1e-3 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(found.coef_, expected.coef_, tol, tol)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, tol, tol)
    np.testing.assert_allclose(found.history_["loss"], expected.history_["loss"], tol)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d", "size"), [*SHAPES, (400, 1_500, 256)])
@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_descent_on_a_device(n, d, size, loss, dtype):
    import cupy

    start, rows, targets = problem(loss, n, d, dtype)
    config = with_everything(loss, batch_size=size)
    order = np.random.default_rng(2).permutation(n)
    X = cupy.asarray(rows)
    there = targets._replace(
        values=cupy.asarray(targets.values), sample_weight=cupy.asarray(targets.sample_weight)
    )
    assert _sgd_kernel.supports(X, there, config)
    learned = descend(start, X, there, config, order)
    expected = descend_by_batches(start, rows, targets, config, order)
    tol = 1e-3 if dtype == "float32" else 1e-6
    for name, ours, theirs in zip(SGDWeights._fields, learned, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, tol, tol, err_msg=name)
    behind = cupy.concatenate([X[:1], X])[1:]  # at another address
    np.testing.assert_allclose(
        descend(start, behind, there, config, order).coef, expected.coef, tol, tol
    )


@pytest.mark.gpu
@pytest.mark.parametrize("n_batches", [3, 40])
def test_operations_on_a_device_are_a_handful(monkeypatch, n_batches):
    # On the stand-in each function of CuPy is Python's, and is counted.
    import cupy

    start, rows, targets = problem("log_loss", 8 * n_batches, 3)
    X, config = cupy.asarray(rows), with_everything("log_loss", batch_size=8)
    assert _sgd_kernel.supports(X, targets, config)
    called = []

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename == getattr(cupy, "__file__", None):
            called.append(frame.f_code.co_name)

    order = np.arange(len(rows))[::-1]
    sys.setprofile(note)
    try:
        descend(start, X, targets, config, order)
    finally:
        sys.setprofile(None)
    # Arrays that go up: rates, state, targets, weights of rows and of sides, order, classes; two
    # of them are then put into the form that the kernel reads.
    assert called.count("array") <= 9
    assert called.count("__call__") in (0, 2)
    assert called.count("get") + called.count("__float__") <= 2


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ["contiguous", "columns", "strided", "integers"])
def test_kernel_is_for_small_batches_of_rows_one_after_the_other(rows):
    import cupy

    _, X, targets = problem("log_loss", 1_200, 4)
    X = cupy.asarray(X)
    X = {
        "contiguous": X,
        "columns": cupy.asfortranarray(X),
        "strided": X[::2],
        "integers": X.astype(cupy.int32),
    }[rows]
    for size in (1, 512, 513):
        config = configured("log_loss", batch_size=size)
        supported = rows == "contiguous" and size <= 512
        assert _sgd_kernel.supports(X, targets, config) == supported
    counts = SGDTargets(np.arange(1_200))
    config = configured("squared_error")
    assert not _sgd_kernel.supports(X, counts, config)


@pytest.mark.slow
@pytest.mark.parametrize("loss", SGD_LOSSES)
@pytest.mark.parametrize("rate", ["constant", "optimal", "pa1"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [16, 256])
def test_self_test_passes_for_all_losses(emulator, loss, rate, dtype, size):
    if rate != "pa1" or loss in ("hinge", "epsilon_insensitive"):
        for d in (1, 50):
            rows_like = np.zeros((0, d), dtype)
            assert _sgd_kernel.self_test(rows_like, loss, rate, size) == ""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("is_staged", [True, False])
@pytest.mark.parametrize(
    ("loss", "passive", "is_limited"),
    [("log_loss", 0, False), ("huber", 0, True), ("hinge", 1, True), ("hinge", 2, True)],
)
def test_compiles_for_devices_without_spilling_registers(
    tmp_path, arch, itemsize, is_staged, loss, passive, is_limited
):
    build = DescentOptions(itemsize, loss, passive, is_limited, is_staged)
    command = ["nvcc", *build.options, f"-arch={arch}", "-Xptxas", "-v", "-cubin"]
    command += ["-o", tmp_path / "descent.cubin", SOURCE]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert said.count("0 bytes spill stores, 0 bytes spill loads") >= 2
    assert " bytes spill stores" not in said.replace("0 bytes spill stores", "")
    assert "warning" not in said
