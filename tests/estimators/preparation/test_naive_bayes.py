"""Naive Bayes on rows in every partition, as scikit-learn's on the rows together."""

import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from row_partitions import (
    PARTITIONS,
    arranged,
    as_dask,
    check_like_reference,
    same_attributes,
    same_values,
)
from scipy import sparse
from sklearn import naive_bayes
from sklearn.base import clone

from skfleet.estimators import naive_bayes as ours

CLASSIFIERS = {
    "GaussianNB": {},
    "MultinomialNB": {"alpha": [0.5, 1, 2, 3]},
    "ComplementNB": {"norm": True},
    "BernoulliNB": {"binarize": 1.0, "fit_prior": False},
    "CategoricalNB": {"min_categories": 3},
}
METHODS = ("predict", "predict_proba", "predict_log_proba", "predict_joint_log_proba")
LABELS = {
    "ints": np.array([3, -1, 7]),
    "text": np.array(["b", "aaa", "cc"]),
    "objects": np.array(["b", "aaa", "cc"], dtype=object),
    "bools": np.array([True, False, True]),
}


def pair(name, **params):
    params = {**CLASSIFIERS[name], **params}
    return getattr(ours, name)(**params), getattr(naive_bayes, name)(**params)


def columns(name, n_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, size=(n_rows, 4))
    return X * 1.5 + rng.normal(size=X.shape) if name == "GaussianNB" else X


@pytest.fixture(params=CLASSIFIERS)
def name(request):
    return request.param


@pytest.fixture
def y():
    return np.random.default_rng(1).integers(0, 3, size=60)


def compare_answers(model, reference, X, rows):
    """Compare the answers of all methods for rows in this process and the same Dask rows X."""
    for method in METHODS:
        got, expected = getattr(model, method)(X), getattr(reference, method)(rows)
        assert isinstance(got, da.Array if isinstance(X, da.Array) else dd.Series | dd.DataFrame)
        blocks = got.compute(scheduler="synchronous")
        if not isinstance(X, da.Array):
            assert list(blocks.index) == list(rows.index)
            if method not in ("predict", "predict_joint_log_proba"):
                assert list(blocks.columns) == [str(label) for label in reference.classes_]
            blocks = blocks.to_numpy()
        else:
            assert got.dtype == blocks.dtype == expected.dtype
        same_values(blocks.astype(expected.dtype), expected, rtol=1e-9)


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if "without values" not in p])
def test_every_partition(name, partition, y):
    model, reference, lazy, rows = check_like_reference(
        *pair(name), columns(name), y, partition=partition
    )
    compare_answers(model, reference, lazy, rows)
    _, y = arranged(columns(name), y, partition)
    score = model.score(lazy, as_dask(y, partition))
    assert isinstance(score, float)
    assert score == pytest.approx(reference.score(rows, y), abs=1e-12)


@pytest.mark.parametrize("labels", LABELS)
def test_labels_of_any_kind(name, labels, y):
    X, y = columns(name), LABELS[labels][y]
    lazy = as_dask(X, "sorted by y"), da.from_array(y, chunks=((20, 10, 30),))
    model, reference = pair(name)
    same_attributes(model.fit(*lazy), reference.fit(X, y))
    compare_answers(model, reference, lazy[0], X)


def test_frames(name, y):
    X = pd.DataFrame(columns(name), columns=list("abcd"), index=np.arange(60) * 2)
    labels = pd.Series(LABELS["text"][y], index=X.index)
    lazy = as_dask(X, "empty middle"), as_dask(labels, "empty middle")
    model, reference = pair(name)
    same_attributes(model.fit(*lazy), reference.fit(X, labels))
    compare_answers(model, reference, lazy[0], X)
    assert model.score(*lazy) == pytest.approx(reference.score(X, labels), abs=1e-12)


def test_sparse_rows(name, y):
    X = columns(name) * (np.random.default_rng(2).random((60, 4)) < 0.5)
    model, reference = pair(name)
    if name in ("GaussianNB", "CategoricalNB"):
        with pytest.raises(TypeError, match=r"[Ss]parse data was passed"):
            model.fit(as_dask(X, "one block", "csr"), as_dask(y, "one block"))
        assert vars(model).keys() == vars(clone(model)).keys()
        return
    model, reference, lazy, rows = check_like_reference(
        model, reference, X, y, partition="sorted by y", container="csr"
    )
    compare_answers(model, reference, lazy, rows)


@pytest.mark.parametrize("unit", [1.0, 1e-10])
def test_weights(name, unit, y):
    X, weight = columns(name), np.random.default_rng(3).integers(0, 4, size=60) * unit
    if unit < 1 and name == "GaussianNB":
        weight *= 1e3  # scikit-learn leaves out classes of less than 1e-8
    model, reference = pair(name)
    model.fit(as_dask(X, "empty first"), as_dask(y, "empty first"), as_dask(weight, "empty first"))
    same_attributes(model, reference.fit(X, y, weight))
    lazy = as_dask(X, "one block"), as_dask(y, "one block")
    score = model.score(*lazy, sample_weight=as_dask(weight, "one block"))
    assert score == pytest.approx(reference.score(X, y, weight), rel=1e-9)
    same_attributes(model.fit(*lazy, sample_weight=2.0), reference.fit(X, y, np.full(60, 2.0)))


@pytest.mark.parametrize("weighted", [False, True])
def test_partial_fit(name, weighted, y):
    model, reference = pair(name)
    for i in range(3):
        X, labels = columns(name, seed=i), y if i else np.minimum(y, 1)
        weight = np.random.default_rng(i).random(60) if weighted else None
        cut = PARTITIONS[i + 4]
        lazy = [None if a is None else as_dask(a, cut) for a in (X, labels, weight)]
        classes = None if i else [0, 1, 2, 5]
        model.partial_fit(lazy[0], lazy[1], classes, lazy[2])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            reference.partial_fit(X, labels, classes, weight)
        same_attributes(model, reference)
    # rows in this process too
    model.partial_fit(X, labels)
    same_attributes(model, reference.partial_fit(X, labels))


def test_partial_fit_needs_all_classes(name, y):
    X, labels = as_dask(columns(name), "one block"), as_dask(y, "one block")
    model = pair(name)[0]
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, labels)
    assert vars(model).keys() == vars(clone(model)).keys()
    model.partial_fit(X, labels, [0, 1, 2])
    with pytest.raises(ValueError, match="is not the same as on last call"):
        model.partial_fit(X, labels, [0, 1])


def test_priors(name, y):
    parameter = "priors" if name == "GaussianNB" else "class_prior"
    X, lazy = columns(name), (as_dask(columns(name), "empty last"), as_dask(y, "empty last"))
    model, reference = pair(name, **{parameter: [0.2, 0.5, 0.3]})
    same_attributes(model.fit(*lazy), reference.fit(X, y))
    with pytest.raises(ValueError, match="Number of priors must match number of classes"):
        model.set_params(**{parameter: [0.5, 0.5]}).fit(*lazy)
    same_attributes(model, reference)  # a failed fit changes nothing


def test_blocks_without_weight(name, y):
    X, weight = columns(name), np.where(np.arange(60) < 25, 0.0, 2.0)
    lazy = [da.from_array(a, chunks=(5, -1)[: a.ndim]) for a in (X, y, weight)]
    model, reference = pair(name)
    same_attributes(model.fit(*lazy), reference.fit(X, y, weight))
    with pytest.raises(ValueError, match=r"[Ss]ample.weight"):
        model.fit(*lazy[:2], 0 * lazy[2])


def test_float32_rows(y):
    X = columns("GaussianNB").astype(np.float32)
    model, reference = pair("GaussianNB")
    model.fit(as_dask(X, "empty middle"), as_dask(y, "empty middle"))
    same_attributes(model, reference.fit(X, y), rtol=1e-5)
    assert model.predict_proba(as_dask(X, "one block")).dtype == reference.predict_proba(X).dtype


def test_large_means_keep_their_variances(y):
    X = columns("GaussianNB") + 1e7
    model, reference = pair("GaussianNB")
    model.fit(as_dask(X, "a row a block"), as_dask(y, "a row a block"))
    same_attributes(model, reference.fit(X, y), rtol=1e-8)


@pytest.mark.parametrize(
    ("params", "X", "message"),
    [
        ({"alpha": -1.0}, [[1.0]], "alpha"),
        ({"alpha": [1.0, 2.0]}, [[1.0]], "it should contains `n_features`"),
        ({}, [[-1.0]], "Negative values in data"),
        ({}, [[np.nan]], "Input X contains NaN"),
    ],
    ids=str,
)
def test_errors_are_those_of_scikit_learn(params, X, message):
    model, reference = ours.MultinomialNB(**params), naive_bayes.MultinomialNB(**params)
    X = np.array(X)
    with pytest.raises(ValueError, match=message):
        reference.fit(X, [0])
    with pytest.raises(ValueError, match=message):
        model.fit(da.from_array(X), da.zeros(1, dtype=int))
    assert vars(model).keys() == vars(clone(model)).keys()


def test_targets_are_checked(name, y):
    X, model = as_dask(columns(name), "one block"), pair(name)[0]
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        model.fit(X, None)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        model.fit(X, da.zeros((60, 2)))
    with pytest.raises(ValueError, match="expecting 4 features"):
        model.fit(X, as_dask(y, "one block")).predict(X[:, :2])


def test_new_categories_are_no_business_of_the_graph(y):
    X = columns("CategoricalNB")
    model = ours.CategoricalNB().fit(as_dask(X, "one block"), as_dask(y, "one block"))
    lazy = model.predict(as_dask(X + 100, "one block"))
    assert lazy.dtype == model.classes_.dtype
    with pytest.raises(IndexError):
        lazy.compute(scheduler="synchronous")


def test_wide_sparse_rows():
    X = sparse.random_array((200, 3000), density=0.01, rng=np.random.default_rng(4), format="csr")
    y = np.arange(200) % 5
    lazy = da.from_array(X, chunks=(67, 3000), asarray=False)
    model, reference = ours.MultinomialNB(), naive_bayes.MultinomialNB()
    same_attributes(model.fit(lazy, da.from_array(y, chunks=67)), reference.fit(X, y))
    compare_answers(model, reference, lazy, X)
