"""Encoders of labels on Dask labels in every partition, as scikit-learn's."""

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_partitions import PARTITIONS, arranged, as_dask, same_attributes, same_values
from scipy import sparse
from sklearn import preprocessing
from sklearn.exceptions import DataConversionWarning, NotFittedError

from skfleet.engine import counting
from skfleet.estimators import preprocessing as ours

N = 40
rng = np.random.default_rng(0)
LABELS = {
    "integers": rng.integers(3, 7, N),
    "floats": rng.integers(0, 3, N).astype(float),
    "binary": rng.integers(0, 2, N).astype(np.int16),
    "booleans": rng.random(N) > 0.5,
    "text": rng.choice(["x", "yy", "z"], N),
    "objects": rng.choice(["x", "y"], N).astype(object),
    "one label": np.full(N, 7),
}
INDICATORS = rng.integers(0, 2, (N, 4))


def check(name, local, lazy, **params):
    """Compare fit, transform, inverse and fit_transform of both, and return ours."""
    a, b = getattr(ours, name)(**params), getattr(preprocessing, name)(**params)
    same_attributes(a.fit(lazy), b.fit(local))
    encoded, expected = a.transform(lazy), b.transform(local)
    for result in (encoded, a.fit_transform(lazy)):
        assert isinstance(result, da.Array)
        computed = result.compute(scheduler="synchronous")
        assert result.dtype == computed.dtype
        assert result.ndim == computed.ndim
        assert result.shape[1:] == computed.shape[1:]
        assert sparse.issparse(computed) == sparse.issparse(expected)
        same_values(computed, expected)
    back, expected = a.inverse_transform(encoded), b.inverse_transform(expected)
    assert isinstance(back, da.Array)
    computed = back.compute(scheduler="synchronous")
    if isinstance(expected, list):
        assert computed.tolist() == expected
    else:
        assert back.dtype == computed.dtype
        same_values(computed, expected)
    return a


@pytest.mark.sampled(12)
@pytest.mark.parametrize("partition", [p for p in PARTITIONS if p != "a block without values"])
@pytest.mark.parametrize("kind", LABELS)
def test_columns_in_every_partition(kind, partition):
    _, y = arranged(LABELS[kind][:, None], LABELS[kind], partition)
    lazy = as_dask(y, partition)
    check("LabelEncoder", y, lazy)
    check("LabelBinarizer", y, lazy)
    if kind != "one label":
        check("LabelBinarizer", y, lazy, neg_label=-2, pos_label=3)
        check("LabelBinarizer", y, lazy, sparse_output=True)


@pytest.mark.parametrize("kind", ["text", "integers", "category"])
def test_series(kind):
    y = pd.Series(pd.Categorical(LABELS["text"]) if kind == "category" else LABELS[kind])
    lazy = dd.from_pandas(y, npartitions=3)
    y = lazy.compute()
    check("LabelEncoder", y, lazy)
    check("LabelBinarizer", y, lazy)


def test_missing_labels():
    y = np.array(["x", None, np.nan, "y"] * 5, dtype=object)
    check("LabelEncoder", y, da.from_array(y, chunks=3))
    numbers = np.array([1.0, np.nan, 0.0, 2.0] * 5)
    check("LabelEncoder", numbers, da.from_array(numbers, chunks=1))


@pytest.mark.parametrize("container", ["array", "csr"])
@pytest.mark.parametrize("params", [{}, {"sparse_output": True, "pos_label": 3}, {"neg_label": -1}])
def test_indicators(container, params):
    y = INDICATORS.copy()
    y[:14] = 0  # a block without labels
    lazy = as_dask(y, "empty middle", container)
    check("LabelBinarizer", sparse.csr_array(y) if container == "csr" else y, lazy, **params)


def test_inverse_does_not_change_persisted_indicators():
    y = LABELS["integers"]
    lazy = da.from_array(y, chunks=10)
    a = ours.LabelBinarizer(sparse_output=True, pos_label=5).fit(lazy)
    multilabel = ours.LabelBinarizer(sparse_output=True, pos_label=5)
    encoded = multilabel.fit_transform(as_dask(INDICATORS, "one block", "csr")).persist()
    before = encoded.compute().toarray()
    multilabel.inverse_transform(encoded).compute()
    np.testing.assert_array_equal(encoded.compute().toarray(), before)
    scores = np.random.default_rng(0).normal(size=(N, 1))
    binary = ours.LabelBinarizer().fit(da.from_array(LABELS["objects"], chunks=7))
    result = binary.inverse_transform(da.from_array(scores, chunks=(9, 1)), threshold=0.3)
    np.testing.assert_array_equal(result.compute(), np.where(scores[:, 0] > 0.3, "y", "x"))
    assert a.classes_.tolist() == [3, 4, 5, 6]


SETS = [[("x", "y"), ("z",), (), ("y",)] * 5, [[1, 3], [2], [3, 1, 1]] * 4, [{"a"}, {"b", "c"}]]


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("container", ["bag", "series", "array"])
@pytest.mark.parametrize("params", [{}, {"sparse_output": True}])
def test_label_sets(sets, container, params):
    if container == "bag":
        lazy = db.from_sequence(sets, npartitions=2)
    elif container == "series":
        parts = [dask.delayed(pd.Series)(sets[i::2], dtype=object) for i in range(2)]
        with dask.config.set({"dataframe.convert-string": False}):
            lazy = dd.from_delayed(parts, meta=pd.Series([], dtype=object), verify_meta=False)
        sets = [*sets[0::2], *sets[1::2]]
    else:
        values = np.empty(len(sets), dtype=object)
        values[:] = sets
        lazy = da.from_array(values, chunks=3)
    check("MultiLabelBinarizer", sets, lazy, **params)
    classes = sorted(set().union(*sets), reverse=True)
    with counting() as counts:
        check("MultiLabelBinarizer", sets, lazy, classes=classes, **params)
    assert counts.passes == 0


def test_numbers_of_passes():
    lazy = da.from_array(LABELS["integers"], chunks=10)
    for cls in (ours.LabelEncoder, ours.LabelBinarizer):
        with counting() as counts:
            cls().fit(lazy)
        assert counts.passes == 1


def messages(call):
    with pytest.raises((ValueError, TypeError, NotFittedError)) as error:
        call()
    return type(error.value), str(error.value)


def test_errors_are_scikit_learns():
    y = LABELS["integers"]
    lazy, new = da.from_array(y, chunks=N), np.array([3, 9])
    for name, params, labels in [
        ("LabelBinarizer", {"neg_label": 2, "pos_label": 1}, y),
        ("LabelBinarizer", {"sparse_output": True, "pos_label": 0, "neg_label": -1}, y),
        ("LabelBinarizer", {}, np.arange(N) / 3),
        ("LabelBinarizer", {}, np.arange(2 * N).reshape(N, 2)),
        ("LabelEncoder", {}, np.array(["x", 1] * 20, dtype=object)),
        ("MultiLabelBinarizer", {"classes": ["x", "x"]}, y),
    ]:
        a, b = getattr(ours, name)(**params), getattr(preprocessing, name)(**params)
        rows = da.from_array(labels, chunks=labels.shape)
        assert messages(lambda a=a, r=rows: a.fit(r)) == messages(lambda b=b, y=labels: b.fit(y))
        assert not [k for k in vars(a) if k.endswith("_")]
    a, b = ours.LabelEncoder().fit(lazy), preprocessing.LabelEncoder().fit(y)
    result = a.transform(da.from_array(new, chunks=2))
    assert messages(result.compute) == messages(lambda: b.transform(new))
    assert messages(lambda: ours.LabelEncoder().transform(lazy))[0] is NotFittedError
    with pytest.warns(DataConversionWarning):
        ours.LabelEncoder().fit(lazy[:, None])
    a = ours.LabelBinarizer().fit(da.from_array(LABELS["binary"], chunks=N))
    with pytest.raises(ValueError, match="at most two in a block"):
        a.transform(da.from_array(np.arange(4), chunks=4)).compute()


@settings(max_examples=25, deadline=None)
@given(
    labels=st.lists(st.sampled_from(["a", "b", "c", "dd"]), min_size=2, max_size=12),
    chunk=st.integers(1, 6),
)
def test_any_labels_in_any_cut(labels, chunk):
    y = np.array(labels, dtype=object)
    lazy = da.from_array(y, chunks=chunk)
    check("LabelEncoder", y, lazy)
    check("LabelBinarizer", y, lazy)
