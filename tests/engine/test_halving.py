"""Tasks whose workers died of memory are run again on smaller pieces of files, with one warning."""

import warnings
from types import SimpleNamespace

import pytest

from skfleet.blocks import BlockRef
from skfleet.engine import _halving
from skfleet.engine._halving import gather_or_halve
from skfleet.exceptions import WorkerMemoryError, WorkersPausedError


class FileBlock:
    """Stands for a piece of files."""

    files = "files"


class Engine:
    """Runs tasks in place, of which that of one item dies until there are enough parts."""

    def __init__(self, parts_needed):
        self.parts_needed, self.n_parts, self.submitted, self.cancelled = parts_needed, 1, [], []

    def submit(self, items):
        self.submitted.append(len(items))
        is_large = (item.number == 1 and self.n_parts < self.parts_needed for item in items)
        return [SimpleNamespace(item=i, failed=f) for i, f in zip(items, is_large, strict=True)]

    def is_done(self, task):
        return not task.failed

    def cancel(self, tasks):
        self.cancelled += tasks

    def gather(self, tasks):
        if any(task.failed for task in tasks):
            raise WorkerMemoryError("sums must fit", "Start fewer.")
        return [task.item.number for task in tasks]


def run(engine, monkeypatch):
    def halve(items):
        assert [item.number for item in items] == [1]
        engine.n_parts *= 2
        return engine.n_parts if engine.n_parts <= 8 else 0

    monkeypatch.setattr(_halving, "halve_pieces", halve)
    items = [BlockRef(FileBlock(), number=i) for i in range(3)]
    return gather_or_halve(engine, engine.submit, items)


@pytest.mark.parametrize("parts_needed", [2, 8])
def test_tasks_that_are_not_done_run_again(monkeypatch, parts_needed):
    engine = Engine(parts_needed)
    with pytest.warns(UserWarning, match=rf"in {parts_needed} parts now \(sums must fit\)") as all_:
        assert run(engine, monkeypatch) == [0, 1, 2]
    assert len(all_) == 1
    assert "block_bytes=" in str(all_[0].message)
    n_halvings = {2: 1, 8: 3}[parts_needed]
    assert engine.submitted == [3] + [1] * n_halvings
    assert len(engine.cancelled) == n_halvings


def test_the_error_comes_after_three_halvings(monkeypatch):
    engine = Engine(16)
    with pytest.raises(WorkerMemoryError, match=r"^sums must fit\. Start fewer\.$"):
        run(engine, monkeypatch)
    assert engine.submitted == [3, 1, 1, 1]


def test_pieces_are_not_halved_where_workers_are_paused(monkeypatch):
    engine = Engine(2)

    def gather(tasks):
        raise WorkersPausedError("workers must have free memory. Start more.")

    monkeypatch.setattr(engine, "gather", gather)
    with pytest.raises(WorkersPausedError):
        run(engine, monkeypatch)
    assert (engine.submitted, engine.n_parts) == ([3], 1)


def test_no_warning_without_deaths(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(Engine(1), monkeypatch) == [0, 1, 2]
