"""Rows in a random order across partitions: one order for a seed, whatever the partition."""

import contextlib

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.utils import shuffle

from skfleet.estimators import Ridge
from skfleet.model_selection import shuffle_rows

N = 200
Y = np.arange(N)


@pytest.fixture(params=[False, True], ids=["in process", "cluster"])
def anywhere(request):
    """No client, and the current client of a cluster."""
    with contextlib.ExitStack() as stack:
        if request.param:
            stack.enter_context(request.getfixturevalue("cluster_client").as_current())
        yield


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(N, 2)), columns=["a", 3], index=Y * 2)
    return frame.assign(text=[f"{i}" for i in Y], kind=pd.Categorical(["u", "v"] * (N // 2)))


def test_arrays_and_their_targets(anywhere):
    X = np.random.default_rng(0).normal(size=(N, 2, 3))
    orders = []
    for cuts in ((N,), (70, 0, 130), (50,) * 4):
        rows = da.from_array(X, chunks=(cuts, (1, 1), (3,)))
        got, y = shuffle_rows(rows, da.from_array(Y, chunks=30), random_state=0)
        assert got.chunks[0] == y.chunks[0] == tuple(len(part.compute()) for part in got.blocks)
        assert len(y.chunks[0]) == len(cuts)
        values, order = got.compute(), y.compute()
        np.testing.assert_array_equal(values, X[order])
        orders.append(order)
    assert sorted(orders[0]) == list(Y)
    assert (orders[0] != Y).mean() > 0.9
    assert all((order == orders[0]).all() for order in orders)
    other = shuffle_rows(da.from_array(Y, chunks=30), random_state=1).compute()
    assert (other != orders[0]).any()


def test_frames_keep_their_index_and_types(anywhere, frame):
    rows = dd.from_pandas(frame, npartitions=3)
    got, text = shuffle_rows(rows, rows["text"], random_state=0)
    assert got.npartitions == 3
    values, texts = got.compute(), text.compute()
    pd.testing.assert_series_equal(values["text"], texts)
    pd.testing.assert_frame_equal(values.sort_index(), rows.compute())
    order = shuffle_rows(da.from_array(Y, chunks=50), random_state=0).compute()
    assert list(values.index) == list(order * 2)


def test_shuffled_rows_train_models(anywhere, frame):
    rows = dd.from_pandas(frame[["a", 3]].rename(columns={3: "b"}), npartitions=4)
    target = rows["a"] - 2 * rows["b"]
    X, y = shuffle_rows(rows, target, random_state=0)
    np.testing.assert_allclose(Ridge(alpha=1e-9).fit(X, y).coef_, [1, -2])
    X, y = shuffle_rows(rows.to_dask_array(), target.to_dask_array())
    np.testing.assert_allclose(Ridge(alpha=1e-9).fit(X, y).coef_, [1, -2])


def test_rows_in_this_process_are_scikit_learns():
    got = shuffle_rows(Y, Y * 2, random_state=0)
    np.testing.assert_array_equal(got, shuffle(Y, Y * 2, random_state=0))


def test_bad_input():
    rows = da.from_array(Y, chunks=50)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[200, 199\]"):
        shuffle_rows(rows, rows[1:])
    with pytest.raises(TypeError, match="Got ndarray instead"):
        shuffle_rows(rows, Y)
    matrix = da.from_array(sparse.random(N, 3, format="csr"), chunks=(50, 3), asarray=False)
    with pytest.raises(TypeError, match="dense"):
        shuffle_rows(matrix)
