"""Graphs of joined, grouped and shuffled frames: what has equal keys is made of equal tasks."""

import logging
import threading
from contextlib import ExitStack

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.core import flatten, get_dependencies
from dask.task_spec import Alias, Task, TaskRef
from dask.utils import key_split
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

from random_examples import n_examples
from skfleet._dask_settings import dask_setting
from skfleet.blocks import _dask_optimize
from skfleet.blocks._dask_collections import joint_graph, persist_together
from skfleet.blocks._dask_futures import is_future
from skfleet.blocks._dask_graph import with_result_keys
from skfleet.estimators import ColumnTransformer, Ridge, StandardScaler, TargetEncoder
from skfleet.model_selection import GridSearchCV

rng = np.random.default_rng(0)
sales = pd.DataFrame(
    {
        "shop": rng.integers(0, 40, 400),
        "amount": rng.normal(size=400),
        "price": rng.gamma(2.0, size=400),
        "city": rng.choice(["a", "b", "c"], 400),
    }
)


def merged(frame):
    """Join two aggregations of a frame."""
    means = frame.groupby("shop").agg({"amount": "mean", "price": "sum"})
    others = frame.groupby("shop").agg({"amount": "std", "price": "max", "city": "first"})
    others = others.rename(columns={"amount": "spread", "price": "target"})
    return means.merge(others, left_index=True, right_index=True)


def split_out(frame):
    grouped = frame.groupby("shop").agg(
        {"amount": "mean", "price": "sum", "city": "first"}, split_out=2
    )
    return grouped.assign(target=2 * grouped.price)


def joined_back(frame):
    tops = frame.groupby("shop").agg({"price": "max"}).rename(columns={"price": "target"})
    return frame.merge(tops.reset_index(), on="shop")


def indexed(frame):
    by_amount = frame.set_index("amount")
    return by_amount.assign(amount=by_amount.price, target=2 * by_amount.price)


def distinct(frame):
    return frame.drop_duplicates("shop").assign(target=lambda rows: 2 * rows.price)


FRAMES = [merged, split_out, joined_back, indexed, distinct]


@pytest.fixture(params=["p2p", "tasks", "disk"])
def shuffle(request, cluster_client):
    with (
        cluster_client.as_current(),
        dask.config.set({"dataframe.shuffle.method": request.param}),
    ):
        yield request.param


def tasks_of(collections):
    """Return the keys of the tasks of a graph, with those of their dependencies."""
    graph, *_ = joint_graph(collections, is_repeated=True)
    return {
        key: get_dependencies(graph, task=task)
        for key, task in graph.items()
        if not is_future(task)
    }


@given(st.data())
@settings(max_examples=n_examples(6, 100), deadline=None)
@pytest.mark.usefixtures("shuffle")
def test_equal_keys_have_equal_dependencies(data):
    """The scheduler takes the second of two graphs for the first, and warns."""
    frame = dd.from_pandas(sales, npartitions=data.draw(st.integers(1, 4)))
    whole = data.draw(st.sampled_from(FRAMES))(frame)
    columns = st.lists(st.sampled_from(["amount", "price", "city"]), min_size=1, unique=True)
    graphs = []
    for _ in range(2):
        X, y = whole[data.draw(columns)], whole["target"]
        if data.draw(st.booleans()):
            X = X.map_partitions(lambda rows: rows, enforce_metadata=False)
        graphs.append(tasks_of(data.draw(st.sampled_from([(X,), (X, y), (y, X), (y,)]))))
    first, second = graphs
    assert {k: first[k] for k in first.keys() & second} == {
        k: second[k] for k in first.keys() & second
    }


def test_persisted_rows_are_paired(cluster_client):
    """Rows that are made by one shuffle stay in one order."""
    from skfleet.blocks import row_blocks
    from skfleet.engine import engine_for

    frame = dd.from_pandas(sales.assign(number=np.arange(400.0)), npartitions=4)
    whole = frame.shuffle("shop")
    with cluster_client.as_current():
        rows = row_blocks(whole[["number"]], dtype=None)
        collections = whole[["number", "price"]], whole["number"]
        with engine_for(rows).persist_collections(rows, collections) as (X, y):
            assert X.npartitions == y.npartitions == 4
            np.testing.assert_array_equal(X["number"].compute(), y.compute())
            assert sorted(y.compute()) == list(range(400))


ARRAYS = [
    lambda rows: rows.rechunk((30, 3)),
    lambda rows: rows.rechunk((40, 2)),
    lambda rows: rows.rechunk((10, 3)).rechunk((25, 3), method="p2p"),
    lambda rows: da.concatenate([rows[:50], rows[50:] * 2]),
    lambda rows: rows.map_blocks(lambda block: block * 2.0),
    lambda rows: rows[rows[:, 0] > -1],
    lambda rows: (rows - rows.mean(axis=0)) / rows.std(axis=0),
    lambda rows: rows[np.r_[10:80, 0:10, 80:100]],
    lambda rows: (rows * 2).persist(),
    lambda rows: dd.from_dask_array(rows, columns=list("abc")).to_dask_array(lengths=True),
]


@given(st.data())
@settings(max_examples=n_examples(4, 60), deadline=None)
def test_equal_keys_of_arrays_have_equal_dependencies(cluster_client, data):
    rows, made = da.from_array(rng.normal(size=(100, 3)), chunks=(40, 3)), []
    with cluster_client.as_current():
        for make in data.draw(st.lists(st.sampled_from(ARRAYS), min_size=1, max_size=2)):
            assume(not np.isnan(rows.shape[0]))  # Dask cuts no rows of unknown lengths
            whole = rows = make(rows)
            made.append(rows)  # Dask's frames of persisted arrays do not keep them
        X, y = whole[:, :2], whole[:, 2]
        choices = st.sampled_from([(X,), (y,), (X, y), (y, X), (X.sum(axis=1), y), (X * 2, y)])
        collections = [data.draw(choices) for _ in range(2)]
        first, second = map(tasks_of, collections)
        assert {k: first[k] for k in first.keys() & second} == {
            k: second[k] for k in first.keys() & second
        }
        graph, keys, *_ = joint_graph(collections[0])
        for x, parts in zip(collections[0], keys, strict=True):
            chunks = [[part] if isinstance(part, tuple) else part for part in parts]
            values = [np.hstack(row) for row in cluster_client.get(graph, chunks)]
            np.testing.assert_array_equal(np.concatenate(values), x.compute())


def test_fused_tasks_have_keys_of_their_own():
    rows = da.from_array(np.ones((100, 3)), chunks=(40, 3)).rechunk((30, 3))
    X, y = rows[:, :2], rows[:, 2]
    alone, joint = tasks_of([X]), tasks_of([X, y])
    shared = alone.keys() & joint.keys()
    assert {key: alone[key] for key in shared} == {key: joint[key] for key in shared}
    assert tasks_of([X]) == alone


def test_arrays_in_one_graph_share_their_tasks():
    rows = da.from_array(np.ones((40, 3)), chunks=(10, 3)).map_blocks(lambda block: block + 1)
    graphs = [joint_graph([rows[:, :2], rows[:, 2]])[0] for _ in range(2)]
    assert graphs[0].keys() == graphs[1].keys()
    names = [key_split(key) for key in graphs[0]]
    assert sum("lambda" in name for name in names) == rows.numblocks[0]


def test_persisted_arrays_keep_their_keys(cluster_client):
    source = da.from_array(np.arange(120.0).reshape(40, 3), chunks=(10, 2))
    arrays = [source.map_blocks(lambda block: block + 1), source.map_blocks(lambda block: -block)]
    persisted, _ = persist_together(arrays, cluster_client)
    with cluster_client.as_current():
        for array, kept in zip(arrays, persisted, strict=True):
            assert kept.__dask_graph__().keys() == set(flatten(array.__dask_keys__()))
            np.testing.assert_array_equal(kept.compute(), array.compute())


SHUFFLES = [("p2p", make) for make in FRAMES] + [
    (method, make) for method in ("tasks", "disk") for make in (merged, joined_back)
]


@pytest.mark.slow
@pytest.mark.parametrize(("shuffle", "make"), SHUFFLES, indirect=["shuffle"])
def test_searches_give_keys_once(shuffle, make, caplog):
    """No search, fit or prediction has the scheduler warn of other tasks with a key that it has."""
    whole = make(dd.from_pandas(sales, npartitions=3))
    X, y = whole[["amount", "city"]], whole["target"]
    encoders = [
        ("city", TargetEncoder(target_type="continuous"), ["city"]),
        ("amount", StandardScaler(), ["amount"]),
    ]
    pipeline = make_pipeline(ColumnTransformer(encoders), Ridge())
    with caplog.at_level(logging.WARNING, "distributed.scheduler"):
        search = GridSearchCV(pipeline, {"ridge__alpha": [0.1, 10]}, cv=2).fit(X, y)
        assert len(search.predict(X).compute()) == len(y)
    assert "Detected different" not in caplog.text


def test_threads_leave_the_settings_of_the_program(cluster_client, monkeypatch):
    """Settings of Dask are the whole program's; one thread begins first and ends first."""
    first_is_in, second_is_in, first_is_done = (threading.Event() for _ in range(3))
    optimize = _dask_optimize.optimized_together

    def wait_for_the_other(*args, **kwargs):
        if threading.current_thread().name == "first":
            first_is_in.set()
            second_is_in.wait(30)
        else:
            second_is_in.set()
            first_is_done.wait(30)
        return optimize(*args, **kwargs)

    monkeypatch.setattr(_dask_optimize, "optimized_together", wait_for_the_other)
    frame = merged(dd.from_pandas(sales, npartitions=3))

    def make_graph():
        with cluster_client.as_current():
            joint_graph([frame])

    threads = [threading.Thread(target=make_graph, name=name) for name in ("first", "second")]
    threads[0].start()
    assert first_is_in.wait(30)
    threads[1].start()
    threads[0].join()
    first_is_done.set()
    threads[1].join()
    assert dask.config.get("dataframe.shuffle.method", None) is None


def test_setting_is_put_back_after_the_last_thread():
    name = "optimization.tune.active"
    before = dask.config.get(name, None)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(dask_setting(name, False))
        second.enter_context(dask_setting(name, False))
        first.close()
        assert dask.config.get(name) is False
        second.close()
        assert dask.config.get(name, None) is before is not False


def test_results_get_new_keys_and_aliases_go():
    def tasks(**nodes):
        return {node.key: node for node in nodes.values()}

    graph = tasks(
        rows=Task("rows", range, 4),
        again=Alias("again", "rows"),
        total=Task("total", sum, TaskRef("again")),
        one=Alias("one", "total"),
        two=Alias("two", "total"),
        three=Task("three", len, TaskRef("rows")),
    )
    new_keys = {"one": "A", "two": "B", "three": "C", "rows": "rows"}
    renamed = with_result_keys(graph, new_keys)
    # those of two names, or that other tasks need, keep their own too
    assert renamed.keys() == {"rows", "total", "A", "B", "C"}
    assert dask.get(renamed, ["A", "B", "C", "rows"]) == (6, 6, 4, range(4))
    assert with_result_keys({"old": (sum, [1, 2])}, {"old": "new"}) is None
