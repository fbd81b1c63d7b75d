"""Rows that are not kept in memory, on the disk: what is written, read, and left behind."""

from __future__ import annotations

import contextlib
import errno
import math
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression as LogisticRegressionInMemory
from sklearn.linear_model import SGDClassifier as SGDClassifierInMemory
from sklearn.model_selection import GridSearchCV as SearchInMemory

from clusters import local_client
from skfleet import config_context
from skfleet.blocks import open_block, row_blocks, with_pandas_text, write_block
from skfleet.engine import LocalEngine, Reduction, counting, engine_for, map_reduce
from skfleet.engine import _disk_cache as disk_cache
from skfleet.engine import _local as local
from skfleet.engine._dask import _disk_blocks as dask_cache
from skfleet.engine._dask._engine import DaskEngine
from skfleet.engine._disk_cache import DiskSpeed
from skfleet.estimators import (
    PCA,
    GammaRegressor,
    GaussianMixture,
    KMeans,
    LogisticRegression,
    MiniBatchKMeans,
    PoissonRegressor,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
    TruncatedSVD,
)
from skfleet.model_selection import GridSearchCV, SuccessiveHalvingSearchCV

N_BLOCKS, ROOM = 6, 1e9
rng = np.random.default_rng(0)
X = rng.normal(size=(600, 5)) + 3
target = np.abs(X @ [1.0, -1, 0.5, 0, 2]) + rng.gamma(2.0, size=600)
labels = np.where(X[:, 0] + rng.normal(size=600) > 3, "yes", "no").astype(object)
weight = rng.integers(1, 4, size=600).astype(float)
wide = rng.normal(size=(600, 60))
_loads: defaultdict[str, Counter] = defaultdict(Counter)
_lock = threading.Lock()


def _load(name, rows, cuts, block_info=None):
    i = block_info[None]["chunk-location"][0]
    with _lock:
        _loads[name][i] += 1
    return rows[cuts[i] : cuts[i + 1]]


class Files:
    """Rows of which it is counted how often each block is made."""

    def __init__(self, rows=X, n_blocks=N_BLOCKS):
        name = uuid4().hex
        self.loads = _loads[name]
        cuts = np.linspace(0, rows.shape[0], n_blocks + 1).astype(int)
        chunks = (tuple(np.diff(cuts).tolist()), *((n,) for n in rows.shape[1:]))
        load = partial(_load, name, rows, cuts)
        self.rows = da.map_blocks(load, chunks=chunks, dtype=rows.dtype, meta=rows[:0])


def _lazy(values):
    return da.from_array(values, chunks=(100, *values.shape[1:]))


def _sum(block):
    return block.X.sum(axis=0)


def _files(directory):
    """What lies in the cache directories below a directory."""
    return sorted(Path(directory).glob("**/*.joblib"))


def _no_files(directory):
    """Wait until the workers have let go of all files."""
    deadline = time.monotonic() + 10
    while _files(directory) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _files(directory)


CLUSTER = {"n_workers": 2, "processes": False, "set_as_default": False}


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """The folder of all files of this module, on workers and in this process."""
    folder = tmp_path_factory.mktemp("scratch")
    with dask.config.set({"temporary-directory": str(folder)}):
        yield folder


@pytest.fixture(scope="module")
def client(place):
    """Two workers, of two threads each, that write below `place`."""
    with local_client(**CLUSTER, threads_per_worker=2) as client:
        yield client


@pytest.fixture(params=["cluster", "here"])
def anywhere(request, place):
    """Cache what is not kept in memory, on a cluster and in this process."""
    with config_context(keep_blocks=False, disk_cache=ROOM):
        if request.param == "here":
            with config_context(engine="local"):  # a task of an earlier test may leave a client
                yield "here"
        else:
            with request.getfixturevalue("client").as_current():
                yield "cluster"
    assert _no_files(place)


FITS = {
    "newton": (LogisticRegression(solver="newton-cholesky"), "labels"),
    "lbfgs": (LogisticRegression(solver="lbfgs"), "labels"),
    "L1": (LogisticRegression(C=0.1, l1_ratio=1.0), "labels"),
    "poisson": (PoissonRegressor(), "target"),
    "gamma": (GammaRegressor(), "target"),
    "rows left out": (RidgeCV(), "target"),
    "SGD classes": (SGDClassifier(max_iter=4, tol=None, random_state=0), "labels"),
    "SGD numbers": (SGDRegressor(max_iter=4, tol=None, random_state=0), "target"),
    "k-means": (KMeans(4, max_iter=4, tol=0, random_state=0, n_init=1), None),
    "mini batches": (MiniBatchKMeans(4, max_iter=2, random_state=0, batch_size=50), None),
    "mixture": (GaussianMixture(3, covariance_type="diag", tol=0.1, random_state=0), "wide"),
    "PCA": (PCA(2, svd_solver="randomized", iterated_power=3, random_state=0), "wide"),
    "SVD": (TruncatedSVD(2, algorithm="randomized", n_iter=3, random_state=0), "wide"),
}


def _learned(model):
    names = ("coef_", "intercept_", "cluster_centers_", "inertia_", "components_", "means_")
    names += ("best_score_",)
    return {name: getattr(model, name) for name in names if hasattr(model, name)}


SOON = ("newton", "SGD classes", "k-means", "mini batches", "PCA")


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in FITS]
)
def test_a_fit_loads_each_block_once_and_learns_the_same(name, anywhere):
    model, kind = FITS[name]
    y = {"labels": _lazy(labels), "target": _lazy(target)}.get(kind)
    how = {} if kind == "wide" else {"sample_weight": _lazy(weight)}
    rows = wide if kind == "wide" else X
    with config_context(deterministic=True):
        with config_context(disk_cache=False), counting() as plain:
            streamed = Files(rows)
            expected = _learned(model.fit(streamed.rows, y, **how))
        files = Files(rows)
        with counting() as counts:
            found = _learned(model.fit(files.rows, y, **how))
    assert min(streamed.loads.values()) > 1, "it makes several passes"
    assert set(files.loads.values()) == {1}
    assert plain.cache_reads == 0
    assert plain.loads == sum(streamed.loads.values())
    assert counts.loads == N_BLOCKS
    # K-means makes its last pass apart where reading costs little.
    n_extra = N_BLOCKS if name in ("k-means", "mixture") else 0
    assert counts.cache_reads == plain.loads + n_extra
    assert found
    for attribute, values in expected.items():
        np.testing.assert_array_equal(found[attribute], values, err_msg=attribute)
        assert type(found[attribute]) is type(values), "no mapped array is learned"


def test_an_adaptive_search_loads_each_block_once(client, place):
    search = SuccessiveHalvingSearchCV(
        SGDClassifierInMemory(random_state=0),
        {"alpha": [1e-3, 1e-2, 1e-1]},
        n_initial_parameters=3,
        n_initial_iter=2,
        max_iter=8,
        random_state=0,
    )
    scores, loads = [], []
    for limit in (False, ROOM):
        files = Files()
        with client.as_current(), config_context(keep_blocks=False, disk_cache=limit):
            search.fit(files.rows, _lazy(labels))
        scores.append(search.cv_results_["mean_test_score"])
        loads.append(set(files.loads.values()))
    np.testing.assert_array_equal(*scores)
    assert min(loads[0]) > 1
    assert loads[1] == {1}
    assert _no_files(place)


@pytest.mark.slow
def test_a_grid_search_on_dask_rows_finds_the_same(client, place):
    grid = {"C": [0.01, 1.0]}
    expected = SearchInMemory(LogisticRegressionInMemory(), grid, cv=3).fit(X, labels)
    with client.as_current(), config_context(keep_blocks=False, disk_cache=ROOM):
        with counting() as counts:
            search = GridSearchCV(LogisticRegression(), grid, cv=3).fit(_lazy(X), _lazy(labels))
        assert counts.cache_reads
        assert search.best_params_ == expected.best_params_
        np.testing.assert_allclose(
            search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"]
        )
    assert _no_files(place)


def _with_weights(block):
    return np.array([block.X.sum(), block.y.sum(), block.sample_weight.sum(), len(block.X)])


@contextmanager
def _held(rows):
    """Hold rows where they run, and say how many of their blocks are on the disk."""
    engine = engine_for(rows)
    with engine.persist(rows) as held:
        yield engine, held, sum(disk_cache.is_cached(block) for block in held.blocks)


def test_all_values_of_a_block_come_back(anywhere):
    files = Files()
    group = labels == "yes"
    rows = row_blocks(files.rows, _lazy(target), _lazy(weight), per_sample={"group": _lazy(group)})
    with _held(rows) as (engine, held, n_cached):
        assert n_cached == N_BLOCKS
        assert engine.is_out_of_core(held), "solvers count a pass as one that reads"
        for _ in range(2):
            sums = map_reduce(engine, Reduction(_with_weights), held)
            np.testing.assert_allclose(sums, [X.sum(), target.sum(), weight.sum(), 600])
        (found,) = engine.gather(engine.map(_group_of, [held.blocks[1]]))
        np.testing.assert_array_equal(found, group[100:200])
        with engine.persist(held) as again:
            assert again is held
    assert set(files.loads.values()) == {1}


def _group_of(handle):
    return np.array(open_block(handle).per_sample["group"])


@pytest.mark.parametrize("kind", ["labels", "csr", "float32", "int8", "frame", "columns"])
def test_rows_of_any_kind_come_back(kind, anywhere):
    rows, dtype, y = X, np.float64, None
    if kind == "labels":
        y = _lazy(labels)
    if kind == "csr":
        rows = da.from_array(X, chunks=(100, 5)).map_blocks(sparse.csr_array)
    elif kind == "float32":
        rows, dtype = X.astype(np.float32), np.dtype(np.float32)
    elif kind == "int8":
        rows, dtype = X.astype(np.int8), np.dtype(np.int8)
    elif kind == "frame":
        rows = dd.from_pandas(pd.DataFrame(X, columns=list("abcde")), npartitions=6)
    elif kind == "columns":
        rows = da.from_array(X, chunks=(100, 2))
    expected = rows.astype(float).sum(axis=0) if kind in ("float32", "int8") else X.sum(axis=0)
    rows = Files(rows).rows if isinstance(rows, np.ndarray) else rows
    with _held(row_blocks(rows, y)) as (engine, held, n_cached):
        assert n_cached == N_BLOCKS
        kinds = engine.gather(engine.map(_kind_of, held.blocks))
        assert kinds == [(str(np.dtype(dtype)), kind == "csr", True)] * N_BLOCKS
        sums = map_reduce(engine, Reduction(_sum), held)
        np.testing.assert_allclose(np.asarray(sums).ravel(), expected, rtol=1e-5)


def _kind_of(handle):
    block = open_block(handle)
    values = block.X.data if sparse.issparse(block.X) else block.X
    assert type(values) is np.ndarray
    assert values.flags.c_contiguous
    return str(block.X.dtype), sparse.issparse(block.X), not values.flags.writeable


def test_rows_that_are_handed_on_stay_frames(anywhere):
    frame = pd.DataFrame({"a": X[:, 0], "s": labels, "c": pd.Categorical(labels)})
    rows = row_blocks(dd.from_pandas(frame, npartitions=3), dtype=None)
    with _held(rows) as (engine, held, n_cached):
        assert n_cached == 3
        found = engine.gather(engine.map(_frame_of, held.blocks))
    expected = with_pandas_text(dd.from_pandas(frame, npartitions=3).compute())
    pd.testing.assert_frame_equal(pd.concat(found), expected)


def _frame_of(handle):
    return open_block(handle).X.copy()


def test_empty_blocks_come_back(anywhere):
    rows = da.from_array(X, chunks=((300, 0, 300), (5,)))
    with _held(row_blocks(rows)) as (engine, held, n_cached):
        assert n_cached == 3
        np.testing.assert_allclose(map_reduce(engine, Reduction(_sum), held), X.sum(axis=0))


def test_blocks_that_share_work_are_made_once(anywhere):
    files = Files()
    rows = row_blocks((files.rows - files.rows.mean(axis=0)) / files.rows.std(axis=0))
    with _held(rows) as (engine, held, n_cached):
        assert n_cached == N_BLOCKS
        before = dict(files.loads)
        for _ in range(3):
            sums = map_reduce(engine, Reduction(_sum), held)
        np.testing.assert_allclose(sums, np.zeros(5), atol=1e-9)
    assert files.loads == before


def test_a_limit_is_kept_and_what_finds_no_room_is_loaded(anywhere, place):
    files = Files()
    rows, block_bytes = row_blocks(files.rows), 100 * 5 * 8
    n_stores = 1 if anywhere == "here" else 2
    with (
        config_context(disk_cache=2.5 * block_bytes),
        _held(rows) as (engine, held, n_cached),
        counting() as counts,
    ):
        assert 1 <= n_cached <= 2 * n_stores
        assert len(_files(place)) == n_cached
        assert sum(path.stat().st_size for path in _files(place)) < 2.5 * block_bytes * n_stores
        for _ in range(2):
            sums = map_reduce(engine, Reduction(_sum), held)
            np.testing.assert_allclose(sums, X.sum(axis=0))
    assert counts.cache_reads == 2 * n_cached
    assert counts.loads == 2 * (N_BLOCKS - n_cached)
    assert sum(files.loads.values()) == N_BLOCKS + counts.loads


@pytest.mark.parametrize("shares", [False, True])
def test_a_full_disk_is_no_error(shares, anywhere, place, monkeypatch):
    written = []

    def write(block, path):
        if len(written) < 2:
            written.append(path)
            return write_block(block, path)
        Path(path).write_bytes(b"as far as it went")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_cache, "write_block", write)
    files = Files()
    X_ = files.rows - files.rows.mean(axis=0) if shares else files.rows
    expected = X - X.mean(axis=0) if shares else X
    with _held(row_blocks(X_)) as (engine, held, n_cached):
        assert n_cached == 2
        assert sorted(map(str, _files(place))) == sorted(written), "half a file is removed"
        for _ in range(2):
            found = map_reduce(engine, Reduction(_squares), held)
            np.testing.assert_allclose(found, (expected**2).sum(axis=0))


def _squares(block):
    return (block.X**2).sum(axis=0)


@pytest.mark.parametrize(
    ("fits", "disk", "cached"), [(True, 0, 0), (False, 0, N_BLOCKS), (False, math.inf, 0)]
)
@pytest.mark.parametrize("where", ["cluster", "here"])
def test_by_default_the_disk_is_for_rows_too_large_where_it_pays(
    fits, disk, cached, where, client, place, monkeypatch
):
    def tried(space, limit, in_page_cache=False):
        assert in_page_cache == (where == "cluster"), "that memory holds a few rows is seen"
        return DiskSpeed(disk, disk)

    monkeypatch.setattr(dask_cache, "measure_disk", tried)
    monkeypatch.setattr(local, "measure_disk", tried)
    monkeypatch.setattr(disk_cache, "is_in_memory", lambda directory: False)
    if not fits:
        monkeypatch.setattr(DaskEngine, "free_bytes", lambda self: 100.0)
        monkeypatch.setattr(LocalEngine, "memory_limit", property(lambda self: 100))
    files = Files()
    with (
        client.as_current() if where == "cluster" else config_context(engine="local"),
        counting() as counts,
        _held(row_blocks(files.rows)) as (engine, held, n_cached),
    ):
        assert n_cached == cached
        map_reduce(engine, Reduction(_sum), held)
    with config_context(keep_blocks=False), _held(row_blocks(files.rows)) as (_, _, n_cached):
        assert not n_cached, "asked not to keep blocks, it does not measure either"
    assert counts.cache_reads == cached
    assert _no_files(place)


def _from(handle):
    return open_block(handle).X.sum()


def test_a_worker_that_borrows_a_block_keeps_it_when_its_owner_lets_go(client, place):
    files = Files()
    client.amm.stop()  # every two seconds it takes copies back that no task waits for
    with (
        client.as_current(),
        config_context(keep_blocks=False, disk_cache=ROOM),
        _held(row_blocks(files.rows)) as (_, held, _),
    ):
        block = held.blocks[0]
        (owner,) = client.who_has([block.X.stored])[block.X.stored.key]
        (other,) = set(client.nthreads()) - {owner}
        borrowed = client.submit(_from, block, workers=[other]).result()
        paths = [path for path in _files(place) if path.stat().st_nlink == 2]
        assert len(paths) == 2, "it shares the file"
        mine = client.run(_directory, workers=[owner])[owner]
        for path in paths:
            if path.is_relative_to(mine):
                path.unlink()
        assert client.submit(_from, block, workers=[other], pure=False).result() == borrowed
        assert files.loads[0] == 1
    assert _no_files(place)


def _directory(dask_worker):
    return dask_worker.local_directory


def test_a_file_that_is_gone_is_loaded_again_and_written_again(client, place):
    files = Files()
    with (
        client.as_current(),
        config_context(keep_blocks=False, disk_cache=ROOM),
        _held(row_blocks(files.rows)) as (engine, held, _),
    ):
        for path in _files(place)[:2]:
            path.unlink()
        for _ in range(2):
            sums = map_reduce(engine, Reduction(_sum), held)
            np.testing.assert_allclose(sums, X.sum(axis=0))
        assert len(_files(place)) == N_BLOCKS
        assert sum(files.loads.values()) == N_BLOCKS + 2
    assert _no_files(place)


def test_files_go_with_what_failed(anywhere, place):
    with contextlib.suppress(KeyboardInterrupt), _held(row_blocks(Files().rows)) as (_, _, n):
        assert len(_files(place)) == n == N_BLOCKS
        raise KeyboardInterrupt
    assert _no_files(place)


def test_files_go_with_the_worker(tmp_path):
    with local_client(**CLUSTER, directory=tmp_path, threads_per_worker=1) as client:
        with client.as_current(), config_context(keep_blocks=False, disk_cache=ROOM):
            engine = engine_for(row_blocks(Files().rows))
            holding = engine.persist(row_blocks(Files().rows))
            holding.__enter__()
            assert len(_files(tmp_path)) == N_BLOCKS
        client.cluster.close()
        assert not _files(tmp_path)
        with contextlib.suppress(Exception):
            holding.__exit__(None, None, None)


def test_a_worker_maps_its_blocks_in_as_many_tasks_as_it_has_threads(client):
    rows = row_blocks(da.ones((160, 5), chunks=(10, 5)))
    with (
        client.as_current(),
        config_context(keep_blocks=False, disk_cache=ROOM),
        _held(rows) as (engine, held, n_cached),
    ):
        assert n_cached == 16
        groups = engine.group_by_worker(held.blocks)
        assert 2 <= len(groups) <= 4
        assert sorted(b.number for group in groups for b in group) == list(range(16))
        with counting() as counts:
            map_reduce(engine, Reduction(_sum), held)
        assert counts.tasks <= 5


def test_blocks_on_the_disk_go_to_a_device(device, place):
    rows = da.from_array(X, chunks=(100, 5))
    expected = LogisticRegression().fit(X, labels)
    with (
        config_context(engine="local", keep_blocks=False, disk_cache=ROOM),
        counting() as counts,
    ):
        model = LogisticRegression(device="cuda").fit(rows, _lazy(labels))
    assert counts.loads == N_BLOCKS
    assert counts.cache_reads >= 2 * N_BLOCKS
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-4, atol=1e-4)
    assert _no_files(place)
