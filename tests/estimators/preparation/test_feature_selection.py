"""Selection of columns on Dask rows, as scikit-learn's on the rows together."""

import pickle
import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from row_partitions import PARTITIONS, as_dask, check_like_reference
from scipy import sparse
from sklearn import feature_selection
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import chi2, f_classif, f_regression, r_regression
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfleet.engine import counting
from skfleet.estimators import feature_selection as ours

FULL_PARTITIONS = [p for p in PARTITIONS if p != "a block without values"]
SELECTORS = {
    "SelectKBest": {"k": 3},
    "SelectPercentile": {"percentile": 40},
    "SelectFpr": {"alpha": 0.3},
    "SelectFdr": {"alpha": 0.5},
    "SelectFwe": {"alpha": 0.9},
    "GenericUnivariateSelect": {"mode": "k_best", "param": 2},
}


@pytest.fixture
def y():
    return np.repeat([2, 0, 1], [10, 14, 12])[np.random.default_rng(1).permutation(36)]


@pytest.fixture
def X(y):
    """Counts, some of which depend on the class; a third of them are zero."""
    X = np.random.default_rng(0).poisson(1.2, size=(36, 6)).astype(float)
    X[:, 1] += y
    X[:, 4] *= y == 2
    return X


def pair(name, **params):
    kwargs = {**SELECTORS[name], **params}
    return getattr(ours, name)(**kwargs), getattr(feature_selection, name)(**kwargs)


@pytest.mark.sampled(39)
@pytest.mark.parametrize("container", ["array", "csr"])
@pytest.mark.parametrize("partition", FULL_PARTITIONS)
@pytest.mark.parametrize("score_func", [f_classif, f_regression, r_regression, chi2])
def test_every_partition(score_func, partition, container, X, y):
    y = y + X[:, 2] if score_func in (f_regression, r_regression) else y
    selectors = pair("SelectKBest", score_func=score_func)
    check_like_reference(*selectors, X, y, partition=partition, container=container, rtol=1e-10)


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector(name, X, y):
    X = pd.DataFrame(X, columns=list("abcdef"))
    fitted, reference, lazy, _ = check_like_reference(
        *pair(name, score_func=f_classif),
        X,
        y,
        partition="empty middle",
        container="frame",
        rtol=1e-10,
    )
    np.testing.assert_array_equal(fitted.get_support(), reference.get_support())
    assert 0 < fitted.get_support().sum() < 6
    selected = fitted.transform(lazy)
    back = fitted.inverse_transform(selected).compute()
    np.testing.assert_array_equal(back, reference.inverse_transform(selected.compute()))


@pytest.mark.parametrize("labels", [["a", "bb", "ccc"], [3, -1, 2], [True, False, True]])
@pytest.mark.parametrize("score_func", [f_classif, chi2])
def test_labels_of_any_type(score_func, labels, X, y):
    y = np.array(labels)[y]
    reference = feature_selection.SelectKBest(score_func, k=2).fit(X, y)
    targets = [
        da.from_array(y, chunks=9),
        dd.from_pandas(pd.Series(y), npartitions=3),
        y.tolist(),
    ]
    for target in targets:
        fitted = ours.SelectKBest(score_func, k=2).fit(da.from_array(X, chunks=(9, 6)), target)
        np.testing.assert_allclose(fitted.scores_, reference.scores_, rtol=1e-10)
        np.testing.assert_allclose(fitted.pvalues_, reference.pvalues_, rtol=1e-10)


@pytest.mark.parametrize("container", ["array", "csr"])
def test_several_labels(container, X, y):
    labels = np.stack([y > 0, y == 2, np.arange(36) > 30, y > 5], axis=1).astype(int)
    check_like_reference(
        *pair("SelectKBest", score_func=chi2),
        X,
        labels[:, :3],
        partition="empty middle",
        container=container,
        rtol=1e-10,
    )
    frame = dd.from_pandas(pd.DataFrame(labels[:, :3]), npartitions=3)
    rows = dd.from_pandas(pd.DataFrame(X), npartitions=3)
    fitted = ours.SelectKBest(chi2, k=2).fit(rows, frame)
    np.testing.assert_allclose(fitted.scores_, chi2(X, labels[:, :3])[0], rtol=1e-10)
    without_rows = ours.SelectKBest(chi2, k=2).fit(da.from_array(X, chunks=(9, 6)), labels)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(without_rows.scores_, chi2(X, labels)[0], rtol=1e-10)


@pytest.mark.parametrize("score_func", [f_classif, f_regression, chi2])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_types_of_columns(score_func, dtype, X, y):
    X = X.astype(dtype)
    reference = feature_selection.SelectKBest(score_func, k=2).fit(X, y)
    fitted = ours.SelectKBest(score_func, k=2).fit(da.from_array(X, chunks=(9, 6)), y)
    assert fitted.scores_.dtype == reference.scores_.dtype
    assert fitted.pvalues_.dtype == reference.pvalues_.dtype
    np.testing.assert_allclose(fitted.scores_, reference.scores_, rtol=1e-5)
    assert fitted.transform(da.from_array(X, chunks=(9, 6))).compute().dtype == dtype


def test_columns_far_from_zero_keep_their_digits(X, y):
    """The F statistic does not change with the origin, by which scikit-learn's loses digits."""
    near, far = X + np.arange(6) / 8, X + np.arange(6) / 8 + 2.0**22
    for score_func in (f_classif, f_regression):
        exact, _ = score_func(near, y)
        fitted = ours.SelectKBest(score_func, k=2).fit(da.from_array(far, chunks=(9, 6)), y)
        np.testing.assert_allclose(fitted.scores_, exact, rtol=1e-8)
        assert np.abs(score_func(far, y)[0] / exact - 1).max() > 1e-6


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_constant_columns_and_targets(X, y):
    X[:, 0], X[:, 1] = 3, y
    rows = da.from_array(X, chunks=(9, 6))
    for score_func, target in ((f_regression, y), (r_regression, np.ones(36)), (chi2, y * 0)):
        reference = feature_selection.SelectKBest(score_func, k=2).fit(X, target)
        fitted = ours.SelectKBest(score_func, k=2).fit(rows, target)
        finite = np.abs(reference.scores_) < 1e10  # the target itself has no finite score
        np.testing.assert_allclose(fitted.scores_[finite], reference.scores_[finite], rtol=1e-10)
        assert np.array_equal(np.isnan(fitted.scores_), np.isnan(reference.scores_))
    with pytest.warns(UserWarning, match=r"Features \[0 1\] are constant"):
        fitted = ours.SelectKBest(k=2).fit(rows, y)
    assert np.isnan(fitted.scores_[0])
    assert fitted.scores_[1] == np.inf


def test_one_pass(X, y):
    selectors = [getattr(ours, name)(**params) for name, params in SELECTORS.items()]
    for selector in (*selectors, ours.VarianceThreshold()):
        with counting() as counts:
            selector.fit(as_dask(X, "unknown lengths"), as_dask(y, "unknown lengths"))
        assert counts.passes == 1


@pytest.mark.sampled(26)
@pytest.mark.parametrize("container", ["array", "csr", "frame"])
@pytest.mark.parametrize("threshold", [0, 0.5])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_variance_threshold(threshold, partition, container, X):
    X[:, 0] = 0.25
    X[np.random.default_rng(2).random(X.shape) < 0.1] = np.nan
    X[:, 3] += 1000
    X = pd.DataFrame(X, columns=list("abcdef")) if container == "frame" else X
    params = {"threshold": threshold}
    check_like_reference(
        ours.VarianceThreshold(**params),
        feature_selection.VarianceThreshold(**params),
        X,
        partition=partition,
        container=container,
    )


def message_of(call):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("name", "params", "change"),
    [
        ("SelectKBest", {"k": 2}, "no target"),
        ("SelectFpr", {}, "no target"),
        ("SelectKBest", {"k": -1}, "nothing"),
        ("SelectKBest", {"score_func": "f_classif"}, "nothing"),
        ("SelectKBest", {"score_func": chi2, "k": 2}, "negative"),
        ("SelectKBest", {"k": 2}, "infinite"),
        ("VarianceThreshold", {"threshold": 1e9}, "nothing"),
        ("VarianceThreshold", {}, "one row"),
        ("VarianceThreshold", {}, "infinite"),
    ],
)
def test_errors_of_fit(name, params, change, X, y):
    X[5, 1] = {"negative": -1, "infinite": np.inf}.get(change, 1)
    X, y = (X[:1], y[:1]) if change == "one row" else (X, y)
    stock, own = (getattr(room, name)(**params) for room in (feature_selection, ours))
    targets = () if change == "no target" else (y,)
    expected = message_of(lambda: stock.fit(X, *targets))
    assert message_of(lambda: own.fit(da.from_array(X, chunks=(9, 6)), *targets)) == expected
    assert vars(own) == vars(getattr(ours, name)(**params))


def test_other_errors(X, y):
    rows = da.from_array(X, chunks=(9, 6))
    for score_func in (feature_selection.mutual_info_classif, lambda X, y: X.sum(axis=0)):
        with pytest.raises(TypeError, match=r"f_classif, f_regression.*sample_rows\(X, y"):
            ours.SelectKBest(score_func).fit(rows, y)
    local = ours.SelectKBest(feature_selection.mutual_info_classif, k=2).fit(X, y)
    assert local.transform(rows).shape == (36, 2)
    with pytest.raises(NotFittedError):
        ours.SelectKBest().transform(rows)
    with pytest.warns(UserWarning, match="k=10 is greater than n_features=6"):
        ours.SelectKBest().fit(rows, y)
    with pytest.raises(ValueError, match="Unknown label type"):
        ours.SelectKBest(chi2).fit(rows, y + 0.5)
    with pytest.raises(ValueError, match="Multioutput target data is not supported"):
        ours.SelectKBest(chi2).fit(rows, np.stack([y, y], axis=1))
    with pytest.raises(ValueError, match="should be a 1d array"):
        ours.SelectKBest(f_classif).fit(rows, np.stack([y, y], axis=1) > 1)


def test_fits_in_threads_leave_the_filters_of_warnings_as_they_are():
    filters = list(warnings.filters)
    for _ in range(5):
        ours.VarianceThreshold().fit(da.random.random((60_000, 5), chunks=(200, 5)))
    assert warnings.filters == filters


def test_wide_sparse_rows(y):
    X = sparse.random_array((36, 3000), density=0.02, format="csr", random_state=0)
    rows = da.from_array(X, chunks=(9, 3000), asarray=False)
    for score_func in (f_regression, chi2):
        reference = feature_selection.SelectKBest(score_func).fit(X, y)
        fitted = pickle.loads(pickle.dumps(ours.SelectKBest(score_func).fit(rows, y)))
        assert np.array_equal(np.isnan(fitted.scores_), np.isnan(reference.scores_))
        np.testing.assert_allclose(fitted.scores_, reference.scores_, rtol=1e-10)
        assert (fitted.transform(rows).compute() != reference.transform(X)).nnz == 0


@pytest.mark.filterwarnings("ignore:k=10:UserWarning", "ignore:No features were:UserWarning")
@parametrize_with_checks([ours.VarianceThreshold(), *(getattr(ours, name)() for name in SELECTORS)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)
