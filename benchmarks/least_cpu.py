"""Seconds of CPU until a search has a model that is as good as the best, to 1 %.

Eight pairs of rows and a pipeline (`least_cpu_pairs.py`) are searched by scikit-learn, Optuna,
flaml and scikit-fleet, with several seeds and ten splits. A search is at its aim when the mean
score of its best candidate **on all ten splits** is within 1 % (and 10 %) of the best one of the
space; 100 % is the distance from the default parameters to the best. That score is looked up, and
costs nobody a second.

What is measured: user and system seconds of all threads of this process, from the call of the
search on: asking for candidates, tests of pruners, tasks and messages. All methods make one fit at
a time. Ours run on a fleet in this process, with one thread for fits; a fleet outlives a search,
and runs already. What it takes while it waits is measured once, and added for the seconds in which
it would have fitted. Worker processes would take more for messages. The refit is left out.

What is replayed: the seconds and scores of fits. Each fit on a cell of the space and a split was
made once, with one thread, and all methods look it up; so all have the same noise. Fits on some of
the rows, for successive halving, are of one draw of rows for all seeds. Values of distributions
are rounded when they are looked up; methods do not know that.

Searches with "shared fits" cannot be replayed, nor the first steps that batches of candidates
share. So both a search with them and one without make their real fits, one after the other, of the
candidates with which the search without sharing is at its aim; the replayed seconds are multiplied
by the ratio of the two. Searches with "path_size" make all their fits, share first steps, and have
paths where the space has a parameter for them. Their seconds are divided by the ratio of the real
to the replayed seconds of a few candidates. The JSON has all these ratios ("replay_check", that of
the paths last): they are above 1 where the machine had more other work than when the tables were
made.

Optuna, flaml and `BayesSearchCV` choose one candidate after the other, and are read after each.
The others draw their number of candidates beforehand: they are run with more and more, and the
seconds are those of the first run that is at its aim.

`python benchmarks/least_cpu.py --tables FOLDER --data FOLDER [--json FILE]` makes the tables that
the folder does not have, in about six minutes of one core, and takes about five more for each seed.
`--quick` has two pairs and two seeds. The first look at the tables decided three things: the aim of
10 %, since 1 % is often that of one cell alone; that a pair of digits was left out, whose defaults
nothing excels; and that the polynomials of the diamonds begin with degree 1, for the same reason.
"""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from itertools import islice, product, repeat
from pathlib import Path
from typing import Any
from unittest.mock import patch

import flaml
import numpy as np
import optuna
import pandas as pd
from flaml import BlendSearch
from least_cpu_pairs import (
    N_SPLITS,
    PAIRS,
    Range,
    Replayed,
    Rounded,
    cell_of,
    cells,
    make_table,
    table,
)
from racing_quality import data_sets
from results_file import heading, load, write
from sklearn import model_selection
from sklearn.base import clone
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import HalvingRandomSearchCV
from threadpoolctl import threadpool_limits

from skfleet import Fleet
from skfleet.model_selection import BayesSearchCV, RandomizedSearchCV
from skfleet.model_selection._dispatch._memory import MemoryPlan

N_SEEDS = 10
MAX_CANDIDATES = 48
NUMBERS = (6, 12, 24, 48)  # of candidates, of searches that draw them beforehand
N_CHECKED = 12  # candidates whose real fits are compared with those in the tables
N_CHECKS = 4  # of which the first does not count
AIMS = (0.01, 0.1)  # shares of the distance from the default parameters to the best
QUICK = ("diamonds, elastic net", "taxis, scaler + neighbours")

# After each candidate or run: seconds of CPU, and the cell of the best candidate.
Trace = Iterator[tuple[float, str]]


class Case:
    """A pair in a replay, with the meter of its seconds."""

    def __init__(self, source: tuple[Any, ...], folder: Path) -> None:
        self.own = table(*source)
        self.data, self._log = self.own.data, folder / "fits.txt"
        kind = "classifier" if self.data.is_classification else "regressor"
        params = next(iter(cells(self.own.pair.space).values()))
        self.estimator = Replayed(source=source, log=str(self._log), kind=kind, **params)
        self.X, self.y = np.arange(len(self.data.y))[:, None], self.data.y
        self.aims = [self.own.aim(share) for share in AIMS]
        self.idle_share = 0.0  # of a core, which the fleet takes while it waits
        self.n_last = 0  # number of candidates of the last run
        self.start()

    def start(self) -> None:
        """Begin to count the seconds of a search."""
        self._log.write_text("")
        self._n_read, self.fits, self._begin = 0, [], 0.0
        self._begin = self.seconds()

    def seconds(self) -> float:
        """Return the seconds of CPU since the start, with those of the fits looked up."""
        own = time.process_time() - self.own.seconds_here - self._begin
        return own + self.fit_seconds() * (1 + self.idle_share)

    def fit_seconds(self) -> float:
        """Return the seconds of the fits looked up."""
        self._read()
        return sum(seconds for _, seconds in self.fits)

    def has_fitted_good(self) -> bool:
        """Return whether a candidate that is at the aim has been fitted on all splits."""
        self._read()
        counts = Counter(cell for cell, _ in self.fits)
        return any(
            n >= N_SPLITS and self.own.quality(cell) >= self.aims[0] for cell, n in counts.items()
        )

    def _read(self) -> None:
        with self._log.open() as file:
            file.seek(self._n_read)
            lines = [line.split() for line in file.read().splitlines()]
            self._n_read = file.tell()
        self.fits += [(cell, float(seconds)) for cell, seconds in lines]

    def distributions(self, kind: Callable[[Range], Any]) -> dict[str, Any]:
        """Return the space, with distributions of a kind."""
        return {
            name: kind(values) if isinstance(values, Range) else values
            for name, values in self.own.pair.space.items()
        }

    def cell(self, params: dict[str, Any]) -> str:
        """Return the cell of a candidate."""
        return cell_of(self.own.pair.space, params)

    def score(self, params: dict[str, Any], split: int) -> float:
        """Fit and score a candidate on a split."""
        train, test = self.data.splits[split]
        model = clone(self.estimator).set_params(**params)
        return model.fit(self.X[train], self.y[train]).score(self.X[test], self.y[test])


def in_runs(case: Case, seed: int, kind: Any, n_name: str = "n_iter", **options: Any) -> Trace:
    """Run searches of a kind with more and more candidates."""
    space = case.distributions(Range.distribution)
    options |= {"cv": case.data.splits, "random_state": seed, "refit": False}
    for number in NUMBERS:
        case.n_last = number
        case.start()
        search = kind(case.estimator, space, **{n_name: number}, **options).fit(case.X, case.y)
        yield case.seconds(), case.cell(search.cv_results_["params"][search.best_index_])


def halving(case: Case, seed: int) -> Trace:
    """Search by scikit-learn's successive halving."""
    return in_runs(case, seed, HalvingRandomSearchCV, "n_candidates")


def plain(case: Case, seed: int) -> Trace:
    """Search by scikit-learn's randomized search."""
    return in_runs(case, seed, model_selection.RandomizedSearchCV)


def randomized(racing: str | None, case: Case, seed: int) -> Trace:
    """Search by our randomized search."""
    return in_runs(case, seed, RandomizedSearchCV, racing=racing)


def suggest(trial: optuna.Trial, space: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a trial of Optuna's."""
    params = {}
    for name, values in space.items():
        if not isinstance(values, Range):
            params[name] = values[trial.suggest_categorical(name, range(len(values)))]
        elif values.is_int:
            params[name] = trial.suggest_int(name, int(values.low), int(values.high))
        else:
            params[name] = trial.suggest_float(name, values.low, values.high, log=values.is_log)
    return params


def optuna_loop(case: Case, seed: int, *, multivariate: bool = False) -> Trace:
    """Search by Optuna with its Wilcoxon pruner, as its documentation does."""
    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=multivariate)
    study = optuna.create_study(
        direction="maximize", sampler=sampler, pruner=optuna.pruners.WilcoxonPruner()
    )
    random, chosen = np.random.default_rng(seed), {}

    def objective(trial: optuna.Trial) -> float:
        params = chosen[trial.number] = suggest(trial, case.own.pair.space)
        scores = []
        for split in random.permutation(N_SPLITS):
            scores.append(case.score(params, int(split)))
            trial.report(scores[-1], int(split))
            if trial.should_prune():
                break
        return float(np.mean(scores))

    case.start()
    for _ in range(MAX_CANDIDATES):
        study.optimize(objective, n_trials=1)
        yield case.seconds(), case.cell(chosen[study.best_trial.number])


def flaml_loop(case: Case, seed: int) -> Trace:
    """Search by flaml's BlendSearch, which learns what candidates cost."""

    def domain(values: Range) -> Any:
        if values.is_int:
            return flaml.tune.randint(int(values.low), int(values.high) + 1)
        kind = flaml.tune.loguniform if values.is_log else flaml.tune.uniform
        return kind(values.low, values.high)

    space = {
        name: domain(values) if isinstance(values, Range) else flaml.tune.choice(values)
        for name, values in case.own.pair.space.items()
    }
    trace: list[tuple[float, str]] = []
    best, best_score = "", -math.inf

    def evaluate(params: dict[str, Any]) -> dict[str, float]:
        nonlocal best, best_score
        begin = case.fit_seconds()
        score = float(np.mean([case.score(params, split) for split in range(N_SPLITS)]))
        if score > best_score:
            best, best_score = case.cell(params), score
        trace.append((case.seconds(), best))
        return {"score": score, "seconds": case.fit_seconds() - begin}

    case.start()
    search = BlendSearch(
        metric="score",
        mode="max",
        space=space,
        low_cost_partial_config=case.own.pair.cheap or None,
        cost_attr="seconds",
        seed=seed,
    )
    flaml.tune.run(evaluate, search_alg=search, num_samples=MAX_CANDIDATES, verbose=0)
    yield from trace


class WatchedSearch(BayesSearchCV):
    """Model-based search that is read after each candidate that it chose, up to the aim."""

    def watch(self, case: Case, read: Callable[[], float]) -> Trace:
        """Yield the seconds and the best cell after each candidate."""
        self._case, self._read = case, read
        self._trace: list[tuple[float, str]] = []
        with suppress(KeyboardInterrupt):  # the rest of the search is of no interest
            is_real = self.estimator.__class__ is not Replayed
            rows = (case.data.X, case.data.y) if is_real else (case.X, case.y)
            self.fit(*rows)
        for number, (seconds, cell) in enumerate(self._trace, start=1):
            case.n_last = number
            yield seconds, cell

    def _tell(self, source: Any, batch: Any, results: Any) -> None:
        super()._tell(source, batch, results)
        means = results["mean_test_score"].copy()
        if "n_folds" in results:
            means[results["n_folds"] < N_SPLITS] = -math.inf
        cell = self._case.cell(results["params"][int(means.argmax())])
        self._trace.append((self._read(), cell))
        if self._case.own.quality(cell) >= self._case.aims[0]:
            raise KeyboardInterrupt


def bayes(racing: str | None, case: Case, seed: int) -> Trace:
    """Search by our model-based search, one candidate at a time."""
    search = WatchedSearch(
        case.estimator,
        case.distributions(Range.distribution),
        n_iter=MAX_CANDIDATES,
        batch_size=1,
        racing=racing,
        cv=case.data.splits,
        refit=False,
        random_state=seed,
    )
    case.start()
    return search.watch(case, case.seconds)


PEERS: dict[str, Callable[[Case, int], Trace]] = {
    "scikit-learn RandomizedSearchCV": plain,
    "scikit-learn HalvingRandomSearchCV": halving,
    "Optuna, TPE, WilcoxonPruner": optuna_loop,
    "Optuna, multivariate TPE, WilcoxonPruner": lambda case, seed: optuna_loop(
        case, seed, multivariate=True
    ),
    "flaml.tune, BlendSearch": flaml_loop,
}
RULES = (None, "mean", "wilcoxon")
_SHARED = ", shared fits"
_NOTE = "one fit at a time; fits replayed from tables; shared fits by a ratio of real searches"


def label(name: str, racing: str | None) -> str:
    """Return the name of a search of ours."""
    return f"{name}({'' if racing is None else f'racing={racing!r}'})"


OURS = {
    label(search.__name__, racing): partial(run, racing)
    for search, run in ((RandomizedSearchCV, randomized), (BayesSearchCV, bayes))
    for racing in RULES
}


REAL: dict[str, dict[str, Any]] = {
    "BayesSearchCV(path_size=8)": {"path_size": 8, "racing": None},
    "BayesSearchCV(path_size=8, racing='wilcoxon')": {"path_size": 8, "racing": "wilcoxon"},
}


def first_seconds(case: Case, trace: Trace) -> list[tuple[float, int]]:
    """Return the seconds until each aim, infinity where it is missed, and the candidates so far."""
    first = [(math.inf, 0)] * len(AIMS)
    for seconds, cell in trace:
        quality = case.own.quality(cell)
        for number, aim in enumerate(case.aims):
            if quality >= aim and math.isinf(first[number][0]):
                first[number] = seconds, case.n_last
        if quality >= case.aims[0]:
            break
    return first


def real_seconds(
    case: Case, kind: Any, n_iter: int, seed: int, *, shares: bool, racing: str | None
) -> float:
    """Return the seconds of CPU of a search of ours that makes its fits, which share or not."""
    options: dict[str, Any] = {"random_state": seed}
    if kind is BayesSearchCV:
        options["batch_size"] = 1
    # without room for the fitted steps of earlier batches
    room = nullcontext() if shares else patch.object(MemoryPlan, "spare_bytes", return_value=0)
    with room:
        begin = time.process_time()
        kind(
            case.own.pair.pipeline(),
            case.distributions(Rounded),
            n_iter=n_iter,
            scoring=case.own.pair.scoring,
            cv=case.data.splits,
            refit=False,
            share_fits=shares,
            racing=racing,
            **options,
        ).fit(case.data.X, case.data.y)
        return time.process_time() - begin


def real(case: Case, slowness: float, seed: int, **options: Any) -> Trace:
    """Search by our model-based search, which makes its fits and shares what it can.

    Its seconds are divided by the ratio of the seconds of real fits to those in the table. Without
    a parameter that has paths, it is a search without them.
    """
    search = WatchedSearch(
        case.own.pair.pipeline(),
        case.distributions(Rounded),
        n_iter=MAX_CANDIDATES,
        batch_size=1,
        scoring=case.own.pair.scoring,
        cv=case.data.splits,
        refit=False,
        random_state=seed,
        **options,
    )
    begin = time.process_time()
    try:
        yield from search.watch(case, lambda: (time.process_time() - begin) / slowness)
    except ValueError as error:
        if "path_size" not in str(error):
            raise
        yield from real(case, slowness, seed, **options | {"path_size": 1})


def slowness(case: Case) -> float:
    """Return the ratio of the seconds of real fits to those in the table, for a few candidates."""
    *_, (replayed, _) = islice(bayes(None, case, 0), N_CHECKED)
    n = min(N_CHECKED, case.n_last)
    # the first time imports what it needs
    every = [
        real_seconds(case, BayesSearchCV, n, 0, shares=False, racing=None) for _ in range(N_CHECKS)
    ]
    return float(np.median(every[1:])) / replayed


def measure(case: Case, seeds: int, n_shared: int) -> dict[str, Any]:
    """Return the seconds of all methods for each seed, on one pair."""
    runs = {
        name: [first_seconds(case, method(case, seed)) for seed in range(seeds)]
        for name, method in PEERS.items()
    }
    checks = []
    # A fleet of threads takes seconds of this process, so there is none while peers are measured.
    with Fleet(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
        case.idle_share = idle_share()
        for name, method in OURS.items():
            runs[name] = [first_seconds(case, method(case, seed)) for seed in range(seeds)]
        for kind, racing in product((RandomizedSearchCV, BayesSearchCV), (None, "mean")):
            name = label(kind.__name__, racing)
            runs[name + _SHARED] = shared = []
            for seed, firsts in enumerate(runs[name][:n_shared]):
                n = firsts[-1][1]  # for the aim that is reached first
                if not n:
                    shared.append(firsts)
                    continue
                separate, sharing = (
                    real_seconds(case, kind, n, seed, shares=shares, racing=racing)
                    for shares in (False, True)
                )
                ratio = sharing / separate
                shared.append([(seconds * ratio, n) for seconds, n in firsts])
                checks.append(separate / firsts[-1][0])
        checks.append(slowness(case))
        for name, options in REAL.items():
            runs[name] = [
                first_seconds(case, real(case, checks[-1], seed, **options))
                for seed in range(seeds)
            ]
        case.idle_share = 0.0
    case.own.save()
    own = case.own
    qualities = [own.quality(cell) for cell in cells(own.pair.space)]
    return {
        "rows": own.pair.n_rows,
        "cells": len(qualities),
        "cells_at_aim": {
            str(share): sum(quality >= aim for quality in qualities)
            for share, aim in zip(AIMS, case.aims, strict=True)
        },
        "score_of_defaults": round(own.quality("default"), 5),
        "best_score": round(max(qualities), 5),
        "median_seconds_of_a_fit": round(float(np.median(own.whole_seconds())), 4),
        "load": load(),
        "replay_check": [round(check, 2) for check in checks],
        "seconds": {
            str(share): {
                name: [_finite(firsts[number][0]) for firsts in every]
                for name, every in runs.items()
            }
            for number, share in enumerate(AIMS)
        },
    }


def summary(pairs: dict[str, Any], share: float) -> dict[str, Any]:
    """Return, of each method, how often it is at its aim, and its seconds next to the best peer's.

    The best peer is that of each pair and seed, which nobody knows beforehand.
    """
    rows: dict[str, list[tuple[float, float]]] = {}
    for pair in pairs.values():
        seconds = {
            name: [math.inf if value is None else value for value in values]
            for name, values in pair["seconds"][str(share)].items()
        }
        best = np.min([seconds[name] for name in PEERS], axis=0)
        for name, values in seconds.items():
            rows.setdefault(name, []).extend(zip(values, best[: len(values)], strict=True))
    figures = {}
    for name, values in rows.items():
        own, best = np.array(values).T
        ratios = (own / best)[np.isfinite(best)]
        figures[name] = {
            "runs": len(own),
            "at_aim": round(float(np.isfinite(own).mean()), 3),
            "median_seconds": _median(own),
            "median_ratio_to_best_peer": _median(ratios),
        }
    return figures


def _median(values: np.ndarray) -> float | None:
    return _finite(np.median(values)) if len(values) else None  # None: half are misses


def _finite(value: float) -> float | None:
    return round(float(value), 2) if math.isfinite(value) else None


def idle_share() -> float:
    """Return the share of a core that a fleet takes while it waits."""
    begin, cpu = time.perf_counter(), time.process_time()
    time.sleep(5)
    return (time.process_time() - cpu) / (time.perf_counter() - begin)


def main() -> None:
    """Print the figures, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of the tables of fits")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--seeds", type=int, default=N_SEEDS)
    parser.add_argument("--shared-seeds", type=int, default=2, help="seeds of real fits")
    parser.add_argument("--only", nargs="*", default=list(PAIRS), help="names of pairs")
    parser.add_argument("--quick", action="store_true", help="two pairs and two seeds")
    options = parser.parse_args()
    if options.quick:
        options.only, options.seeds, options.shared_seeds = list(QUICK), 2, 1
    data = options.data if options.data is not None and options.data.is_dir() else None
    names = [name for name in options.only if PAIRS[name].data in data_sets(data)]
    print(f"left out, for want of data: {sorted(set(options.only) - set(names))}")
    warnings.simplefilter("ignore")
    logging.getLogger("flaml").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pairs: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        tables = options.tables or Path(folder)
        with ProcessPoolExecutor(2) as pool:
            made = list(pool.map(make_table, names, repeat(tables), repeat(data)))
        print(f"tables made in {sum(made):.0f} seconds of CPU")
        content = heading("least_cpu.py", _NOTE, ["optuna", "flaml"])
        for name in names:
            case = Case((name, tables, data), Path(folder))
            if case.own.quality("default") >= case.aims[0]:
                print(f"{name}: nothing is better than the default parameters, so it is left out")
                continue
            pairs[name] = measure(case, options.seeds, options.shared_seeds)
            print(name, pairs[name], flush=True)
            content |= {
                "max_candidates": MAX_CANDIDATES,
                "summary": {str(share): summary(pairs, share) for share in AIMS},
                "pairs": pairs,
            }
            if options.json is not None:  # after each pair
                write(options.json, content)
    for share in AIMS:
        print(f"within {share:.0%} of the best:")
        print(pd.DataFrame(summary(pairs, share)).T.to_string())


if __name__ == "__main__":
    main()
