"""Samples of rows: the same rows of every container and partition."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from skfleet.datasets import sample_rows
from skfleet.engine import counting

X = np.arange(200).reshape(100, 2)
Y = np.arange(100) % 7
FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(kind=pd.Categorical(Y))


def first_column(sample):
    values = sample.toarray() if sparse.issparse(sample) else np.asarray(sample)
    return values[:, 0].tolist()


def lazy_sparse(chunks):
    return da.from_array(X, chunks=(chunks, -1)).map_blocks(sparse.csr_matrix)


@pytest.mark.parametrize(
    "rows",
    [
        X,
        sparse.csr_matrix(X),
        FRAME,
        da.from_array(X, chunks=(33, 1)),
        da.from_array(X, chunks=(100, 2)),
        lazy_sparse(40),
        dd.from_pandas(FRAME, npartitions=6),
        dd.from_pandas(FRAME, npartitions=3)[["a"]].to_dask_array(),
    ],
)
def test_rows_do_not_depend_on_the_partition(rows):
    expected = first_column(sample_rows(X, n_samples=12, random_state=3))
    assert len(set(expected)) == 12
    assert expected == sorted(expected)
    sample, labels = sample_rows(rows, da.from_array(Y, chunks=9), n_samples=12, random_state=3)
    assert first_column(sample) == expected
    np.testing.assert_array_equal(labels, Y[np.array(expected) // 2])


def test_frames_keep_index_and_types():
    sample = sample_rows(dd.from_pandas(FRAME, npartitions=6), n_samples=9, random_state=0)
    pd.testing.assert_frame_equal(sample, FRAME.loc[sample.index])


def test_passes_are_counted():
    with counting() as counts:
        sample_rows(da.from_array(X, chunks=30), n_samples=5)
    assert counts.passes == 1
    with counting() as counts:
        sample_rows(dd.from_pandas(FRAME, npartitions=6), n_samples=5)
    assert counts.passes == 2


@pytest.mark.parametrize("n_samples", [0, 101, 2.5])
def test_impossible_numbers_are_refused(n_samples):
    with pytest.raises(ValueError, match=rf"n_samples must be .* Got {n_samples} instead"):
        sample_rows(X, n_samples=n_samples)
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples"):
        sample_rows(X, Y[:-1], n_samples=5)
