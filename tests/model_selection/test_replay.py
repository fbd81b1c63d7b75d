"""A search that goes on takes the course that it took before."""

import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from skfleet.model_selection import ASHASearchCV, CandidateSource, HyperbandSearchCV
from skfleet.model_selection._adaptive._callbacks import Report
from skfleet.model_selection._adaptive._model_store import ModelStore
from skfleet.model_selection._adaptive._replay import Replay
from skfleet.model_selection._adaptive._results import History
from skfleet.model_selection._adaptive._schedules import TrainInstruction
from skfleet.model_selection._adaptive._training_tasks import Record, TrainedModel
from skfleet.model_selection._adaptive._trial import Candidate, Score
from skfleet.model_selection._records._checkpoint import Checkpoint

X, Y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2


def candidate(number, n_calls=1):
    return Candidate(number, {}, key=f"{number}-", instruction=TrainInstruction(number, n_calls))


def test_scores_come_after_as_many_orders_as_before():
    replay = Replay([Score(2, 1, 1), Score(3, 0, 1), Score(3, 2, 1)])
    given = []
    for n_instructions in range(4):
        while (past := replay.next(n_instructions)) is not None:
            given.append((n_instructions, past[0].number))
        if n_instructions < 3:
            assert replay.has_instructions(n_instructions)
            replay.add(candidate(n_instructions), Record(1, {"score": 0.0}))
    assert given == [(2, 1), (3, 0), (3, 2)]
    assert not replay.has_instructions(3)


def test_another_course_waits_for_nothing():
    replay = Replay([Score(1, 7, 1), Score(5, 0, 1)])
    replay.add(candidate(0), Record(1, {}))
    assert replay.next(0) is None
    assert replay.next(1)[0].number == 0  # that of candidate 7 will never come
    assert not replay.has_instructions(1)
    replay.add(candidate(3), Record(1, {}))
    assert replay.next(1)[0].number == 3


def test_an_order_that_failed_does_not_stop_the_others():
    replay = Replay([Score(4, 0, 1), Score(5, 1, 1)])
    replay.add(candidate(0), Record(1, {}))
    assert replay.next(1) is None
    assert replay.next(1, is_last=True)[0].number == 0
    assert replay.next(1, is_last=True) is None  # something else is under way


class Uneven(ClassifierMixin, BaseEstimator):
    """Takes now longer and now less long, and counts its calls."""

    n_calls = 0

    def __init__(self, quality=0.5):
        self.quality = quality

    def partial_fit(self, X, y, classes=None):
        type(self).n_calls += 1
        self.n_calls_ = getattr(self, "n_calls_", 0) + 1
        self.classes_ = classes
        time.sleep(random.uniform(0, 0.01))
        return self

    def score(self, X, y):
        return self.quality * (1 - 0.5**self.n_calls_)


class Climber(CandidateSource):
    """Asks near the best so far, so that what it asks for depends on what it was told before."""

    def __init__(self):
        self.rng, self.best, self.told = np.random.default_rng(0), (0.0, 0.5), 0

    def ask(self, order, pending):
        quality = self.best[1] + self.rng.normal() / 10 + self.told / 1000
        return {"quality": float(np.clip(quality, 0, 1))}

    def tell(self, order, params, score):
        self.told += 1
        self.best = max(self.best, (score, params["quality"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sampler"),
    [(ASHASearchCV, None), (ASHASearchCV, Climber), (HyperbandSearchCV, Climber)],
)
def test_nothing_is_made_again_whatever_came_first(kind, sampler, tmp_path, cluster_client):
    def search():
        params = {"max_iter": 27, "random_state": 0, "checkpoint": tmp_path / "there"}
        if sampler is not None:
            params["sampler"] = sampler()
        space = {"quality": [round(0.01 * i, 2) for i in range(1, 100)]}
        with cluster_client.as_current():
            return kind(Uneven(), space, **params).fit(X, Y)

    first = search()
    Uneven.n_calls = 0
    second = search()
    assert Uneven.n_calls == 0
    assert second.n_checkpoint_calls_ == first.metadata_["partial_fit_calls"]
    assert second.best_params_ == first.best_params_
    columns = ["candidate", "rung", "partial_fit_calls", "test_score"]
    assert second.history_[columns].equals(first.history_[columns])


def test_a_model_whose_score_is_under_way_is_kept(tmp_path):
    """Another candidate becomes the best while a worker has trained the best so far on."""
    checkpoint = Checkpoint(tmp_path, {"search": "this"})
    models = ModelStore(tmp_path, checkpoint.name)
    report = Report(History(), n_planned=9, bar=None, checkpoint=checkpoint, models=models)
    first, second = candidate(0, 2), candidate(1, 1)
    candidates = {0: first, 1: second}
    report.loop = SimpleNamespace(seconds=0.0, n_instructions=2, candidates=candidates, best=None)
    report.loop.decide = lambda scores: 0.0
    for trained, n_calls in ((first, 2), (second, 1)):
        instruction = TrainInstruction(trained.number, n_calls)
        models.put(trained.key, TrainedModel("model", n_calls))
        record = Record(n_calls, {"score": 1.0})
        trained.instruction, trained.n_calls = instruction, n_calls
        trained.best = (instruction, record)
        report.loop.best = trained
        report.on_record(trained, instruction, record)
        if trained is first:
            first.instruction = TrainInstruction(0, 3)
            models.put(first.key, TrainedModel("model", 3))
    assert models.exact(first.key, 3) is not None
    assert models.exact(second.key, 1) is not None


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_task_that_runs_again_for_a_lost_worker_takes_the_model_that_is_further(
    tmp_path, goes_on
):
    """Its own is deleted once its score is recorded; one of an earlier run may lack that score."""
    models, earlier_run = ModelStore(tmp_path, "this"), ModelStore(tmp_path, "this")
    earlier_run.put("0-a", TrainedModel("of an earlier run", 3))
    assert models.find("0-a", range(1, 3), goes_on=goes_on) is None
    models.put("0-a", TrainedModel("of this run", 9))
    assert models.find("0-a", range(1, 3), goes_on=goes_on).model == "of this run"
    assert models.find("0-a", range(1, 4), goes_on=goes_on).model == "of an earlier run"
    before = models.find("0-a", range(10, 11), goes_on=goes_on)
    assert before.model == "of this run" if goes_on else before is None
