"""Decisions of a race, and the order of its fits, without a fleet."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from race_cases import below_worst, raced, random_scores, significantly_worse

from skfleet.model_selection._dispatch._fit_queues import CandidateQueue, SplitQueue
from skfleet.model_selection._dispatch._scheduler import FitScheduler, PlannedFit
from skfleet.model_selection._racing._columns import set_race_results
from skfleet.model_selection._racing._race import Race, RaceResult, is_significantly_worse


def run(race, table, order, first=0):
    """Record scores of a table in an order of its cells."""
    for cell in order:
        candidate, split = divmod(int(cell), table.shape[1])
        race.record(first + candidate, split, table[candidate, split])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [3, 4, 5, 7])
def test_the_test_is_that_of_scipy(n, seed):
    random = np.random.default_rng(seed)
    scores, incumbent = np.round(random.normal(0, 1, (2, n)) - [[0.7], [0]], seed % 3)
    expected = significantly_worse(scores, incumbent)
    assert is_significantly_worse(scores, incumbent) == expected


def test_four_splits_are_the_fewest_that_are_significant():
    assert not is_significantly_worse([0] * 3, [1] * 3)
    assert is_significantly_worse([0] * 4, [1] * 4)
    assert not is_significantly_worse([0] * 4, [1, 1, 1, 0])
    assert not is_significantly_worse([1] * 4, [1] * 4)


@given(st.integers(1, 6), st.integers(4, 8), st.integers(0, 2**32 - 1))
def test_decisions_depend_on_scores_alone(n_candidates, n_splits, seed):
    random = np.random.default_rng(seed)
    table = random.choice([np.nan, *np.arange(12) / 4], (n_candidates, n_splits))
    order = random.permutation(table.size)
    race = Race("mean", table.shape[1])
    race.add(len(table))
    run(race, table, order)
    n_splits, is_eligible, is_dropped = race.result()
    np.testing.assert_array_equal(n_splits, raced(table, below_worst, 3))
    np.testing.assert_array_equal(is_dropped, n_splits < table.shape[1])
    np.testing.assert_array_equal(is_eligible, ~is_dropped)


@pytest.mark.parametrize("seed", range(3))
def test_candidates_that_are_significantly_worse_are_dropped(seed):
    table = random_scores(8, seed=seed)
    race = Race("wilcoxon", table.shape[1])
    race.add(len(table))
    run(race, table, np.random.default_rng(seed).permutation(table.size))
    np.testing.assert_array_equal(race.result().n_splits, raced(table, significantly_worse, 4))


def test_a_decision_waits_for_all_and_doubts_do_not():
    race = Race("mean", 5)
    race.add(3)
    for candidate, score in ((0, 1.0), (1, 0.0)):
        for split in range(3):
            race.record(candidate, split, score)
    assert race.drops == {}
    assert race.doubtful() == {1}
    for split in range(3):
        race.record(2, split, 0.9)
    assert race.drops == {1: 3, 2: 3}
    assert race.doubtful() == set()


def test_complete_candidates_of_earlier_calls_remain_and_are_compared_with():
    race = Race("mean", 4)
    race.add(2)
    run(race, np.ones((2, 4)), range(8))
    race.add(2)
    run(race, np.array([[0.0] * 4, [2.0] * 4]), range(8), first=2)
    assert race.drops == {2: 3}
    race.add(1)
    run(race, np.array([[1.0] * 4]), range(4), first=4)
    assert race.drops == {2: 3, 4: 3}
    assert race.result().is_eligible.tolist() == [True, True, False, True, False]


def test_candidates_that_need_no_fits_are_not_dropped():
    race = Race("mean", 4)
    race.add(2)
    race.spare(0)
    run(race, np.array([[0.0] * 4, [1.0] * 4]), range(8))
    assert race.drops == {}


def test_without_a_complete_candidate_those_left_count_as_far_as_all_have_come():
    race = Race("mean", 6)
    race.add(3)
    run(
        race,
        np.array([[1.0] * 6, [0.0] * 6, [1.0] * 6]),
        [*range(4), *range(6, 12), *range(12, 17)],
    )
    n_splits, is_eligible, is_dropped = race.result()
    assert n_splits.tolist() == [4, 3, 4]  # the last had a fifth
    assert is_eligible.tolist() == [True, False, True]
    assert is_dropped.tolist() == [False, True, False]


def test_ranks_of_candidates_that_may_not_be_the_best_come_last():
    scores = np.array([[1.0, 1.0], [9.0, 9.0], [2.0, 2.0], [8.0, 9.0], [np.nan, 1.0]])
    results = {
        "split0_test_score": scores[:, 0].copy(),
        "split1_test_score": scores[:, 1].copy(),
        "mean_test_score": scores.mean(axis=1),
        "std_test_score": scores.std(axis=1),
        "rank_test_score": np.zeros(5),
        "mean_fit_time": np.ones(5),
        "std_fit_time": np.zeros(5),
    }
    race = RaceResult(
        np.array([2, 1, 2, 1, 2]),
        np.array([True, False, True, False, True]),
        np.array([False, True, False, True, False]),
    )
    set_race_results(results, race, [{"fit_time": float(n)} for n in range(10)], 2)
    assert results["rank_test_score"].tolist() == [2, 4, 1, 5, 3]
    assert results["mean_test_score"][[1, 3]].tolist() == [9.0, 8.0]
    assert np.isnan(results["split1_test_score"]).tolist() == [False, True, False, True, False]
    assert results["mean_fit_time"].tolist() == [1.0, 2.0, 1.0, 6.0, 1.0]
    assert results["std_fit_time"][3] == 0.0


# -- the order of fits ---------------------------------------------------------------------------


def grid(n_candidates, n_splits, **options):
    return [PlannedFit(0, k, c, **options) for c in range(n_candidates) for k in range(n_splits)]


def candidate_of(fit):
    return fit.candidate


def fed(queue, scheduler):
    """Return the candidates and splits that a queue moves to an idle scheduler."""
    queue.feed("cpu", scheduler)
    return [(fit.candidate, fit.fold) for fit in scheduler.clear()]


@pytest.mark.parametrize("is_shared", [False, True])
def test_fits_begin_split_by_split_and_those_in_doubt_wait(is_shared):
    race = Race("mean", 6)
    race.add(3)
    queue = SplitQueue(race, candidate_of)
    options = {"prefix_key": ("all",), "has_shared_fit": True} if is_shared else {}
    for fit in grid(3, 6, **options):
        queue.add(fit)
    scheduler = FitScheduler(2, is_race=True)
    for split in range(3):
        assert fed(queue, scheduler) == [(0, split), (1, split), (2, split)]
        race.record(0, split, 1.0)
        race.record(1, split, 0.0)
    # one shared fit has the results of all
    expected = [0, 1, 2] if is_shared else [0, 2]
    assert fed(queue, scheduler) == [(candidate, 3) for candidate in expected]
    for split in range(3):
        race.record(2, split, 1.0)
    assert race.drops == {1: 3}
    removed = queue.remove(lambda fit: fit.candidate in race.drops)
    assert [fit.fold for fit in removed] == ([4, 5] if is_shared else [3, 4, 5])
    assert fed(queue, scheduler) == [(0, 4), (2, 4)]
    assert fed(queue, scheduler) == [(0, 5), (2, 5)]
    assert not queue
    assert fed(queue, scheduler) == []


def test_a_scheduler_is_fed_when_it_is_idle():
    race = Race("mean", 4)
    race.add(5)
    queue = SplitQueue(race, candidate_of)
    for fit in grid(5, 4):
        queue.add(fit)
    scheduler = FitScheduler(2, is_race=True)
    queue.feed("cpu", scheduler)
    queue.feed("cpu", scheduler)
    assert scheduler.n_waiting == 5
    scheduler.clear()
    scheduler.n_in_flight = 2
    queue.feed("cpu", scheduler)
    assert scheduler.n_waiting == 0


def test_a_batch_of_a_race_is_the_part_of_one_slot():
    scheduler = FitScheduler(3, is_race=True)
    fits = grid(1, 1)
    scheduler.add(fits)
    scheduler.next_batch()
    scheduler.record_duration(fits[0], 0.001, 0.0)
    scheduler.batch_done([0.001])
    scheduler.add(grid(30, 1))
    assert [len(scheduler.next_batch().fits) for _ in range(3)] == [10, 7, 5]
    assert scheduler.next_batch() is None  # nothing is queued behind them


def test_waiting_fits_are_removed_and_the_others_keep_their_order():
    scheduler, queue = FitScheduler(1, has_deadline=True), CandidateQueue(lambda fit: None)
    fits = grid(4, 2)
    scheduler.add(fits)
    assert scheduler.remove(lambda fit: fit.candidate == 1) == fits[2:4]
    assert scheduler.next_batch().fits == fits[:1]
    for fit in fits:
        queue.add(fit)
    assert queue.remove(lambda fit: fit.candidate == 1) == fits[2:4]
    assert list(queue) == fits[:2] + fits[4:]


def made_until(end, fits, seconds, params_of, *, n_slots=2, steps=0.0):
    """Return the fits, in their order, that slots with a clock of their own have made by then."""
    scheduler, queue = FitScheduler(n_slots, has_deadline=True), CandidateQueue(params_of)
    for fit in fits:
        queue.add(fit)
    running, now, made = [], 0.0, []
    while now < end:
        queue.feed("cpu", scheduler)
        while (batch := scheduler.next_batch()) is not None:
            prefixes = {fit.prefix_key for fit in batch.fits if fit.prefix_key}
            length = steps * len(prefixes) + sum(seconds[fit.candidate] for fit in batch.fits)
            running.append((now + length, batch))
            queue.feed("cpu", scheduler)
        if not running:
            break
        running.sort(key=lambda item: item[0])
        now, batch = running.pop(0)
        for n, fit in enumerate(batch.fits):
            shared = steps if fit.prefix_key and not n else 0.0
            scheduler.record_duration(fit, seconds[fit.candidate] + shared, shared)
            queue.record(fit, seconds[fit.candidate])
        scheduler.batch_done([seconds[fit.candidate] for fit in batch.fits])
        made += batch.fits if now <= end else []
    return made


def n_complete(made, n_splits):
    return np.count_nonzero(np.bincount([fit.candidate for fit in made]) == n_splits)


@pytest.mark.parametrize("n_slots", [1, 2, 8])
def test_more_candidates_are_complete_in_a_time_where_the_quick_ones_come_first(n_slots):
    sizes = np.random.default_rng(0).permutation(np.geomspace(1, 100, 40))
    seconds, fits = 0.1 * sizes, grid(40, 3)
    end = seconds.sum() * 3 / n_slots / 4
    learned, in_order = (
        made_until(end, fits, seconds, params_of, n_slots=n_slots)
        for params_of in (lambda fit: {"size": sizes[fit.candidate]}, lambda fit: None)
    )
    assert n_complete(learned, 3) > 1.5 * n_complete(in_order, 3)
    # candidates remain whole
    begun = {fit.candidate for fit in learned}
    assert len(begun) - n_complete(learned, 3) <= n_slots


def test_without_durations_candidates_keep_their_order():
    queue, scheduler = CandidateQueue(lambda fit: None), FitScheduler(1, has_deadline=True)
    for fit in grid(3, 2):
        queue.add(fit)
    assert [fed(queue, scheduler) for _ in range(6)] == [[(c, k)] for c in range(3) for k in (0, 1)]


def test_candidates_with_the_first_steps_of_the_last_one_come_next():
    kinds = [candidate % 3 for candidate in range(12)]
    fits = [PlannedFit(0, k, c, (kinds[c],)) for c in range(12) for k in range(2)]
    made = made_until(np.inf, fits, [0.1] * 12, lambda fit: None, n_slots=1, steps=1.0)
    order = [kinds[fit.candidate] for fit in made]
    n_changes = np.count_nonzero(np.diff(order))
    assert len(made) == 24
    assert n_changes < 8  # in their order: 11


def test_candidates_that_take_about_as_long_keep_their_order():
    seconds = np.random.default_rng(0).uniform(0.9, 1.1, 30)  # one fit is a batch
    fits = grid(30, 2)
    made = made_until(np.inf, fits, seconds, lambda fit: {"p": fit.candidate}, n_slots=1)
    assert made == fits
