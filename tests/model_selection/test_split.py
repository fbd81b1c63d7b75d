"""scikit-learn's splitters on Dask rows: the same rows in every part, whatever the partition."""

from itertools import chain, pairwise

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn import model_selection as in_memory

from random_examples import n_examples
from skfleet import model_selection
from skfleet.blocks import RowSet, make_folds
from skfleet.engine import counting
from skfleet.estimators import LogisticRegression
from skfleet.model_selection import split_rows, train_test_split

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of Dask, to pandas

N_ROWS = 60
RNG = np.random.RandomState(0)
X = np.arange(2 * N_ROWS).reshape(N_ROWS, 2)
Y = np.repeat(["a", "b", "c"], 20)[RNG.permutation(N_ROWS)]
GROUPS = RNG.randint(0, 6, N_ROWS)
FRAME = pd.DataFrame(
    {
        "number": np.arange(N_ROWS, dtype=np.int32),
        "kind": pd.Categorical(Y),
        "text": np.where(np.arange(N_ROWS) % 7, Y, None),
    },
    index=pd.Index(RNG.permutation(N_ROWS) * 3, name="key"),
)

SEEDS = st.integers(0, 99)
SIZES = st.one_of(st.integers(3, 25), st.floats(0.1, 0.45))
FOLDS = st.integers(2, 5)
# The parameters of each splitter, but for those without any.
SPLITTERS = {
    "KFold": {"n_splits": FOLDS},
    "KFold shuffled": {"n_splits": FOLDS, "shuffle": st.just(True), "random_state": SEEDS},
    "StratifiedKFold": {"n_splits": FOLDS, "shuffle": st.just(True), "random_state": SEEDS},
    "GroupKFold": {"n_splits": FOLDS},
    "StratifiedGroupKFold": {"n_splits": st.integers(2, 3)},
    "TimeSeriesSplit": {"n_splits": FOLDS, "gap": FOLDS, "max_train_size": st.integers(5, 30)},
    "ShuffleSplit": {
        "n_splits": FOLDS,
        "test_size": SIZES,
        "train_size": SIZES,
        "random_state": SEEDS,
    },
    "StratifiedShuffleSplit": {"n_splits": FOLDS, "test_size": SIZES, "random_state": SEEDS},
    "GroupShuffleSplit": {"n_splits": FOLDS, "random_state": SEEDS},
    "LeaveOneGroupOut": {},
    "LeavePGroupsOut": {"n_groups": st.just(2)},
    "LeaveOneOut": {},
    "PredefinedSplit": {"test_fold": st.just(GROUPS - 1)},
    "RepeatedKFold": {"n_splits": FOLDS, "n_repeats": st.just(2), "random_state": SEEDS},
    "RepeatedStratifiedKFold": {"n_splits": FOLDS, "n_repeats": st.just(2), "random_state": SEEDS},
}


def array(lengths):
    return da.from_array(X, chunks=(tuple(lengths), 1))


def array_of_unknown_length(lengths):
    return frame(lengths)[["number"]].to_dask_array()


def sparse_array(lengths):
    return da.from_array(X, chunks=(tuple(lengths), -1)).map_blocks(
        sparse.csr_matrix, meta=sparse.csr_matrix((0, 2), dtype=X.dtype)
    )


def frame(lengths, values=FRAME):
    ends = np.cumsum([0, *lengths])
    parts = [values.iloc[low:high] for low, high in pairwise(ends)]
    return dd.from_map(_identity, parts, meta=values.iloc[:0])


def _identity(part):
    return part


CONTAINERS = [array, array_of_unknown_length, sparse_array, frame]


def row_numbers(part):
    """Return which rows a part has, in its order."""
    part = part.compute() if dask.is_dask_collection(part) else part
    if isinstance(part, pd.DataFrame):
        return part["number"].to_numpy()
    values = part.toarray() if sparse.issparse(part) else np.asarray(part)
    return values[:, 0] // (2 if values.shape[1] == 2 else 1)


@st.composite
def cuts(draw):
    """Lengths of partitions, of which some are empty."""
    ends = sorted(draw(st.lists(st.integers(0, N_ROWS), max_size=6)))
    return np.diff([0, *ends, N_ROWS]).tolist()


@settings(max_examples=n_examples(40, 250), deadline=None)
@given(name=st.sampled_from(list(SPLITTERS)), lengths=cuts(), data=st.data())
def test_parts_have_the_rows_of_scikit_learn(name, lengths, data):
    options = data.draw(st.fixed_dictionaries(SPLITTERS[name]))
    make = data.draw(st.sampled_from(CONTAINERS))

    def splitter(module):
        return getattr(module, name.partition(" ")[0])(**options)

    takes_groups = "Group" in name
    expected = list(splitter(in_memory).split(X, Y, GROUPS if takes_groups else None))
    rows, y = make(lengths), da.from_array(Y, chunks=25)
    groups = da.from_array(GROUPS, chunks=50) if takes_groups else None
    parts = list(split_rows(rows, y, cv=splitter(model_selection), groups=groups))
    sets = list(splitter(model_selection).split(rows, y, groups))
    assert len(parts) == len(sets) == len(expected)
    # of leave-one-out, which has a split for each row, a few are computed
    for i in range(0, len(expected), max(1, len(expected) // 4)):
        for side in range(2):
            numbers = np.sort(expected[i][side])
            np.testing.assert_array_equal(np.asarray(sets[i][side]), numbers)
            np.testing.assert_array_equal(row_numbers(parts[i][side]), numbers)
            np.testing.assert_array_equal(parts[i][2 + side].compute(), Y[numbers])


@pytest.mark.parametrize(
    "options",
    [
        {"random_state": 0},
        {"random_state": 1, "test_size": 7, "train_size": 0.5},
        {"shuffle": False, "test_size": 0.2},
        {"shuffle": False, "train_size": 5, "test_size": 5},
        {"random_state": 2, "stratify": True},
    ],
)
@settings(max_examples=n_examples(4, 15), deadline=None)
@given(lengths=cuts(), make=st.sampled_from(CONTAINERS))
def test_train_test_split_has_the_rows_of_scikit_learn(options, lengths, make):
    labels = options.get("stratify") and Y
    expected = in_memory.train_test_split(X, Y, **{**options, "stratify": labels})
    lazy = None if labels is None else da.from_array(Y, chunks=13)
    parts = train_test_split(make(lengths), Y, **{**options, "stratify": lazy})
    for part, labels, rows in zip(parts[:2], parts[2:], expected[:2], strict=True):
        numbers = np.sort(rows[:, 0]) // 2
        np.testing.assert_array_equal(row_numbers(part), numbers)
        np.testing.assert_array_equal(labels, Y[numbers])


def test_parts_of_a_frame_keep_what_it_has():
    data = FRAME.sort_index()
    rows = dd.from_pandas(data, npartitions=5)
    with counting() as counts:
        train, test = train_test_split(rows, random_state=0)
    assert counts.passes == 1
    for part in (train, test):
        assert part.divisions == rows.divisions
        pd.testing.assert_frame_equal(part._meta, rows._meta)
        computed = part.compute()
        expected = data.loc[computed.index]
        pd.testing.assert_frame_equal(computed, expected, check_dtype=False)
        assert dict(computed.dtypes) == dict(rows.compute().dtypes)


def test_partitions_of_a_part_are_its_own():
    train, _ = train_test_split(frame([20, 10, 30]), random_state=0)
    whole = train.map_partitions(len).compute().tolist()
    second = train.partitions[1].compute()
    assert len(second) == whole[1]
    pd.testing.assert_frame_equal(second, train.compute().iloc[whole[0] : sum(whole[:2])])


def test_parts_can_be_projected_filtered_and_assigned_to():
    rows = frame([20, 10, 30])
    train, _, y, _ = train_test_split(rows[["number", "text"]], rows["kind"], random_state=0)
    lazy = train[train["number"] < 50].assign(kind=y)[["kind", "number"]]
    expected = train.compute()
    expected = expected[expected["number"] < 50].assign(kind=y.compute())[["kind", "number"]]
    pd.testing.assert_frame_equal(lazy.compute(), expected)
    assert not any("shuffle" in str(key) for key in lazy.optimize().__dask_graph__())


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    """Files of many columns, of which few are read as fewer partitions than there are files."""
    path = tmp_path_factory.mktemp("parquet")
    wide = FRAME.assign(**{f"x{i}": np.sin(i + np.arange(N_ROWS)) for i in range(40)})
    for i in range(12):
        wide.iloc[5 * i : 5 * (i + 1)].to_parquet(path / f"{i:02}.parquet", index=False)
    return dd.read_parquet(path)


def test_columns_of_parquet_are_split_alike(parquet):
    X, y = parquet[["number", "x1"]], parquet["text"]
    with counting() as counts:
        parts = train_test_split(X, y, stratify=parquet["kind"], random_state=0)
    assert counts.passes == 1
    assert parts[0].npartitions == parts[2].npartitions < parquet.npartitions
    expected = in_memory.train_test_split(FRAME, stratify=FRAME["kind"], random_state=0)
    for part, labels, rows in zip(parts[:2], parts[2:], expected, strict=True):
        rows = rows.sort_values("number")
        computed = part.compute()
        assert computed["number"].tolist() == rows["number"].tolist()
        assert labels.compute().fillna("").tolist() == rows["text"].fillna("").tolist()
        np.testing.assert_array_equal(part["x1"].compute(), np.sin(1 + rows["number"]))
        last = part[["x1"]].partitions[-1].compute()["x1"]
        np.testing.assert_array_equal(last, computed["x1"].iloc[-len(last) :])


def test_a_target_and_all_other_columns_of_parquet(parquet):
    X, y = parquet.drop(columns="text"), parquet["text"]
    X_train, _, y_train, _ = train_test_split(X, y, random_state=0)
    numbers = X_train[
        "number"
    ].compute()  # each of them alone, which needs few columns of the files
    labels, rows = y_train.compute(), X_train.compute()
    assert numbers.tolist() == rows["number"].tolist()
    assert labels.fillna("").tolist() == FRAME["text"].fillna("").iloc[rows["number"]].tolist()
    assert y_train.npartitions == parquet.npartitions


def test_joined_rows_are_split_without_a_fleet(parquet):
    names = pd.DataFrame({"kind": ["a", "b", "c"], "name": ["x", "y", "z"]})
    joined = (
        parquet[["number", "kind"]]
        .astype({"kind": "string[pyarrow]"})
        .merge(dd.from_pandas(names, npartitions=2), on="kind", shuffle_method=None)
    )
    train, test = train_test_split(joined, random_state=0)
    numbers = [part["number"].compute().tolist() for part in (train, test)]
    assert sorted(chain(*numbers)) == list(range(N_ROWS))
    assert [part["number"].compute().tolist() for part in (train, test)] == numbers


def test_lengths_are_known_and_partitions_without_rows_dropped():
    with counting() as counts:
        train, test = train_test_split(array([20, 10, 30]), shuffle=False, test_size=10)
    assert counts.passes == 0
    assert (train.chunks[0], test.chunks[0]) == ((20, 10, 20), (10,))
    assert len(test.__dask_graph__()) <= 2 * 3 + 1 + 2


def test_the_number_of_rows_of_a_part_is_known():
    def load(number):
        if was_counted:
            raise AssertionError("no rows are needed")
        return pd.DataFrame({"a": np.arange(5.0), "b": number})

    was_counted = False
    rows = dd.from_map(load, range(3), meta=pd.DataFrame({"a": [0.0], "b": [0]}))
    train, test = train_test_split(rows, test_size=4, random_state=0)
    was_counted = True
    assert (len(train), len(test), len(train.a), len(test[["b"]])) == (11, 4, 11, 4)


def test_labels_and_unknown_lengths_take_one_pass_together():
    y = frame([30, 30])["kind"]
    with counting() as counts:
        parts = list(split_rows(frame([20, 40]), y, cv=model_selection.StratifiedKFold(2)))
    assert counts.passes == 1
    assert len(parts) == 2


def test_a_part_takes_a_task_a_partition():
    rows = array([20, 10, 30]).rechunk({1: -1}).persist()
    train, test = train_test_split(rows, random_state=0)
    for part in (train, test):
        tasks = [key for key in part.__dask_graph__() if key[0].startswith("take-rows")]
        assert len(tasks) == 3


def test_number_of_folds_and_iterables_are_splitters():
    rows = array([20, 40])
    folds = [test for _, test in split_rows(rows, cv=3)]
    assert [len(part) for part in folds] == [20, 20, 20]
    ((train, test),) = split_rows(rows, cv=[(np.arange(50), np.arange(50, 60))])
    assert (len(train), len(test)) == (50, 10)


@pytest.mark.parametrize("name", ["KFold", "StratifiedKFold", "GroupKFold"])
def test_searches_and_cross_validation_take_our_splitters(name):
    rows, y = da.from_array(RNG.normal(size=(N_ROWS, 2)), chunks=25), da.from_array(Y, chunks=25)
    groups = {"groups": da.from_array(GROUPS, chunks=25)} if name == "GroupKFold" else {}
    scores = []
    for module in (in_memory, model_selection):
        cv = getattr(module, name)(n_splits=2)
        search = model_selection.GridSearchCV(LogisticRegression(), {"C": [1, 10]}, cv=cv)
        scores.append(search.fit(rows, y, **groups).cv_results_["mean_test_score"])
    np.testing.assert_array_equal(*scores)


def test_folds_in_order_are_slices_of_blocks():
    for cls in (in_memory.KFold, model_selection.KFold):
        assert make_folds(cls(3), 10).starts.tolist() == [0, 4, 7]


def test_subclass_splits_its_own_way():
    class Backwards(model_selection.KFold):
        def split(self, X, y=None, groups=None):
            return reversed(list(super().split(X, y, groups)))

    tests = [row_numbers(test) for _, test in split_rows(array([60]), cv=Backwards(3))]
    assert [part[0] for part in tests] == [40, 20, 0]


def test_rows_in_this_process_are_scikit_learns_own():
    for ours, theirs in zip(
        train_test_split(X, Y, random_state=0),
        in_memory.train_test_split(X, Y, random_state=0),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_arrays_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[60, 59\]"):
        train_test_split(array([60]), Y[:-1])
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples"):
        train_test_split(frame([30, 30]), stratify=frame([59], FRAME[:-1])["kind"])
    with counting() as counts, pytest.raises(ValueError, match=r"inconsistent numbers of samples"):
        train_test_split(array([60]), frame([60]), stratify=da.from_array(Y[:-1]))
    assert counts.passes == 0  # what is known is compared before


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("KFold", {"n_splits": 61}),
        ("TimeSeriesSplit", {"n_splits": 60}),
        ("TimeSeriesSplit", {"n_splits": 3, "test_size": 20}),
        ("ShuffleSplit", {"test_size": 60}),
        ("StratifiedKFold", {"n_splits": 30}),
    ],
)
def test_errors_are_scikit_learns(name, options):
    with pytest.raises(ValueError, match=r".") as theirs:
        list(getattr(in_memory, name)(**options).split(X, Y))
    with pytest.raises(ValueError, match=r".") as ours:
        list(getattr(model_selection, name)(**options).split(array([60]), Y))
    assert str(ours.value) == str(theirs.value)


def test_what_is_not_rows_is_refused():
    with pytest.raises(ValueError, match=r"At least one array"):
        train_test_split(stratify=da.from_array(Y))
    with pytest.raises(TypeError, match=r"X must be a Dask array, a Dask DataFrame or a bag"):
        train_test_split(dask.delayed(X))


def test_sizes_are_refused_as_by_scikit_learn():
    with pytest.raises(ValueError, match=r"test_size=60 should be either positive and smaller"):
        train_test_split(array([60]), test_size=60)
    with pytest.raises(ValueError, match="not implemented for shuffle=False"):
        train_test_split(array([60]), shuffle=False, stratify=Y)


def test_rows_without_an_order_are_refused():
    shuffled = dd.from_pandas(FRAME, npartitions=3, sort=False).shuffle(
        "kind", shuffle_method="disk"
    )
    with pytest.raises(ValueError, match=r"must keep the order of its rows"):
        train_test_split(shuffled)


def test_partitions_that_change_after_they_were_counted_are_named():
    rows = frame([30, 30])
    train, _ = train_test_split(rows, random_state=0)
    sizes = iter([30, 30])
    changed = rows.map_partitions(lambda part: part.iloc[: next(sizes) - 1], meta=rows._meta)
    cut = RowSet.from_indices(np.arange(5), N_ROWS).cut(0, 30)
    with pytest.raises(ValueError, match="Got one of 29 rows that had 30"):
        cut.take(changed.partitions[0].compute())
    assert len(train) == 45


@settings(max_examples=n_examples(30, 200), deadline=None)
@given(numbers=st.sets(st.integers(0, 40)), n_rows=st.integers(41, 50), data=st.data())
def test_row_sets_are_sets(numbers, n_rows, data):
    numbers = sorted(numbers)
    rows = RowSet.from_indices(np.array(numbers, dtype=int), n_rows)
    assert np.asarray(rows).tolist() == numbers
    assert np.asarray(~rows).tolist() == sorted(set(range(n_rows)) - set(numbers))
    assert (len(rows), len(~rows), rows.shape) == (
        len(numbers),
        n_rows - len(numbers),
        (len(rows),),
    )
    low = data.draw(st.integers(0, n_rows))
    high = data.draw(st.integers(low, n_rows))
    taken = [n for n in numbers if low <= n < high]
    assert rows.cut(low, high).n_taken == len(taken)
    assert rows.cut(low, high).take(np.arange(low, high)).tolist() == taken


def test_ranges_are_row_sets_without_bits():
    rows = RowSet(100, [(10, 20), (20, 20), (90, 100)])
    assert (rows.bits, len(rows), repr(rows)) == (None, 20, "RowSet(20 of 100 rows)")
    assert (~rows).ranges == ((0, 10), (20, 90))
    assert rows.cut(10, 20).bits is None
    assert rows.cut(15, 95).take(np.arange(15, 95)).tolist() == [*range(15, 20), *range(90, 95)]
