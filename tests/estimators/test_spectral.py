"""SpectralClustering against scikit-learn's, in every world, for any cut, and its stated error."""

import pickle

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, sparse
from sklearn import cluster as reference
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, pairwise_distances
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import config_context
from skfleet._array import to_host
from skfleet.blocks import row_blocks
from skfleet.engine import LocalEngine, counting
from skfleet.estimators import SpectralClustering
from skfleet.estimators.cluster._affinity import Affinity
from skfleet.estimators.cluster._nystrom import nystrom_spectrum

SHAPES = {
    "moons": (make_moons(900, noise=0.05, random_state=0)[0], {"n_clusters": 2, "gamma": 50.0}),
    "circles": (
        make_circles(900, noise=0.04, factor=0.4, random_state=0)[0],
        {"n_clusters": 2, "gamma": 30.0},
    ),
    "blobs": (make_blobs(900, 4, centers=5, random_state=1)[0], {"n_clusters": 5, "gamma": 0.05}),
}
BLOBS, OF_BLOBS = SHAPES["blobs"]


@parametrize_with_checks(
    [
        SpectralClustering(n_clusters=3, random_state=0),
        SpectralClustering(n_clusters=3, random_state=0, n_landmarks=9),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def same_clusters(a, b):
    return adjusted_rand_score(a, b) == 1


@pytest.mark.parametrize("assign_labels", ["kmeans", "discretize", "cluster_qr"])
@pytest.mark.parametrize("shape", SHAPES)
def test_few_landmarks_find_scikit_learns_clusters(shape, assign_labels):
    X, params = SHAPES[shape]
    params = {**params, "assign_labels": assign_labels, "random_state": 0}
    theirs = reference.SpectralClustering(**params).fit(X)
    ours = SpectralClustering(n_landmarks=150, **params).fit(X)
    # pivots and rotations are those of the landmarks
    least = 1 if assign_labels == "kmeans" else 0.98
    assert adjusted_rand_score(ours.labels_, theirs.labels_) >= least
    assert ours.labels_.dtype == np.int32
    assert not hasattr(ours, "affinity_matrix_")
    assert (ours.residuals_ < 0.02).all()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"eigen_solver": "lobpcg", "n_components": 3},
        {"affinity": "laplacian", "assign_labels": "discretize"},
        {"affinity": "nearest_neighbors", "n_neighbors": 20, "n_landmarks": 10},
        {"affinity": "polynomial", "degree": 2, "kernel_params": {"coef0": 3}},
    ],
    ids=str,
)
def test_as_many_landmarks_as_rows_are_scikit_learns_own_fit(params):
    X = np.abs(BLOBS[:200])
    params = {"n_clusters": 4, "gamma": 0.1, "random_state": 0, **params}
    params["kernel_params"] = params.get("kernel_params")
    theirs = {name: value for name, value in params.items() if name != "n_landmarks"}
    if params["kernel_params"] is not None:  # which a fit of scikit-learn's writes into
        theirs["kernel_params"] = dict(params["kernel_params"])
    theirs = reference.SpectralClustering(**theirs).fit(X)
    ours = SpectralClustering(**params).fit(X)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_array_equal(ours.residuals_, 0)
    difference = ours.affinity_matrix_ - theirs.affinity_matrix_
    assert abs(difference).max() == 0
    ours.set_params(affinity="rbf", n_landmarks=50).fit(X)
    assert hasattr(ours, "eigenvalues_")
    assert not hasattr(ours, "affinity_matrix_")
    ours.set_params(n_landmarks=200).fit(X)
    assert hasattr(ours, "affinity_matrix_")
    assert not hasattr(ours, "eigenvalues_")


def test_precomputed_affinities_are_scikit_learns():
    X = BLOBS[:300]
    for affinity, matrix in [
        ("precomputed", pairwise_kernels(X, metric="rbf", gamma=0.05)),
        ("precomputed_nearest_neighbors", pairwise_distances(X)),
    ]:
        params = {"n_clusters": 5, "affinity": affinity, "n_neighbors": 150, "random_state": 0}
        theirs = reference.SpectralClustering(**params).fit(matrix)
        np.testing.assert_array_equal(
            SpectralClustering(**params).fit_predict(matrix), theirs.labels_
        )


def exact_eigenvalues(affinities, n):
    degrees = affinities.sum(axis=1)
    normalized = affinities / np.sqrt(np.outer(degrees, degrees))
    return linalg.eigvalsh(normalized)[::-1][:n]


@pytest.mark.parametrize(
    ("affinity", "params"),
    [
        ("rbf", {"gamma": 0.3}),
        ("laplacian", {"gamma": 0.3}),
        ("poly", {"gamma": 0.1, "degree": 2}),
        ("sigmoid", {"gamma": 0.01, "coef0": 0.5}),  # of eigenvalues of both signs
        ("chi2", {"gamma": 0.3}),
        ("cosine", {}),
    ],
)
def test_eigenvalues_are_within_the_residuals(affinity, params):
    X = np.abs(BLOBS[:400])
    model = SpectralClustering(4, affinity=affinity, n_landmarks=300, random_state=0, **params)
    model.fit(X)
    kernel = {"coef0": 1, "degree": 3, **params}
    exact = exact_eigenvalues(
        pairwise_kernels(X, metric=affinity, filter_params=True, **kernel), len(model.eigenvalues_)
    )
    # residuals are estimates from a part of the rows
    assert (np.abs(model.eigenvalues_ - exact) <= 1.5 * model.residuals_ + 1e-8).all()
    assert model.residuals_.max() < 0.2


def test_residuals_fall_with_more_landmarks():
    worst = []
    for n_landmarks in (20, 80, 300):
        model = SpectralClustering(n_landmarks=n_landmarks, random_state=0, **OF_BLOBS)
        worst.append(model.fit(BLOBS).residuals_.max())
    assert worst[0] > 3 * worst[1] > 9 * worst[2]
    nearly_all = SpectralClustering(n_landmarks=299, random_state=0, **OF_BLOBS)
    assert nearly_all.fit(BLOBS[:300]).residuals_.max() < 1e-6


def test_residuals_are_those_of_all_rows_but_for_the_draw():
    X, params = SHAPES["moons"]
    affinity, rows = Affinity("rbf", {"gamma": params["gamma"]}), row_blocks(X)
    order = np.random.default_rng(0).permutation(len(X))
    kernel = affinity(X, X)
    root = np.sqrt(kernel.sum(axis=1))
    normalized = kernel / np.outer(root, root)
    for validation, tolerance in ((X[order[40:168]], 0.3), (X, 1e-6)):
        points = np.concatenate([X[order[:40]], validation])
        spectrum = nystrom_spectrum(LocalEngine(1), rows, affinity, points, 40, 2)
        vectors = root[:, None] * spectrum.embedding(X)
        errors = normalized @ vectors - spectrum.values * vectors
        exact = np.linalg.norm(errors, axis=0) / np.linalg.norm(vectors, axis=0)
        np.testing.assert_allclose(spectrum.residuals, exact, rtol=tolerance, atol=1e-8)
        distance = np.abs(linalg.eigvalsh(normalized)[:, None] - spectrum.values).min(axis=0)
        assert (distance <= exact + 1e-12).all()  # the theorem
        assert exact[1] > 1e-3


def test_callables_are_those_of_pairs_as_in_scikit_learn():
    def overlap(x, z, scale=1.0):
        return float(np.exp(-scale * np.abs(x - z).sum()))

    params = {"n_clusters": 5, "n_landmarks": 40, "random_state": 0}
    by_name = SpectralClustering(affinity="laplacian", gamma=0.2, **params).fit(BLOBS[:120])
    kernel_params = {"scale": 0.2}
    called = SpectralClustering(affinity=overlap, kernel_params=kernel_params, **params)
    np.testing.assert_array_equal(called.fit(BLOBS[:120]).labels_, by_name.labels_)
    np.testing.assert_allclose(called.eigenvalues_, by_name.eigenvalues_, atol=1e-9)
    assert kernel_params == {"scale": 0.2}


@pytest.mark.parametrize("n_landmarks", [60, 900], ids=["approximate", "exact"])
def test_every_world_gives_the_same_answer(world, n_landmarks):
    X = BLOBS[:300]
    model = SpectralClustering(n_landmarks=n_landmarks, random_state=0, **OF_BLOBS)
    expected = model.fit(X).labels_
    residuals = model.residuals_
    labels = model.fit_predict(world.X(X))
    np.testing.assert_array_equal(world.host(labels), expected)
    np.testing.assert_allclose(model.residuals_, residuals, rtol=1e-5, atol=1e-9)
    assert str(labels.dtype).endswith("int32")
    if hasattr(labels, "compute"):  # lazy ones stay behind
        assert not hasattr(pickle.loads(pickle.dumps(model)), "labels_")


@pytest.mark.parametrize("affinity", ["linear", "poly", "sigmoid", "rbf"])
def test_kernels_of_device_rows_are_those_of_the_host(affinity):
    import array_api_strict as xp

    X = np.abs(BLOBS[:200]) / 10
    model = SpectralClustering(3, affinity=affinity, n_landmarks=50, random_state=0, gamma=0.5)
    model.set_params(assign_labels="cluster_qr").fit(X)
    values, labels = model.eigenvalues_, model.labels_
    model.fit(xp.asarray(X, device=xp.Device("device1")))
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(to_host(model.labels_), labels)


@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=9), seed=st.integers(0, 5), m=st.integers(5, 90))
def test_any_cut_gives_the_same_answer(cuts, seed, m):
    X = make_blobs(200, 3, centers=4, random_state=seed)[0]
    edges = [0, *sorted(cuts), 200]
    rows = da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), 3))
    model = SpectralClustering(4, gamma=0.1, n_landmarks=m, random_state=seed)
    expected, residuals = model.fit(X).labels_, model.residuals_
    np.testing.assert_array_equal(model.fit(rows).labels_.compute(), expected)
    np.testing.assert_allclose(model.residuals_, residuals, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("keep_blocks", [True, False], ids=["resident", "streamed"])
def test_passes(keep_blocks, cluster_client):
    rows = da.from_array(BLOBS, chunks=(100, 4))
    with cluster_client.as_current(), config_context(keep_blocks=keep_blocks):
        model = SpectralClustering(n_landmarks=100, random_state=0, **OF_BLOBS)
        with counting() as counts:
            model.fit(rows)
        # draw, sums, products; moments, iterations and labels of k-means
        assert 6 <= counts.passes <= 9
        with counting() as counts:
            model.set_params(assign_labels="cluster_qr").fit(rows)
        assert counts.passes == 3
        with counting() as counts:
            model.set_params(n_landmarks=900).fit(rows)
        assert counts.passes == 1


def test_many_pieces_of_rows_are_as_one(monkeypatch):
    from skfleet.estimators.cluster import _affinity

    model = SpectralClustering(n_landmarks=50, random_state=0, **OF_BLOBS)
    expected, residuals = model.fit(BLOBS).labels_, model.residuals_
    monkeypatch.setattr(_affinity, "PIECE_BYTES", 1)
    monkeypatch.setattr(_affinity, "MIN_PIECE_ROWS", 7)
    np.testing.assert_array_equal(model.fit(BLOBS).labels_, expected)
    np.testing.assert_allclose(model.residuals_, residuals, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_blobs_from_five_landmarks(seed):
    X, blob = make_blobs(500, 2, centers=[[0, 0], [9, 0], [0, 9]], random_state=seed)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = da.from_array(X, chunks=(100, 2))
    labels = SpectralClustering(3, n_landmarks=5, random_state=seed, gamma=0.5).fit_predict(rows)
    assert same_clusters(labels.compute(), blob)


def test_rows_without_affinities_are_counted():
    far = np.concatenate([BLOBS, [[1e3, 0, 0, 0], [0, 1e3, 0, 0]]])
    model = SpectralClustering(n_landmarks=50, random_state=1, **OF_BLOBS)
    with pytest.warns(UserWarning, match="2 of 902 rows have no degree above 0"):
        labels = model.fit(far).labels_
    assert same_clusters(labels[:900], model.fit(BLOBS).labels_)


def test_fewer_distinct_rows_than_clusters_warn():
    X = np.repeat([[0.0, 1.0], [5.0, 5.0]], 40, axis=0)
    model = SpectralClustering(4, n_landmarks=20, random_state=0)
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        model.fit(X)
    assert model.eigenvalues_.shape == model.residuals_.shape == (2,)  # the rank
    assert same_clusters(model.labels_, np.repeat([0, 1], 40))


def test_single_precision_is_near_the_double():
    X = BLOBS.astype(np.float32)
    model = SpectralClustering(n_landmarks=100, random_state=0, **OF_BLOBS)
    expected = model.fit(BLOBS).eigenvalues_
    np.testing.assert_allclose(model.fit(X).eigenvalues_, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"n_clusters": 0}, "n_clusters must be"),
        ({"n_clusters": 1000}, "should be >= n_clusters"),
        ({"n_components": 0}, "n_components must be"),
        ({"n_components": 60, "n_landmarks": 50}, "n_landmarks must be at least 60"),
        ({"n_landmarks": 1}, "n_landmarks must be"),
        ({"n_landmarks": 7}, "n_landmarks must be at least 8"),
        ({"n_init": 0}, "n_init must be"),
        ({"gamma": -1}, "gamma must be"),
        ({"gamma": None}, "gamma must be"),
        ({"degree": -1}, "degree must be"),
        ({"coef0": "1"}, "coef0 must be"),
        ({"n_neighbors": 0}, "n_neighbors must be"),
        ({"eigen_solver": "qr"}, "eigen_solver must be one of"),
        ({"eigen_tol": -1}, "eigen_tol must be"),
        ({"assign_labels": "foo"}, "assign_labels must be one of"),
        ({"assign_labels": {}}, "assign_labels must be one of"),
        ({"affinity": "foo"}, "affinity must be one of"),
        ({"affinity": np.array([])}, "affinity must be one of"),
        ({"kernel_params": 3}, "kernel_params must be"),
        ({"verbose": "yes"}, "verbose must be"),
    ],
    ids=str,
)
@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_bad_parameters_raise_before_any_task(params, match, lazy):
    X = da.from_array(BLOBS, chunks=(100, 4)) if lazy else BLOBS
    with counting() as counts, pytest.raises(ValueError, match=match):
        SpectralClustering(**params).fit(X)
    assert counts.tasks == 0


@pytest.mark.parametrize(
    "affinity", ["nearest_neighbors", "precomputed", "precomputed_nearest_neighbors"]
)
def test_graphs_are_not_of_rows_on_dask(affinity):
    with counting() as counts, pytest.raises(ValueError, match=r"kernel for rows on Dask.*rbf"):
        SpectralClustering(affinity=affinity).fit(da.from_array(BLOBS, chunks=100))
    assert counts.tasks == 0


def test_rows_that_have_no_such_affinity():
    import array_api_strict as xp

    with pytest.raises(ValueError, match="for rows on a device"):
        SpectralClustering(affinity="cosine").fit(xp.asarray(BLOBS))
    with pytest.raises(ValueError, match="'chi2' for sparse rows"):
        SpectralClustering(affinity="chi2").fit(sparse.csr_array(np.abs(BLOBS)))
    with pytest.raises(ValueError, match=r"positive sums.*lower gamma"):
        SpectralClustering(2, affinity="additive_chi2", n_landmarks=50).fit(np.abs(BLOBS))
    with pytest.raises(ValueError, match="NaN"):
        SpectralClustering(n_landmarks=50).fit(da.from_array(BLOBS * np.nan, chunks=(100, 4)))


def test_verbose_fits_say_what_runs(capsys):
    SpectralClustering(n_landmarks=50, random_state=0, verbose=True, **OF_BLOBS).fit(BLOBS)
    assert "Computing label assignment using kmeans" in capsys.readouterr().out
