"""Transformers in searches: their largest result has the smaller ones in it."""

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as reference
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from reference_search import compare
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_selection import (
    SelectKBest,
    SelectPercentile,
    chi2,
    f_classif,
    f_regression,
    mutual_info_classif,
)
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from random_examples import n_examples
from skfleet.model_selection import GridSearchCV, SharedFitUse
from skfleet.model_selection._paths import _registry

X, y = make_classification(240, 20, n_informative=8, n_redundant=0, n_classes=3, random_state=0)
TWINS = np.kron(np.random.RandomState(0).randn(120, 4), np.eye(2))  # each value twice
FLAT = X @ np.diag(np.r_[np.ones(18), np.zeros(2)])
ARPACK = TruncatedSVD(algorithm="arpack", random_state=0)


pytestmark = pytest.mark.usefixtures("one_thread")


@settings(
    max_examples=n_examples(10, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    kind=st.sampled_from(["pca", "covariance", "arpack", "best", "percentile", "regression"]),
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4, unique=True),
    alphas=st.lists(st.floats(1e-2, 1e2), min_size=1, max_size=3, unique=True),
    n_rows=st.integers(40, 150),
    n_columns=st.integers(10, 25),
    whiten=st.booleans(),
    before=st.booleans(),
    after=st.booleans(),
    scale=st.sampled_from([1.0, 1e-4, 1e4]),
    kind_of_rows=st.sampled_from(["array", "frame", "integers", "single"]),
    seed=st.integers(0, 1000),
)
def test_steps_at_random(
    kind, sizes, alphas, n_rows, n_columns, whiten, before, after, scale, kind_of_rows, seed
):
    rng = np.random.RandomState(seed)
    rows = (rng.randn(n_rows, n_columns) + 0.3) * np.logspace(0, np.log10(scale), n_columns)
    targets = rows[:, 0] / rows[:, 0].std() + rng.randn(n_rows)
    makers = {
        "frame": pd.DataFrame,
        "integers": lambda rows: np.round(3 * rows).astype(int),
        "single": lambda rows: rows.astype(np.float32),
    }
    rows = makers.get(kind_of_rows, np.asarray)(rows)
    if after and kind not in ("best", "percentile"):
        # Directions without variance would be brought to length one: rounding, which is another one
        # in every call of scikit-learn's.
        splits = KFold(3).split(rows)
        ranks = [np.linalg.matrix_rank(np.cov(np.asarray(rows)[train].T)) for train, _ in splits]
        sizes = [min(n, *ranks) for n in sizes]
        assume(len(set(sizes)) == len(sizes))
    step, name, values = {
        "pca": (PCA(svd_solver="full", whiten=whiten), "n_components", sizes),
        "covariance": (PCA(svd_solver="covariance_eigh"), "n_components", sizes),
        "arpack": (ARPACK, "n_components", sizes),
        "best": (SelectKBest(f_regression), "k", sizes),
        "percentile": (SelectPercentile(f_regression), "percentile", [9.5 * n for n in sizes]),
        "regression": (PCA(), "n_components", sizes),
    }[kind]
    steps = [("scale", StandardScaler())] * before + [("step", step)]
    steps += [("more", StandardScaler())] * after + [("ridge", Ridge())]
    grid = {f"step__{name}": values, "ridge__alpha": alphas}
    # Ridge leaves whitened directions without variance at their rounding.
    rtol = 1e-2 if kind_of_rows == "single" else 1e-6
    if whiten and scale != 1 and not before:
        grid["ridge__alpha"] = [1e3]
    compare(Pipeline(steps), grid, rows, targets, rtol=rtol)


@pytest.mark.parametrize(
    ("step", "name", "values"),
    [
        (PCA(), "n_components", [2, 7, 4]),
        (PCA(whiten=True), "n_components", [20, 3]),
        (ARPACK, "n_components", [2, 7, 4]),
        (SelectKBest(), "k", [1, 20, 5]),
        (SelectKBest(chi2), "k", [3, 5]),
        (SelectPercentile(f_classif), "percentile", [100, 10, 33.3]),
    ],
)
def test_each_step_is_fitted_once_a_split(step, name, values):
    name = f"{type(step).__name__.lower()}__{name}"
    model = make_pipeline(MinMaxScaler(), step, KNeighborsClassifier(weights="distance"))
    (use,) = compare(
        model, {name: values, "kneighborsclassifier__p": [1, 2]}, X, y, rtol=1e-9
    ).shared_fits_
    n_fits = 6 * len(values)
    parameters = (name.partition("__")[2],)
    assert use == SharedFitUse(type(step).__name__, parameters, n_fits, use.n_saved, None)
    assert n_fits / 2 < use.n_saved <= n_fits - 3  # bundles that take long leave some to others


def test_a_shared_fit_before_a_shared_fit():
    model = make_pipeline(PCA(), KNeighborsClassifier())
    grid = {"pca__n_components": [3, 6], "kneighborsclassifier__n_neighbors": [1, 3, 5, 7]}
    uses = {use.estimator: use for use in compare(model, grid, X, y, rtol=1e-9).shared_fits_}
    assert uses["PCA"].n_fits == uses["KNeighborsClassifier"].n_fits == 24
    assert 12 < uses["KNeighborsClassifier"].n_saved <= 18  # all but one of each size and split
    assert uses["PCA"].n_saved >= 12


def test_one_of_two_steps():
    model = make_pipeline(SelectKBest(), PCA(), GaussianNB())
    grid = {"selectkbest__k": [8, 12], "pca__n_components": [2, 4, 8]}
    (use,) = compare(model, grid, X, y, rtol=1e-9).shared_fits_
    assert use.estimator == "PCA"
    assert 6 < use.n_saved <= 12  # each selection has its components


def test_last_step():
    (use,) = compare(PCA(), {"n_components": [2, 5, 20]}, X, rtol=1e-9).shared_fits_
    assert use == SharedFitUse("PCA", ("n_components",), 9, use.n_saved, None)
    assert 3 < use.n_saved <= 6


@pytest.mark.parametrize("size", [1, 5, 20])
@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (PCA(svd_solver="full"), X),
        (PCA(svd_solver="covariance_eigh", whiten=True), X),
        (ARPACK, X),
        (ARPACK, sparse.csr_array(X)),
        (PCA(), pd.DataFrame(X).add_prefix("c")),
    ],
)
def test_fitted_as_if_alone(model, rows, size):
    size = min(size, 19) if isinstance(model, TruncatedSVD) else size
    shared_fit = _registry.member_of(model, {"n_components": size}).shared_fit
    sizes = [{"n_components": n} for n in (size, 3, 19)]
    found = shared_fit.fit(clone(model), sizes, rows, y)[0]
    alone = clone(model).set_params(n_components=size).fit(rows, y)
    assert vars(found).keys() == vars(alone).keys()
    assert found.get_params() == alone.get_params()
    for name, value in vars(alone).items():
        if name.endswith("_") and not name.startswith(("_", "feature_names")):
            np.testing.assert_allclose(vars(found)[name], value, 1e-8, 1e-10, err_msg=name)
    np.testing.assert_allclose(found.transform(rows), alone.transform(rows), 1e-8, 1e-8)


@pytest.mark.parametrize("solver", ["full", "covariance_eigh", "auto"])
@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("container", ["array", "frame", "tall"])
def test_components_are_scikit_learns_to_the_last_bit(solver, whiten, container):
    # Rounding would break ties of what follows in another way.
    rows = pd.DataFrame(X).add_prefix("c") if container == "frame" else X
    rows = rows[:, :4] if container == "tall" else rows
    model = PCA(svd_solver=solver, whiten=whiten)
    model.set_output(transform="pandas" if container == "frame" else "default")
    sizes = [{"n_components": size} for size in (1, 4, 2)]
    shared_fit = _registry.member_of(model, sizes[0]).shared_fit
    for (found, made), size in zip(
        shared_fit.fit_transform(clone(model), sizes, rows, y), sizes, strict=True
    ):
        alone = clone(model).set_params(**size)
        expected = alone.fit_transform(rows)
        made = found.transform(rows) if made is None else made
        assert type(made) is type(expected)
        np.testing.assert_array_equal(made, expected)
        np.testing.assert_array_equal(found.transform(rows[:50]), alone.transform(rows[:50]))


def test_ties_after_components_are_broken_alike():
    rows = np.random.RandomState(0).randint(0, 4, (600, 4)).astype(float)
    targets = (rows.sum(axis=1) + np.random.RandomState(1).randint(0, 4, 600) > 7).astype(int)
    model = make_pipeline(PCA(), KNeighborsClassifier(2))
    compare(model, {"pca__n_components": [2, 3, 4]}, rows, targets)


@pytest.mark.parametrize(
    ("step", "grid", "rows", "word"),
    [
        (PCA(svd_solver="arpack"), {"n_components": [2, 3]}, X, "svd_solver must be"),
        (PCA(copy=False), {"n_components": [2, 3]}, X, "copy must be True"),
        (PCA(svd_solver="full"), {"n_components": [0.5, 0.9]}, X, "positive integer"),
        (PCA(svd_solver="full"), {"n_components": [2, 999]}, X, "at most 20"),
        (PCA(), {"n_components": [2, 3]}, np.tile(X, (6, 30)), "for so many columns"),
        (PCA(svd_solver="covariance_eigh"), {"n_components": [2, 3]}, sparse.csr_array(X), "dense"),
        (TruncatedSVD(random_state=0), {"n_components": [2, 3]}, X, "algorithm must be"),
        (ARPACK, {"n_components": [1, 3]}, TWINS, "apart"),
        (PCA(whiten=True), {"n_components": [2, 20]}, FLAT, "larger than rounding"),
        (SelectKBest(mutual_info_classif), {"k": [2, 3]}, X, "score_func must be"),
        (SelectKBest(), {"k": ["all", 3]}, X, "k must be a number"),
        (SelectKBest(), {"k": [2, 30]}, X, "k must be at most 20"),
        (SelectPercentile(), {"percentile": [-1, 50]}, X, "from 0 to 100"),
    ],
)
def test_what_might_differ_is_fitted_by_itself(step, grid, rows, word):
    model = Pipeline([("step", step), ("knn", KNeighborsClassifier())])
    grid = {f"step__{name}": values for name, values in grid.items()}
    targets = np.resize(y, rows.shape[0])
    is_random = "mutual" in str(getattr(step, "score_func", ""))
    params = {"cv": reference.KFold(3), "refit": False, "error_score": -9}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = GridSearchCV(model, grid, **params).fit(rows, targets)
        theirs = reference.GridSearchCV(model, grid, **params).fit(rows, targets)
    if not is_random:
        for name in ("split0_test_score", "split1_test_score", "split2_test_score"):
            np.testing.assert_allclose(
                ours.cv_results_[name], theirs.cv_results_[name], 0, 0 if step is not ARPACK else 1
            )
    assert sum(use.n_fits for use in ours.shared_fits_) == 6
    assert sum(use.n_saved for use in ours.shared_fits_) == 0
    assert any(word in use.refused for use in ours.shared_fits_ if use.refused)


def test_steps_are_their_own_without_sharing():
    model = make_pipeline(PCA(), GaussianNB())
    search = GridSearchCV(model, {"pca__n_components": [2, 3]}, cv=2, share_fits=False, refit=False)
    assert search.fit(X, y).shared_fits_ == ()


@pytest.mark.parametrize("model", [PCA(), ARPACK, SelectKBest()])
def test_parameters_of_fit_that_nobody_knows_are_refused(model):
    values = {"k": 2} if isinstance(model, SelectKBest) else {"n_components": 2}
    shared_fit = _registry.member_of(model, values).shared_fit
    with pytest.raises(NotImplementedError, match="must not be given weight"):
        shared_fit.fit(clone(model), [values], X, y, weight=1.0)


class Mine(PCA):
    """A subclass, which may do anything."""


def test_subclasses_fit_by_themselves():
    model = Pipeline([("pca", Mine()), ("nb", GaussianNB())])
    (use,) = compare(model, {"pca__n_components": [2, 3]}, X, y, rtol=1e-9).shared_fits_
    assert "subclass" in use.refused


def test_times_are_those_of_separate_fits():
    rows = np.random.RandomState(0).randn(2000, 200)
    targets = np.arange(2000) % 2
    model = make_pipeline(PCA(svd_solver="full"), GaussianNB())
    search = GridSearchCV(model, {"pca__n_components": [2, 3, 4]}, cv=2, refit=False)
    times = search.fit(rows, targets).cv_results_["mean_fit_time"]
    assert times.min() > times.max() / 4
