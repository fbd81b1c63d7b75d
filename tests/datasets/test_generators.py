"""Generators: rows that depend on the seed and their numbers, drawn one block at a time."""

from functools import cache, partial
from inspect import signature
from itertools import pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.datasets as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from random_examples import n_examples
from skfleet import datasets
from skfleet.datasets import _cells, make_blobs, make_classification, make_regression
from skfleet.engine import counting
from skfleet.estimators import KMeans, LogisticRegression, PoissonRegressor, Ridge

N_ROWS = 300
CALLS = {
    "blobs": (datasets.make_blobs, {"n_features": 3}),
    "blobs in order": (datasets.make_blobs, {"shuffle": False}),
    "classification": (datasets.make_classification, {"flip_y": 0.2}),
    "regression": (datasets.make_regression, {"noise": 1.0}),
    "targets": (datasets.make_regression, {"n_targets": 2, "noise": 1.0}),
    "regression of low rank": (datasets.make_regression, {"effective_rank": 3, "noise": 1.0}),
    "counts": (datasets.make_counts, {"n_features": 5}),
    "low rank": (datasets.make_low_rank_matrix, {"n_features": 6}),
}


@pytest.fixture(autouse=True, scope="module")
def small_cells():
    """Let few rows be those of several cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cells, "MAX_CELL_ROWS", 64)
        yield


def call(name, **options):
    make, parameters = CALLS[name]
    rows = make(n_samples=N_ROWS, **{"random_state": 0, **parameters, **options})
    return rows if isinstance(rows, tuple) else (rows,)


@cache
def in_one_block(name):
    return dask.compute(*call(name, chunks=N_ROWS))


@pytest.mark.parametrize("name", CALLS)
@settings(deadline=None, max_examples=n_examples(5, 50))
@given(cuts=st.lists(st.integers(0, N_ROWS), max_size=6), as_frame=st.booleans())
def test_values_do_not_depend_on_the_partition(name, cuts, as_frame):
    bounds = [0, *sorted(cuts), N_ROWS]
    expected = in_one_block(name)
    lengths = tuple(high - low for low, high in pairwise(bounds))
    rows = call(name, chunks=(lengths, expected[0].shape[1:]), as_frame=as_frame)
    with dask.config.set(scheduler="sync"):
        computed = dask.compute(*rows)
    for x, values, lazy in zip(expected, computed, rows, strict=True):
        if as_frame:
            assert lazy.npartitions == len(lengths)
            assert values.index.tolist() == list(range(N_ROWS))
        else:
            assert lazy.chunks[0] == lengths
        np.testing.assert_array_equal(np.asarray(values), x)


@pytest.mark.parametrize("name", CALLS)
def test_values_on_a_cluster(name, cluster_client):
    expected = in_one_block(name)
    with cluster_client.as_current():
        rows = dask.compute(*call(name, chunks=70), scheduler=cluster_client)
    for x, values in zip(expected, rows, strict=True):
        np.testing.assert_array_equal(values, x)


@pytest.mark.parametrize("name", CALLS)
def test_equal_calls_have_equal_names(name):
    rows = call(name, chunks=100)
    names = [x.name for x in rows]
    prefix = CALLS[name][0].__name__.replace("_", "-")
    assert all(name.startswith(prefix) for name in names)
    assert len(set(names)) == len(names)
    again = [call(name, chunks=100)]
    again.append(call(name, chunks=100, random_state=np.random.RandomState(0)))
    assert all([x.name for x in equal] == names for equal in again)
    others = [call(name, chunks=100, random_state=state) for state in (1, None, None)]
    others.append(call(name, chunks=90))
    assert len({x.name for equal in (rows, *others) for x in equal}) == 5 * len(names)


@pytest.mark.parametrize("name", CALLS)
def test_types(name):
    arrays, frames = call(name, chunks=100), call(name, chunks=100, as_frame=True)
    for x, expected in zip(arrays, in_one_block(name), strict=True):
        assert isinstance(x, da.Array)
        assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
        assert all(part.shape[0] == 100 for part in map(dask.compute, x.blocks) for part in part)
    assert frames[0].columns.tolist() == [f"x{i}" for i in range(arrays[0].shape[1])]
    for x, frame in zip(arrays, frames, strict=True):
        assert isinstance(frame, dd.Series if x.ndim == 1 else dd.DataFrame)
        assert frame.divisions == (0, 100, 200, 299)
        part = frame.partitions[1].compute()
        assert (np.asarray(part.dtypes) == x.dtype).all()
        pd.testing.assert_index_equal(part.index, pd.RangeIndex(100, 200))
    targets = frames[1].columns.tolist() if name == "targets" else [x.name for x in frames[1:]]
    assert targets == (["target0", "target1"] if name == "targets" else ["target"] * len(targets))


@pytest.mark.parametrize("name", ["make_blobs", "make_classification", "make_regression"])
def test_signatures_are_those_of_scikit_learn(name):
    ours, theirs = (signature(getattr(room, name)).parameters for room in (datasets, reference))
    assert {k: (v.default, v.kind) for k, v in ours.items() if k in theirs} == {
        k: (v.default, v.kind) for k, v in theirs.items()
    }
    assert [ours[k].default for k in ours if k not in theirs] == ["auto", False]


@pytest.fixture
def drawn(monkeypatch):
    """The bounds of all blocks that are drawn."""
    bounds, between = [], _cells.CellRows.between

    def record(self, start, stop):
        bounds.append((start, stop))
        return between(self, start, stop)

    monkeypatch.setattr(_cells.CellRows, "between", record)
    return bounds


@pytest.mark.parametrize("name", ["make_blobs", "make_classification", "make_regression"])
def test_no_block_is_drawn_before_it_is_computed(name, drawn):
    make = partial(getattr(datasets, name), 10**10, 20, random_state=0)  # 1.6 TB
    assert make()[0].npartitions > 10_000
    first = 7 * 10**9
    many, few = (
        make(chunks=((low, n, 10**10 - low - n), 20)) for low, n in ((first, 100), (first + 50, 10))
    )
    assert drawn == []
    for x, y in zip(many, few, strict=True):
        np.testing.assert_array_equal(x.blocks[1].compute()[50:60], y.blocks[1].compute())
    assert set(drawn) == {(first, first + 100), (first + 50, first + 60)}


@pytest.mark.parametrize("as_frame", [False, True])
@pytest.mark.parametrize("name", ["regression", "targets", "counts"])
def test_x_and_y_are_drawn_together(name, as_frame, drawn):
    X, y = call(name, chunks=100, as_frame=as_frame)
    dask.compute(X, y)
    assert len(drawn) == 3
    model = PoissonRegressor if name == "counts" else Ridge
    with counting() as counts:
        model().fit(X, y)
    assert len(drawn) <= 3 + 3 * counts.passes


@pytest.mark.parametrize("as_frame", [False, True])
def test_labels_are_drawn_without_rows(as_frame, monkeypatch):
    X, y = call("classification", chunks=100, as_frame=as_frame)
    rows = "skfleet.datasets._classification.ClassificationRows.__call__"
    monkeypatch.setattr(rows, None)
    assert len(y.compute()) == N_ROWS
    with pytest.raises(TypeError):
        X.compute()


def test_estimators_fit():
    X, y = make_classification(
        2_000, n_features=5, class_sep=3.0, flip_y=0, random_state=0, chunks=500
    )
    assert LogisticRegression().fit(X, y).score(X, y) > 0.9
    X, _, centers = make_blobs(1_000, centers=4, random_state=3, return_centers=True, chunks=300)
    found = KMeans(4, init=centers, n_init=1).fit(X).cluster_centers_
    np.testing.assert_allclose(found, centers, atol=0.5)
    X, y, coef = make_regression(1_000, 9, coef=True, bias=5.0, random_state=0, chunks=300)
    model = Ridge(alpha=1e-9).fit(X, y)
    np.testing.assert_allclose(model.coef_, coef, atol=1e-6)
    np.testing.assert_allclose(model.intercept_, 5.0)


def test_a_low_rank_matrix_takes_one_pass(drawn):
    with counting() as counts:
        X = datasets.make_low_rank_matrix(1_000, 20, random_state=0, chunks=100)
    assert counts.passes == counts.loads == len(drawn) == 1
    X.blocks[3].compute()
    assert drawn[1:] == [(300, 400)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("blobs", {"centers": 0}, "centers must be a whole number of at least 1. Got 0"),
        ("blobs", {"centers": "many"}, "centers must be None, .* Got 'many'"),
        ("blobs", {"cluster_std": -1.0}, "cluster_std must be a number .* Got -1.0"),
        ("blobs", {"cluster_std": [1.0, 2.0]}, "cluster_std must be .* 3. Got 2"),
        ("blobs", {"cluster_std": [1.0, 2.0, -1.0]}, "Every number in cluster_std must be"),
        ("blobs", {"center_box": 3.0}, r"center_box must be a pair \(min, max\). Got 3.0"),
        ("blobs", {"center_box": (1, 0)}, r"center_box must be a pair"),
        ("blobs", {"n_features": 0}, "n_features must be a whole number of at least 1. Got 0"),
        ("blobs", {"chunks": (100, 2)}, r"partitioned along the first axis. Got chunks of 2 of 3"),
        (
            "regression",
            {"chunks": (100, 40)},
            r"partitioned along the first axis. Got chunks of 40",
        ),
        ("blobs", {"chunks": "few"}, "chunks must be 'auto', .* Got 'few' instead"),
        ("blobs", {"chunks": ((1, 2), (3,))}, r"chunks must be .*\(300, 3\). Got \(\(1, 2\)"),
        ("blobs", {"chunks": 0}, "chunks must be 'auto', .* Got 0 instead"),
        ("blobs", {"chunks": ((np.nan, np.nan), (3,))}, r"chunks must be .* Got \(\(nan"),
        ("blobs", {"shuffle": "yes"}, "shuffle must be True or False. Got 'yes'"),
        ("blobs", {"as_frame": 1}, "as_frame must be True or False. Got 1"),
        ("blobs", {"random_state": "x"}, "random_state must be a whole number, .* Got 'x'"),
        ("classification", {"n_classes": 5}, r"at most 2\*\*n_informative, 4. Got 10"),
        ("classification", {"n_redundant": 19}, "must be at most n_features, 20. Got 21"),
        ("classification", {"weights": [0.1] * 4}, "weights must be None or numbers for 2 classes"),
        ("classification", {"weights": [1.5]}, "weights must be between 0 and 1"),
        ("classification", {"flip_y": 1.5}, "flip_y must be a number .* at most 1. Got 1.5"),
        ("classification", {"class_sep": 0}, "class_sep must be a number .*above 0. Got 0"),
        ("classification", {"shift": [1.0]}, r"shift must be .* 20. Got shape \(1,\)"),
        ("classification", {"scale": 0}, "scale must be a number .*above 0. Got 0"),
        ("regression", {"noise": -1}, "noise must be a number .* Got -1"),
        ("regression", {"bias": np.inf}, "bias must be a number finite .* Got inf"),
        ("regression", {"n_targets": 0}, "n_targets must be a whole number of at least 1"),
        ("low rank", {"effective_rank": 0}, "effective_rank must be a whole number"),
        ("low rank", {"tail_strength": 2}, "tail_strength must be a number .* Got 2"),
        ("counts", {"n_informative": 9}, "n_informative must be at most n_features, 5. Got 9"),
        ("counts", {"scale": -1}, "scale must be a number .* Got -1"),
    ],
)
def test_impossible_parameters_are_refused(name, options, message, drawn):
    with pytest.raises(ValueError, match=message):
        call(name, **options)
    assert drawn == []


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_samples": 0}, "n_samples must be a whole number of at least 1. Got 0"),
        ({"n_samples": [3, -1]}, "Every number in n_samples must be .* Got -1"),
        ({"n_samples": [0, 0]}, "n_samples must hold a number above 0"),
        ({"n_samples": [3, 4], "centers": 2}, "centers must be None, coordinates"),
        ({"n_samples": [3, 4], "centers": [[0.0, 1.0]]}, "centers must be None, coordinates"),
    ],
)
def test_impossible_sizes_of_clusters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_blobs(**parameters)
