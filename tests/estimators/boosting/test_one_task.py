"""Boosting on few Dask rows: one task, with the threads of all workers of its machine."""

import dask.array as da
import numpy as np
import pytest

from clusters import local_client
from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators.boosting import _boosted_estimator

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

from skfleet.estimators import LGBMRegressor, XGBRegressor  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
Y = X[:, 0] + RNG.normal(size=200)
ROWS, TARGET = da.from_array(X, chunks=(50, 4)), da.from_array(Y, chunks=50)


@pytest.fixture(scope="module")
def client():
    with local_client(2, threads_per_worker=2, processes=False) as client:
        yield client


@pytest.fixture
def limits(monkeypatch):
    """Return the limits of threads that fits set."""
    limits, limit_threadpools = [], _boosted_estimator.limit_threadpools

    def record(n_threads):
        limits.append(n_threads)
        return limit_threadpools(n_threads)

    monkeypatch.setattr(_boosted_estimator, "limit_threadpools", record)
    return limits


@pytest.mark.parametrize(("n_jobs", "n_threads"), [(None, 4), (-1, 4), (3, 3)])
@pytest.mark.parametrize("cls", [LGBMRegressor, XGBRegressor])
def test_threads_of_a_fit_in_one_task(cls, n_jobs, n_threads, client, limits, monkeypatch):
    given, fit = [], lightgbm.LGBMRegressor.fit

    def record(self, *args, **kwargs):
        given.append(self.n_jobs)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(lightgbm.LGBMRegressor, "fit", record)
    options = {"verbose": -1} if cls is LGBMRegressor else {}
    model = cls(n_estimators=3, n_jobs=n_jobs, **options)
    with counting() as counts:
        model.fit(ROWS, TARGET)
    assert counts.tasks == 1
    assert limits == [n_threads]
    assert given in ([], [n_threads])  # LightGBM counts the cores itself
    assert model.n_jobs == n_jobs
    want = cls(n_estimators=3, **options).fit(X, Y)
    np.testing.assert_allclose(model.predict(X), want.predict(X), rtol=1e-5)


def test_threads_of_this_process_are_not_limited(limits):
    with config_context(engine="local"):
        XGBRegressor(n_estimators=2).fit(ROWS, TARGET)
    assert not limits
