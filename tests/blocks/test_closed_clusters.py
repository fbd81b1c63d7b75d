"""Rows that were persisted on a cluster which is gone."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, wait

from skfleet.estimators import LogisticRegression, StandardScaler
from skfleet.metrics import accuracy_score

X = np.random.default_rng(0).normal(size=(40, 3))
USES = {
    "fit": lambda rows, y: LogisticRegression().fit(rows, y),
    "pass": lambda rows, y: StandardScaler().fit(rows),
    "metric": lambda rows, y: accuracy_score(y, y),
}


def opened():
    return Client(n_workers=1, processes=False, dashboard_address=":0")


def persisted(client):
    rows = da.from_array(X, chunks=(10, 3)).persist()
    frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=4).persist()
    wait([rows, frame])
    return [rows, frame]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("has_another", [False, True])
def test_rows_of_a_closed_client_are_refused(has_another, use):
    with opened() as client:
        collections = persisted(client)
        targets = [(collections[0][:, 0] > 0), (collections[1]["a"] > 0)]
    other = opened() if has_another else None
    try:
        for rows, y in zip(collections, targets, strict=True):
            with pytest.raises(ValueError, match="Persisted rows must be in the memory of an open"):
                USES[use](rows, y)
    finally:
        if other is not None:
            other.close()
            other.cluster.close()
