"""How often a pass of k-means launches its kernel and copies centres, however rows are cut."""

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from skfleet import _cuda
from skfleet._array import is_not_numpy, to_host
from skfleet._cuda import DeviceLimits
from skfleet._device import to_device
from skfleet.blocks import BlockCache, BlockRef, _block, row_blocks
from skfleet.engine import LocalEngine, Reduction, map_reduce
from skfleet.estimators.cluster import KMeans, _cuda_kernel, _device_assign
from skfleet.estimators.cluster._center_model import labels_from_cache
from skfleet.estimators.cluster._cuda_kernel import LaunchConfig
from skfleet.estimators.cluster._distances import Centers
from skfleet.estimators.cluster._reductions import (
    LLOYD,
    Candidates,
    LloydStep,
    NearestCandidate,
    candidate_weights,
)

rng = np.random.default_rng(0)
X, means = rng.normal(size=(400, 3)) + 5, rng.normal(size=(6, 3))
weight, mean = rng.random(400), np.full(3, 5.0)
H100 = DeviceLimits(132, 227 * 1024, 228 * 1024)


@pytest.fixture
def uploads(monkeypatch):
    """Sizes of the arrays that were copied to the device."""
    strict, sizes = pytest.importorskip("array_api_strict"), []
    monkeypatch.setenv("SKFLEET_DEVICE", "array_api_strict:device1")
    asarray = strict.asarray

    def counted(values, *args, **kwargs):
        if not is_not_numpy(values):
            sizes.append(np.size(values))
        return asarray(values, *args, **kwargs)

    monkeypatch.setattr(strict, "asarray", counted)
    return sizes


@pytest.fixture(params=["kernel", "tiles"])
def assigned(request, monkeypatch):
    """Numbers of the rows that were labelled at once, by the kernel or without it."""
    sizes, by_tiles = [], _device_assign._by_tiles

    def assign(rows, *args, **outputs):
        sizes.append(rows.shape[0])
        return by_tiles(rows, *args, **outputs)

    monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", 24 * 80)
    monkeypatch.setattr(_block, "MIN_PIECE_ROWS", 1)
    monkeypatch.setattr(_cuda_kernel, "supports", lambda X, k: request.param == "kernel")
    monkeypatch.setattr(_cuda_kernel, "assign", assign)
    monkeypatch.setattr(_device_assign, "_by_tiles", assign)
    monkeypatch.setattr(_cuda_kernel, "count", lambda dtype, *args: _counts(*args))
    return request.param, sizes


def _counts(w, labels, k):
    w = None if w is None else to_host(w)
    return to_device(np.bincount(to_host(labels), w, k).astype(float))


def in_blocks(*lengths):
    ends = np.cumsum([0, *lengths])
    blocks = [
        BlockRef(to_device(X[a:b]), None, to_device(weight[a:b]), i, int(a), cache=BlockCache())
        for i, (a, b) in enumerate(pairwise(ends))
    ]
    rows = row_blocks(to_device(X), None, to_device(weight))
    return replace(rows, blocks=tuple(blocks), lengths=lengths)


@pytest.mark.parametrize("about", [None, mean])
@pytest.mark.parametrize("lengths", [(400,), (240, 160)])
def test_a_kernel_takes_a_block_whole_and_centres_go_up_once(uploads, assigned, about, lengths):
    path, sizes = assigned
    rows = in_blocks(*lengths)
    step = LloydStep(Centers(means, about, np.float64), final=True)
    uploads.clear()
    found = map_reduce(LocalEngine(1), LLOYD, rows, step)
    assert sizes == (list(lengths) if path == "kernel" else [80] * 5)
    assert [n for n in uploads if n != 1] == [6 * 3 + 6 + 3 * (about is not None)] + (
        [6] * len(sizes)  # the counts of this test
        if path == "kernel"
        else []
    )
    here = replace(row_blocks(X, None, weight), checked=True)
    expected = map_reduce(LocalEngine(1), LLOYD, here, step)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    labels = to_host(labels_from_cache(rows))
    np.testing.assert_array_equal(labels, step.centers.labels(step.centers.about_mean(X)))


def test_rows_that_are_to_be_converted_or_checked_are_cut(uploads, assigned):
    _, sizes = assigned
    step = LloydStep(Centers(means, None, np.float64))
    single = replace(row_blocks(to_device(X.astype(np.float32))), dtype=np.dtype(np.float64))
    unchecked = replace(row_blocks(to_device(X)), checked=False)
    for rows in (single, unchecked):
        sizes.clear()
        map_reduce(LocalEngine(1), LLOYD, rows, step)
        assert sizes == [80] * 5


def test_iterations_free_the_distances_of_the_start(uploads, assigned):
    rows, start = in_blocks(240, 160), Centers(means, mean, np.float64)
    weights = map_reduce(
        LocalEngine(1), Reduction(candidate_weights), rows, Candidates(start, 0, start, 0)
    )
    np.testing.assert_allclose(weights.sum(), weight.sum())
    cached = [value for block in rows.blocks for value in block.cache.values()]
    assert [type(value) for value in cached] == [NearestCandidate] * 5
    map_reduce(LocalEngine(1), LLOYD, rows, LloydStep(start))
    assert not any(block.cache for block in rows.blocks)


def test_fits_do_not_depend_on_how_rows_are_cut(uploads, assigned):
    settings = {"n_clusters": 4, "random_state": 0, "init": "k-means||"}
    expected = KMeans(**settings).fit(X, sample_weight=weight)
    found = KMeans(**settings, device="cuda").fit(X, sample_weight=weight)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-9)
    np.testing.assert_array_equal(found.labels_, expected.labels_)


def test_centres_are_pickled_without_their_copies(uploads):
    centers = Centers(means, mean, np.float64)
    there = to_device(X)
    values, norms, about = centers.on_device_of(there)
    assert centers.on_device_of(there)[0] is values
    for copy, original in ((values, means), (norms, centers.norms), (about, mean)):
        np.testing.assert_array_equal(to_host(copy), original)
    assert centers.on_device_of(to_device(X.astype(np.float32)))[0].dtype != values.dtype
    again = pickle.loads(pickle.dumps(centers))
    assert not again._copies
    np.testing.assert_array_equal(to_host(again.on_device_of(there)[0]), means)


@pytest.mark.parametrize(
    ("d", "k", "n_blocks"), [(50, 100, 2 * 132), (50, 56, 8 * 132), (50, 8, 8 * 132)]
)
def test_as_many_blocks_as_run_where_sums_fill_shared_memory(d, k, n_blocks):
    config = LaunchConfig.of(np.dtype(np.float32), k, d, H100)
    assert config.fused
    assert config.assign_grid(10**7, H100) == (n_blocks, 1, 1)
    assert config.assign_grid(1000, H100) == (8, 1, 1)


@pytest.mark.parametrize(("d", "k", "n_blocks"), [(100, 100, 4 * 132), (4, 8, 8 * 132)])
def test_sums_by_label_are_of_as_many_blocks_as_run(d, k, n_blocks):
    config = LaunchConfig.of(np.dtype(np.float32), k, d, H100)
    x, y, z = config.sums_grid(10**7, k, d, H100)
    assert n_blocks - y * z < x * y * z <= n_blocks


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_iteration_on_a_device_is_one_launch(dtype, monkeypatch):
    import cupy

    launched, launch = [], _cuda.launch

    def counted(source, name, *args, **kwargs):
        launched.append(name)
        launch(source, name, *args, **kwargs)

    centers, rows = rng.normal(size=(20, 10)), rng.normal(size=(3_000, 10)).astype(dtype)
    there = cupy.asarray(rows)
    assert _cuda_kernel.supports(there, 20)
    monkeypatch.setattr(_cuda, "launch", counted)
    monkeypatch.setattr(_block, "DEVICE_PIECE_BYTES", rows.nbytes // 5)
    step = LloydStep(Centers(centers, None, rows.dtype))
    found = map_reduce(LocalEngine(1), LLOYD, row_blocks(there), step)
    assert launched == ["assign"]
    expected = map_reduce(LocalEngine(1), LLOYD, row_blocks(rows), step)
    tol = 1e-3 if dtype == "float32" else 1e-6
    np.testing.assert_allclose(found.sums, expected.sums, tol, tol)
    np.testing.assert_allclose(found.weights, expected.weights)
