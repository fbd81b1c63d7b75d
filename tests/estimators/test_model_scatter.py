"""A large model is sent to every worker once."""

import gc
import os
import pickle
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier

from skfleet import Fleet
from skfleet.estimators import ParallelPostFit


class Heavy(DummyClassifier):
    """A model of ten megabytes that counts how often a process unpacks it."""

    def fit(self, X, y):
        self.weights_ = np.random.default_rng(0).bytes(10 * 2**20)
        return super().fit(X, y)

    def __setstate__(self, state):
        super().__setstate__(state)
        os.environ["HEAVY"] = str(int(os.environ.get("HEAVY", 0)) + 1)


@pytest.fixture
def heavy():
    return ParallelPostFit(Heavy()).fit(np.zeros((4, 3)), [0, 1, 0, 1])


@pytest.fixture
def heavy_answer(heavy):
    with dask.config.set(scheduler="threads"):  # whatever clients other tests have left
        return heavy.predict(da.zeros((5000, 3), chunks=(100, 3)))


def _unpacked(client):
    return sorted(int(n or 0) for n in client.run(os.getenv, "HEAVY").values())


@pytest.mark.slow
def test_a_worker_unpacks_the_model_once(heavy):
    rows = da.zeros((5000, 3), chunks=(100, 3))
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        client.amm.stop()  # every two seconds it takes copies back that no task waits for
        for _ in range(2):
            assert heavy.predict(rows).compute().shape == (5000,)
            assert heavy.predict_proba(rows).compute().shape == (5000, 2)
            assert _unpacked(client) == [1, 1]
        heavy.estimator_.weights_ = b"".join([heavy.estimator_.weights_[:-1], b"x"])
        heavy.predict(rows).compute()
        assert _unpacked(client) == [2, 2]


def test_a_model_that_was_lent_goes_with_its_owner(cluster_client):
    rows = da.zeros((100, 3), chunks=(50, 3))
    model = ParallelPostFit(Heavy()).fit(np.zeros((4, 3)), [0, 1, 0, 1])
    with cluster_client.as_current():
        model.predict(rows).compute()
        held = [key for key in cluster_client.who_has() if "model-of-Heavy" in str(key)]
        assert len(held) == 1
        frame = dd.from_pandas(pd.DataFrame(np.zeros((10, 3))), npartitions=2)
        assert len(model.predict(frame).compute()) == 10
        assert model.score(rows, da.zeros(100, chunks=30, dtype=int)) == 1.0
        again = pickle.loads(pickle.dumps(model))
        del model
        gc.collect()
        deadline = time.monotonic() + 10
        while held[0] in cluster_client.who_has() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert held[0] not in cluster_client.who_has()
        assert again.predict(rows).compute().shape == (100,)


def test_answers_without_a_cluster_hold_the_model(heavy_answer):
    assert heavy_answer.compute(scheduler="threads").shape == (5000,)


@pytest.mark.slow  # it needs a machine on which nothing else talks to itself
@pytest.mark.skipif("lo" not in psutil.net_io_counters(pernic=True), reason="no Linux loopback")
def test_the_model_crosses_to_a_worker_once():
    rng = np.random.default_rng(0)
    forest = RandomForestClassifier(130, random_state=0)
    forest.fit(rng.normal(size=(2000, 6)), rng.integers(0, 3, 2000))
    size = len(pickle.dumps(forest))
    assert 10e6 < size < 20e6

    def received():
        """What went over the loopback interface so far, in models."""
        return psutil.net_io_counters(pernic=True)["lo"].bytes_recv / size

    model, rows = ParallelPostFit(forest), da.zeros((1000, 6), chunks=(10, 6))
    with Fleet(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        client.amm.stop()
        before = received()
        model.predict(rows).compute()
        once = received()
        model.predict_proba(rows).compute()
        again = received()
    once_each = once - before - 1  # one by the scheduler, from this process
    assert 0.9 <= once_each / 2 <= 1.2
    assert again - once < 0.2
