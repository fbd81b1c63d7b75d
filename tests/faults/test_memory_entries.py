"""Deaths of workers of memory are explained by every way in, and the fleet works on."""

import uuid

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from skfleet import Fleet, config_context
from skfleet.estimators import LogisticRegression, Ridge
from skfleet.exceptions import WorkerMemoryError
from skfleet.metrics import roc_auc_score
from skfleet.model_selection import (
    GridSearchCV,
    shuffle_rows,
    train_test_split,
)

pytestmark = pytest.mark.slow

X = np.random.default_rng(0).normal(size=(400, 3))
y = (X[:, 0] > 0).astype(int)
TABLE = pd.DataFrame(X, columns=list("abc")).assign(y=y)


@pytest.fixture(scope="module")
def fleet():
    # A task fails with its first worker, which saves the start of another.
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        Fleet(n_workers=1, memory_limit="450 MB", dashboard_address=None) as client,
    ):
        yield client


def eat(part, name):
    """Take memory until the worker is ended."""
    import time

    kept = []
    for _ in range(60):
        kept.append(np.ones(2**22))
        time.sleep(0.01)
    return part


def arrays():
    """Chunks that take more memory than a worker has, under keys of their own."""
    rows = da.from_array(X, chunks=(200, 3))
    options = {"meta": np.empty((0, 3)), "name": f"eat-{uuid.uuid4().hex}"}
    return rows.map_blocks(eat, None, **options), da.from_array(y, chunks=200)


def frames():
    """Partitions that do."""
    return dd.from_pandas(TABLE, npartitions=2).map_partitions(
        eat, uuid.uuid4().hex, meta=TABLE[:0]
    )


def fit():
    LogisticRegression().fit(*arrays())


def lightgbm():
    pytest.importorskip("lightgbm")
    from skfleet.estimators import LGBMClassifier

    LGBMClassifier(n_estimators=3).fit(*arrays())


def search():
    GridSearchCV(LogisticRegression(), {"C": [1.0, 2.0]}, cv=2, error_score="raise").fit(*arrays())


def split():
    train_test_split(frames(), random_state=0)


def shuffle():
    shuffle_rows(frames(), random_state=0).compute()


def metric():
    frame = frames()
    roc_auc_score(frame["y"], frame["a"])


def predict():
    Ridge().fit(X, y).predict(arrays()[0]).compute()


def to_parquet():
    model = Ridge().fit(TABLE[["a"]], y)
    model.predict(frames()[["a"]]).to_frame("answer").to_parquet("memory://answers")


ENTRIES = [fit, lightgbm, search, split, shuffle, metric, predict, to_parquet]


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")  # of Dask
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_deaths_are_explained(fleet, entry):
    message = r"\S+ must fit into the memory of a worker\. Got .*B of the .*B that a worker.*limit="
    # another worker takes long to start on a busy machine
    waiting = config_context(wait_for_workers_timeout=60)
    with waiting, pytest.raises(WorkerMemoryError, match=message):
        entry()
    assert fleet.submit(sum, [1, 2], pure=False).result(timeout=60) == 3
