"""OneHotEncoder and OrdinalEncoder on rows in every partition, as scikit-learn's."""

import pickle
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_partitions import PARTITIONS, as_dask, check_like_reference, same_values
from scipy import sparse
from sklearn import preprocessing
from sklearn.base import clone

from skfleet.blocks import with_pandas_text
from skfleet.engine import counting
from skfleet.estimators import preprocessing as ours
from skfleet.estimators.preprocessing import _category_index
from skfleet.estimators.preprocessing._categories import (
    SortedValues,
    add_counts,
    add_parts,
    join_parts,
)
from skfleet.estimators.preprocessing._category_index import CategoryIndex, SortedText

CASES = {
    "OneHotEncoder": {},
    "OneHotEncoder of frames": {"sparse_output": False, "drop": "if_binary", "dtype": np.int8},
    "OneHotEncoder of frequent": {"sparse_output": False, "min_frequency": 8, "drop": "first"},
    "OrdinalEncoder": {},
    "OrdinalEncoder of frequent": {
        "max_categories": 3,
        "handle_unknown": "use_encoded_value",
        "unknown_value": -1,
        "encoded_missing_value": -2,
    },
}


def pair(name, **params):
    return getattr(ours, name)(**params), getattr(preprocessing, name)(**params)


def pair_of(case):
    return pair(case.split()[0], **CASES[case])


def outcome(call):
    """Return the result of a call, or the class and text of its error, and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
        except (TypeError, ValueError) as error:
            result = (type(error), str(error))
    return result, {str(w.message) for w in caught if issubclass(w.category, UserWarning)}


def frame(n=40):
    rng = np.random.default_rng(0)
    dates = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 3, n), "D")
    X = pd.DataFrame(
        {
            "text": rng.choice(list("xyzw"), n),
            "integer": rng.integers(0, 5, n),
            "category": pd.Categorical(rng.choice(["p", "q", "r"], n)),
            "boolean": rng.random(n) > 0.5,
            "gaps": rng.integers(0, 3, n).astype(float),
            "number": pd.Categorical(rng.integers(0, 3, n)),
            "date": dates,
        }
    )
    X.loc[::7, "category"] = np.nan
    X.loc[::5, "gaps"] = np.nan
    return X


def objects(n=40):
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.choice(list("xyzw"), n), rng.choice(["aa", "b", "c"], n)])
    X = X.astype(object)
    X[::6, 0], X[1::6, 0], X[::4, 1] = np.nan, None, None
    return X


@pytest.mark.sampled(11)
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_partition(case, partition):
    X = frame().drop(columns="date") if partition == "a block without values" else frame()
    check_like_reference(*pair_of(case), X, partition=partition, container="frame")
    check_like_reference(*pair_of(case), objects(), partition=partition)


@pytest.mark.parametrize("dtype", [np.int16, np.float32, bool, "U3", "M8[s]"])
@pytest.mark.parametrize("case", ["OneHotEncoder", "OrdinalEncoder of frequent"])
def test_dtypes(case, dtype):
    X = np.random.default_rng(0).integers(0, 6, (40, 3)).astype(dtype)
    check_like_reference(*pair_of(case), X, partition="unknown lengths")


EXTENSIONS = {
    "Int64": [1, None, 2, 1],
    "boolean": [True, None, False, True],
    "int64[pyarrow]": [3, None, 4, 3],
    "string": ["p", "q", "p", "r"],
    "string with NA": ["p", None, "p", "r"],
    "datetime64[ns, UTC]": pd.to_datetime(["2020", "2021", "2020", "2022"]).tz_localize("UTC"),
}


@pytest.mark.parametrize("dtype", EXTENSIONS)
@pytest.mark.parametrize("name", ["OneHotEncoder", "OrdinalEncoder"])
def test_extension_dtypes(name, dtype):
    column = pd.array(EXTENSIONS[dtype], dtype=dtype.removesuffix(" with NA"))
    lazy = dd.from_pandas(pd.DataFrame({"a": column}), npartitions=3)
    local, (a, b) = with_pandas_text(lazy.compute()), pair(name)
    expected = b.fit(local).transform(local)
    same_values(a.fit(lazy).transform(lazy).compute(scheduler="synchronous"), expected)
    same_values(a.categories_, b.categories_)


CATEGORIES = [[["w", "x", "y", "z"], ["b", "a", None]], [["z", "x", "y"], ["c", "b", "aa", np.nan]]]


@pytest.mark.parametrize("name", ["OneHotEncoder", "OrdinalEncoder"])
@pytest.mark.parametrize("categories", CATEGORIES)
@pytest.mark.parametrize("min_frequency", [None, 6, 0.2])
def test_predefined_categories_and_unknown_ones(name, categories, min_frequency):
    params = {"categories": categories, "min_frequency": min_frequency}
    unknown = {"handle_unknown": "infrequent_if_exist", "sparse_output": False}
    if name == "OrdinalEncoder":
        unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    a, b, lazy, local = check_like_reference(
        *pair(name, **params, **unknown), objects(), partition="empty middle"
    )
    back = a.inverse_transform(a.transform(lazy))
    same_values(back.compute(), b.inverse_transform(b.transform(local)))


@pytest.mark.parametrize("case", CASES)
def test_inverse(case):
    X = objects()
    if case == "OrdinalEncoder of frequent":  # of which scikit-learn fails for missing values
        X[pd.isna(X)] = "x"
    a, b, lazy, local = check_like_reference(*pair_of(case), X, partition="sorted by a column")
    lazy_codes, codes = a.transform(lazy), b.transform(local)
    back = a.inverse_transform(lazy_codes)
    assert back.shape == lazy.shape
    same_values(back.compute(), b.inverse_transform(codes))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("OneHotEncoder", {}),
        ("OneHotEncoder", {"handle_unknown": "ignore", "drop": "first"}),
        ("OneHotEncoder", {"handle_unknown": "warn", "min_frequency": 5}),
        ("OneHotEncoder", {"handle_unknown": "infrequent_if_exist"}),
        ("OrdinalEncoder", {}),
        ("OrdinalEncoder", {"handle_unknown": "use_encoded_value", "unknown_value": np.nan}),
    ],
)
def test_unknown_categories_in_transform(name, params):
    X = frame()[["text", "integer", "gaps"]]
    new = X.iloc[:6].assign(text=["new", "x", "x", "new", "y", "z"], gaps=[7.0, 0, 1, 2, 0, 1])
    a, b = pair(name, **params)
    a.fit(dd.from_pandas(X, npartitions=3)), b.fit(X)
    lazy = dd.from_pandas(new, npartitions=1)
    result, messages = outcome(lambda: a.transform(lazy).compute(scheduler="synchronous"))
    expected, expected_messages = outcome(lambda: b.transform(lazy.compute()))
    assert messages == expected_messages
    if isinstance(expected, tuple):
        assert result == expected
    else:
        same_values(result, expected)


INVALID = [
    ("OneHotEncoder", {"categories": [["x"], ["y"], ["z"]]}),
    ("OneHotEncoder", {"categories": [["x", "x"], ["y"]]}),
    ("OneHotEncoder", {"categories": [[np.nan, "x"], ["y"]]}),
    ("OneHotEncoder", {"categories": [["x"], ["aa", "b", "c", None]]}),
    ("OneHotEncoder", {"drop": ["x"]}),
    ("OneHotEncoder", {"drop": ["x", "new"]}),
    ("OneHotEncoder", {"max_categories": 0}),
    ("OrdinalEncoder", {"handle_unknown": "use_encoded_value", "unknown_value": 2}),
    ("OrdinalEncoder", {"handle_unknown": "use_encoded_value", "unknown_value": "2"}),
    ("OrdinalEncoder", {"unknown_value": 2}),
    ("OrdinalEncoder", {"encoded_missing_value": 1}),
]


@pytest.mark.parametrize(("name", "params"), INVALID)
def test_errors_are_scikit_learns(name, params):
    X = objects()
    X[:, 0] = "x"
    X[0] = "x", np.nan
    a, b = pair(name, **params)
    error = outcome(lambda: b.fit(X))[0]
    before = dict(vars(a))
    result = outcome(lambda: a.fit(as_dask(X, "one block")))[0]
    assert isinstance(error, tuple)
    assert result == (error[0], error[1].replace(f"sklearn.{name}", name))
    assert vars(a) == before


@pytest.mark.parametrize("step", [1, 20])
def test_mixed_types_in_a_block_and_in_several(step):
    X = np.array([["x"], [1]] * 20, dtype=object)
    X = X if step == 1 else X[np.argsort(np.arange(40) % 2, kind="stable")]
    lazy = da.from_array(X, chunks=(20, 1))
    with pytest.raises(
        TypeError, match=r"uniformly strings or numbers\. Got \['int', 'str'\]"
    ) as e:
        ours.OneHotEncoder().fit(lazy)
    assert any("block" in note for note in getattr(e.value, "__notes__", ())) == (step == 1)


@pytest.mark.parametrize("container", ["array", "frame", "shuffled frame", "pandas output"])
def test_a_new_category_names_its_block(container):
    table = dd.from_pandas(pd.DataFrame({"v": ["a", "b", "a", "b", "c", "a"]}), npartitions=3)
    encoder = ours.OneHotEncoder(sparse_output=False).fit(table.partitions[:2])
    X = table[["v"]].to_dask_array() if container == "array" else table
    if container == "shuffled frame":
        X = table.shuffle("v", npartitions=1)
    if container == "pandas output":
        encoder.set_output(transform="pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an array has no names
        lazy = encoder.transform(X)
        with pytest.raises(ValueError, match="unknown categories") as caught:
            lazy.compute()
    block = 0 if container == "shuffled frame" else 2
    assert f"While mapping block {block} (transform-OneHotEncoder)." in caught.value.__notes__


def test_one_pass_and_no_block_is_loaded_for_the_type():
    loads = []

    def load(i):
        loads.append(i)
        return np.array([["x", "y"], ["z", "y"]], dtype=object)

    parts = [dask.delayed(load)(i) for i in range(4)]
    X = da.concatenate([da.from_delayed(p, (2, 2), meta=np.empty((0, 2), object)) for p in parts])
    with counting() as counts:
        encoder = ours.OneHotEncoder().fit(X)
    assert counts.passes == 1
    n_loads = len(loads)
    encoded = encoder.transform(X)
    assert encoded.shape == (8, 3)
    assert encoder.inverse_transform(encoded).dtype == object
    assert len(loads) == n_loads == 4


def test_sparse_rows_and_sparse_output_in_frames_are_refused():
    X = da.from_array(sparse.csr_array(np.eye(4)), chunks=(2, 4), asarray=False)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        ours.OrdinalEncoder().fit(X)
    lazy = dd.from_pandas(frame(), npartitions=2)
    encoder = ours.OneHotEncoder().set_output(transform="pandas").fit(lazy)
    with pytest.raises(ValueError, match="Pandas output does not support sparse data"):
        encoder.transform(lazy)


def test_names_by_a_function():
    def combine(feature, category):
        return f"{feature}={category}"

    params = {"feature_name_combiner": combine, "sparse_output": False}
    check_like_reference(
        *pair("OneHotEncoder", **params), frame(), partition="one block", container="frame"
    )


def test_many_columns_are_sparse():
    X = da.from_array(np.arange(50_000).reshape(-1, 1), chunks=(5_000, 1))
    encoder = ours.OneHotEncoder().fit(X)
    block = encoder.transform(X).blocks[3].compute()
    assert sparse.issparse(block)
    assert block.shape == (5_000, 50_000)
    np.testing.assert_array_equal(block.indices, np.arange(15_000, 20_000))


def test_tables_are_built_once_and_not_pickled():
    text = np.array(["a", "ü", "z", np.nan], dtype=object)
    index = CategoryIndex.for_tasks([np.array([1.0, 2.0, np.nan]), text])
    np.testing.assert_array_equal(index.codes(0, np.array([np.nan, 2, 3])), [2, 1, -1])
    np.testing.assert_array_equal(index.codes(1, text[[2, 3, 0]]), [2, 3, 0])
    table = index._table(1)
    assert index._table(1) is table
    assert not pickle.loads(pickle.dumps(index))._tables


def test_numpys_text_is_searched():
    index = CategoryIndex.for_tasks([np.array(["", "a", "zß", "\U0001f600"])])
    values = np.array(["\U0001f600", "much longer text", "", "a", "A", "zß"])
    assert index.codes(0, values).tolist() == [3, -1, 0, 1, -1, 2]
    assert not index._tables


def test_long_text_is_searched(monkeypatch):
    monkeypatch.setattr(_category_index, "MIN_SORTED_TEXT", 4)
    text = np.array(["", "aü", "ab", "z", "\ud800", "\U0001f600", None, np.nan], dtype=object)
    text[:6] = sorted(text[:6])
    known = CategoryIndex.for_tasks([text])[0]
    assert isinstance(known, _category_index.SortedText)
    same_values(np.asarray(known), text)
    same_values(known[np.array([7, 1])], text[[7, 1]])
    values = np.array([*text[::-1], "new", "ab\0", "much longer text", 3], dtype=object)
    expected = [*range(8)][::-1] + [-1] * 4
    assert known.positions_of(values).tolist() == expected
    for other in (
        ["b", "a", "c", "d"],
        ["a", "b\0", "c", "d"],
        ["a", "b", "c", 4],
        ["a" * 999, *"bcdef"],
    ):
        assert SortedText.make(np.array(other, dtype=object)) is None


@pytest.mark.parametrize("case", CASES)
def test_encoders_of_long_text(case, monkeypatch):
    monkeypatch.setattr(_category_index, "MIN_SORTED_TEXT", 3)
    for X, container in ((frame(), "frame"), (objects(), "array")):
        check_like_reference(*pair_of(case), X, partition="empty middle", container=container)


values = st.one_of(st.sampled_from(["a", "b", "c", "dd"]), st.none(), st.just(np.nan))


@settings(max_examples=60, deadline=None)
@given(blocks=st.lists(st.lists(values, min_size=1, max_size=6), min_size=1, max_size=9))
def test_unions_of_any_order(blocks):
    """Merged counts are scikit-learn's of all values, in whatever order the blocks are added."""
    parts = []
    for block in blocks:
        column = np.array(block, dtype=object)
        known = preprocessing.OrdinalEncoder().fit(column[:, None]).categories_[0]
        counts = np.array([sum(v is k or v == k for v in block) for k in known])
        parts = add_parts(parts, [SortedValues(known, counts)], add_counts)
    merged = join_parts(parts, add_counts)
    every = np.array([v for block in blocks for v in block], dtype=object)
    reference = preprocessing.OrdinalEncoder().fit(every[:, None])
    same_values(merged.values, reference.categories_[0])
    n_of_each = [sum(v is k or v == k for v in every) for k in merged.values]
    assert merged.statistics.tolist() == n_of_each


@settings(max_examples=25, deadline=None)
@given(data=st.data(), case=st.sampled_from(list(CASES)))
def test_frames_with_gaps_and_categories(data, case):
    n = data.draw(st.integers(2, 12))
    X = frame(40).sample(n, replace=True, random_state=data.draw(st.integers(0, 99)))
    X = X.reset_index(drop=True)
    cut = data.draw(st.integers(0, n))
    parts = [part for part in (X.iloc[:cut], X.iloc[cut:]) if len(part)]
    lazy = dd.from_delayed([dask.delayed(p) for p in parts], meta=X.iloc[:0], verify_meta=False)
    a, b = pair_of(case)
    expected = outcome(lambda: clone(b).fit(X).transform(X))[0]
    result = outcome(lambda: clone(a).fit(lazy).transform(lazy).compute(scheduler="synchronous"))[0]
    if isinstance(expected, tuple):
        assert result == expected
    else:
        same_values(result, expected)
