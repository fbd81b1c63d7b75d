"""One contract of both engines: what passes over rows and the adaptive searches rely on."""

import numpy as np
import pytest

from skfleet.blocks import row_blocks
from skfleet.engine import ANY_WORKER, Call, LocalEngine, open_scattered
from skfleet.engine._dask._engine import DaskEngine


@pytest.fixture(params=["local", "dask"])
def engine(request):
    if request.param == "local":
        return LocalEngine()
    return DaskEngine(request.getfixturevalue("cluster_client"))


def add(a, b):
    return a + b


def total(scattered):
    return float(open_scattered(scattered).sum())


def count_threads(group, n_threads=1):
    return n_threads


def count_rows(block):
    return len(block.X)


def test_results_come_in_order(engine):
    tasks = engine.map(add, range(5), 10)
    assert engine.gather(tasks) == [10, 11, 12, 13, 14]
    assert len(list(engine.as_completed(tasks))) == 5
    assert not any(map(engine.has_failed, tasks))


def test_tasks_are_arguments_of_tasks(engine):
    first = engine.submit(add, 1, 2)
    assert engine.gather([engine.submit(add, first, 4)]) == [7]


def test_calls_are_arguments_of_one_another(engine):
    first = Call(add, (1, 2))
    assert engine.gather(engine.submit_all([first, Call(add, (first, first))])) == [3, 6]


def test_a_queue_fetches_summaries(engine):
    queue = engine.completion_queue()
    task = engine.submit(add, 1, 2)
    queue.add(task, str)
    (result,) = queue.next()
    assert (result.value, result.error, result.was_lost) == ("3", None, False)


def test_scattered_values_are_opened_in_tasks(engine):
    scattered = engine.scatter(np.ones(1000))
    assert engine.gather(engine.map(total, [scattered, scattered])) == [1000.0, 1000.0]
    engine.rescatter(scattered)
    assert engine.gather([engine.submit(total, scattered)]) == [1000.0]
    engine.release(scattered)


def test_functions_that_start_threads_are_given_their_number(engine):
    rows = row_blocks(np.ones((6, 2)))
    (n_threads,) = engine.gather(engine.map(count_threads, [rows.blocks], is_threaded=True))
    # Blocks that are not in a worker's memory share the worker with other tasks.
    assert n_threads == (engine.n_threads if engine.is_local else 1)


def test_blocks_are_loaded_inside_a_with(engine):
    with engine.persist(row_blocks(np.ones((6, 2)), block_sizes=[2, 4])) as rows:
        groups = engine.group_by_worker(rows.blocks)
        assert sorted(block.number for group in groups for block in group) == [0, 1]
        assert engine.gather(engine.map(count_rows, rows.blocks)) == [2, 4]
    assert engine.count_slots(ANY_WORKER) >= 1
