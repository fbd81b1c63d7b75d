"""What passes over rows on a device wait for, and rows that no device holds at once."""

import contextlib
import sys
from functools import partial
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.model_selection import KFold

from skfleet import _device, config_context
from skfleet._device import DEVICE_MEMORY_VARIABLE
from skfleet._linalg import row_bytes
from skfleet.blocks import Block, _block, make_folds, row_blocks
from skfleet.engine import LocalEngine, Reduction, map_reduce
from skfleet.engine._prefetch import prefetch
from skfleet.estimators._column_statistics import combine_moments, label_counts, moments
from skfleet.estimators.cluster import KMeans, MiniBatchKMeans, SpectralClustering
from skfleet.estimators.decomposition import PCA, IncrementalPCA, TruncatedSVD
from skfleet.estimators.decomposition._randomized_svd import (
    combine_first_sketches,
    first_sketch,
    sketch,
)
from skfleet.estimators.linear_model import (
    ElasticNet,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifier,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
)
from skfleet.estimators.mixture import GaussianMixture
from skfleet.glm import block_row_factor, combine_residuals, combine_row_factors, residuals_by_split
from skfleet.glm._losses import BinaryLogistic, Multinomial, Tweedie
from skfleet.glm._normal_equations import block_cross_products, combine_products
from skfleet.glm._objective import ClassEncoding, Objective, Scaling

X, target = make_regression(400, 8, noise=3, random_state=0)
labels = make_classification(400, 8, n_classes=3, n_informative=4, random_state=0)[1]
weight = np.random.default_rng(0).uniform(size=400)


@pytest.fixture
def waits(monkeypatch):
    """How often the host has waited for a value of the device."""
    told = []

    def counted(method):
        def wait(self, *args, **kwargs):
            told.append(method.__name__)
            return method(self, *args, **kwargs)

        return wait

    array = type(pytest.importorskip("array_api_strict").asarray(1.0))
    for name in ("__bool__", "__float__", "__index__", "__int__", "to_device"):
        monkeypatch.setattr(array, name, counted(getattr(array, name)))
    return told


def there(*arrays):
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    return [None if a is None else strict.asarray(a, device=device) for a in arrays]


def objective(loss, rows, classes=None, class_weight=None):
    return Objective(
        LocalEngine(1),
        rows,
        loss,
        total_weight=1.0,
        scaling=Scaling(X.mean(axis=0), X.std(axis=0)),
        labels=ClassEncoding(classes, class_weight),
    )


def evaluate(loss, y, weight, hessian, classes=None, class_weight=None):
    def run(rows):
        coef = np.full(loss.n_outputs * 9, 0.1)
        one = objective(loss, rows, classes, class_weight)
        return partial(one.evaluate, coef, hessian=hessian)

    return y, weight, run


def reduce(reduction, *args, y=None, weight=None):
    return y, weight, lambda rows: partial(map_reduce, LocalEngine(1), reduction, rows, *args)


basis = np.random.default_rng(0).normal(size=(8, 3))
even = np.array([0.5, 1.0, 2.0])
folds = make_folds(KFold(4), 400)
models = basis.T.reshape(1, 1, 3, 8).repeat(4, axis=0), np.zeros((4, 1, 3))
PASSES = {
    "gradient": evaluate(BinaryLogistic(), labels > 0, None, False, np.array([False, True])),
    "hessian": evaluate(BinaryLogistic(), labels > 0, weight, True, np.array([False, True])),
    "multinomial": evaluate(Multinomial(3), labels, weight, True, np.arange(3), even),
    "poisson": evaluate(Tweedie(1.0), np.abs(target), weight, True),
    "products": reduce(Reduction(block_cross_products, combine_products), y=target, weight=weight),
    "moments": reduce(Reduction(moments, combine_moments)),
    "first sketch": reduce(Reduction(first_sketch, combine_first_sketches), basis),
    "sketch": reduce(Reduction(sketch), basis, X.mean(axis=0)),
    "residuals": reduce(
        Reduction(residuals_by_split, combine_residuals), folds, *models, True, y=target
    ),
    "factor": reduce(
        # the signs of its rows are arbitrary
        Reduction(block_row_factor, combine_row_factors, lambda factor: (factor.gram, factor.xy)),
        y=target,
        weight=weight,
    ),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_waits_for_its_result_only(name, waits, monkeypatch):
    y, w, make = PASSES[name]
    expected = make(row_blocks(X, y, w))()
    found, waited = [], []
    for n_pieces in (1, 5):
        monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", row_bytes(X) * (400 // n_pieces))
        run = make(row_blocks(*there(X, y, w)))
        waits.clear()
        found.append(run())
        waited.append(list(waits))
    for one in found:
        for a, b in zip(one, expected, strict=True):
            if not isinstance(b, tuple) and b is not None and name != "triangle":
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert waited[0] == waited[1]
    assert set(waited[0]) == {"to_device"}


@pytest.mark.parametrize("order", [np.arange(400), np.argsort(labels, kind="stable")])
def test_products_with_classes_merge_on_the_device(order, waits, monkeypatch):
    expected = RidgeClassifier().fit(X[order], labels[order])
    monkeypatch.setattr(_block, "MIN_PIECE_ROWS", 1)
    waited = []
    for n_pieces in (1, 5):
        monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", row_bytes(X) * (400 // n_pieces))
        rows = there(X[order], labels[order])
        waits.clear()
        model = RidgeClassifier().fit(*rows)
        waited.append(len(waits))
        np.testing.assert_allclose(model.coef_, expected.coef_)
    # each further piece for its labels
    assert waited[1] - waited[0] == 4


@pytest.mark.parametrize("with_x", [False, True])
def test_labels_are_counted_in_one_wait_after_that_for_their_values(with_x, waits):
    rows, y, w = there(X, labels, weight)
    waits.clear()
    counts = label_counts(Block(rows, y, w), with_x)
    assert len(waits) == 2
    expected = label_counts(Block(X, labels, weight), with_x)
    for a, b in zip(counts, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            np.testing.assert_allclose(a, b)


def test_an_epoch_waits_as_often_for_many_batches_as_for_one(waits):
    models = []
    for batch_size in (400, 20):
        model = SGDClassifier(penalty="l1", batch_size=batch_size, random_state=0)
        rows = there(X, labels, weight)
        model.partial_fit(*rows[:2], np.arange(3), sample_weight=rows[2])
        models.append((list(waits), model))
        waits.clear()
    assert models[0][0] == models[1][0]
    expected = clone(model).partial_fit(X, labels, np.arange(3), sample_weight=weight)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-9)


CASES = [
    (Ridge(), target),
    (RidgeCV(), target),
    (ElasticNet(), target),
    (PoissonRegressor(), np.abs(target)),
    (LogisticRegression(), labels),
    (LogisticRegression(), labels.astype(str)),
    (RidgeClassifier(), labels),
    (SGDRegressor(max_iter=5, tol=None, shuffle=False), target),
    (KMeans(3, n_init=1, random_state=0), None),
    (MiniBatchKMeans(3, random_state=0, n_init=1), None),
    (GaussianMixture(3, tol=1.0, random_state=0), None),
    (SpectralClustering(3, n_landmarks=40, random_state=0), None),
    (PCA(3), None),
    (TruncatedSVD(3, random_state=0), None),
    (IncrementalPCA(3, batch_size=320), None),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("where", ["here", "fleet"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case[0]))
@pytest.mark.usefixtures("device")
def test_rows_that_the_device_does_not_hold_are_loaded_in_parts(case, where, request, monkeypatch):
    estimator, y = case
    sizes, upload = [], _device.to_device

    def watched(x):
        if getattr(x, "ndim", 0) == 2:
            sizes.append(x.nbytes)
        return upload(x)

    monkeypatch.setattr(_block, "to_device", watched)
    monkeypatch.setenv(DEVICE_MEMORY_VARIABLE, str(X.nbytes // 4))
    there = clone(estimator).set_params(device="cuda")
    with contextlib.ExitStack() as stack:
        if where == "fleet":
            stack.enter_context(request.getfixturevalue("mixed_fleet").as_current())
        there.fit(X, y)
    assert sum(sizes) >= X.nbytes
    assert max(sizes) <= X.nbytes // 32 + X[0].nbytes
    with config_context(device="cuda"):
        lengths = row_blocks(X).lengths
    in_blocks = clone(estimator).fit(da.from_array(X, chunks=(lengths, 8)), y)
    for name, value in vars(in_blocks).items():
        if name.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            np.testing.assert_allclose(vars(there)[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
    if hasattr(there, "predict") and hasattr(there, "labels_"):
        np.testing.assert_array_equal(there.labels_, there.predict(X))


def test_ahead_loads_one_more_and_raises_in_place():
    begun = []

    def load(i):
        begun.append(i)
        return 1 // (3 - i)

    coming = prefetch([partial(load, i) for i in range(6)])
    for i in range(3):
        next(coming)
        assert max(begun) <= i + 1
    with pytest.raises(ZeroDivisionError):
        next(coming)
    assert begun == [0, 1, 2, 3]


def test_a_load_beside_kernels_waits_for_those_that_read_what_it_may_overwrite(monkeypatch):
    log, made = [], []

    class Event:
        def __init__(self, disable_timing):
            self.queued = None

        def record(self):
            self.queued = len(log)

    class Stream:
        def __init__(self, non_blocking):
            assert non_blocking
            made.append(self)

        def __enter__(self):
            log.append("enter")

        def __exit__(self, *error):
            log.append("leave")

        def wait_event(self, event):
            log.append(("wait", event.queued))

        def synchronize(self):
            log.append("done")

    class Device:
        id = 1

        def __enter__(self):
            log.append("device 1")

        def __exit__(self, *error):
            pass

    cuda = SimpleNamespace(Stream=Stream, Event=Event, Device=Device)
    cupy = SimpleNamespace(cuda=cuda)
    library = _device.DeviceLibrary(SimpleNamespace(__name__="array_api_compat.cupy"), None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(_device, "device_library", lambda: library)
    _device._copy_stream.cache_clear()
    n = 5
    for i, _ in enumerate(prefetch([partial(log.append, ("load", i)) for i in range(n)])):
        log.append(("compute", i))
    for i in range(n):
        load = log.index(("load", i))
        before = [entry for entry in log[:load] if entry != ("compute", i - 1)]
        assert before[-3:-1] == ["device 1", "enter"]
        name, queued = before[-1]
        assert name == "wait"
        assert i < 2 or log.index(("compute", i - 2)) < queued
        assert "done" in log[load : log.index(("compute", i))]
    assert list(prefetch([int, int])) == [0, 0]
    assert len(made) == 1  # CuPy keeps memory by stream, for ever
    _device._copy_stream.cache_clear()
