"""Schedules decide by scores alone: budgets, orders of completion, failures and ties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skfleet.model_selection._adaptive._schedules import (
    AsynchronousHalving,
    Hyperband,
    RoundRobin,
    StopOnPlateau,
    SuccessiveHalving,
    asynchronous_levels,
    calls_of,
    halving_rungs,
    hyperband_rungs,
    inverse_decay_rungs,
)
from skfleet.model_selection._adaptive._simulation import simulate


def exhaust(schedule, score, pick=lambda running: 0):
    """Carry out all orders; `pick` says which of those under way ends next."""
    running, orders, gone = [], [], []
    while True:
        while (order := schedule.next()) is not None:
            running.append(order)
        if not running:
            return orders, gone
        order = running.pop(pick(running) % len(running))
        orders.append(order)
        gone += schedule.on_score(order.candidate, score(order))


def best_first(candidates, table, rung):
    """Rank candidates that have a score; ties go to the lower number."""
    scored = [c for c in candidates if not math.isnan(table[c, rung])]
    return sorted(scored, key=lambda c: (-table[c, rung], c))


def test_hyperband_is_the_table_of_algorithm_1():
    # Li et al. (2018): R = 81, eta = 3, n = ceil((s_max + 1) eta^s / (s + 1)) and r = R eta^-s
    assert hyperband_rungs(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@given(st.integers(1, 2000), st.sampled_from([2, 3, 4, 5, 2.5]))
def test_hyperband_follows_its_formulas(R, eta):
    brackets = hyperband_rungs(R, eta)
    s_max = len(brackets) - 1
    assert eta**s_max <= R * (1 + 1e-9) < eta ** (s_max + 1) * (1 + 1e-9)
    for s, rungs in zip(range(s_max, -1, -1), brackets, strict=True):
        n = math.ceil((s_max + 1) * eta**s / (s + 1) - 1e-9)
        assert [rung.n_candidates for rung in rungs] == [
            math.floor(n * eta**-i + 1e-9) for i in range(s + 1)
        ]
        assert rungs[-1].n_calls == R
        calls = [rung.n_calls for rung in rungs]
        assert calls == sorted(calls)
        assert calls[0] >= 1
        # no bracket takes more than the paper allows each
        assert calls_of(rungs) <= (s_max + 1) * R + n


@given(
    st.integers(1, 60), st.integers(1, 5), st.sampled_from([None, 30, 200]), st.sampled_from([2, 3])
)
def test_halving_divides_until_one_is_left_or_at_its_end(n, r, most, eta):
    rungs = halving_rungs(n, r, most, eta)
    assert rungs[0] == (n, r)
    for i, rung in enumerate(rungs):
        assert rung.n_candidates == n // eta**i
        assert rung.n_calls == (r * eta**i if most is None else min(most, r * eta**i))
    assert (
        rungs[-1].n_candidates == 1
        or (most and rungs[-1].n_calls == most)
        or (rungs[-1].n_candidates < eta)
    )


@given(st.integers(1, 50), st.integers(1, 60), st.sampled_from([0, 0.5, 1.0, 2.0]))
def test_inverse_decay_leaves_as_many_as_its_formula(n, most, rate):
    rungs = inverse_decay_rungs(n, most, rate)
    assert rungs[-1].n_calls == most
    after = {}
    for rung in rungs:
        for t in range(max(after, default=0) + 1, rung.n_calls + 1):
            after[t] = rung.n_candidates
    for t in range(1, most + 1):  # the candidates that get call t
        assert after[t] == max(1, math.ceil(n / t**rate - 1e-9))


scores = st.floats(-10, 10) | st.just(math.nan) | st.sampled_from([0.0, 1.0, math.inf, -math.inf])


@settings(deadline=None)
@given(st.data(), st.integers(1, 30), st.sampled_from([2, 3]))
def test_halving_promotes_the_best_in_any_order_of_completion(data, n, eta):
    rungs = halving_rungs(n, 1, None, eta)
    table = {(c, i): data.draw(scores) for c in range(n) for i in range(len(rungs))}

    def pick(running):
        return data.draw(st.integers(0, len(running) - 1))

    orders, gone = exhaust(SuccessiveHalving(rungs), lambda o: table[o.candidate, o.rung], pick)
    again, _ = exhaust(SuccessiveHalving(rungs), lambda o: table[o.candidate, o.rung])
    assert sorted(orders) == sorted(again)  # the order in which they end decides nothing
    alive = list(range(n))
    for i, rung in enumerate(rungs):
        alive = alive[: rung.n_candidates]
        assert sorted(o.candidate for o in orders if o.rung == i) == sorted(alive)
        alive = best_first(alive, table, i)
    assert sorted(gone) == list(range(n))  # each is given up once


@settings(deadline=None)
@given(st.data(), st.sampled_from([(9, 3), (27, 3), (16, 2), (10, 3)]))
def test_hyperband_takes_what_it_says_it_takes(data, how):
    brackets = hyperband_rungs(*how)
    schedule = Hyperband(brackets, how[1])
    seed = data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    table = rng.random((schedule.n_candidates, 10))

    def pick(running):
        return data.draw(st.integers(0, len(running) - 1))

    orders, gone = exhaust(schedule, lambda o: table[o.candidate, o.rung], pick)
    had = {}
    for order in orders:
        assert order.n_calls > had.get(order.candidate, 0)  # no call is wasted
        had[order.candidate] = order.n_calls
    assert sum(had.values()) == sum(map(calls_of, brackets))
    assert len(had) == sum(rungs[0].n_candidates for rungs in brackets) == len(set(gone))
    for number, rungs in enumerate(brackets):
        name = len(brackets) - 1 - number
        found = [(o.rung, o.n_calls) for o in orders if o.bracket == name]
        for i, rung in enumerate(rungs):
            assert found.count((i, rung.n_calls)) == rung.n_candidates


def test_who_is_sure_to_go_on_does_not_wait():
    schedule = SuccessiveHalving(halving_rungs(9, 1, None, 3))
    first = [schedule.next() for _ in range(9)]
    assert schedule.next() is None
    for order in first[:7]:
        assert schedule.on_score(order.candidate, 10.0 - order.candidate) == []
    # two are awaited and three go on: the best so far is one of them, whatever comes
    assert schedule.next() == (0, 3, 0, 1)
    assert schedule.next() is None
    schedule.on_score(7, 100.0)
    assert schedule.next() == (7, 3, 0, 1)
    assert schedule.next() is None
    gone = schedule.on_score(8, -1.0)
    assert schedule.next() == (1, 3, 0, 1)
    assert sorted(gone) == [2, 3, 4, 5, 6, 8]


def test_all_that_fail_end_the_search():
    for schedule in (
        SuccessiveHalving(halving_rungs(9, 1, None, 3)),
        Hyperband(hyperband_rungs(9, 3), 3),
        AsynchronousHalving(9, [1, 3, 9], 3),
        RoundRobin(9, 10),
        StopOnPlateau(SuccessiveHalving(halving_rungs(9, 1, None, 3)), 3, 0.0, 1),
    ):
        orders, gone = exhaust(schedule, lambda order: math.nan)
        assert len(orders) == schedule.n_candidates == len(gone)


@settings(deadline=None)
@given(st.data(), st.integers(1, 40), st.sampled_from([2, 3, 4]))
def test_asynchronous_halving_promotes_only_the_best_of_a_rung_so_far(data, n, eta):
    levels = asynchronous_levels(1, eta**3, eta)
    table = {(c, i): data.draw(scores) for c in range(n) for i in range(len(levels))}
    schedule = AsynchronousHalving(n, levels, eta)
    n_workers = data.draw(st.integers(1, 8))
    running, seen, promoted = [], [[] for _ in levels], [set() for _ in levels]
    n_begun = 0
    while True:
        while len(running) < n_workers and (order := schedule.next()) is not None:
            if order.rung == 0:
                n_begun += 1
            else:
                below = seen[order.rung - 1]
                ranked = best_first(below, table, order.rung - 1)
                assert order.candidate in ranked[: len(below) // eta]
                assert order.candidate not in promoted[order.rung - 1]
                promoted[order.rung - 1].add(order.candidate)
            assert order.n_calls == levels[order.rung]
            running.append(order)
        if not running:
            break
        order = running.pop(data.draw(st.integers(0, len(running) - 1)))
        seen[order.rung].append(order.candidate)
        schedule.on_score(order.candidate, table[order.candidate, order.rung])
    assert n_begun == n
    for i, below in enumerate(seen[:-1]):  # nobody is left who could go on
        ranked = best_first(below, table, i)
        assert set(ranked[: len(below) // eta]) <= promoted[i]


def test_asynchronous_levels_end_where_they_should():
    assert asynchronous_levels(1, 256, 4) == [1, 4, 16, 64, 256]
    assert asynchronous_levels(2, 100, 3) == [2, 6, 18, 54, 100]
    assert asynchronous_levels(5, 5, 3) == [5]
    assert asynchronous_levels(1, 4, 1.2) == [1, 2, 3, 4]


def test_plateau_takes_turns():
    orders, gone = exhaust(RoundRobin(3, 5, 2), lambda order: 1.0)
    assert [(o.candidate, o.n_calls) for o in orders] == [
        (c, calls) for calls in (2, 4, 5) for c in range(3)
    ]
    assert gone == [0, 1, 2]


def test_patience_stops_what_gains_nothing_and_keeps_its_score():
    rungs = halving_rungs(3, 9, 27, 3)

    def score(order):  # 0 rises for ever, 1 is good and rises no more, 2 is worst
        rising = 0.01 * order.n_calls
        return {0: rising, 1: 0.9, 2: -1.0 + rising}[order.candidate]

    orders, _ = exhaust(StopOnPlateau(SuccessiveHalving(rungs), 3, 0.001, 1), score)
    had = {c: max(o.n_calls for o in orders if o.candidate == c) for c in range(3)}
    # 1 settles after 4 calls; it is the best, and is not trained on in the next rung
    assert had == {0: 9, 1: 4, 2: 9}


def test_patience_without_plateaus_changes_nothing_but_the_steps():
    rungs = halving_rungs(9, 1, None, 3)
    plain, _ = exhaust(SuccessiveHalving(rungs), lambda o: o.n_calls + o.candidate)
    patient, _ = exhaust(
        StopOnPlateau(SuccessiveHalving(rungs), 2, 0.0, 1), lambda o: o.n_calls + o.candidate
    )
    assert {(o.candidate, o.n_calls) for o in plain} <= {(o.candidate, o.n_calls) for o in patient}
    for orders in (plain, patient):
        assert max(o.n_calls for o in orders if o.candidate == 8) == 9


def asha(n_workers, seed, **how):
    rng = np.random.default_rng(seed)
    quality = rng.random(1000)
    return simulate(
        AsynchronousHalving(1000, [1, 4, 16, 64, 256], 4),
        n_workers,
        lambda order, before: (order.n_calls - before) * (1 + rng.exponential(0.3)),
        lambda order: quality[order.candidate] + rng.normal() * 0.1 / math.sqrt(order.n_calls),
        **how,
    )


@pytest.mark.parametrize("seed", range(5))
def test_asynchronous_halving_scales_on_an_imagined_fleet(seed):
    """Nobody can be quicker than the candidate that takes longest, or than all work divided."""
    told = asha(256, seed)
    assert told.makespan * 0.8 <= max(told.work / 256, told.longest)
    for n_workers in (1, 8):  # and as long as there is enough to begin with, nobody waits
        told = asha(n_workers, seed, until=200.0)
        last = max(end for end, _ in told.instructions)
        assert told.work >= 0.95 * n_workers * min(200.0, last)


def test_one_worker_makes_one_answer():
    first, again = asha(1, 3), asha(1, 3)
    assert first.instructions == again.instructions
    assert first.makespan == pytest.approx(first.work)
