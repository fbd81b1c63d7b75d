"""How good samplers and schedules are: regret over evaluations and over imagined seconds.

    python benchmarks/sampler_quality.py --data FOLDER --quick
    python benchmarks/sampler_quality.py --data FOLDER --json figures.json

FOLDER has the surrogates of YAHPO Gym (`surrogates.py`): 20 networks (lcbench) and 10 times XGBoost
(rbv2_xgboost), each on the rows of one OpenML task. Nothing is trained. The schedules and samplers
of the library run on 1 and on 16 imagined workers, each of which is busy for as long as the
surrogate says; scores are reported in the order in which the calls would end. A search ends after
the calls of 50 full evaluations. Optuna's own loop asks and tells in the same simulation.

Regret is 0 for the best score of the task, of all methods, seeds and 10,000 random candidates, and
1 for the mean of these candidates in full. It is of the best score that the search has seen
(``best_score_``), after so many calls as it has had; ``trained`` is that of the same candidate
after all calls. Intervals are of 95 %, by a bootstrap that draws tasks, and seeds within them.

The full run takes 50 minutes of one core, the quick one a minute. ``--cache`` keeps the runs, and a
second call goes on where the first one was.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import results_file
from regret import AT, DRAWN, Chart, Key, Reference, Trace, curves, regrets, summaries
from surrogates import TASKS, ImaginedEstimator, check_reading, sample

from skfleet.model_selection._adaptive._schedules import (
    AsynchronousHalving,
    Hyperband,
    RoundRobin,
    Schedule,
    TrainInstruction,
    asynchronous_levels,
    hyperband_rungs,
)
from skfleet.model_selection._adaptive._simulation import simulate
from skfleet.model_selection._samplers._candidate_source import CandidateSource
from skfleet.model_selection._samplers._draws import candidates_of
from skfleet.model_selection._samplers._optuna_source import OptunaSource

COMMAND = "python benchmarks/sampler_quality.py --data FOLDER --json FILE"
NOTE = (
    "regret: 0 is the best known score of a task, 1 the mean of random candidates; seen: of the "
    "best score so far, trained: of the same candidate after all calls. Means over tasks and seeds "
    "after so many full evaluations, with intervals of 95 %. Over seconds: at the time in which "
    "workers make as many of random ones. ask_milliseconds: of CPU, after so many scores."
)
BUDGET, ETA = 50, 3
WORKERS = (1, 16)
QUICK_TASKS = {"lcbench": 2, "rbv2_xgboost": 1}
N_SAMPLE, N_QUICK_SAMPLE = 10_000, 1000
# More than ASHA starts within the budget.
N_ASHA = 800
RATIOS = [
    ("bohb", "hyperband"),
    ("tpe", "optuna"),
    ("asha_tpe", "asha"),
    ("tpe", "random"),
    ("hyperband", "random"),
    ("bohb", "tpe"),
]


# -- the searches ------------------------------------------------------------------------------


def model_source(parameters: Any, seed: int, *, has_rungs: bool) -> CandidateSource:
    """Return the source of ``sampler="tpe"``, of adaptive searches with a model for each rung."""
    return OptunaSource(parameters, "tpe", seed, has_rungs=has_rungs)


class OwnLoop(CandidateSource):
    """Optuna as its users write it: ``study.ask``, suggestions, ``study.tell``."""

    def __init__(self, suggest: Callable[[Any], dict[str, Any]], seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.suggest = suggest
        self.trials: dict[int, Any] = {}

    def ask(self, order: Any, pending: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the parameters of a new trial."""
        trial = self.trials[order.candidate] = self.study.ask()
        return self.suggest(trial)

    def tell(self, order: Any, params: Mapping[str, Any], score: float) -> None:
        """Tell the score of a trial."""
        self.study.tell(self.trials.pop(order.candidate), score)


def suggest_network(trial: Any, *, has_list_of_layers: bool = False) -> dict[str, Any]:
    """Suggest the parameters of a network, in the order of `LCBENCH_PARAMETERS`."""
    layers = ("num_layers", [1, 2, 3, 4, 5])
    return {
        "batch_size": trial.suggest_categorical("batch_size", [16, 32, 64, 128, 256, 512]),
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
        "max_dropout": trial.suggest_float("max_dropout", 0, 1),
        "max_units": trial.suggest_categorical("max_units", [64, 128, 256, 512, 1024]),
        "momentum": trial.suggest_float("momentum", 0.1, 0.99),
        "num_layers": trial.suggest_categorical(*layers)
        if has_list_of_layers
        else trial.suggest_int("num_layers", 1, 5),
        "weight_decay": trial.suggest_float("weight_decay", 1e-5, 0.1),
    }


def suggest_boosting(trial: Any) -> dict[str, Any]:
    """Suggest the parameters of XGBoost, those of trees only where there are trees."""
    methods = ["impute.mean", "impute.median", "impute.hist"]
    params = {
        "booster": trial.suggest_categorical("booster", ["gblinear", "gbtree", "dart"]),
        "alpha": trial.suggest_float("alpha", math.exp(-7), math.exp(7), log=True),
        "lambda": trial.suggest_float("lambda", math.exp(-7), math.exp(7), log=True),
        "nrounds": trial.suggest_int("nrounds", 7, 2981, log=True),
        "num.impute.selected.cpo": trial.suggest_categorical("num.impute.selected.cpo", methods),
        "subsample": trial.suggest_float("subsample", 0.1, 1),
    }
    if params["booster"] != "gblinear":
        params |= {
            "colsample_bylevel": trial.suggest_float("colsample_bylevel", 0.01, 1),
            "colsample_bytree": trial.suggest_float("colsample_bytree", 0.01, 1),
            "eta": trial.suggest_float("eta", math.exp(-7), 1, log=True),
            "gamma": trial.suggest_float("gamma", math.exp(-10), math.exp(2), log=True),
            "max_depth": trial.suggest_int("max_depth", 1, 15),
            "min_child_weight": trial.suggest_float(
                "min_child_weight", math.exp(1), math.exp(5), log=True
            ),
        }
    if params["booster"] == "dart":
        params |= {
            "rate_drop": trial.suggest_float("rate_drop", 0, 1),
            "skip_drop": trial.suggest_float("skip_drop", 0, 1),
        }
    return params


SUGGEST = {"lcbench": suggest_network, "rbv2_xgboost": suggest_boosting}


def full_schedule(estimator: ImaginedEstimator) -> Schedule:
    """Return the schedule that trains all candidates to the end, one after the other."""
    return RoundRobin(BUDGET + 1, estimator.n_calls, step=estimator.n_calls)


class Repeated:
    """A schedule that is run again and again, with other candidates each time."""

    def __init__(self, make: Callable[[], Schedule], n: int) -> None:
        self._schedules = [make() for _ in range(n)]
        self._n_each = self._schedules[0].n_candidates
        self.n_candidates = n * self._n_each

    def next(self) -> TrainInstruction | None:
        """Return an instruction of the first schedule that has one."""
        for number, schedule in enumerate(self._schedules):
            if (one := schedule.next()) is not None:
                return one._replace(candidate=one.candidate + number * self._n_each)
        return None

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Pass a score to the schedule of its candidate."""
        number, own = divmod(candidate, self._n_each)
        stopped = self._schedules[number].on_score(own, score)
        return [one + number * self._n_each for one in stopped]


def hyperband_schedule(estimator: ImaginedEstimator) -> Schedule:
    """Return Hyperband, repeated until the budget is spent."""
    return Repeated(lambda: Hyperband(hyperband_rungs(estimator.n_calls, ETA), ETA), 6)


def asha_schedule(estimator: ImaginedEstimator) -> Schedule:
    """Return ASHA."""
    return AsynchronousHalving(N_ASHA, asynchronous_levels(1, estimator.n_calls, ETA), ETA)


# Of each method the schedule, and the name of its sampler.
METHODS: dict[str, tuple[Callable[[ImaginedEstimator], Schedule], str]] = {
    "random": (full_schedule, "random"),
    "sobol": (full_schedule, "sobol"),
    "tpe": (full_schedule, "tpe"),
    "optuna": (full_schedule, "optuna"),
    "hyperband": (hyperband_schedule, "random"),
    "bohb": (hyperband_schedule, "tpe with rungs"),
    "asha": (asha_schedule, "random"),
    "asha_tpe": (asha_schedule, "tpe with rungs"),
}


def source_of(sampler: str, estimator: ImaginedEstimator, n: int, seed: int) -> CandidateSource:
    """Return the source of the candidates of a method."""
    if sampler == "optuna":
        return OwnLoop(SUGGEST[estimator.scenario], seed)
    if sampler.startswith("tpe"):
        return model_source(estimator.parameters, seed, has_rungs=sampler.endswith("rungs"))
    return candidates_of(estimator.parameters, n, sampler, None, seed, may_be_fewer=False)


# -- the simulation ----------------------------------------------------------------------------


class WithinBudget:
    """A schedule that ends when its instructions make the calls of so many full evaluations."""

    def __init__(self, inner: Schedule, estimator: ImaginedEstimator, budget: float) -> None:
        self.inner, self.estimator, self.budget = inner, estimator, budget
        self.n_candidates = inner.n_candidates
        self.costs: list[float] = []
        self._spent = 0.0
        self._n_calls: dict[int, int] = {}

    def next(self) -> TrainInstruction | None:
        """Return the next instruction while the budget is not spent."""
        if self._spent >= self.budget:
            return None
        instruction = self.inner.next()
        if instruction is not None:
            self._spent += self.cost(instruction)
            self._n_calls[instruction.candidate] = instruction.n_calls
        return instruction

    def cost(self, instruction: TrainInstruction) -> float:
        """Return the cost of an instruction in full evaluations."""
        n_before = self._n_calls.get(instruction.candidate, 0) if self.estimator.is_warm else 0
        return (instruction.n_calls - n_before) / self.estimator.n_calls

    def on_score(self, candidate: int, score: float) -> list[int]:
        """Pass a score on."""
        return self.inner.on_score(candidate, score)


class Run:
    """A search for the best candidate of an imagined estimator."""

    def __init__(self, estimator: ImaginedEstimator, source: CandidateSource) -> None:
        self.estimator, self.source = estimator, source
        # All numbers of calls at which a schedule may score.
        rungs = [rung for bracket in hyperband_rungs(estimator.n_calls, ETA) for rung in bracket]
        levels = {rung.n_calls for rung in rungs}
        self.levels = sorted(levels | {*asynchronous_levels(1, estimator.n_calls, ETA)})
        self.params: dict[int, Mapping[str, Any]] = {}
        self.pending: dict[int, Mapping[str, Any]] = {}
        self._answers: dict[int, dict[int, tuple[float, float]]] = {}
        self._events: list[tuple[float, float, float]] = []
        self._n_before: dict[int, int] = {}

    def __call__(self, schedule: Schedule, n_workers: int, budget: float = BUDGET) -> Trace:
        """Run the search."""
        bounded = WithinBudget(schedule, self.estimator, budget)
        result = simulate(bounded, n_workers, self._seconds, self._score)
        if len(self.params) == schedule.n_candidates:
            raise RuntimeError("the budget must end before the candidates. Take more of them.")
        costs, scores, trained = map(np.array, zip(*self._events, strict=True))
        seconds = np.array([clock for clock, _ in result.instructions])
        return Trace(np.cumsum(costs), seconds, scores, trained)

    def _seconds(self, order: TrainInstruction, n_before: int) -> float:
        """Begin an instruction, asking for the parameters of a new candidate."""
        number = order.candidate
        if number not in self.params:
            params = self.params[number] = self.source.ask(order, self.pending)
            scores, seconds = self.estimator.answers([params], self.levels)
            pairs = zip(scores[0].tolist(), seconds[0].tolist(), strict=True)
            self._answers[number] = dict(zip(self.levels, pairs, strict=True))
        self.pending[number] = self.params[number]
        self._n_before[number] = n_before if self.estimator.is_warm else 0
        answers = self._answers[number]
        before = answers[n_before][1] if self._n_before[number] else 0.0
        return answers[order.n_calls][1] - before

    def _score(self, order: TrainInstruction) -> float:
        """End an instruction, and report its score."""
        number = order.candidate
        params = self.pending.pop(number)
        score = self._answers[number][order.n_calls][0]
        self.source.tell(order, params, score)
        cost = (order.n_calls - self._n_before[number]) / self.estimator.n_calls
        self._events.append((cost, score, self._answers[number][self.estimator.n_calls][0]))
        return score


def run(estimator: ImaginedEstimator, method: str, seed: int, n_workers: int) -> Trace:
    """Run a method on a task."""
    make_schedule, sampler = METHODS[method]
    schedule = make_schedule(estimator)
    source = source_of(sampler, estimator, schedule.n_candidates, seed)
    return Run(estimator, source)(schedule, n_workers)


# -- the comparison ----------------------------------------------------------------------------


def reference(estimator: ImaginedEstimator, n: int) -> Reference:
    """Return what random candidates reach."""
    answers = estimator.answers(sample(estimator.scenario, n), [estimator.n_calls])
    scores, seconds = answers.scores, answers.seconds
    return Reference(float(scores.mean()), float(scores.max()), float(seconds.mean()))


def check_same_candidates(data: str, n_workers: int, seeds: Iterable[int]) -> None:
    """Raise unless TPE asks for the very candidates of Optuna's own loop.

    Where both know the parameters in the same form: numbers of layers are a list.
    """
    task = ImaginedEstimator(data, "lcbench", TASKS["lcbench"][0])
    parameters = {**task.parameters, "num_layers": [1, 2, 3, 4, 5]}

    def suggest(trial: Any) -> dict[str, Any]:
        return suggest_network(trial, has_list_of_layers=True)

    for seed in seeds:
        sources = model_source(parameters, seed, has_rungs=False), OwnLoop(suggest, seed)
        runs = [Run(task, source) for source in sources]
        for search in runs:
            search(full_schedule(task), n_workers)
        for ours, theirs in zip(*(search.params.values() for search in runs), strict=True):
            assert ours.keys() == theirs.keys()
            for name, value in ours.items():
                assert math.isclose(value, theirs[name], rel_tol=1e-6), (seed, name, ours, theirs)


def ask_cost(
    numbers: Sequence[int] = (100, 1000), n_timed: int = 20
) -> dict[str, dict[str, float]]:
    """Return the CPU milliseconds of an ask after so many scores, next to Optuna's own loop."""
    parameters = ImaginedEstimator("", "lcbench", "").parameters
    sources = {
        "Optuna's own loop": OwnLoop(suggest_network, 0),
        'sampler="tpe"': model_source(parameters, 0, has_rungs=False),
        'sampler="tpe", a model per rung': model_source(parameters, 0, has_rungs=True),
    }
    costs = {}
    for name, source in sources.items():
        rng, times = np.random.default_rng(0), []
        for number in range(max(numbers) + n_timed):
            order = TrainInstruction(number, 1)
            began = time.process_time()
            params = source.ask(order, {})
            times.append(1000 * (time.process_time() - began))
            source.tell(order, params, rng.random())
        costs[name] = {str(n): round(float(np.median(times[n : n + n_timed])), 2) for n in numbers}
    return costs


def print_table(chart: Chart, rows: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Print the mean regrets and the ratios of a chart."""
    print(f"\nregret: {chart}")
    print(f"{'':22s}" + "".join(f"{f'at {at}':>24s}" for at in AT))
    for name, row in rows.items():
        cells = zip(row.get("mean") or row["ratio"], row["low"], row["high"], strict=True)
        texts = [f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in cells]
        print(f"{name:22s}" + "".join(f"{text:>24s}" for text in texts))


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of the surrogates")
    parser.add_argument("--quick", action="store_true", help="few tasks and seeds")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--cache", help="folder for the runs; empty it after a change")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()
    content = results_file.heading(COMMAND, NOTE, ["optuna", "onnxruntime"])
    for text in check_reading(options.data):
        print(text)
    tasks = [
        ImaginedEstimator(options.data, scenario, task)
        for scenario, names in TASKS.items()
        for task in names[: QUICK_TASKS[scenario] if options.quick else None]
    ]
    seeds = range(2 if options.quick else options.seeds)
    for n_workers in WORKERS:
        check_same_candidates(options.data, n_workers, seeds)
    print("TPE asks for the candidates of Optuna's own loop", flush=True)
    cached = joblib.Memory(options.cache, verbose=0).cache(run)
    keys = [
        (Key(task.scenario, task.task, seed, n_workers, method), task)
        for task, seed, n_workers, method in product(tasks, seeds, WORKERS, METHODS)
    ]
    parallel = joblib.Parallel(n_jobs=options.jobs, batch_size=len(METHODS), verbose=1)
    traces = parallel(
        joblib.delayed(cached)(task, key.method, key.seed, key.n_workers) for key, task in keys
    )
    n_sample = N_QUICK_SAMPLE if options.quick else N_SAMPLE
    references = {(task.scenario, task.task): reference(task, n_sample) for task in tasks}
    table = regrets({key: trace for (key, _), trace in zip(keys, traces, strict=True)}, references)
    rows = {}
    for chart, arrays in table.items():
        if chart.scenario == "all" or chart[:2] == ("seen", "evaluations"):
            rows[chart] = summaries(arrays, RATIOS)
            print_table(chart, rows[chart])
    costs = ask_cost((100,)) if options.quick else ask_cost()
    for source, cost in costs.items():
        print(f"CPU milliseconds of an ask after so many scores, {source}: {cost}")
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes")
    if options.json:
        curves_of = {axis: {} for axis in ("evaluations", "seconds")}
        for chart, arrays in table.items():
            if chart.scenario == "all" and chart.kind == "seen":
                curves_of[chart.axis][str(chart.n_workers)] = curves(arrays)
        content["tasks"] = {name: sum(t.scenario == name for t in tasks) for name in TASKS}
        content |= {"seeds": len(seeds), "budget": BUDGET, "at": AT}
        content["regret"] = {str(chart): row for chart, row in rows.items()}
        content |= {"grid": DRAWN, "curves": curves_of, "ask_milliseconds": costs}
        results_file.write(options.json, content)


if __name__ == "__main__":
    main()
