"""GaussianMixture against scikit-learn's, in every world, for any cut, and counted."""

import re
import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import mixture as reference
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet import config_context
from skfleet.blocks import row_uniform
from skfleet.engine import counting
from skfleet.estimators import GaussianMixture, KMeans
from skfleet.estimators.mixture import _start as starts

KINDS = ["full", "tied", "diag", "spherical"]
METHODS = ["kmeans", "k-means++", "random", "random_from_data"]
PARAMETERS = ["weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"]
K, D = 3, 4
kinds = pytest.mark.parametrize("kind", KINDS)


@parametrize_with_checks([GaussianMixture(max_iter=20, tol=0.1, random_state=0)])
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


@pytest.fixture(scope="module")
def blobs():
    X, _ = make_blobs(600, D, centers=K, cluster_std=2.5, random_state=0)
    return X


def _start(X, kind, k=K):
    """Return initial weights, means and precisions, none of them the same."""
    rng = np.random.default_rng(1)
    d = X.shape[1]
    factors = rng.normal(size=(k, d, d))
    full = factors @ factors.transpose(0, 2, 1) + np.eye(d)
    weights = rng.uniform(1, 2, k)
    precisions = {
        "full": full,
        "tied": full[0],
        "diag": rng.uniform(0.5, 2, (k, d)),
        "spherical": rng.uniform(0.5, 2, k),
    }[kind]
    options = {"weights_init": weights / weights.sum(), "means_init": X[:k]}
    return {"n_components": k, "covariance_type": kind, "precisions_init": precisions, **options}


def assert_same(ours, theirs, *, tol=1e-9, shift=0.0):
    assert ours.n_iter_ == theirs.n_iter_
    assert ours.converged_ == theirs.converged_
    np.testing.assert_allclose(ours.lower_bounds_, theirs.lower_bounds_, rtol=tol)
    np.testing.assert_allclose(ours.lower_bound_, theirs.lower_bound_, rtol=tol)
    for name in PARAMETERS:
        one, other = getattr(ours, name), getattr(theirs, name)
        assert one.dtype == other.dtype
        other = other + shift if name == "means_" else other
        np.testing.assert_allclose(one, other, rtol=tol, atol=tol, err_msg=name)


@kinds
def test_same_model_as_scikit_learn_from_the_same_start(kind, blobs):
    options = {**_start(blobs, kind), "tol": 1e-7, "max_iter": 300}
    ours, theirs = (m.GaussianMixture(**options).fit(blobs) for m in (_Ours, reference))
    assert ours.n_iter_ > 5
    assert_same(ours, theirs)
    for method in ("predict", "predict_proba", "score_samples"):
        one, other = getattr(ours, method)(blobs), getattr(theirs, method)(blobs)
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    for method in ("score", "aic", "bic"):
        assert getattr(ours, method)(blobs) == pytest.approx(getattr(theirs, method)(blobs))
    np.testing.assert_array_equal(ours.fit_predict(blobs), theirs.fit_predict(blobs))
    for one, other in zip(ours.sample(20), theirs.sample(20), strict=True):
        assert one.shape == other.shape
    ours.set_params(random_state=0), theirs.set_params(random_state=0)
    for one, other in zip(ours.sample(20), theirs.sample(20), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


class _Ours:
    """The room of ours, by the name of scikit-learn's."""

    GaussianMixture = GaussianMixture


@kinds
@pytest.mark.parametrize("missing", ["weights_init", "means_init"])
def test_incomplete_starts(kind, missing, blobs):
    options = {**_start(blobs, kind), missing: None, "max_iter": 3, "init_params": "kmeans"}
    model = GaussianMixture(**options, random_state=0)
    clusters = KMeans(K, n_init=1, random_state=0).fit(blobs)
    found = {
        "weights_init": np.bincount(clusters.labels_) / len(blobs),
        "means_init": clusters.cluster_centers_,
    }
    complete = {**options, missing: found[missing]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(blobs)
        assert_same(model, reference.GaussianMixture(**complete).fit(blobs))


class _Draws:
    """A source of random numbers that draws what it was made of."""

    def __init__(self, responsibilities):
        self.responsibilities = responsibilities

    def uniform(self, size):
        assert size == self.responsibilities.shape
        return self.responsibilities.copy()

    def choice(self, n, size, replace):
        return self.responsibilities.argmax(axis=0)


@kinds
@pytest.mark.parametrize("method", METHODS)
def test_initial_components_are_those_of_scikit_learn_for_the_same_draws(
    kind, method, blobs, monkeypatch
):
    X = blobs[:60]
    options = {"covariance_type": kind, "max_iter": 0, "random_state": 0}
    ours = GaussianMixture(K, init_params=method, **options).fit(X)
    if method == "kmeans":
        responsibilities = np.eye(K)[KMeans(K, n_init=1, random_state=0).fit(X).labels_]
    elif method == "random":
        rng = np.random.RandomState(0)
        seeds = [rng.randint(np.iinfo(np.int32).max) for _ in range(K)]
        responsibilities = np.stack([row_uniform(seed, 0, len(X)) for seed in seeds], axis=1)
    else:
        distances = np.abs(X[:, None, :] - ours.means_).sum(axis=2)
        assert distances.min(axis=0).max() < 1e-9
        responsibilities = (distances == distances.min(axis=0)).astype(float)
    monkeypatch.setattr(reference._base, "check_random_state", lambda _: _Draws(responsibilities))
    drawing = "random" if method in ("kmeans", "random") else "random_from_data"
    theirs = reference.GaussianMixture(K, init_params=drawing, **options).fit(X)
    assert ours.n_iter_ == 0
    assert not ours.converged_
    for name in PARAMETERS:  # variances of single rows are those that scikit-learn rounds
        one, other = getattr(ours, name), getattr(theirs, name)
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * np.abs(other).max())


@kinds
def test_a_start_that_is_passed_is_the_model_of_no_iterations(kind, blobs):
    options = {**_start(blobs, kind), "max_iter": 0, "n_init": 2}
    model = GaussianMixture(**options).fit(blobs)
    np.testing.assert_array_equal(model.means_, options["means_init"])
    np.testing.assert_allclose(model.precisions_, options["precisions_init"], rtol=1e-9)
    inverse = np.linalg.inv if kind in ("full", "tied") else np.reciprocal
    np.testing.assert_allclose(model.covariances_, inverse(model.precisions_), rtol=1e-9)


@kinds
def test_far_from_the_origin_no_digit_is_lost(kind, blobs):
    options = {**_start(blobs, kind), "tol": 1e-7, "max_iter": 300}
    theirs = reference.GaussianMixture(**options).fit(blobs)
    options["means_init"] = options["means_init"] + 1e4
    ours = GaussianMixture(**options).fit(blobs + 1e4)
    assert_same(ours, theirs, shift=1e4)


def test_components_far_apart_keep_their_covariances():
    rng = np.random.default_rng(0)
    near = rng.normal(size=(2, 300, 3))
    X = np.concatenate([near[0] - 1e4, near[1] + 1e4])
    model = GaussianMixture(2, random_state=0).fit(X)
    model.covariances_ = model.covariances_[np.argsort(model.means_[:, 0])]
    for covariance, rows in zip(model.covariances_, near, strict=True):
        want = np.cov(rows.T, bias=True) + 1e-6 * np.eye(3)
        np.testing.assert_allclose(covariance, want, rtol=1e-9, atol=1e-10)


@kinds
def test_single_precision_is_that_of_the_attributes_alone(kind, blobs):
    X = (blobs + 1e3).astype(np.float32)
    options = _start(X.astype(np.float64), kind)
    ours, double = GaussianMixture(**options).fit(X), GaussianMixture(**options)
    double.fit(X.astype(np.float64))
    assert ours.n_iter_ == double.n_iter_
    for name in (*PARAMETERS, "lower_bound_"):
        assert getattr(ours, name).dtype == np.float32
        np.testing.assert_array_equal(
            getattr(ours, name), getattr(double, name).astype(np.float32), err_msg=name
        )
    assert {bound.dtype for bound in ours.lower_bounds_} == {np.dtype(np.float32)}
    assert ours.lower_bounds_ == [np.float32(bound) for bound in double.lower_bounds_]
    assert ours.predict_proba(X).dtype == ours.score_samples(X).dtype == np.float32


def test_every_world_gives_the_same_answer(world, blobs):
    model, X = GaussianMixture(K, random_state=0), world.X(blobs)
    if "csr" in world.name:
        with pytest.raises(TypeError, match="Sparse data was passed"):
            model.fit(X)
        return
    for kind in KINDS:
        options = {**_start(blobs, kind), "tol": 0.1}
        want = reference.GaussianMixture(**options).fit(blobs)
        assert_same(GaussianMixture(**options).fit(X), want)
    want = GaussianMixture(K, random_state=0).fit(blobs)
    assert_same(model.fit(X), want)
    for method in ("predict", "predict_proba", "score_samples"):
        one, other = getattr(model, method)(X), getattr(want, method)(blobs)
        np.testing.assert_allclose(world.host(one), other, rtol=1e-8, atol=1e-9)
    assert model.bic(X) == pytest.approx(want.bic(blobs))


@pytest.mark.parametrize("method", METHODS)
def test_starts_on_a_device(method, blobs):
    array_api_strict = pytest.importorskip("array_api_strict")
    rows = array_api_strict.asarray(blobs, device=array_api_strict.Device("device1"))
    for kind in KINDS:
        model = GaussianMixture(K, covariance_type=kind, init_params=method, random_state=0)
        model.set_params(max_iter=0)
        want = model.fit(blobs).covariances_
        np.testing.assert_allclose(model.fit(rows).covariances_, want, rtol=1e-9, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=12),
    method=st.sampled_from(METHODS),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 5),
)
def test_any_cut_gives_the_same_answer(cuts, method, kind, seed):
    X, _ = make_blobs(200, 3, centers=3, cluster_std=2, random_state=seed)
    edges = [0, *sorted(cuts), 200]
    rows = da.from_array(X, chunks=(tuple(np.diff(edges).tolist()), 3))
    options = {"covariance_type": kind, "init_params": method, "max_iter": 3, "tol": 0}
    model = GaussianMixture(3, random_state=seed, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        want = model.fit(X).means_.copy()
        np.testing.assert_allclose(model.fit(rows).means_, want, rtol=1e-7)


@pytest.mark.parametrize(
    ("method", "kind", "n_passes"),
    [
        ("passed", "full", 0),
        ("random", "diag", 2),
        ("k-means++", "spherical", 1),
        ("random_from_data", "full", 1),
        ("random_from_data", "tied", 2),
        ("kmeans", "tied", None),
    ],
)
def test_passes(method, kind, n_passes, blobs, cluster_client):
    rows, keep = da.from_array(blobs, chunks=(100, D)), kind != "tied"
    options = {"n_components": K, "covariance_type": kind, "init_params": method}
    if method == "passed":
        options = _start(blobs, kind)
    with cluster_client.as_current(), config_context(keep_blocks=keep):
        if method == "kmeans":
            with counting() as counts:
                KMeans(K, n_init=1, random_state=0).fit(rows)
            n_passes = counts.passes + 1
        with counting() as counts:
            model = GaussianMixture(**options, random_state=0, tol=0.1).fit(rows)
        assert counts.passes == n_passes + model.n_iter_
        if keep:  # 6 blocks are loaded once, then two workers reduce them and one task merges
            assert counts.tasks <= 6 + 3 * counts.passes


def test_passes_of_answers(blobs):
    rows = da.from_array(blobs, chunks=(100, D))
    with counting() as counts:
        model = GaussianMixture(**_start(blobs, "diag"))
        labels = model.fit_predict(rows)
    assert counts.passes == model.n_iter_
    np.testing.assert_array_equal(labels, model.predict(blobs))
    for method in ("score", "aic", "bic"):
        with counting() as counts:
            getattr(model, method)(rows)
        assert counts.passes == 1


def test_lazy_frames_have_names_and_their_index(blobs):
    frame = pd.DataFrame(blobs, columns=list("abcd"), index=range(5, 605))
    model = GaussianMixture(K, random_state=0).fit(frame)
    rows = dd.from_pandas(frame, npartitions=3)
    answer = model.predict_proba(rows)
    assert list(answer.columns) == ["0", "1", "2"]
    answer = answer.compute()
    assert list(answer.index) == list(frame.index)
    np.testing.assert_allclose(answer, model.predict_proba(frame))


@kinds
def test_a_warm_start_goes_on_where_the_last_fit_ended(kind, blobs):
    options = {**_start(blobs, kind), "max_iter": 2, "tol": 1e-6, "warm_start": True}
    ours, theirs = GaussianMixture(**options), reference.GaussianMixture(**options)
    for max_iter in (2, 3, 300):
        for model in (ours, theirs):
            model.set_params(max_iter=max_iter, n_init=3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.fit(blobs)
        assert_same(ours, theirs)
    assert ours.converged_
    with counting() as counts:
        ours.fit(da.from_array(blobs))
    assert counts.passes == ours.n_iter_ == 1
    ours.set_params(n_components=4, means_init=None, weights_init=None, precisions_init=None)
    with pytest.raises(ValueError, match="warm_start must go on with 3 components"):
        ours.fit(blobs)


@pytest.mark.parametrize("method", ["random", "random_from_data"])
def test_the_best_of_several_starts(method, blobs):
    options = {"init_params": method, "covariance_type": "diag", "tol": 1e-4, "max_iter": 200}
    rng = np.random.RandomState(3)
    models = [GaussianMixture(K, random_state=rng, **options) for _ in range(3)]
    bounds = [model.fit(blobs).lower_bound_ for model in models]
    best = GaussianMixture(K, n_init=3, random_state=3, **options).fit(blobs)
    assert best.lower_bound_ == max(bounds) > min(bounds)
    assert best.lower_bounds_[-1] == best.lower_bound_


def test_iterations_that_do_not_converge_warn(blobs):
    with pytest.warns(ConvergenceWarning, match="did not converge") as record:
        model = GaussianMixture(K, max_iter=1, random_state=0).fit(blobs)
    assert record[0].filename == __file__
    assert not model.converged_
    assert model.n_iter_ == 1


@pytest.mark.parametrize("verbose", [1, 2])
def test_messages_are_those_of_scikit_learn(verbose, blobs, capsys):
    options = {**_start(blobs, "diag"), "verbose": verbose, "verbose_interval": 2}
    printed = []
    for model in (GaussianMixture(**options), reference.GaussianMixture(**options)):
        model.fit(blobs)
        printed.append(re.sub(r"lapse [\d.]+s", "lapse", capsys.readouterr().out))
    assert printed[0] == printed[1] != ""


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_components": 0}, "n_components must be"),
        ({"n_components": 601}, "Expected n_samples >= n_components but got n_components = 601"),
        ({"covariance_type": "round"}, "covariance_type must be one of"),
        ({"tol": -1}, "tol must be"),
        ({"reg_covar": -1}, "reg_covar must be"),
        ({"max_iter": -1}, "max_iter must be"),
        ({"n_init": 0}, "n_init must be"),
        ({"init_params": "k-means"}, "init_params must be one of"),
        ({"verbose_interval": 0}, "verbose_interval must be"),
        ({"warm_start": 1}, "warm_start must be"),
        ({"weights_init": [0.5, 0.5]}, r"weights_init must be of shape \(3,\)"),
        ({"weights_init": [0.5, 0.5, 0.5]}, "weights_init must be at least 0 and add up to 1"),
        ({"weights_init": [1.5, -0.5, 0.0]}, "weights_init must be at least 0"),
        ({"means_init": np.zeros((3, 3))}, r"means_init must be of shape \(3, 4\)"),
        ({"means_init": np.full((3, 4), np.nan)}, "means_init must be finite"),
        ({"precisions_init": np.zeros((3, 4))}, r"precisions_init must be of shape \(3, 4, 4\)"),
        ({"precisions_init": -np.stack([np.eye(4)] * 3)}, "must be symmetric and positive"),
        ({"precisions_init": np.stack([np.tri(4)] * 3)}, "must be symmetric and positive"),
        ({"covariance_type": "diag", "precisions_init": np.zeros((3, 4))}, "must be above 0"),
    ],
    ids=str,
)
@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
def test_bad_parameters_raise_before_any_task(options, match, lazy, blobs):
    X = da.from_array(blobs, chunks=(100, D)) if lazy else blobs
    with counting() as counts, pytest.raises(ValueError, match=match):
        GaussianMixture(**{"n_components": 3, **options}).fit(X)
    assert counts.tasks == 0


def test_bad_rows(blobs):
    holed = blobs.copy()
    holed[7, 1] = np.nan
    for rows in (holed, da.from_array(holed, chunks=(100, D))):
        for options in (_start(blobs, "full"), {"init_params": "random"}, {}):
            with pytest.raises(ValueError, match="NaN"):
                GaussianMixture(**options).fit(rows)
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        GaussianMixture().fit(da.from_array(blobs[:1]))
    with pytest.raises(TypeError, match="Sparse data was passed"):
        GaussianMixture().fit(da.from_array(blobs).map_blocks(sparse.csr_array))
    with pytest.raises(NotFittedError):
        GaussianMixture().predict(blobs)
    with pytest.raises(ValueError, match="features"):
        GaussianMixture().fit(blobs).predict(da.from_array(blobs[:, :2]))


@kinds
def test_ill_defined_covariances_raise_what_scikit_learn_raises(kind):
    X = np.zeros((20, 2))
    for library in (_Ours, reference):
        model = library.GaussianMixture(covariance_type=kind, reg_covar=0)
        with pytest.raises(ValueError, match="some components have ill-defined empirical cov"):
            model.fit(X)


def test_a_component_without_rows_is_that_of_scikit_learn(blobs):
    for kind in ("full", "diag"):
        options = {**_start(blobs, kind), "max_iter": 3}
        options["means_init"] = np.vstack([blobs[:2], np.full((1, D), 1e4)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            ours, theirs = (m.GaussianMixture(**options).fit(blobs) for m in (_Ours, reference))
        assert_same(ours, theirs, tol=1e-6)


def test_k_means_plus_plus_takes_drawn_rows_where_there_are_many(blobs, monkeypatch):
    monkeypatch.setattr(starts, "MAX_LOCAL_ROWS", 10)
    monkeypatch.setattr(starts, "ROWS_PER_COMPONENT", 20)
    sizes = []
    plus_plus = starts.kmeans_plusplus

    def watched(rows, *args, **options):
        sizes.append(len(rows))
        return plus_plus(rows, *args, **options)

    monkeypatch.setattr(starts, "kmeans_plusplus", watched)
    model = GaussianMixture(K, init_params="k-means++", max_iter=300, random_state=0).fit(blobs)
    assert sizes == [60]
    assert model.converged_
