"""Exact quantiles, and the transformers that need them, as NumPy's and scikit-learn's."""

import pickle
import warnings

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from row_partitions import PARTITIONS, check_like_reference, same_attributes
from scipy import sparse
from sklearn import preprocessing
from sklearn.base import clone
from sklearn.utils.stats import _weighted_percentile

import skfleet
from skfleet.engine import counting, engine_for, run_passes
from skfleet.estimators import preprocessing as ours
from skfleet.estimators._blockwise import blocks_as_they_are
from skfleet.estimators.impute import SimpleImputer
from skfleet.quantiles import _order_values, column_quantiles

METHODS = (
    "inverted_cdf",
    "averaged_inverted_cdf",
    "closest_observation",
    "interpolated_inverted_cdf",
    "hazen",
    "weibull",
    "linear",
    "median_unbiased",
    "normal_unbiased",
)


def columns_of(block):
    X = block.X.tocsc() if sparse.issparse(block.X) else block.X
    return X, block.sample_weight


def quantiles_of(X, levels, method="linear", weight=None, n_blocks=3, **options):
    """Return the quantiles of the columns of X, cut into blocks, and the number of passes."""
    size = max(1, -(-X.shape[0] // n_blocks))
    lazy = da.from_array(X, chunks=(size, X.shape[1]), asarray=False)
    weight = None if weight is None else da.from_array(weight, chunks=size)
    rows = blocks_as_they_are(lazy, None, weight)
    fit = column_quantiles("quantiles", columns_of, levels, method, **options)
    with counting() as counts:
        _, quantiles = run_passes(fit, engine_for(rows), rows)
    return quantiles, counts.passes


def numpy_quantiles(X, levels, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if method == "median":
            return np.nanmedian(X, axis=0)[None]
        columns = [np.nanpercentile(x, levels, method=method) for x in X.T]
        return np.transpose(columns)


values = st.one_of(
    st.floats(-1e3, 1e3, width=32),
    st.sampled_from([0.0, 1.0, 2.0, -1.0, np.nan, 1e-300, 1e300, -0.0]),
)
matrices = hnp.arrays(np.float64, st.tuples(st.integers(1, 60), st.integers(1, 3)), elements=values)
levels = st.lists(st.floats(0, 100), min_size=1, max_size=4).map(lambda a: [0.0, *a, 100.0])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    matrices,
    levels,
    st.sampled_from([*METHODS, "median"]),
    st.sampled_from([3, 12, 20_000]),
    st.sampled_from([64, 2**20]),
    st.sampled_from(["as they are", "sorted", "constant"]),
)
def test_quantiles_are_numpys_to_the_last_bit(X, levels, method, n_sampled, n_bytes, order):
    levels = [50.0] if method == "median" else levels
    X = {"as they are": X, "sorted": np.sort(X, axis=0), "constant": X[:1].repeat(40, 0)}[order]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_order_values, "SAMPLE_ROWS", n_sampled)
        patch.setattr(_order_values, "MAX_BYTES", n_bytes)
        quantiles, _ = quantiles_of(X, levels, method)
    np.testing.assert_array_equal(quantiles, numpy_quantiles(X, levels, method))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    matrices,
    levels,
    st.booleans(),
    st.sampled_from([3, 12, 20_000]),
    st.sampled_from([64, 2**20]),
    st.integers(0, 1000),
)
def test_weighted_quantiles_are_scikit_learns(X, levels, average, n_sampled, n_bytes, seed):
    weight = np.random.default_rng(seed).integers(0, 5, len(X)).astype(float)
    weight[0] = 1
    if average:  # whose mean of the last value and of a missing one is missing
        X = np.nan_to_num(X)
    method = "averaged_inverted_cdf" if average else "inverted_cdf"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_order_values, "SAMPLE_ROWS", n_sampled)
        patch.setattr(_order_values, "MAX_BYTES", n_bytes)
        quantiles, _ = quantiles_of(X, levels, method, weight)
    expected = _weighted_percentile(X, weight, np.array(levels), average=average).T
    has_values = ~np.isnan(X[weight > 0]).all(axis=0)
    np.testing.assert_array_equal(quantiles[:, has_values], expected[:, has_values])
    assert np.isnan(quantiles[:, ~has_values]).all()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(matrices, levels, st.sampled_from([3, 20_000]), st.booleans())
def test_quantiles_of_sparse_rows(X, levels, n_sampled, implicit_zeros):
    X[np.random.default_rng(0).random(X.shape) < 0.5] = 0
    dense = X if implicit_zeros else np.where(X == 0, np.nan, X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_order_values, "SAMPLE_ROWS", n_sampled)
        quantiles, _ = quantiles_of(
            sparse.csr_array(X), levels, "hazen", implicit_zeros=implicit_zeros
        )
    np.testing.assert_array_equal(quantiles, numpy_quantiles(dense, levels, "hazen"))


def test_infinities_are_values():
    X = np.array([[-np.inf, 1, 2, 3, np.inf, np.inf], [np.nan, -np.inf, -np.inf, 0, 1, 2]]).T
    quantiles, _ = quantiles_of(X, [0, 30, 50, 77, 100], "inverted_cdf")
    np.testing.assert_array_equal(
        quantiles, numpy_quantiles(X, [0, 30, 50, 77, 100], "inverted_cdf")
    )


def test_passes_and_bytes(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100_000, 4))
    X[:, 1] = rng.integers(0, 3, len(X))
    X[:, 2] = np.sort(X[:, 2])
    levels = [0, 25, 50, 75, 99.9, 100]
    expected = numpy_quantiles(X, levels, "linear")

    def check(n_passes, n_rows=None):
        quantiles, passes = quantiles_of(X[:n_rows], levels, n_blocks=7)
        np.testing.assert_array_equal(quantiles, numpy_quantiles(X[:n_rows], levels, "linear"))
        assert passes == n_passes

    check(1, 10_000)  # the sample has all rows
    check(2)
    # brackets are too narrow, and most miss
    with monkeypatch.context() as patch:
        patch.setattr(_order_values, "_deviations", lambda n_targets: 0.3)
        patch.setattr(_order_values, "MARGIN", 0.0)
        quantiles, passes = quantiles_of(X, levels, n_blocks=7)
        np.testing.assert_array_equal(quantiles, expected)
        assert 3 <= passes <= 5
    # brackets have more values than may be collected
    collected = []
    combine = _order_values.combine_counts

    def watch(a, b):
        merged = combine(a, b)
        parts = [part for counts in merged for part in counts.values]
        collected.append(sum(part.nbytes for part in parts))
        return merged

    monkeypatch.setattr(_order_values, "combine_counts", watch)
    monkeypatch.setattr(_order_values, "MAX_BYTES", 2**16)
    check(3)
    assert max(collected) < 2 * 2**16


@pytest.fixture
def X():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) * [1, 10, 0.1, 0] + [0, 5, 7, 3]
    X[:6, 0] = 0
    X[:, 1] = np.round(X[:, 1])
    return X


def with_gaps(X):
    X[np.random.default_rng(1).random(X.shape) < 0.1] = np.nan
    return X


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("n_sampled", [20, 20_000])
def test_robust_scaler_in_every_partition(partition, n_sampled, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", n_sampled)
    params = {"unit_variance": n_sampled == 20, "quantile_range": (10, 70)}
    pair = ours.RobustScaler(**params), preprocessing.RobustScaler(**params)
    check_like_reference(*pair, with_gaps(X), partition=partition)


@pytest.mark.parametrize("container", ["frame", "csr", "float32"])
def test_robust_scaler_in_every_container(container, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    params = {"with_centering": container != "csr"}
    if container == "csr":
        X[np.random.default_rng(2).random(X.shape) < 0.4] = 0
    X = with_gaps(X)
    X = pd.DataFrame(X, columns=list("abcd")) if container == "frame" else X
    X = X.astype(np.float32) if container == "float32" else X
    pair = ours.RobustScaler(**params), preprocessing.RobustScaler(**params)
    container = "array" if container == "float32" else container
    check_like_reference(*pair, X, partition="empty middle", container=container)


@pytest.mark.parametrize(
    "transformer",
    [
        ours.RobustScaler(),
        ours.QuantileTransformer(n_quantiles=10, subsample=None),
        ours.KBinsDiscretizer(subsample=None, quantile_method="averaged_inverted_cdf"),
        ours.SplineTransformer(knots="quantile"),
        SimpleImputer(strategy="median"),
    ],
    ids=lambda transformer: type(transformer).__name__,
)
def test_rows_that_fit_into_memory_are_read_once(transformer, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    X = da.random.default_rng(0).normal(size=(200, 2), chunks=(25, 2))
    frame = X.to_dask_dataframe(columns=["a", "b"])
    for rows in (X, frame):
        for n_reads, keep_blocks in ((1, "auto"), (2, False)):
            with counting() as counts, skfleet.config_context(keep_blocks=keep_blocks):
                fitted = clone(transformer).fit(rows)
            assert counts.passes == 2
            assert counts.loads == 8 * n_reads
            same_attributes(fitted, clone(transformer).fit(rows.compute()))


def test_robust_scaler_refuses_what_scikit_learn_refuses(X):
    lazy = da.from_array(sparse.csr_array(X), chunks=(20, 4), asarray=False)
    with counting() as counts, pytest.raises(ValueError, match="Cannot center sparse"):
        ours.RobustScaler().fit(lazy)
    with counting() as more, pytest.raises(ValueError, match="Invalid quantile range"):
        ours.RobustScaler(quantile_range=(80, 20)).fit(da.from_array(X))
    assert counts.passes == more.passes == 0
    X[50] = np.inf
    scaler = ours.RobustScaler()
    with pytest.raises(ValueError, match="Input X contains infinity"):
        scaler.fit(da.from_array(X, chunks=20))
    assert not hasattr(scaler, "n_features_in_")


TRANSFORMERS = {
    "all rows": {"n_quantiles": 20},
    "a subsample": {"n_quantiles": 10, "subsample": 25, "output_distribution": "normal"},
    "exact": {"n_quantiles": 37, "subsample": None},
    "zeros left out": {"n_quantiles": 10, "subsample": 15, "ignore_implicit_zeros": True},
    "exact, zeros left out": {"n_quantiles": 10, "subsample": None, "ignore_implicit_zeros": True},
}


def quantile_pair(case):
    params = {**TRANSFORMERS[case], "random_state": 3}
    return ours.QuantileTransformer(**params), preprocessing.QuantileTransformer(**params)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("case", ["all rows", "a subsample", "exact"])
def test_quantile_transformer_in_every_partition(case, partition, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    check_like_reference(*quantile_pair(case), with_gaps(X), partition=partition)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize(
    ("case", "container"),
    [(case, "csr") for case in TRANSFORMERS]
    + [(c, dense) for c in TRANSFORMERS if "zeros" not in c for dense in ("frame", "float32")],
)
def test_quantile_transformer_in_every_container(case, container, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    if container == "csr":
        X = np.abs(X)
        X[np.random.default_rng(2).random(X.shape) < [0.1, 0.7, 0.5, 1]] = 0
    X = with_gaps(X)
    X = pd.DataFrame(X, columns=list("abcd")) if container == "frame" else X
    X = X.astype(np.float32) if container == "float32" else X
    container = "array" if container == "float32" else container
    check_like_reference(*quantile_pair(case), X, partition="empty middle", container=container)


def test_quantile_transformer_of_negative_sparse_rows():
    X = sparse.csr_array(np.array([[1.0, 0], [-1, 2], [3, 4]]))
    lazy = da.from_array(X, chunks=(1, 2), asarray=False)
    model = ours.QuantileTransformer(n_quantiles=2)
    with pytest.raises(ValueError, match="only accepts non-negative sparse"):
        model.fit(lazy)
    with pytest.raises(ValueError, match="number of quantiles cannot be greater"):
        ours.QuantileTransformer(n_quantiles=2, subsample=1).fit(lazy)
    with pytest.warns(UserWarning, match="greater than the total number of samples"):
        ours.QuantileTransformer(subsample=None).fit(da.from_array(np.eye(4), chunks=2))


BINS = {
    "uniform": {"strategy": "uniform", "encode": "ordinal"},
    "quantile": {"n_bins": 4, "encode": "onehot-dense"},
    "bins of each column": {"n_bins": [2, 5, 3, 4], "quantile_method": "linear"},
    "narrow bins": {"n_bins": 15, "quantile_method": "hazen", "dtype": np.float32},
    "kmeans": {"strategy": "kmeans", "subsample": None, "n_bins": 4},
    "kmeans in memory": {"strategy": "kmeans", "n_bins": 3, "encode": "ordinal"},
    "subsample": {"subsample": 30, "random_state": 1, "n_bins": 3, "encode": "ordinal"},
}


def bins_pair(case):
    return ours.KBinsDiscretizer(**BINS[case]), preprocessing.KBinsDiscretizer(**BINS[case])


@pytest.mark.filterwarnings("ignore:Bins whose width", "ignore:Feature . is constant")
@pytest.mark.parametrize("partition", [p for p in PARTITIONS if "without" not in p])
@pytest.mark.parametrize("case", BINS)
def test_bins_in_every_partition(case, partition, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    check_like_reference(*bins_pair(case), X, partition=partition)


@pytest.mark.filterwarnings("ignore:Bins whose width", "ignore:Feature . is constant")
@pytest.mark.parametrize("kind", ["frame", "float32", "integers"])
@pytest.mark.parametrize("case", BINS)
def test_bins_of_every_kind(case, kind, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    X = X * 10
    if kind == "frame":
        X = pd.DataFrame(X, columns=list("abcd"))
    else:
        X = X.astype({"float32": np.float32, "integers": np.int64}[kind])
    pair = bins_pair(case)
    if kind == "frame":
        for model in pair:
            model.set_params(encode="ordinal")
    container = "frame" if kind == "frame" else "array"
    rtol = 1e-6 if kind == "float32" and case.startswith("kmeans") else 1e-12
    check_like_reference(*pair, X, partition="empty middle", container=container, rtol=rtol)


@pytest.mark.filterwarnings("ignore:Bins whose width", "ignore:Feature . is constant")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", [case for case in BINS if "bins" not in case])
def test_weighted_bins(case, dtype, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    X, weight = X.astype(dtype), np.random.default_rng(1).integers(0, 4, len(X)).astype(float)
    model, reference = bins_pair(case)
    model.fit(da.from_array(X, chunks=(17, 4)), sample_weight=da.from_array(weight, chunks=17))
    reference.fit(X, sample_weight=weight)
    same_attributes(model, reference, rtol=1e-12 if dtype == np.float64 else 1e-6)


def test_bins_of_empty_clusters():
    X = np.concatenate([np.random.default_rng(0).normal(size=200), [1e3, 1e3 + 1, 5e3]])[:, None]
    params = {"n_bins": 8, "strategy": "kmeans", "subsample": None, "encode": "ordinal"}
    model = ours.KBinsDiscretizer(**params).fit(da.from_array(X, chunks=50))
    same_attributes(model, preprocessing.KBinsDiscretizer(**params).fit(X))


def test_passes_and_errors_of_bins(X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    lazy = da.from_array(X[:, :2], chunks=20)
    expected = {"uniform": 1, "quantile": 2, "kmeans in memory": 1, "subsample": 2}
    for case, n_passes in expected.items():
        with counting() as counts:
            bins_pair(case)[0].fit(lazy)
        assert counts.passes == n_passes, case
    with counting() as counts, pytest.raises(ValueError, match="n_bins must be a scalar or"):
        ours.KBinsDiscretizer(n_bins=[3, 3, 3]).fit(lazy)
    assert counts.passes == 0
    model = ours.KBinsDiscretizer(quantile_method="linear")
    with pytest.raises(ValueError, match="quantile_method should either be"):
        model.fit(lazy, sample_weight=da.ones(len(X), chunks=20))
    X[30, 0] = np.nan
    with pytest.raises(ValueError, match="KBinsDiscretizer does not accept missing values"):
        model.fit(da.from_array(X, chunks=20))


SPLINES = {
    "uniform": {"n_knots": 4},
    "quantile": {"knots": "quantile", "degree": 2, "include_bias": False},
    "periodic": {"knots": "quantile", "n_knots": 6, "extrapolation": "periodic"},
    "array": {"knots": np.array([[-2.0, -30, 6, 2], [0, 0, 7, 3], [3, 20, 8, 5]])},
    "sparse": {"knots": "quantile", "n_knots": 3, "sparse_output": True},
}


def spline_pair(case, **params):
    params = {**SPLINES[case], **params}
    return ours.SplineTransformer(**params), preprocessing.SplineTransformer(**params)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("case", SPLINES)
def test_splines_in_every_partition(case, partition, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    X = with_gaps(X) if case != "sparse" or "without" in partition else X
    pair = spline_pair(case, handle_missing="zeros")
    check_like_reference(*pair, X, partition=partition, rtol=1e-10)


@pytest.mark.parametrize("kind", ["frame", "float32", "integers"])
@pytest.mark.parametrize("case", SPLINES)
def test_splines_of_every_kind(case, kind, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    if kind == "frame":
        X = pd.DataFrame(X, columns=list("abcd"))
    else:
        X = X.astype({"float32": np.float32, "integers": np.int64}[kind])
    container = "frame" if kind == "frame" else "array"
    pair = spline_pair(case)
    check_like_reference(*pair, X, partition="empty middle", container=container, rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("case", SPLINES)
def test_weighted_splines(case, dtype, X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    X, weight = X.astype(dtype), np.random.default_rng(1).integers(0, 4, len(X)).astype(float)
    model, reference = spline_pair(case)
    model.fit(da.from_array(X, chunks=(17, 4)), sample_weight=da.from_array(weight, chunks=17))
    same_attributes(model, reference.fit(X, sample_weight=weight))


def test_passes_and_errors_of_splines(X, monkeypatch):
    monkeypatch.setattr(_order_values, "SAMPLE_ROWS", 20)
    lazy = da.from_array(X, chunks=20)
    for case, n_passes in {"uniform": 1, "quantile": 2, "array": 1}.items():
        with counting() as counts:
            spline_pair(case)[0].fit(lazy)
        assert counts.passes == n_passes
    with counting() as counts, pytest.raises(ValueError, match="n_features is violated"):
        ours.SplineTransformer(knots=[[0], [1]]).fit(lazy)
    assert counts.passes == 0
    with pytest.raises(ValueError, match="minimum of 2 is required by SplineTransformer"):
        ours.SplineTransformer().fit(lazy[:1])
    with pytest.raises(ValueError, match="Periodic splines require degree"):
        ours.SplineTransformer(n_knots=2, extrapolation="periodic").fit(lazy)
    X[30, 0] = np.nan
    with pytest.raises(ValueError, match="`SplineTransformer` is configured to error"):
        ours.SplineTransformer().fit(da.from_array(X, chunks=20))


@pytest.mark.parametrize(
    "pair",
    [
        (ours.RobustScaler(), preprocessing.RobustScaler()),
        quantile_pair("a subsample"),
        bins_pair("quantile"),
        bins_pair("bins of each column"),
    ],
    ids=["RobustScaler", "QuantileTransformer", "KBinsDiscretizer dense", "KBinsDiscretizer"],
)
def test_inverse_transforms(pair, X):
    X = X[:, [0, 1, 2, 2]]
    model, reference = clone(pair[0]).fit(da.from_array(X, chunks=17)), clone(pair[1]).fit(X)
    rows = reference.transform(X)
    lazy = da.from_array(rows, chunks=(13, rows.shape[1]), asarray=False)
    back = model.inverse_transform(lazy)
    expected = reference.inverse_transform(rows)
    assert back.dtype == expected.dtype
    np.testing.assert_allclose(back.compute(scheduler="synchronous"), expected, rtol=1e-12)


def test_splines_in_messages_are_aligned():
    X, buffers = np.random.default_rng(0).random((20, 2)), []
    model = ours.SplineTransformer().fit(X)
    message = pickle.dumps(model, protocol=5, buffer_callback=buffers.append)
    shifted = [memoryview(b" " + buffer.raw().tobytes())[1:] for buffer in buffers]
    np.testing.assert_array_equal(
        pickle.loads(message, buffers=shifted).transform(X), model.transform(X)
    )
