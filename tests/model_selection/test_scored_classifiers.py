"""Ridge classifiers whose accuracies are counted without a fit: scikit-learn's, or refused."""

import warnings

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_search import compare, grid_search
from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from random_examples import n_examples
from skfleet import estimators
from skfleet.engine import counting
from skfleet.model_selection import GridSearchCV

pytestmark = pytest.mark.usefixtures("one_thread")

GRID = {"alpha": [1e-3, 1.0, 100.0, 1e4]}


def rows_of(n_classes, n=400, seed=0, **options):
    options = {
        "n_informative": 5,
        "n_redundant": 0,
        "flip_y": 0.2,
        "n_classes": n_classes,
        **options,
    }
    return make_classification(n, 8, n_clusters_per_class=1, random_state=seed, **options)


X, y = rows_of(3)
X2, y2 = rows_of(2)


def is_scored(search):
    """Return whether all scores are from sums: there was no fit to be timed."""
    return search.timeline_.empty


def reason_of(search):
    (use,) = [use for use in search.shared_fits_ if use.estimator == "Pipeline"]
    return use.refused


@pytest.mark.sampled(7)
@pytest.mark.parametrize("scoring", [None, "accuracy", ["balanced_accuracy", "accuracy"]])
@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (X2, y2),
        (X, y),
        (X2 * np.logspace(-3, 3, 8) + 10, np.array(["no", "yes"])[y2]),
        (pd.DataFrame(X), pd.Series(y * 10, index=np.arange(400) % 7).astype("category")),
        (np.rint(X * 10).astype(int).tolist(), y.astype(float).tolist()),
    ],
    ids=["two", "three", "words", "frame", "lists"],
)
def test_accuracies_are_those_of_the_fits(rows, labels, scoring):
    options = {"scoring": scoring, "cv": 4}
    search = compare(RidgeClassifier(), GRID, rows, labels, rtol=1e-14, **options)
    assert is_scored(search)
    (use,) = search.shared_fits_
    assert use[:] == ("RidgeClassifier", ("alpha",), 16, 12, None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scoring", ["accuracy", "balanced_accuracy"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_pipelines_in_two_passes(scoring, fit_intercept):
    frame = (
        pd.DataFrame(X).rename(columns=str).assign(kind=np.array(list("abcd"))[np.arange(400) % 4])
    )
    encoder = OneHotEncoder(drop="first", sparse_output=False)
    columns = make_column_transformer((encoder, ["kind"]), remainder=StandardScaler())
    model = RidgeClassifier(fit_intercept=fit_intercept)
    pipeline = Pipeline([("columns", columns), ("model", model)])
    grid = {"model__alpha": [0.1, 10.0], "columns__remainder": [MinMaxScaler(), StandardScaler()]}
    options = {"scoring": scoring, "cv": 3}
    search = compare(pipeline, grid, frame, y, rtol=1e-14, **options)
    assert is_scored(search)
    with counting() as counts:
        grid_search(pipeline, grid | {"columns__remainder": [MinMaxScaler()]}, frame, y, **options)
    assert counts.passes == 2


def test_dask_rows_in_two_passes(cluster_client):
    pipeline = make_pipeline(estimators.StandardScaler(), estimators.RidgeClassifier())
    grid = {"ridgeclassifier__alpha": [0.1, 100.0]}
    expected = reference.GridSearchCV(
        make_pipeline(StandardScaler(), RidgeClassifier()), grid, cv=3
    ).fit(X, y)
    lazy = da.from_array(X, chunks=((0, 150, 1, 249), 8)), da.from_array(y, chunks=100)
    with cluster_client.as_current(), counting() as counts:
        search = GridSearchCV(pipeline, grid, cv=3, refit=False).fit(*lazy)
    assert is_scored(search)
    assert counts.passes == 2
    np.testing.assert_array_equal(*(s.cv_results_["mean_test_score"] for s in (search, expected)))


def test_own_classifiers():
    for model in (estimators.RidgeClassifier(), estimators.RidgeClassifier(solver="svd")):
        assert is_scored(compare(model, GRID, X, y, rtol=1e-14))


_tripled = np.tile(X[:40], (3, 1)), np.repeat([0, 1, 2], 40)
# each row belongs to each class once
SYMMETRIC = tuple(np.concatenate([part] * 3) for part in _tripled)
# the last rows are nearly in the middle of two classes that mirror each other
MIRRORED = (
    np.r_[X2[:60], 2.2 - X2[:60], np.full((9, 8), 1.1 + 1e-14)],
    np.r_[y2[:60], 1 - y2[:60], y2[:9]],
)
TIED = np.r_[np.zeros((40, 8)), X[:120]], np.r_[np.arange(40) % 2, y2[:120]]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "rows", "labels", "options", "reason"),
    [
        (RidgeClassifier(class_weight="balanced"), X, y, {}, "class_weight"),
        (RidgeClassifier(), X, y, {"scoring": "f1_macro"}, "scoring must be of"),
        (RidgeClassifier(), X, np.r_[y[:-50], 9 * np.ones(50)], {"cv": KFold(8)}, "training set"),
        (
            RidgeClassifier(),
            X[np.argsort(y)],
            np.sort(y),
            {"cv": ShuffleSplit(3, test_size=3, random_state=0), "scoring": "balanced_accuracy"},
            "test set",
        ),
        (RidgeClassifier(), X, np.c_[y == 0, y == 1].astype(int), {"cv": 3}, "y must be classes"),
        # all decisions are zero
        (RidgeClassifier(fit_intercept=False), *TIED, {"cv": KFold(4)}, "rounding"),
        (RidgeClassifier(), *MIRRORED, {"cv": [(np.arange(120), np.arange(120, 129))]}, "rounding"),
        (RidgeClassifier(), *SYMMETRIC, {"cv": KFold(3)}, "rounding"),
        (RidgeClassifier(), X.astype(np.float32), y, {}, "float64"),
    ],
    ids=["weights", "scorer", "training", "test", "labels", "zeros", "middle", "ties", "float32"],
)
def test_refused(model, rows, labels, options, reason):
    pipeline = Pipeline([("scale", MaxAbsScaler()), ("model", model)])
    grid = {f"model__{name}": values for name, values in GRID.items()}
    search = compare(pipeline, grid, rows, labels, rtol=1e-14, **options)
    assert not is_scored(search)
    assert reason in reason_of(search)
    if reason != "float64":
        assert not is_scored(compare(model, GRID, rows, labels, rtol=1e-14, **options))


def test_classifiers_and_regressors_are_not_mixed():
    pipeline = make_pipeline(StandardScaler(), RidgeClassifier())
    grid = {"ridgeclassifier": [RidgeClassifier(), Ridge()]}
    search = compare(pipeline, grid, X, y, rtol=1e-9)
    assert "all classifiers" in reason_of(search)
    # nor does a classifier get the score of a regressor, whose fits are made
    regressor = {"standardscaler": [FunctionTransformer()], "ridgeclassifier": [Ridge()]}
    grid = [regressor, {"ridgeclassifier": [RidgeClassifier()]}]
    assert not is_scored(compare(pipeline, grid, X2, y2, rtol=1e-9, scoring="r2"))


def test_other_classifiers_are_fitted():
    pipeline = make_pipeline(StandardScaler(), RidgeClassifier())
    grid = {"ridgeclassifier": [RidgeClassifier(), LogisticRegression()]}
    uses = compare(pipeline, grid, X2, y2, rtol=1e-9).shared_fits_
    assert [use.n_fits for use in uses if use.refused is None] == [3]


@settings(max_examples=n_examples(15, 300), deadline=None)
@given(
    n_classes=st.integers(2, 4),
    scalers=st.lists(
        st.sampled_from(
            [
                StandardScaler(),
                MinMaxScaler((-1, 3)),
                MaxAbsScaler(),
                PCA(3),
                PCA(),
                PolynomialFeatures(2, interaction_only=True),
            ]
        ),
        max_size=2,
        unique_by=type,
    ),
    fit_intercept=st.booleans(),
    alphas=st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=3, unique=True),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    shift=st.sampled_from([0.0, 1.0, 1e3]),
    digits=st.sampled_from([0, 1, 12]),
    cv=st.sampled_from([KFold(3), StratifiedKFold(4), ShuffleSplit(2, random_state=0)]),
    seed=st.integers(0, 1000),
)
def test_classifiers_at_random(
    n_classes, scalers, fit_intercept, alphas, scale, shift, digits, cv, seed
):
    rows, labels = rows_of(n_classes, 60 + seed % 200, seed)
    rows = np.round(rows, digits) * np.logspace(0, np.log10(scale), 8) + shift
    steps = [(f"step{i}", step) for i, step in enumerate(scalers)]
    pipeline = Pipeline([*steps, ("model", RidgeClassifier(fit_intercept=fit_intercept))])
    options = {"cv": cv, "refit": False, "scoring": ["accuracy", "balanced_accuracy"]}
    grid = {"model__alpha": alphas}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = GridSearchCV(pipeline, grid, **options).fit(rows, labels)
        expected = reference.GridSearchCV(pipeline, grid, **options).fit(rows, labels)
    if not is_scored(search):  # fits may differ too, as of components with equal variances
        assert reason_of(search)
        return
    for name in ("mean_test_accuracy", "mean_test_balanced_accuracy"):
        left, right = (s.cv_results_[name] for s in (search, expected))
        np.testing.assert_allclose(left, right, rtol=1e-14)
