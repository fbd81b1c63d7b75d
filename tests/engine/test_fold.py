"""Folds over blocks in workers' memory: chains of tasks, without the driver in between."""

import dask.array as da
import numpy as np
import pytest
from distributed import get_worker, wait

from skfleet.blocks import row_blocks
from skfleet.engine import FoldPace, TrainingBatch, counting, engine_for, fold
from skfleet.engine import _fold as fold_module
from skfleet.engine._dask._engine import DaskEngine

N_BLOCKS, N_ROWS = 12, 5_000


@pytest.fixture
def rows(cluster_client):
    """Rows of which one worker has the first eight blocks, and the other one the last four."""
    workers = sorted(cluster_client.nthreads())
    values = np.arange(N_BLOCKS * N_ROWS * 2.0).reshape(-1, 2)
    with cluster_client.as_current():
        first = da.from_array(values[: 8 * N_ROWS], chunks=(N_ROWS, 2))
        last = da.from_array(values[8 * N_ROWS :], chunks=(N_ROWS, 2))
        parts = [
            cluster_client.persist(part, workers=[worker])
            for part, worker in zip((first, last), workers, strict=True)
        ]
        X = da.concatenate(parts).persist()
        wait(X)
        yield row_blocks(X)


@pytest.fixture
def messages(monkeypatch):
    """The numbers of tasks in the messages that a fold sends."""
    sizes = []
    submit, submit_all = DaskEngine.submit, DaskEngine.submit_all

    def count_one(self, *args, **kwargs):
        sizes.append(1)
        return submit(self, *args, **kwargs)

    def count_all(self, calls, **kwargs):
        sizes.append(len(calls))
        return submit_all(self, calls, **kwargs)

    monkeypatch.setattr(DaskEngine, "submit", count_one)
    monkeypatch.setattr(DaskEngine, "submit_all", count_all)
    return sizes


def _visit(state, block):
    """Record the number of a block, and the worker that trains."""
    return [*state, (block.number, get_worker().address)]


def _numbers(state):
    return [number for number, _ in state]


def test_a_window_is_one_message(rows, messages):
    with counting() as counts:
        state = fold(engine_for(rows), _visit, [], rows)
    assert _numbers(state) == [*range(N_BLOCKS)]
    # A task for each batch, as long as nobody knows how long they take: a window of eight, the rest
    # as many in a task as fit.
    assert messages == [8, 1]
    assert counts.tasks == 9
    assert counts.passes == 1


def test_an_epoch_whose_pace_is_known_is_a_task_for_each_stay_at_a_worker(rows, messages):
    engine, pace = engine_for(rows), FoldPace()
    order = [0, 1, 2, 8, 9, 3, 4, 5, 6, 7, 10, 11]
    batches = [TrainingBatch([rows.blocks[i]]) for i in order]
    fold(engine, _visit, [], rows, batches=batches, pace=pace)
    messages.clear()
    with counting() as counts:
        state = fold(engine, _visit, [], rows, batches=batches, pace=pace)
    assert _numbers(state) == order
    assert messages == [4]
    assert counts.tasks == 4
    # Each trained where it is, and in the documented order: rows stay, the state travels.
    groups = engine.group_by_worker(rows.blocks)
    homes = {block.number: k for k, group in enumerate(groups) for block in group}
    stays = {homes[number]: address for number, address in state}
    assert len(stays) == len(set(stays.values())) == 2
    assert all(stays[homes[number]] == address for number, address in state)


def test_no_task_has_more_batches_than_the_most(rows, messages, monkeypatch):
    monkeypatch.setattr(fold_module, "MAX_BATCHES_PER_TASK", 3)
    engine, pace = engine_for(rows), FoldPace()
    for _ in range(2):
        messages.clear()
        state = fold(engine, _visit, [], rows, pace=pace)
    assert _numbers(state) == [*range(N_BLOCKS)]
    assert messages == [5]  # three, three and two of the first worker, three and one of the other


def test_slow_batches_have_a_task_each(rows, messages, monkeypatch):
    monkeypatch.setattr(fold_module, "TASK_SECONDS", 0.0)
    engine, pace = engine_for(rows), FoldPace()
    for _ in range(2):
        messages.clear()
        fold(engine, _visit, [], rows, pace=pace)
    assert messages == [N_BLOCKS]


def test_windows_end_where_the_driver_has_to_know_the_state(rows, messages, monkeypatch):
    monkeypatch.setattr(fold_module, "MAX_CHECKPOINT_INTERVAL", 8)
    monkeypatch.setattr(fold_module, "TASK_SECONDS", 0.0)
    seen = []
    fold(engine_for(rows), _visit, [], rows, on_checkpoint=lambda s, n: seen.append((len(s), n)))
    assert messages == [8, 4]
    assert seen == [(8, 8), (12, 12)]


def _fail_at(state, block, number):
    if block.number == number:
        raise ZeroDivisionError("a bad block")
    return [*state, block.number]


@pytest.mark.parametrize("bad", [0, 5, 11])
def test_an_error_in_a_chain_names_its_block_and_keeps_what_was_learned(rows, bad):
    engine, pace, learned = engine_for(rows), FoldPace(), []
    fold(engine, _visit, [], rows, pace=pace)  # so that tasks have several batches
    with pytest.raises(ZeroDivisionError) as caught:
        fold(engine, _fail_at, [], rows, bad, pace=pace, on_checkpoint=lambda *s: learned.append(s))
    assert f"While learning from block {bad}." in caught.value.__notes__
    assert learned[-1:] == ([([*range(bad)], bad)] if bad else [])


def test_places_are_asked_for_now_and_then(rows, monkeypatch):
    asked, group_by_worker = [], DaskEngine.group_by_worker

    def ask(self, blocks):
        asked.append(len(blocks))
        return group_by_worker(self, blocks)

    monkeypatch.setattr(DaskEngine, "group_by_worker", ask)
    engine, pace = engine_for(rows), FoldPace()
    for _ in range(4):
        fold(engine, _visit, [], rows, pace=pace)
    assert asked == [N_BLOCKS]
    monkeypatch.setattr(fold_module, "PLACES_SECONDS", -1.0)
    pace = FoldPace()
    fold(engine, _visit, [], rows, pace=pace)
    assert len(asked) > 2


def test_blocks_that_are_not_on_workers_go_a_few_at_a_time(cluster_client, messages):
    with cluster_client.as_current():
        on_driver = row_blocks(da.ones((20, 2), chunks=(1, 2)))
        state = fold(engine_for(on_driver), _visit, [], on_driver)
    assert _numbers(state) == [*range(20)]
    assert set(messages) == {1}
