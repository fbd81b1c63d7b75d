"""Generators next to scikit-learn's: the same sizes, ranks, spectra and distributions."""

import dask
import numpy as np
import pytest
import sklearn.datasets as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from random_examples import n_examples
from skfleet.datasets import (
    make_blobs,
    make_classification,
    make_counts,
    make_low_rank_matrix,
    make_regression,
)
from skfleet.datasets._row_permutation import RowPermutation

MANY = {"n_samples": 20_000, "chunks": 3_000}


@settings(deadline=None, max_examples=n_examples(20, 200))
@given(n_rows=st.integers(1, 3_000), seed=st.integers(0, 2**31))
def test_a_permutation_takes_each_place_once(n_rows, seed):
    permutation = RowPermutation.draw(n_rows, np.random.RandomState(seed))
    places = permutation(np.arange(n_rows))
    np.testing.assert_array_equal(np.sort(places), np.arange(n_rows))
    np.testing.assert_array_equal(permutation(np.array([n_rows - 1])), places[-1:])


def test_permutations_are_random():
    draws = [RowPermutation.draw(5, np.random.RandomState(seed)) for seed in range(1_500)]
    orders = np.array([permutation(np.arange(5)) for permutation in draws])
    codes = orders @ 5 ** np.arange(5)
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 120
    assert stats.chisquare(counts).pvalue > 1e-3
    # neighbours far apart, and no drift of the places
    places = RowPermutation.draw(10**9, np.random.RandomState(0))(np.arange(100_000)) / 10**9
    assert stats.kstest(places, "uniform").pvalue > 1e-3
    assert abs(stats.pearsonr(places[:-1], places[1:]).statistic) < 0.02


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"n_samples": 101, "centers": 4},
        {"n_samples": [5, 0, 30]},
        {"n_samples": [5, 9], "centers": [[0, 1, 2], [3, 4, 5]]},
        {"centers": np.arange(6.0).reshape(3, 2), "cluster_std": [1, 2, 3]},
        {"shuffle": False, "n_features": 1},
    ],
)
def test_blobs_have_the_sizes_and_centers_of_scikit_learn(parameters):
    options = {"random_state": 3, "return_centers": True, **parameters}
    X, y, centers = make_blobs(**options)
    theirs = reference.make_blobs(**options)
    assert X.shape == theirs[0].shape
    np.testing.assert_array_equal(centers, theirs[2])
    order = slice(None) if parameters.get("shuffle") is False else np.argsort(theirs[1])
    labels = y.compute()
    expected = theirs[1][order]
    is_sorted = parameters.get("shuffle") is False
    np.testing.assert_array_equal(labels if is_sorted else np.sort(labels), expected)


def test_blobs_are_normal():
    X, y, centers = make_blobs(
        **MANY, n_features=3, cluster_std=[1.0, 2.0, 0.5], return_centers=True, random_state=0
    )
    X, y = dask.compute(X, y)
    for k, std in enumerate([1.0, 2.0, 0.5]):
        for column in ((X[y == k] - centers[k]) / std).T:
            assert stats.kstest(column, "norm").pvalue > 1e-3


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"weights": [0.9]},
        {"weights": [0.2, 0.3, 0.4], "n_classes": 3, "n_informative": 4},
        {"weights": [0.8, 0.6], "n_clusters_per_class": 1},
        {"n_classes": 3, "n_clusters_per_class": 3, "n_informative": 5, "shuffle": False},
    ],
)
def test_classes_have_the_sizes_of_scikit_learn(parameters):
    options = {"n_samples": 1_003, "flip_y": 0, "random_state": 0, **parameters}
    labels = make_classification(**options, chunks=100)[1].compute()
    expected = reference.make_classification(**options)[1]
    if options.get("shuffle") is False:
        np.testing.assert_array_equal(labels, expected)
    else:
        np.testing.assert_array_equal(np.bincount(labels), np.bincount(expected))
        first, second = np.bincount(labels[:500], minlength=3), np.bincount(labels, minlength=3)
        np.testing.assert_allclose(first / 500, second / 1_003, atol=0.08)


def test_flips_are_random_classes():
    options = {**MANY, "n_classes": 4, "n_informative": 3, "random_state": 0}
    clean, flipped = dask.compute(
        make_classification(**options, flip_y=0)[1], make_classification(**options, flip_y=0.4)[1]
    )
    np.testing.assert_allclose((clean != flipped).mean(), 0.4 * 3 / 4, atol=0.015)
    np.testing.assert_allclose(np.bincount(flipped) / 20_000, 0.25, atol=0.015)


@pytest.mark.parametrize("shuffle", [True, False])
def test_columns_of_classes(shuffle):
    data = make_classification(
        n_samples=500,
        n_features=9,
        n_informative=3,
        n_redundant=2,
        n_repeated=2,
        shift=None,
        scale=None,
        shuffle=shuffle,
        random_state=1,
        return_X_y=False,
        chunks=120,
    )
    X, info = data.X.compute(), np.array(data.feature_info)
    groups = ["informative"] * 3 + ["redundant"] * 2 + ["repeated"] * 2 + ["random"] * 2
    assert sorted(info) == sorted(groups)
    assert shuffle != (info.tolist() == groups)
    assert data.parameters["n_repeated"] == 2
    assert data.DESCR is make_classification.__doc__
    useful = X[:, info != "random"] - X[:, info != "random"].mean(axis=0)
    assert np.linalg.matrix_rank(useful) == 3
    assert np.linalg.matrix_rank(X - X.mean(axis=0)) == 5
    correlated = np.abs(np.corrcoef(X.T)) > 1 - 1e-9
    assert (correlated[info == "repeated"].sum(axis=1) >= 2).all()
    assert X.mean(axis=0).std() > 1  # shifts and scales differ


@pytest.mark.parametrize("hypercube", [True, False])
@pytest.mark.parametrize("n_informative", [2, 40])
def test_clusters_are_about_vertices(hypercube, n_informative):
    options = {"n_features": n_informative, "n_informative": n_informative, "n_redundant": 0}
    X, y = make_classification(
        4_000, **options, class_sep=1e4, hypercube=hypercube, flip_y=0, shuffle=False,
        shift=1.0, scale=np.full(n_informative, 2.0), random_state=0,
    )  # fmt: skip
    means = X.compute().reshape(4, 1_000, -1).mean(axis=1) / 2 - 1.0
    coordinates = np.abs(means) / 1e4
    assert (coordinates < 1 + 1e-3).all()
    assert (coordinates > 1 - 1e-3).all() == hypercube
    assert len(np.unique(means > 0, axis=0)) == 4
    np.testing.assert_array_equal(y, np.repeat([0, 1, 0, 1], 1_000))


def test_scores_are_those_of_scikit_learn():
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis as Model

    def score(make, seed):
        X, y = dask.compute(*make(400, n_features=4, n_redundant=0, random_state=seed))
        return Model().fit(X, y).score(X, y)

    ours, theirs = (
        [score(make, seed) for seed in range(60)]
        for make in (make_classification, reference.make_classification)
    )
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-2


@pytest.mark.parametrize("effective_rank", [None, 4])
@pytest.mark.parametrize("n_targets", [1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_coefficients_are_exact_without_noise(effective_rank, n_targets, shuffle):
    X, y, coef = make_regression(
        500, 12, n_informative=5, n_targets=n_targets, bias=2.5, shuffle=shuffle, coef=True,
        effective_rank=effective_rank, random_state=0, chunks=90,
    )  # fmt: skip
    X, y = dask.compute(X, y)
    assert y.shape == ((500, 3) if n_targets == 3 else (500,))
    assert coef.shape == ((12, 3) if n_targets == 3 else (12,))
    np.testing.assert_allclose(y, X @ coef + 2.5)
    rows = np.flatnonzero(coef.reshape(12, -1).any(axis=1))
    assert len(rows) == 5
    assert (rows.tolist() == list(range(5))) != shuffle
    assert 0 <= coef.min() <= coef.max() <= 100


def test_noise_of_regression():
    X, y, coef = make_regression(**MANY, noise=2.0, bias=1.0, coef=True, random_state=0)
    X, y = dask.compute(X, y)
    residuals = y - X @ coef
    assert stats.kstest((residuals - 1.0) / 2.0, "norm").pvalue > 1e-3
    assert stats.kstest(X[:, 3], "norm").pvalue > 1e-3
    assert abs(stats.pearsonr(residuals, X[:, 0]).statistic) < 0.03


@pytest.mark.parametrize("shape", [(2_000, 30), (100, 100), (20, 50), (50, 1), (1, 5)])
def test_low_rank_matrices_have_the_spectrum_of_scikit_learn(shape):
    options = {"effective_rank": 5, "tail_strength": 0.1, "random_state": 0}
    X = make_low_rank_matrix(*shape, **options, chunks=33).compute()
    expected = np.linalg.svd(reference.make_low_rank_matrix(*shape, **options), compute_uv=False)
    np.testing.assert_allclose(np.linalg.svd(X, compute_uv=False), expected, rtol=1e-9, atol=1e-12)


def test_a_pass_of_several_blocks(monkeypatch):
    whole = make_low_rank_matrix(30_000, 8, random_state=0).compute()
    monkeypatch.setattr("skfleet.datasets._low_rank.PASS_BLOCK_DRAWS", 2**15)
    X = make_low_rank_matrix(30_000, 8, random_state=0, chunks=7_000).compute()
    np.testing.assert_allclose(X, whole, rtol=1e-9, atol=1e-12)
    # rows in random directions: scikit-learn's left vectors are uniform too
    left = np.linalg.svd(X, full_matrices=False)[0] * np.sqrt(30_000)
    assert stats.kstest(left[:, 0], "norm").pvalue > 1e-3
    assert stats.kstest(left[:, -1], "norm").pvalue > 1e-3


def test_counts_are_of_a_poisson_model():
    from sklearn.linear_model import PoissonRegressor

    X, y = dask.compute(
        *make_counts(20_000, 5, n_informative=3, scale=0.8, random_state=0, chunks=3_000)
    )
    assert y.dtype == np.int64
    model = PoissonRegressor(alpha=0, tol=1e-8).fit(X, y)
    assert (np.abs(model.coef_) > 0.03).sum() == 3
    assert -0.9 < model.coef_.min() < model.coef_.max() < 0.05
    means = model.predict(X)
    np.testing.assert_allclose(np.mean((y - means) ** 2 / means), 1.0, atol=0.05)


def test_large_counts_are_exact():
    y = make_counts(1_000, 3, n_informative=3, scale=60.0, random_state=0, as_frame=True)[1]
    array = make_counts(1_000, 3, n_informative=3, scale=60.0, random_state=0)[1]
    assert y.max().compute() > 2**51
    np.testing.assert_array_equal(y.compute(), array.compute())
