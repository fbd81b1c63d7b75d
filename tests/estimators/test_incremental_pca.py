"""IncrementalPCA against scikit-learn's: batches across blocks, partial fits."""

import pickle

import dask.array as da
import numpy as np
import pytest
from decomposition_attributes import OF_PCA, assert_same
from scipy import sparse
from sklearn import decomposition as reference
from sklearn.datasets import load_digits

from skfleet.estimators import IncrementalPCA
from skfleet.estimators.decomposition import _incremental_pca as incremental_pca


@pytest.fixture(scope="module")
def digits():
    return load_digits().data


@pytest.mark.parametrize(("n", "size"), [(5, None), (10, 100), (None, 200), (3, 17)])
def test_incremental_pca_is_scikit_learns(digits, n, size):
    X = digits[:, digits.std(axis=0) > 0]
    theirs = reference.IncrementalPCA(n, batch_size=size).fit(X)
    theirs_of_blocks = reference.IncrementalPCA(n, batch_size=size or 10_000).fit(X)
    for given_rows in (
        X,
        sparse.csr_array(X),
        da.from_array(X, chunks=(37, 20)),
        da.from_array(X, chunks=(800, -1)),
    ):
        ours = IncrementalPCA(n, batch_size=size).fit(given_rows)
        theirs = theirs_of_blocks if isinstance(given_rows, da.Array) else theirs
        assert_same(ours, theirs, names=(*OF_PCA, "var_"))
        assert ours.n_samples_seen_ == theirs.n_samples_seen_
        assert ours.batch_size_ == theirs.batch_size_
        assert ours.n_components_ == theirs.n_components_
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-7)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-8)


def test_incremental_pca_goes_on(digits):
    theirs, ours = reference.IncrementalPCA(5), IncrementalPCA(5)
    for low in range(0, 1797, 300):
        theirs.partial_fit(digits[low : low + 300])
        ours.partial_fit(digits[low : low + 300])
        ours = pickle.loads(pickle.dumps(ours))
    assert_same(ours, theirs, names=(*OF_PCA, "var_"))
    lazy = IncrementalPCA(5).partial_fit(da.from_array(digits, chunks=(300, 64)))
    assert_same(lazy, theirs, names=(*OF_PCA, "var_"))
    before = ours.components_.copy()
    with pytest.raises(ValueError, match="NaN"):
        ours.partial_fit(np.full((10, 64), np.nan))
    np.testing.assert_array_equal(ours.components_, before)
    with pytest.raises(ValueError, match="must be 5"):
        ours.set_params(n_components=4).partial_fit(digits)
    with pytest.raises(ValueError, match="first partial_fit"):
        IncrementalPCA(5).partial_fit(digits[:3])
    with pytest.raises(TypeError, match="sparse"):
        IncrementalPCA(5).partial_fit(sparse.csr_array(digits))


@pytest.mark.parametrize("n", [10, None])
def test_incremental_pca_gathers_blocks_for_a_first_batch(n):
    X = np.random.default_rng(0).normal(size=(60, 12))
    theirs = reference.IncrementalPCA(n).partial_fit(X[:12])
    for low in range(12, 60, 4):
        theirs.partial_fit(X[low : low + 4])
    ours = IncrementalPCA(n).partial_fit(da.from_array(X, chunks=(4, 12)))
    assert ours.n_components_ == theirs.n_components_ == (n or 12)
    assert_same(ours, theirs, names=(*OF_PCA, "var_"))
    few = da.from_array(X[:8], chunks=(4, 12))
    if n is None:
        assert IncrementalPCA().partial_fit(few).n_components_ == 8
    else:
        with pytest.raises(ValueError, match="batch number of samples 8 for the first"):
            IncrementalPCA(n).partial_fit(few)


def test_batches_of_blocks_are_large_by_default(monkeypatch, digits):
    batches = []
    update_batch = incremental_pca.update_batch

    def count(seen, X, n_components):
        batches.append(len(X))
        return update_batch(seen, X, n_components)

    monkeypatch.setattr(incremental_pca, "update_batch", count)
    X = np.tile(digits[:, :20], (14, 1))[:25_000]
    lazy = IncrementalPCA(3).fit(da.from_array(X, chunks=(700, 20)))
    assert batches == [10_000, 10_000, 5_000]
    assert lazy.batch_size_ == 10_000
    assert IncrementalPCA(3).fit(X[:500]).batch_size_ == 100
