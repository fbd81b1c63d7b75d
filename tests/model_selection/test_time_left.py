"""The seconds that a search has left, foreseen from the durations so far, on simulated clocks."""

import heapq
import math
import re

import numpy as np
import pytest
from distributed import Client
from simulated_fleet import Simulation
from sklearn.base import BaseEstimator, ClassifierMixin

from skfleet import _progress_bar
from skfleet._progress_bar import ProgressBar, ProgressState, UpdateTimer, progress_text
from skfleet.model_selection import GridSearchCV, HalvingGridSearchCV, HyperbandSearchCV
from skfleet.model_selection._adaptive import _callbacks
from skfleet.model_selection._adaptive._schedules import (
    AsynchronousHalving,
    Hyperband,
    StopOnPlateau,
    SuccessiveHalving,
    asynchronous_levels,
    halving_rungs,
    hyperband_rungs,
)
from skfleet.model_selection._adaptive._simulation import simulate
from skfleet.model_selection._adaptive._training_times import PendingInstruction, TrainingTimes
from skfleet.model_selection._dispatch import _call_progress
from skfleet.model_selection._dispatch._fit_times import (
    FitGroup,
    FitTimes,
    group_in_flight,
    mark_begun,
)
from skfleet.model_selection._dispatch._scheduler import FitBatch, PlannedFit
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._dispatch._time_left import (
    DurationModel,
    RemainingWork,
    makespan,
    seconds_left,
)
from skfleet.model_selection._records._evaluations import LaterIteration

N_SLOTS, N_SPLITS, NOISE = 4, 5, 0.2


class Course:
    """What a search foresaw: the time, the seconds of work that were done, and those left."""

    def __init__(self):
        self.end, self.work, self.estimates = 0.0, 0.0, []

    def ratio_at(self, fraction):
        """Return the foreseen over the true time left, after a fraction of the work."""
        for now, work, left in self.estimates:
            if work >= fraction * self.work:
                return left / (self.end - now)
        raise AssertionError("the work is never done")


def run_call(
    course, candidates, seconds_of, *, seed, step=0.0, model=None, resources=1.0, later=()
):
    """Run the fits of one call on a simulated fleet, in the order of the candidates."""
    rng = np.random.default_rng(seed)
    fits = [
        PlannedFit(0, split, number, (params["step"],) if "step" in params else ())
        for number, params in enumerate(candidates)
        for split in range(N_SPLITS)
    ]
    seconds = {
        fit: seconds_of(candidates[fit.candidate]) * resources * np.exp(rng.normal(0, NOISE))
        for fit in fits
    }
    model = DurationModel() if model is None else model
    times = FitTimes(model, resources)
    for number, params in enumerate(candidates):
        times.add(number, params)
    begin = course.end

    def on_batch(fleet, done):
        for fit, duration, shared in done:
            times.record(fit, duration - shared)
            course.work += duration
        plan, sent = fleet.plan, fleet.sent.values()
        groups = [FitGroup(*group) for group in plan.groups_left()]
        groups += [group_in_flight(b, plan.prefix_seconds_of(b), fleet.now) for b in sent]
        left = times.seconds_left(
            [(N_SLOTS, groups)],
            later=later,
            n_splits=N_SPLITS,
            prefix_seconds=fleet.plan.mean_prefix_seconds,
        )
        course.estimates.append((begin + fleet.now, course.work, left))

    steps = None if step == 0.0 else (lambda _: step)
    fleet = Simulation(fits, seconds.get, steps, n_slots=N_SLOTS, on_batch=on_batch)
    course.end = begin + fleet.end
    return course


def uniform(seed):
    candidates = [{"C": float(C)} for C in np.logspace(-2, 2, 20)]
    return run_call(Course(), candidates, lambda _: 1.0, seed=seed)


def tenfold(seed):
    """The cheap candidates come first."""
    candidates = [{"n_estimators": n, "max_depth": d} for n in range(10, 101, 10) for d in (2, 4)]
    return run_call(Course(), candidates, lambda p: 0.02 * p["n_estimators"], seed=seed)


def slow_kind(seed):
    """A third of the candidates is of a kind that takes ten times as long."""
    candidates = [
        {"C": float(C), "kernel": kernel}
        for C in np.logspace(-2, 2, 8)
        for kernel in ("linear", "rbf", "poly")
    ]
    slow = {"linear": 0.1, "rbf": 0.3, "poly": 1.0}
    return run_call(Course(), candidates, lambda p: slow[p["kernel"]], seed=seed)


def shared_steps(seed):
    candidates = [{"step": n % 4, "C": float(n)} for n in range(32)]
    return run_call(Course(), candidates, lambda _: 0.5, step=3.0, seed=seed)


def halving(seed):
    """Each of four iterations has a third of the candidates, with three times the resources."""
    course, model, rng = Course(), DurationModel(), np.random.default_rng(seed)
    candidates = [{"C": float(C)} for C in np.logspace(-2, 2, 27)]
    iterations = [(27 // 3**i, 10.0 * 3**i) for i in range(4)]
    for i, (n_candidates, resources) in enumerate(iterations):
        candidates = list(rng.permutation(np.array(candidates))[:n_candidates])
        run_call(
            course,
            candidates,
            lambda _: 0.05,
            seed=10 * seed + i,
            model=model,
            resources=resources,
            later=[LaterIteration(n, r / resources, 1.0) for n, r in iterations[i + 1 :]],
        )
    return course


def adaptive(schedule, seconds_of, seed, n_known=None):
    """Run a schedule on simulated workers; only the first candidates are known in advance."""
    course, times, rng = Course(), TrainingTimes(), np.random.default_rng(seed)
    params = {n: {"width": 10 * (1 + n % 10)} for n in range(schedule.n_candidates)}
    running, n_calls, n_started = [], {}, 0
    while True:
        while len(running) < N_SLOTS and (instruction := schedule.next()) is not None:
            before = n_calls.get(instruction.candidate, 0)
            noise = np.exp(rng.normal(0, NOISE, size=2))
            call = seconds_of(params[instruction.candidate])
            fit, score = noise * [(instruction.n_calls - before) * call, 0.2]
            item = (course.end + fit + score, n_started, instruction, before, fit, score)
            heapq.heappush(running, item)
            n_started += 1
        if not running:
            return course
        course.end, _, instruction, before, fit, score = heapq.heappop(running)
        number = instruction.candidate
        course.work += fit + score
        value = rng.random()
        times.record(instruction, params[number], instruction.n_calls - before, fit, score, value)
        n_calls[number] = instruction.n_calls
        schedule.on_score(number, value)
        pending = [PendingInstruction(item[2], item[3]) for item in running]
        known = {n: params[n] for n in (params if n_known is None else n_calls)}
        left = times.seconds_left(schedule, pending, known, N_SLOTS)
        course.estimates.append((course.end, course.work, left))


def hyperband(seed):
    return adaptive(Hyperband(hyperband_rungs(27, 3), 3), lambda _: 0.2, seed)


def hyperband_tenfold(seed):
    schedule = Hyperband(hyperband_rungs(27, 3), 3)
    return adaptive(schedule, lambda p: 0.02 * p["width"], seed)


def hyperband_sampled(seed):
    """Candidates are only known once they have begun."""
    return adaptive(Hyperband(hyperband_rungs(27, 3), 3), lambda _: 0.2, seed, n_known=0)


def adaptive_halving(seed):
    return adaptive(SuccessiveHalving(halving_rungs(27, 1, 27, 3)), lambda _: 0.2, seed)


KINDS = [
    uniform, tenfold, slow_kind, shared_steps, halving, hyperband, hyperband_tenfold,
    hyperband_sampled, adaptive_halving,
]  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_time_left_after_a_fifth_of_the_work(kind, seed):
    course = kind(seed)
    assert course.ratio_at(0.2) == pytest.approx(1.0, abs=0.25)


def test_time_left_in_proportion_is_further_off():
    """Or the tests above would show nothing."""
    course = tenfold(0)
    n_fits = 100
    now = next(now for now, work, _ in course.estimates if work >= 0.1 * course.work)
    n_done = sum(end <= now for end, _, _ in course.estimates)
    assert abs(now * (n_fits - n_done) / n_done / (course.end - now) - 1) > 0.25
    assert course.ratio_at(0.1) == pytest.approx(1.0, abs=0.25)


# -- durations -------------------------------------------------------------------------------------


def model_of(durations, resources=1.0):
    model = DurationModel()
    for n, (params, seconds) in enumerate(durations):
        model.record(n, params, seconds, resources)
    return model


def test_nothing_is_expected_before_a_duration_is_known():
    assert not DurationModel()
    with pytest.raises(ValueError, match="durations must be recorded before any is expected"):
        DurationModel().expected({0: {}})


def test_durations_of_a_number_are_extrapolated():
    model = model_of([({"n": n}, 0.1 * n) for n in (10, 20, 30, 40)])
    (expected,) = model.expected({9: {"n": 100}}).values()
    assert expected == pytest.approx(10.0, rel=0.2)
    (bounded,) = model.expected({9: {"n": 10**9}}).values()
    assert bounded < 200  # not further than 30 times from what was seen


def test_a_candidate_is_expected_to_take_as_long_as_before():
    model = model_of([({"C": C}, 1.0) for C in (1, 2, 3)])
    for _ in range(20):
        model.record("slow", {"C": 4}, 9.0)
    assert model.expected({"slow": {"C": 4}})["slow"] == pytest.approx(9.0, rel=0.1)


def test_kinds_are_told_apart():
    kinds = ["a", "b", None, True, (1, 2)]
    model = model_of([({"k": kinds[n % 5]}, float(1 + n % 5)) for n in range(20)])
    expected = model.expected({n: {"k": kind} for n, kind in enumerate(kinds)})
    # candidates are other ones than those seen, but for their parameters
    new = model.expected({("new", n): {"k": kind} for n, kind in enumerate(kinds)})
    assert list(new.values()) == pytest.approx([1, 2, 3, 4, 5], rel=0.25)
    assert list(expected.values()) == pytest.approx([1, 2, 3, 4, 5], rel=0.15)


def test_objects_are_known_by_their_type():
    class Unprintable(BaseEstimator):
        def __repr__(self):
            raise AssertionError("a long text for each candidate")

    model = model_of([({"k": kind()}, s) for kind, s in [(Unprintable, 1.0), (Slow, 5.0)] * 5])
    expected = model.expected({0: {"k": Unprintable()}, 1: {"k": Slow()}})
    assert list(expected.values()) == pytest.approx([1, 5], rel=0.1)


def test_resources_multiply_durations_unless_they_show_another_slope():
    model = model_of([({}, 1.0)] * 5, resources=10.0)
    assert model.expected({"a": {}}, 30.0)["a"] == pytest.approx(3.0)
    for n in range(5):
        model.record(n, {}, 9.0, 30.0)  # quadratic
    assert model.expected({"a": {}}, 90.0)["a"] == pytest.approx(81.0, rel=0.3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0, 10**400])
def test_numbers_without_a_logarithm(value):
    model = model_of([({"p": value}, 1.0), ({"p": 2.0}, 1.0)])
    assert model.expected({9: {"p": 3.0}})[9] == pytest.approx(1.0)


def test_fits_that_take_no_time():
    model = model_of([({"p": 1.0}, 0.0)])
    assert 0 < model.expected({9: {"p": 3.0}})[9] < 1e-3


# -- work ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "n_slots", "expected"),
    [([], 4, 0.0), ([3.0], 4, 3.0), ([1.0] * 5, 4, 2.0), ([4, 3, 3, 2], 2, 6.0)],
)
def test_makespan(seconds, n_slots, expected):
    assert makespan(seconds, n_slots) == expected
    assert makespan(seconds * 200, n_slots) == pytest.approx(200 * sum(seconds) / n_slots, rel=0.01)


def test_kinds_of_workers_work_at_the_same_time():
    assert seconds_left([RemainingWork(1, [2.0, 2.0]), RemainingWork(2, [3.0])]) == 4.0


FITS = [PlannedFit(0, split, "a") for split in range(4)]


def times_of(seconds):
    times = FitTimes(DurationModel())
    times.add("a", {"C": 1.0})
    if seconds is not None:
        times.record(FITS[0], seconds)
    return times


def test_fits_in_flight_are_partly_done():
    batch = FitBatch(FITS[:2], 1.0)
    left = times_of(2.0).seconds_left
    assert left([(1, [group_in_flight(batch, 1.0, 10.0)])]) == pytest.approx(5.0)
    mark_begun([batch], 1, 8.0)
    assert left([(1, [group_in_flight(batch, 1.0, 10.0)])]) == pytest.approx(3.0)
    batch.stolen = frozenset(FITS[1:2])
    assert left([(1, [group_in_flight(batch, 1.0, 10.0)])]) == pytest.approx(1.0)
    assert left([(1, [group_in_flight(batch, 1.0, 90.0)])]) == 0.0


def test_batches_begin_where_a_slot_is_free():
    batches = [FitBatch([fit], 1.0) for fit in FITS]
    mark_begun(batches, 2, 1.0)
    mark_begun(batches, 2, 2.0)
    assert [batch.begin for batch in batches] == [1.0, 1.0, None, None]
    mark_begun(batches[1:], 2, 3.0)
    assert [batch.begin for batch in batches] == [1.0, 1.0, 3.0, None]


def test_fits_that_are_not_read_and_later_iterations_count():
    left = times_of(2.0).seconds_left
    assert left([(2, [FitGroup(0.0, FITS[1:3])])]) == pytest.approx(2.0)
    assert left([(2, [])], n_unread=4) == pytest.approx(4.0)
    later = [LaterIteration(3, 5.0, 1.0)]
    assert left([(2, [])], later=later, n_splits=2) == pytest.approx(30.0)
    steps = {"n_splits": 2, "prefix_seconds": 1.0}
    assert left([(2, [])], later=later, **steps) == pytest.approx(35.0)
    assert times_of(None).seconds_left([(2, [])], n_unread=4) is None


@pytest.mark.parametrize("resource", ["n_samples", "n"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"min_resources": "smallest"},
        {"min_resources": 20, "aggressive_elimination": True, "max_resources": 60},
        {"factor": 2, "min_resources": 4},
    ],
)
def test_later_iterations_are_those_of_scikit_learn(resource, settings, monkeypatch):
    evaluations = []
    expect = SearchContext.expect
    monkeypatch.setattr(
        SearchContext, "expect", lambda run, e: (evaluations.append(e), expect(run, e))
    )
    settings = {"max_resources": 60, **settings} if resource == "n" else settings
    search = HalvingGridSearchCV(
        Slow(), {"p": range(15)}, resource=resource, cv=2, random_state=0, refit=False, **settings
    )
    rows, labels = np.zeros((90, 2)), np.arange(90) % 2
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"):
        search.fit(rows, labels)
    actual = list(zip(search.n_candidates_, search.n_resources_, strict=True))
    assert len(actual) == len(evaluations) > 1
    for i, evaluation in enumerate(evaluations):
        now = actual[i][1]
        assert evaluation.resources == now
        assert evaluation.later == [
            (n, resources / now, resources / now if resource == "n_samples" else 1.0)
            for n, resources in actual[i + 1 :]
        ]


# -- schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ended", [1, 7, 20, 35])
def test_rest_of_a_schedule_is_simulated_with_what_runs(n_ended):
    """The rest takes as long as in a simulation from the begin."""

    def second(instruction, n_before):
        return instruction.n_calls - n_before + 1.0

    def schedule():
        return SuccessiveHalving(halving_rungs(27, 1, 27, 3))

    whole = simulate(schedule(), 1, second, lambda instruction: -instruction.candidate)
    rest, n_calls = schedule(), {}
    for end, instruction in whole.instructions[:n_ended]:
        rest.next()
        rest.on_score(instruction.candidate, -instruction.candidate)
        n_calls[instruction.candidate], now = instruction.n_calls, end
    pending = []
    if (running := rest.next()) is not None:
        pending = [(running, n_calls.get(running.candidate, 0))]
    # those that pend have had calls; of all others the simulation knows nothing
    second_left = simulate(
        rest, 1, lambda i, _: second(i, n_calls.get(i.candidate, 0)), lambda i: -i.candidate,
        pending=pending,
    ).makespan  # fmt: skip
    assert second_left == pytest.approx(whole.makespan - now, rel=0.35)


def test_no_candidate_is_taken_to_be_on_a_plateau():
    schedule = StopOnPlateau(SuccessiveHalving(halving_rungs(3, 9, 27, 3)), 2, 0.0, 1)
    course = adaptive(schedule, lambda _: 0.2, 0)
    assert course.estimates[0][2] > 3 * 9 * 0.2 / N_SLOTS


def test_asynchronous_halving_is_foreseen_roughly():
    """Promotions depend on the order of the scores."""
    schedule = AsynchronousHalving(27, asynchronous_levels(1, 27, 3), 3)
    assert adaptive(schedule, lambda _: 0.2, 0).ratio_at(0.2) == pytest.approx(1.0, abs=0.4)


# -- bars ------------------------------------------------------------------------------------------


def test_text_has_no_time_left_before_any_is_known():
    state = ProgressState("SVC", "fits", 10)
    state.n_done, state.is_estimated = 5, True
    assert "to go" not in progress_text(state)
    bar = ProgressBar("SVC", "fits", 10)
    bar.state.n_done = 5
    bar.set_seconds_left(200.0)
    assert "about 3 min to go" in progress_text(bar.state)
    bar.state.estimated_end -= 150  # time passes
    assert "about 50 s to go" in progress_text(bar.state)
    bar.state.estimated_end -= 150
    assert "about 0.0 s to go" in progress_text(bar.state)


def test_updates_that_take_long_are_far_apart(monkeypatch):
    clock = 0.0
    monkeypatch.setattr(_progress_bar.time, "monotonic", lambda: clock)
    timer, updates = UpdateTimer(0.5), []
    for _ in range(300):
        with timer.update_if_due() as is_due:
            if is_due:
                updates.append(clock)
                clock += 0.05
        clock += 0.1
    assert np.diff(updates) == pytest.approx(1.05, abs=0.11)


class Slow(ClassifierMixin, BaseEstimator):
    """Learns nothing."""

    def __init__(self, n=1, p=0):
        self.n, self.p = n, p

    def fit(self, X, y):
        return self.partial_fit(X, y)

    def partial_fit(self, X, y, classes=None):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.zeros(len(X), dtype=int)


X, y = np.zeros((30, 2)), np.arange(30) % 2
SEARCHES = [
    GridSearchCV(Slow(), {"n": [1, 2, 3, 4]}, cv=3, verbose=1),
    HyperbandSearchCV(Slow(), {"n": [1, 2, 3, 4]}, max_iter=9, random_state=0, verbose=1),
]


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: type(search).__name__)
def test_searches_show_the_time_left(search, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(_progress_bar, "MIN_LINE_SECONDS", 0.0)
    monkeypatch.setattr(_progress_bar, "MAX_LINE_SECONDS", 0.0)
    for module in (_call_progress, _callbacks):
        monkeypatch.setattr(module, "TIME_LEFT_SECONDS", 0.0)
    monkeypatch.setattr(_progress_bar, "MIN_INTERVAL_RATIO", 0)
    set_seconds_left = ProgressBar.set_seconds_left

    def noted(bar, seconds):
        shown.append(seconds)
        set_seconds_left(bar, seconds)

    monkeypatch.setattr(ProgressBar, "set_seconds_left", noted)
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"):
        search.fit(X, y)
    known = [seconds for seconds in shown if seconds is not None]
    assert known
    assert all(seconds >= 0 for seconds in known)
    assert known[-1] <= known[0]
    assert re.search(r"Slow: \d+ of \d+ .* to go", capsys.readouterr().out)
