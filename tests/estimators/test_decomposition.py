"""PCA, TruncatedSVD and IncrementalPCA against scikit-learn's, in every world, for any cut."""

import warnings

import bench_large_svd as large
import dask.array as da
import numpy as np
import pytest
from decomposition_attributes import OF_PCA, assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg, sparse
from sklearn import decomposition as reference
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import config_context
from skfleet.engine import counting
from skfleet.estimators import PCA, IncrementalPCA, TruncatedSVD
from skfleet.estimators.decomposition import _pca as pca
from skfleet.estimators.decomposition import _randomized_svd as subspace
from skfleet.estimators.decomposition import _svd_solvers as spectrum

SOLVERS = ["auto", "covariance_eigh", "full", "randomized", "arpack"]
ALGORITHMS = ["auto", "randomized", "arpack", "tsqr"]


@parametrize_with_checks(
    [
        PCA(),
        PCA(1, svd_solver="full"),
        PCA(1, svd_solver="randomized", random_state=0),
        TruncatedSVD(1, random_state=0),
        TruncatedSVD(1, algorithm="randomized", random_state=0),
        TruncatedSVD(1, algorithm="tsqr"),
        IncrementalPCA(),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    return load_digits().data


@pytest.fixture(scope="module")
def rows():
    """Rows of 12 columns of different scales, far from the origin."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12)) * np.logspace(0, -2, 12) + 5


@pytest.mark.parametrize("n", [None, 1, 5, 0.9, "mle", 12, 0])
@pytest.mark.parametrize("solver", SOLVERS)
def test_pca_is_scikit_learns(rows, n, solver):
    model = PCA(n, svd_solver=solver, random_state=0)
    if solver in ("randomized", "arpack") and n in (0, 0.9, "mle"):
        with counting() as counts, pytest.raises(ValueError, match="n_components"):
            model.fit(rows)
        assert counts.tasks == 0
        return
    theirs = reference.PCA(n, svd_solver="full").fit(rows)
    ours = model.fit(rows)
    assert_same(ours, theirs, names=OF_PCA)
    assert ours.n_components_ == theirs.n_components_
    assert ours.n_samples_ == theirs.n_samples_ == 300
    np.testing.assert_allclose(ours.transform(rows), theirs.transform(rows), atol=1e-9)
    if n == 0:
        return  # scikit-learn takes no rows of no columns
    back = ours.inverse_transform(ours.transform(rows))
    np.testing.assert_allclose(back, theirs.inverse_transform(theirs.transform(rows)), atol=1e-9)


@pytest.mark.parametrize("n", [None, 3])
def test_whitened_rows(rows, n):
    ours, theirs = (kind(n, whiten=True).fit(rows) for kind in (PCA, reference.PCA))
    white = ours.transform(rows)
    np.testing.assert_allclose(white, theirs.transform(rows), atol=1e-6)
    np.testing.assert_allclose(np.cov(white.T), np.eye(white.shape[1]), atol=1e-8)
    np.testing.assert_allclose(
        ours.inverse_transform(white), theirs.inverse_transform(white), atol=1e-8
    )


@pytest.mark.parametrize("n", [3, 12])
def test_density(rows, n):
    ours, theirs = (kind(n).fit(rows) for kind in (PCA, reference.PCA))
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-10)
    precision = theirs.get_precision()
    np.testing.assert_allclose(ours.get_precision(), precision, atol=1e-7 * np.abs(precision).max())
    np.testing.assert_allclose(ours.score_samples(rows), theirs.score_samples(rows), rtol=1e-6)
    np.testing.assert_allclose(ours.score(rows), theirs.score(rows), rtol=1e-8)
    lazy = da.from_array(rows, chunks=(70, 5))
    np.testing.assert_allclose(ours.score_samples(lazy).compute(), ours.score_samples(rows))
    np.testing.assert_allclose(ours.score(lazy), ours.score(rows))


def test_whitening_does_not_change_the_density(rows):
    plain, white = (PCA(3, whiten=whiten).fit(rows) for whiten in (False, True))
    np.testing.assert_array_equal(white.get_covariance(), plain.get_covariance())
    assert white.score(rows) == plain.score(rows)
    full = PCA(whiten=True).fit(rows)
    np.testing.assert_allclose(full.get_covariance(), np.cov(rows.T), atol=1e-10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_truncated_svd_is_scikit_learns(digits, algorithm):
    theirs = reference.TruncatedSVD(5, algorithm="arpack").fit(digits)
    ours = TruncatedSVD(5, algorithm=algorithm, random_state=0)
    got = ours.fit_transform(digits)
    assert_same(ours, theirs)
    np.testing.assert_allclose(got, theirs.transform(digits), atol=1e-8)
    np.testing.assert_allclose(
        ours.inverse_transform(got), theirs.inverse_transform(got), atol=1e-8
    )


def test_tsqr_is_another_name_for_full(digits):
    rows = da.from_array(digits[:, :20], chunks=(500, 20))
    ours = PCA(4, svd_solver="tsqr").fit(rows)
    assert ours.svd_solver_ == "full"
    assert_same(ours, PCA(4, svd_solver="full").fit(rows))


MODELS = {
    "pca": PCA(4),
    "pca-full": PCA(4, svd_solver="full"),
    "pca-randomized": PCA(2, svd_solver="randomized", random_state=0),
    "pca-whiten": PCA(4, whiten=True),
    "svd": TruncatedSVD(3),
    "svd-randomized": TruncatedSVD(3, algorithm="randomized", random_state=0),
    "svd-tsqr": TruncatedSVD(3, algorithm="tsqr"),
    "incremental": IncrementalPCA(3, batch_size=50),
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", MODELS)
def test_every_world_gives_the_same_answer(world, rows, name):
    model = MODELS[name]
    if "csr" in world.name and name in ("pca-full", "svd-tsqr"):
        pytest.skip("for dense rows")
    want = model.fit(rows)
    components, values, places = (
        want.components_.copy(),
        want.singular_values_,
        want.transform(rows),
    )
    X = world.X(rows)
    model.fit(X)
    np.testing.assert_allclose(model.components_, components, atol=1e-8)
    np.testing.assert_allclose(model.singular_values_, values, rtol=1e-8)
    got = model.transform(X)
    np.testing.assert_allclose(world.host(got), places, atol=1e-7)
    if "csr" not in world.name:
        back = model.inverse_transform(got)
        np.testing.assert_allclose(world.host(back), want.inverse_transform(places), atol=1e-7)


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    columns=st.integers(1, 8),
    name=st.sampled_from(list(MODELS)),
    seed=st.integers(0, 5),
)
def test_any_cut_gives_the_same_answer(cuts, columns, name, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 8)) * np.arange(1, 9) + rng.normal(size=8) * 100
    edges = [0, *sorted(cuts), 200]
    lazy = da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), columns))
    model = MODELS[name]
    want = model.fit(X).components_.copy()
    np.testing.assert_allclose(model.fit(lazy).components_, want, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, bool])
@pytest.mark.parametrize(
    "model", [PCA(3), TruncatedSVD(3), IncrementalPCA(3, batch_size=320)], ids=repr
)
def test_kinds_of_numbers(digits, dtype, model):
    X = digits > 8 if dtype is bool else digits.astype(dtype)
    want = model.fit(X.astype(float)).components_.copy()
    lazy = da.from_array(X, chunks=(500, 20))
    for given_rows in (X, lazy):
        model.fit(given_rows)
        # IncrementalPCA's are double in any case, as in scikit-learn.
        single = dtype is np.float32 and not isinstance(model, IncrementalPCA)
        assert model.components_.dtype == (np.float32 if single else np.float64)
        np.testing.assert_allclose(model.components_, want, atol=1e-5)
        assert model.transform(given_rows).dtype == model.components_.dtype


def test_far_from_the_origin():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 6)) * np.arange(1, 7) + 1e6
    want = reference.PCA(svd_solver="full").fit(X - 1e6)
    for solver in SOLVERS:
        ours = PCA(6, svd_solver=solver, random_state=0).fit(da.from_array(X, chunks=(300, 6)))
        np.testing.assert_allclose(ours.explained_variance_, want.explained_variance_, rtol=1e-7)
        np.testing.assert_allclose(ours.components_, want.components_, atol=1e-6)


def test_full_keeps_small_singular_values():
    rng = np.random.default_rng(0)
    left, right = (linalg.qr(rng.normal(size=(n, 8)), mode="economic")[0] for n in (400, 8))
    left -= left.mean(axis=0)
    scale = np.logspace(0, -11, 8)
    X = linalg.qr(left, mode="economic")[0] * scale @ right.T
    lazy = da.from_array(X, chunks=(90, 8))
    np.testing.assert_allclose(PCA(svd_solver="full").fit(lazy).singular_values_, scale, rtol=1e-4)
    tsqr = TruncatedSVD(8, algorithm="tsqr").fit(lazy)
    np.testing.assert_allclose(tsqr.singular_values_, scale, rtol=1e-4)


@pytest.mark.parametrize("centred", [True, False])
def test_few_passes_reach_what_many_power_iterations_do(centred):
    # a spectrum that decays slowly, where plain power iterations gain little
    rng = np.random.default_rng(0)
    left, right = (linalg.qr(rng.normal(size=(n, 300)), mode="economic")[0] for n in (2000, 300))
    X = left * (1 / np.sqrt(1 + np.arange(300))) @ right.T
    X = X - X.mean(axis=0) if centred else X
    exact = linalg.svdvals(X)[:5]
    kind = PCA if centred else TruncatedSVD
    name = {"svd_solver": "randomized"} if centred else {"algorithm": "randomized"}
    ours, theirs = {}, {}
    for n_iter in (2, 3, 4):
        power = {"iterated_power" if centred else "n_iter": n_iter}
        with counting() as counts:
            model = kind(5, **name, **power, random_state=0).fit(X)
        assert (
            counts.passes == n_iter + 1
        )  # where as many usual power iterations read X 2 n + 2 times
        ours[n_iter] = np.max(np.abs(model.singular_values_ / exact - 1))
        model = reference.TruncatedSVD(5, n_iter=n_iter, random_state=0).fit(X)
        theirs[n_iter] = np.max(np.abs(model.singular_values_ / exact - 1))
    assert ours[2] < theirs[2] / 10
    assert ours[3] < theirs[4]
    assert ours[4] < theirs[4] / 1000


def _wide(n_rows=400, n_columns=900, rank=40):
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(n, rank)) for n in (n_rows, n_columns))
    return (left * np.logspace(1, -1, rank)) @ right.T


@pytest.mark.parametrize(
    ("model", "passes"),
    [
        (PCA(), 1),
        (PCA(5), 1),
        (PCA(0.9), 1),
        (PCA(svd_solver="full"), 1),
        (PCA(5, svd_solver="randomized", iterated_power=2, tol=1e-300), 3),
        (TruncatedSVD(5), 1),
        (TruncatedSVD(5, algorithm="tsqr"), 1),
        (TruncatedSVD(5, algorithm="randomized", n_iter=2, tol=1e-300), 3),
        (IncrementalPCA(5), 1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "streamed"])
def test_passes(model, passes, keep, cluster_client):
    X = da.from_array(_wide(400, 60), chunks=(50, 30))
    with cluster_client.as_current(), config_context(keep_blocks=keep), counting() as counts:
        model.fit(X)
    assert counts.passes == passes
    # eight blocks, two tasks that merge their results, and eight that load them
    assert counts.tasks <= 18 * passes


def test_passes_end_early_when_there_is_no_more_to_find():
    X = _wide(rank=12)
    with counting() as counts:
        model = TruncatedSVD(3, algorithm="randomized", n_iter=20, random_state=0).fit(X)
    assert counts.passes == model.n_iter_ + 1 == 2
    np.testing.assert_allclose(model.singular_values_, linalg.svdvals(X)[:3], rtol=1e-10)


def test_arpack_makes_as_many_passes_as_it_takes(monkeypatch):
    X = np.random.default_rng(0).normal(size=(500, 400))
    want = reference.TruncatedSVD(3, algorithm="arpack").fit(X)
    assert_same(TruncatedSVD(3, algorithm="arpack", random_state=0).fit(X), want, tol=1e-7)
    monkeypatch.setattr(spectrum, "MAX_PASSES", 3)
    with pytest.warns(ConvergenceWarning, match="TruncatedSVD did not converge in 3 passes"):
        TruncatedSVD(3, algorithm="arpack", random_state=0).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TruncatedSVD(3, algorithm="arpack", tol=0.5, random_state=0).fit(X)


def test_a_basis_that_grows_too_large_is_cut_back(monkeypatch):
    X = np.random.default_rng(0).normal(size=(500, 300)) * np.linspace(3, 1, 300)
    want = linalg.svdvals(X)[:3]
    monkeypatch.setattr(subspace, "MAX_BASIS_BYTES", 300 * 40 * 8)
    model = TruncatedSVD(3, algorithm="arpack", random_state=0).fit(X)
    np.testing.assert_allclose(model.singular_values_, want, rtol=1e-9)


def test_wide_rows_are_not_multiplied_all_with_all(monkeypatch):
    X = _wide()
    for few in ("MAX_COVARIANCE_COLUMNS", "MAX_SPARSE_COVARIANCE_COLUMNS"):
        monkeypatch.setattr(spectrum, few, 100)
    model = PCA(5, random_state=0).fit(X)
    assert model.svd_solver_ == "randomized"
    assert_same(model, reference.PCA(5, svd_solver="full").fit(X), tol=1e-6, names=OF_PCA)
    thin = sparse.csr_array(np.where(np.abs(X) > 20, X, 0))
    model = PCA(5, random_state=0).fit(thin)
    assert model.svd_solver_ == "arpack"
    assert_same(model, reference.PCA(5, svd_solver="arpack").fit(thin), tol=1e-7, names=OF_PCA)
    assert PCA().fit(X).svd_solver_ == "covariance_eigh"
    monkeypatch.setattr("skfleet.glm._normal_equations.MAX_GRAM_COLUMNS", 200)
    for bad in (PCA(), PCA(0.5), PCA(5, svd_solver="full"), TruncatedSVD(5, algorithm="tsqr")):
        with counting() as counts, pytest.raises(ValueError, match="at most 200 columns"):
            bad.fit(X)
        assert counts.tasks == 0


def test_fewer_rows_than_columns():
    X = _wide(30, 80, 80)
    theirs = reference.PCA(svd_solver="full").fit(X)
    for solver in ("auto", "full", "randomized"):
        ours = PCA(29, svd_solver=solver, random_state=0).fit(X)
        np.testing.assert_allclose(
            ours.singular_values_, theirs.singular_values_[:29], rtol=1e-6, atol=1e-7
        )
    assert PCA().fit(X).n_components_ == 30
    lazy = da.from_array(X, chunks=(10, 80))
    unknown = lazy[da.ones(30, chunks=10, dtype=bool)]
    for rows in (X, lazy, unknown):
        for solver in ("auto", "full", "randomized"):
            with pytest.raises(ValueError, match="must be between"):
                PCA(31, svd_solver=solver).fit(rows)
        with pytest.raises(ValueError, match="n_components='mle'"):
            PCA("mle").fit(rows)
    model = PCA(30).fit(X)
    with pytest.raises(ValueError, match="noise_variance_ must be above 0"):
        model.score(X)


@pytest.mark.parametrize("seed", range(5))
def test_minka(seed):
    rng = np.random.default_rng(seed)
    n, p = rng.integers(30, 200), rng.integers(2, 15)
    variance = np.sort(rng.exponential(size=p) ** 3)[::-1]
    X = rng.normal(size=(n, p)) * np.sqrt(variance)
    theirs = reference.PCA("mle", svd_solver="full").fit(X)
    assert PCA("mle").fit(X).n_components_ == theirs.n_components_
    assert pca.minka_rank(np.r_[variance, np.zeros(2)], 100) >= 1


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (PCA(1.5), "n_components must be"),
        (PCA(-1), "n_components must be"),
        (PCA("all"), "n_components must be"),
        (PCA(65), "must be between"),
        (PCA(svd_solver="svd"), "svd_solver must be"),
        (PCA(whiten=1), "whiten must be"),
        (PCA(tol=-1.0), "tol must be"),
        (PCA(iterated_power=-1), "iterated_power must be"),
        (PCA(n_oversamples=0), "n_oversamples must be"),
        (PCA(power_iteration_normalizer="no"), "power_iteration_normalizer must be"),
        (TruncatedSVD(0), "n_components must be"),
        (TruncatedSVD(65), "n_features"),
        (TruncatedSVD(algorithm="svd"), "algorithm must be"),
        (TruncatedSVD(n_iter=-1), "n_iter must be"),
        (IncrementalPCA(0), "n_components must be"),
        (IncrementalPCA(65), "n_features"),
        (IncrementalPCA(batch_size=0), "batch_size must be"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_bad_parameters_raise_before_any_task(model, match, lazy, digits):
    X = da.from_array(digits, chunks=(300, 64)) if lazy else digits
    with counting() as counts, pytest.raises(ValueError, match=match):
        model.fit(X)
    assert counts.tasks == 0


def test_bad_rows(rows):
    holed = rows.copy()
    holed[7, 1] = np.nan
    for model in (PCA(), TruncatedSVD(), IncrementalPCA(), PCA(2, svd_solver="arpack")):
        for bad in (holed, da.from_array(holed, chunks=(100, 6))):
            with pytest.raises(ValueError, match="NaN"):
                model.fit(bad)
        with pytest.raises(NotFittedError):
            model.transform(rows)
        model.fit(rows)
        with pytest.raises(ValueError, match="features"):
            model.transform(da.from_array(rows[:, :5]))
        with pytest.raises(ValueError, match="as many columns as there are components"):
            model.inverse_transform(np.ones((3, 13)))
    for model in (PCA(svd_solver="full"), TruncatedSVD(algorithm="tsqr")):
        with pytest.raises(TypeError, match="sparse"):
            model.fit(sparse.csr_array(rows))


@pytest.mark.slow
def test_genotypes_cut_along_both_axes():
    found = large.run(1 / 20)  # on two worker processes of 1 GB
    assert found["passes"] == 6
    assert found["values"] <= 1e-3
    assert found["angle"] <= 1e-2
