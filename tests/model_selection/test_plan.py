"""The plan of fits, on a simulated fleet."""

import numpy as np
import pytest
from simulated_fleet import LATENCY, Simulation

from skfleet.model_selection._dispatch._scheduler import FitScheduler, PlannedFit


def grid(n_candidates, n_folds, n_paths=0):
    return [
        PlannedFit(0, fold, candidate, (candidate % n_paths,) if n_paths else ())
        for candidate in range(n_candidates)
        for fold in range(n_folds)
    ]


@pytest.mark.parametrize("n_slots", [1, 2, 4, 16])
@pytest.mark.parametrize("typical", [0.001, 0.01, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_every_fit_is_made_and_slots_are_busy(n_slots, typical, spread):
    fits = grid(40, 5)
    cost = np.exp(np.random.default_rng(0).normal(0, spread, 40)) * typical
    run = Simulation(fits, lambda fit: cost[fit.candidate], n_slots=n_slots)
    assert set(run.made) == set(fits)
    assert run.plan.n_waiting == run.plan.n_in_flight == 0
    # a few round trips, and a last bundle that others wait for
    bound = 1.15 * run.ideal(fits) + 8 * LATENCY + 0.1
    assert run.end < bound


@pytest.mark.parametrize("n_slots", [2, 3, 8])
@pytest.mark.parametrize("prefix_seconds", [0.01, 0.3, 5.0])
@pytest.mark.parametrize("own_seconds", [0.01, 0.3, 5.0])
def test_first_steps_are_fitted_once_unless_slots_would_be_idle(
    n_slots, prefix_seconds, own_seconds
):
    fits = grid(16, 3, n_paths=2)
    run = Simulation(fits, lambda _: own_seconds, lambda _: prefix_seconds, n_slots=n_slots)
    assert set(run.made) == set(fits)
    # Blocks are only cut where the fits of one would keep a slot for long: then to fit the steps
    # again costs little. Or where there are more slots than blocks.
    wasted = (run.n_steps - 6) * prefix_seconds
    assert wasted <= 0.3 * run.ideal(fits) * n_slots + n_slots * prefix_seconds
    longest_block = prefix_seconds + 8 * own_seconds
    assert run.end < 1.2 * run.ideal(fits) + longest_block + 10 * LATENCY


def test_short_fits_are_bundled():
    run = Simulation(grid(200, 5), lambda _: 0.001, n_slots=2)
    assert len(run.bundles) < 40


def test_long_fits_are_sent_one_by_one_the_longest_first():
    cost = [1.0, 1.0, 1.0, 1.0, 1.0, 9.0]
    run = Simulation(grid(6, 2), lambda fit: cost[fit.candidate], n_slots=2)
    assert run.end < 15.5  # 28 / 2 = 14; had the second of nine seconds come last: 18
    assert [fit.candidate for fit in run.made].count(5) == 2


def test_slow_fits_are_shared_out_before_the_first_one_ends():
    run = Simulation(grid(4, 1), lambda _: 10.0, n_slots=4)
    assert run.end < 10.5


def test_tiny_lists_are_one_task():
    run = Simulation(grid(4, 2), lambda _: 0.001, n_slots=4)
    assert len(run.bundles) == 1


def test_limit_is_kept():
    run = Simulation(grid(40, 5), lambda _: 0.2, n_slots=8, limit=3)
    assert run.most_sent == 3


def test_bundles_are_of_one_job():
    fits = [PlannedFit(i % 2, 0, i) for i in range(40)]
    run = Simulation(fits, lambda _: 0.001, n_slots=2)
    assert set(run.made) == set(fits)
    assert all(len({fit.job for fit in bundle.fits}) == 1 for bundle in run.bundles)


def test_rows_of_a_split_are_needed_once_in_a_bundle():
    run = Simulation(grid(40, 5, n_paths=4), lambda _: 0.001, n_slots=2)
    for bundle in run.bundles:
        folds = [fit.fold for fit in bundle.fits]
        assert folds == sorted(folds)


def test_nothing_is_sent_after_all_was_dropped():
    plan = FitScheduler(2)
    plan.add(grid(10, 2))
    plan.clear()
    assert plan.next_batch() is None


def contained(n_candidates, n_folds, *, is_divisible):
    return [
        PlannedFit(0, fold, candidate, ("all",), True, is_divisible)
        for candidate in range(n_candidates)
        for fold in range(n_folds)
    ]


def taken(plan):
    return [[fit.candidate for fit in bundle.fits] for bundle in iter(plan.next_batch, None)]


@pytest.mark.parametrize("is_divisible", [True, False])
def test_what_is_contained_is_divided_only_among_idle_slots(is_divisible):
    plan = FitScheduler(2)
    fits = contained(9, 3, is_divisible=is_divisible)
    plan.add(fits)
    whole = list(range(9))
    assert taken(plan) == [whole, whole]  # of two splits; there are more blocks than slots
    for _ in range(2):
        for fit in fits[:9]:
            plan.record_duration(
                fit, 0.3 if fit.candidate == 0 else 0.001, 0.3 if fit.candidate == 0 else 0
            )
        plan.batch_done([0.3])
    assert taken(plan) == ([whole[::2], whole[1::2]] if is_divisible else [whole])
    assert plan.n_waiting == 0


def test_parts_are_not_too_small():
    plan = FitScheduler(10)
    plan.add(contained(9, 2, is_divisible=True))
    assert sorted(taken(plan)) == [[0, 2, 4, 6, 8]] * 2 + [[1, 3, 5, 7]] * 2


@pytest.mark.parametrize("seconds", [0.01, 0.1, 2.0])
@pytest.mark.parametrize("n_slots", [1, 2, 5])
def test_few_candidates_are_incomplete_at_a_deadline(n_slots, seconds):
    """Those that a slot is at; without one, fits of new candidates come first."""
    plan = FitScheduler(n_slots, has_deadline=True)
    plan.add(grid(20, 3))
    sent, running = [], []
    while plan.n_waiting:
        while (batch := plan.next_batch()) is not None:
            running.append(batch)
            sent += batch.fits
        assert len(running) <= n_slots  # none is queued
        done = running.pop(0)
        for fit in done.fits:
            plan.record_duration(fit, seconds, 0.0)
        plan.batch_done([seconds] * len(done.fits))
        n_scored = np.bincount([fit.candidate for fit in sent], minlength=20)
        assert np.count_nonzero((n_scored > 0) & (n_scored < 3)) <= 1
        first_open = np.flatnonzero(n_scored < 3)
        assert not len(first_open) or not n_scored[first_open[0] + 1 :].any()
