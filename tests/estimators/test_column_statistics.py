"""Sums of the first pass over rows: on the host, on a device, and by the CUDA kernel."""

import numpy as np
import pytest
from sklearn.datasets import make_classification

from skfleet import config_context
from skfleet._array import to_host, tree_to_host
from skfleet._linalg import row_bytes
from skfleet.blocks import Block, _block, row_blocks
from skfleet.engine import LocalEngine, Reduction, map_reduce
from skfleet.estimators import _column_statistics, _moments_kernel
from skfleet.estimators._column_moments import moments_of_values
from skfleet.estimators._column_statistics import (
    combine_summaries,
    label_counts,
    moments,
    sample,
    summarize,
)
from skfleet.estimators.feature_selection import VarianceThreshold
from skfleet.estimators.linear_model import LogisticRegression, PoissonRegressor
from skfleet.estimators.preprocessing import StandardScaler

rng = np.random.default_rng(0)
X, weight = rng.normal(size=(3000, 6)) + 5, rng.random(3000)
chosen = rng.integers(0, 3, 3000)
LABELS = {
    "whole": np.array([-2, 0, 7])[chosen],
    "few": np.array([3, 4, 6])[chosen[:1]],
    "bytes": np.array([-128, -100, -40], np.int8)[chosen],
    "far apart": np.array([-(2**40), 0, 2**40])[chosen],
    "large": np.array([2**63, 2**63 + 1, 2**64 - 1], np.uint64)[chosen],
    "boolean": chosen > 1,
    "one boolean": chosen > 5,
    "floats": np.array([-1.0, 0.0, 5.0])[chosen],
    "single": np.array([2.0**24, 2.0**24 + 2, 2.0**24 + 4], np.float32)[chosen],
    "halves": np.array([-0.5, 0.0, 1.0])[chosen],
    "huge floats": np.array([-1e300, 0.0, 1e300])[chosen],
    "many": rng.integers(0, 300, 3000),
}


def there(*arrays):
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    return [None if a is None else strict.asarray(a, device=device) for a in arrays]


def on_cuda(*arrays):
    import cupy

    return [None if a is None else cupy.asarray(a) for a in arrays]


def assert_same(ours, theirs, tol=1e-9):
    for a, b in zip(tree_to_host(tuple(ours)), theirs, strict=True):
        if isinstance(b, tuple):
            assert_same(a, b, tol)
        elif b is None or isinstance(b, list):
            assert a == b
        else:
            np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("with_x", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LABELS)
def test_labels_on_a_device_are_counted_as_on_the_host(name, weighted, with_x, monkeypatch):
    monkeypatch.setattr(_column_statistics, "MAX_RUN_ROWS", 700)
    y = LABELS[name]
    block = Block(X[: len(y)], y, weight[: len(y)] if weighted else None)
    expected = label_counts(block, with_x)
    found = label_counts(Block(*there(*block[:3])), with_x)
    assert found.labels.dtype == expected.labels.dtype
    np.testing.assert_array_equal(found.labels, np.unique(y))
    assert_same(found, expected)


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.bool_])
def test_a_few_whole_numbers_are_not_sorted(kind, monkeypatch):
    y = (chosen > 0).astype(kind)
    expected = label_counts(Block(X, y), True)
    monkeypatch.setattr(_column_statistics, "unique_inverse", None)
    assert_same(label_counts(Block(*there(X, y)), True), expected)


def test_labels_that_are_no_numbers_are_counted_on_a_device():
    rows, w = there(X, weight)
    y = np.array(["a", "b", "c"])[chosen]
    found, expected = (label_counts(Block(*args), True) for args in ((rows, y, w), (X, y, weight)))
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert_same(found[1:], expected[1:])


def test_products_with_indicators_read_the_rows_once(monkeypatch):
    monkeypatch.setattr(_column_statistics, "MAX_RUN_ROWS", 1000)
    read = []
    take = _column_statistics.rows_between
    monkeypatch.setattr(
        _column_statistics,
        "rows_between",
        lambda rows, low, high: read.append((low, high)) or take(rows, low, high),
    )
    label_counts(Block(*there(X, LABELS["many"] % 90)), True)
    assert read == [(0, 1000), (1000, 2000), (2000, 3000)]


@pytest.mark.parametrize("start", [0, 1235])
def test_rows_on_a_device_are_sampled_there(start, monkeypatch):
    expected = sample(Block(X, chosen, weight, row_offset=start), 0.1, 7)
    assert 200 < len(expected.X) < 400
    drawn, draw = [], _column_statistics.row_uniform

    def draw_there(*args):
        drawn.append(draw(*args))
        return drawn[-1]

    monkeypatch.setattr(_column_statistics, "row_uniform", draw_there)
    rows, w = there(X, weight)
    for y in (chosen, *there(chosen)):
        found = sample(Block(rows, y, w, row_offset=start), 0.1, 7)
        assert found.start == start
        for ours, theirs in zip(found[1:], expected[1:], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert all(type(draws) is type(rows) for draws in drawn)


def accept(y):
    """Find all targets valid."""


@pytest.fixture(params=["kernel", "operations"])
def path(request, monkeypatch):
    monkeypatch.setattr(_moments_kernel, "ENABLED", request.param == "kernel")
    return request.param


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("y", [chosen, chosen * 1.5, chosen * 10.0], ids=["whole", "any", "floats"])
def test_a_summary_on_a_gpu_is_that_of_the_host(path, dtype, weighted, y):
    w, tol = weight if weighted else None, 1e-3 if dtype == "float32" else 1e-6
    rows = X.astype(dtype)
    for check in (None, accept):
        expected = summarize(Block(rows, y, w, row_offset=0), 0.0, check)
        found = summarize(Block(*on_cuda(rows, y, w), row_offset=0), 0.0, check)
        assert_same(found, expected, tol)
        parts = [
            summarize(
                Block(*on_cuda(rows[part], y[part], None if w is None else w[part])), 0.0, check
            )
            for part in (slice(0, 1000), slice(1000, 3000))
        ]
        assert_same(combine_summaries(*parts), expected, tol)


@pytest.mark.gpu
def test_columns_too_many_for_sums_by_label_have_moments(path, monkeypatch):
    monkeypatch.setattr(_column_statistics, "MAX_SUMMED_COLUMNS", 5)
    for check in (None, accept):
        expected = summarize(Block(X, chosen, weight, row_offset=0), 0.0, check)
        assert expected.targets.x is None
        found = summarize(Block(*on_cuda(X, chosen, weight), row_offset=0), 0.0, check)
        assert_same(found, expected, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_values_on_a_gpu_are_those_of_the_host(path, weighted):
    gaps = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    gaps[:, 2], gaps[:, 3] = np.nan, 0.1
    w = weight if weighted else None
    assert_same(moments_of_values(*on_cuda(gaps, w)), moments_of_values(gaps, w))
    assert_same(moments(Block(*on_cuda(X))), moments(Block(X)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_on_a_gpu_are_those_of_the_host(path, dtype):
    rows, y = make_classification(2500, 6, n_classes=3, n_informative=4, random_state=0)
    rows, tol = (rows + 3).astype(dtype), 1e-3 if dtype == "float32" else 1e-6
    for model, target in [
        (LogisticRegression(tol=1e-8), y),
        (LogisticRegression(tol=1e-8), np.minimum(y, 1) * 1.0),
        (PoissonRegressor(tol=1e-8), np.abs(rows[:, 0])),
    ]:
        for w in (None, weight[:2500]):
            expected = model.fit(rows, target, sample_weight=w).coef_
            found = model.fit(*on_cuda(rows, target), sample_weight=on_cuda(w)[0])
            np.testing.assert_allclose(to_host(found.coef_), expected, rtol=tol, atol=tol)


@pytest.mark.gpu
def test_transformers_on_a_gpu_are_fitted_as_on_the_host(path, monkeypatch):
    import dask.array as da

    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    rows = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    rows[:, 1] = 7
    blocks = da.from_array(rows, chunks=(1000, 6))
    for model in (StandardScaler(), VarianceThreshold(0.5)):
        expected = vars(type(model)(**model.get_params()).fit(rows))
        for name, value in vars(model.fit(blocks.map_blocks(_to_cuda))).items():
            if name.endswith("_") and isinstance(value, np.ndarray):
                np.testing.assert_allclose(value, expected[name], rtol=1e-6, err_msg=name)


def _to_cuda(rows):
    return on_cuda(rows)[0]


@pytest.fixture
def launches(monkeypatch):
    """The names of what the stand-in for CuPy has been asked to compute."""
    import cupy

    if not hasattr(cupy, "_there"):
        pytest.skip("counts on the stand-in for CuPy")
    names, put, call, empty = [], cupy._there, cupy.RawKernel.__call__, cupy.empty

    def counted(values):
        if getattr(values, "base", values) is None:  # neither a view nor a Python number
            names.append("operation")
        return put(values)

    def launch(self, *args, **kwargs):
        names.append(self._name)
        return call(self, *args, **kwargs)

    def allocate(*args, **kwargs):
        array = empty(*args, **kwargs)
        names.pop()
        return array

    monkeypatch.setattr(cupy, "_there", counted)
    monkeypatch.setattr(cupy.RawKernel, "__call__", launch)
    monkeypatch.setattr(cupy, "empty", allocate)
    return names


KERNELS = ["summarize", "merge_parts"]


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
def test_the_first_pass_over_a_piece_takes_few_launches(launches, weighted):
    # as many rows as are summed by runs otherwise
    w = weight if weighted else None
    counts = {"whole": (chosen, 6), "floats": (chosen * 1.0, 11), "halves": (chosen / 2, 17)}
    for name, (y, n_most) in counts.items():
        block = Block(*on_cuda(X, y, w))
        summarize(block, 0.0, None)  # with the self-test
        launches.clear()
        summarize(block, 0.0, None)
        assert launches[-2:] == KERNELS, name
        assert len(launches) <= n_most, name
        launches.clear()
        label_counts(block)
        assert launches[-2:] == KERNELS, name
    summarize(block, 0.0, accept)
    launches.clear()
    summarize(block, 0.0, accept)
    assert len(launches) <= (8 if weighted else 4)
    for reduce in (moments, lambda block: moments_of_values(block.X, block.sample_weight)):
        reduce(block)
        launches.clear()
        reduce(block)
        assert launches == KERNELS


@pytest.mark.gpu
def test_further_pieces_take_no_more_launches_and_few_copies_home(launches, monkeypatch):
    import cupy

    monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", row_bytes(X) * 600)
    monkeypatch.setattr(_block, "MIN_PIECE_ROWS", 1)
    copies, get = [], cupy.ndarray.get
    monkeypatch.setattr(cupy.ndarray, "get", lambda self: copies.append(self.shape) or get(self))
    reduction = Reduction(summarize, combine_summaries)
    expected = map_reduce(LocalEngine(1), reduction, row_blocks(X, chosen, weight), 0.0, None)
    rows = row_blocks(*on_cuda(X, chosen, weight))
    for _ in range(2):  # the first one with the self-test
        launches.clear()
        copies.clear()
        found = map_reduce(LocalEngine(1), reduction, rows, 0.0, None)
    assert_same(found, expected)
    assert len(launches) <= 5 * 6
    # the least and the greatest label of a piece, then all its sums
    assert copies == [(2,), (3 * 6 + 3 * 8,)] * 5


@pytest.mark.gpu
def test_a_device_that_is_set_reads_rows_of_the_host_by_the_kernel(launches):
    y = chosen > 0
    expected = LogisticRegression().fit(X, y)
    with config_context(device="cuda"):
        found = LogisticRegression().fit(X, y)
    assert "summarize" in launches
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-4, atol=1e-4)
