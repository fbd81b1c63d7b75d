"""Large arguments of calls: scattered once, read-only, and released."""

import gc
import time
import weakref

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config
from sklearn.dummy import DummyRegressor
from sklearn.model_selection import GridSearchCV

from skfleet._cluster._client_state import state_of


def total(X, *rest):
    return float(X.sum())


# -- shared arguments --------------------------------------------------------------------------


def test_equal_content_is_sent_once(processes, sent):
    X = np.arange(20_000.0)
    with parallel_config("skfleet", client=processes):
        for _ in range(5):
            assert Parallel()(delayed(total)(X, i) for i in range(4)) == [X.sum()] * 4
        same = X.copy()
        assert Parallel()(delayed(total)(same, i) for i in range(4)) == [X.sum()] * 4
        assert len(sent) == 1
        X[0] = 7
        assert Parallel()(delayed(total)(X, i) for i in range(4)) == [X.sum()] * 4
        assert len(sent) == 2


def test_shared_data_go_with_the_object(processes, sent):
    gc.collect()
    X = np.arange(30_000.0)
    before = len(state_of(processes).scattered)
    with parallel_config("skfleet", client=processes):
        Parallel()(delayed(total)(X, i) for i in range(4))
    assert len(sent) == 1
    gc.collect()
    assert len(state_of(processes).scattered) == before + 1
    del X
    gc.collect()
    assert len(state_of(processes).scattered) == before


def test_workers_in_this_process_do_not_keep_data_alive(threads, sent):
    X = np.arange(30_000.0)
    alive = weakref.ref(X)
    with parallel_config("skfleet", client=threads):
        Parallel()(delayed(total)(X, i) for i in range(4))
    assert len(sent) == 1
    del X
    for _ in range(500):
        gc.collect()
        if alive() is None:
            break
        time.sleep(0.01)
    assert alive() is None


def n_tasks(client):
    return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))


def test_rows_of_a_search_leave_threads_with_it(threads):
    """Without a collection of garbage, though the rows live on in the process of the call."""
    X = np.arange(60_000.0).reshape(-1, 3)
    search = GridSearchCV(
        DummyRegressor(strategy="quantile"), {"quantile": [0.1, 0.5]}, cv=2, refit=False
    )
    gc.collect()
    gc.disable()
    try:
        with parallel_config("skfleet", client=threads):
            search.fit(X, X[:, 0])
        deadline = time.monotonic() + 10
        while n_tasks(threads) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert n_tasks(threads) == 0
    finally:
        gc.enable()


def test_small_arguments_travel_with_their_calls(client, sent):
    with parallel_config("skfleet", client=client):
        Parallel()(delayed(total)(np.ones(100), i) for i in range(4))
    assert sent == []


def test_large_list_is_sent_once_and_not_shared_by_calls(client, sent):
    words = [f"word {i}" for i in range(20_000)]
    with parallel_config("skfleet", client=client):
        lengths = Parallel(batch_size=1)(delayed(append_and_count)(words) for _ in range(6))
    assert lengths == [20_001] * 6
    assert len(words) == 20_000
    assert len(sent) == 1


def append_and_count(words):
    words.append("more")
    return len(words)


def test_large_closure_is_sent_once(client, sent):
    X = np.arange(200_000.0)

    def shifted(i):
        return X[i]

    with parallel_config("skfleet", client=client):
        assert Parallel(batch_size=1)(delayed(shifted)(i) for i in range(6)) == list(range(6))
    assert len(sent) == 1


def test_heavy_batch_is_sent_apart_from_the_graph(client, sent):
    arrays = [np.full(5_000, float(i)) for i in range(120)]
    with parallel_config("skfleet", client=client):
        totals = Parallel(batch_size=30, pre_dispatch="all")(
            delayed(total)(array) for array in arrays
        )
    assert totals == [5_000.0 * i for i in range(120)]
    assert len(sent) == 4


def test_large_array_is_read_only_and_small_one_a_copy(client):
    with parallel_config("skfleet", client=client):
        small = np.zeros(20_000)
        assert Parallel()(delayed(fill)(small) for _ in range(3)) == [20_000.0] * 3
        assert small.sum() == 0
        with pytest.raises(ValueError, match="read-only"):
            Parallel()(delayed(fill)(np.zeros(200_000)) for _ in range(3))


def fill(X):
    assert not X.any()
    X[:] = 1
    return X.sum()


def test_fortran_order_survives(client):
    X = np.asfortranarray(np.arange(40_000.0).reshape(200, 200))
    with parallel_config("skfleet", client=client):
        [(same, flags)] = Parallel()(delayed(look)(X) for _ in range(1))
    np.testing.assert_array_equal(same, X)
    assert flags


def look(X):
    return X, X.flags.f_contiguous and not X.flags.c_contiguous


def test_scatter_sends_small_objects_once_for_the_context(client, sent):
    x = np.arange(5)
    with parallel_config("skfleet", client=client, scatter=[x]):
        for _ in range(3):
            assert Parallel()(delayed(total)(x, i) for i in range(4)) == [10.0] * 4
    assert len(sent) == 1
