"""The driver's part of LightGBM's training on ranks: links, metrics, callbacks."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import lightgbm
import numpy as np
from lightgbm.callback import CallbackEnv

from skfleet.blocks import Block, concat_rows
from skfleet.estimators.boosting._lightgbm_private import aliases_of, choose_parameter
from skfleet.estimators.boosting._lightgbm_rank import (
    LightGBMJob,
    LightGBMLink,
    sampled_rows,
    small_booster,
)
from skfleet.estimators.boosting._row_survey import StoredRows

# Objectives that start from the mean of y, or its logarithm. LightGBM takes the mean of the ranks'
# means, which is another one where ranks have different numbers of rows. Objectives that start from
# a quantile (regression_l1, quantile, mape) are left to it; those of labels sum over all ranks.
_MEAN_STARTS = {"regression", "huber", "fair"}
_LOG_MEAN_STARTS = {"poisson", "gamma", "tweedie"}
_LOG_ODDS_STARTS = {"cross_entropy", "xentropy"}
_LOG_EXPM1_STARTS = {"cross_entropy_lambda", "xentlambda"}
_L2_NAMES = {
    "regression_l2",
    "l2",
    "mean_squared_error",
    "mse",
    "l2_root",
    "root_mean_squared_error",
    "rmse",
}
# Boosting whose trees depend on those before them, or are averaged.
_OTHER_BOOSTING = {"dart", "rf", "random_forest"}
MIN_START = 1e-15


class LightGBMTraining:
    """Links between ranks of LightGBM, and what they are built of.

    `class_weight` is that of the classes' numbers.
    """

    def __init__(
        self, job: LightGBMJob, stored: StoredRows, class_weight: Any, eval_names: Sequence[str]
    ) -> None:
        self.job, self.eval_ranks = job, job.eval_ranks
        self._stored, self._class_weight, self._eval_names = stored, class_weight, eval_names
        self._link: LightGBMLink | None = None
        self._history: list[Any] = []
        self.is_one_segment = parameter(job.params, "boosting", "gbdt") in _OTHER_BOOSTING

    @property
    def parameters(self) -> str:
        """The parameters that a checkpoint must be of."""
        threads = aliases_of("num_threads")
        params = {k: v for k, v in self.job.params.items() if k not in threads}
        return repr([sorted(params.items(), key=repr), self.job.n_rounds, self.job.model])

    def rank_options(self, stored: StoredRows) -> dict[str, Any]:
        """Return the arguments of all ranks' rows."""
        classes = stored.labels if len(stored.labels) else None
        return {"classes": classes, "categories": stored.categories}

    # 1. The ranks send the rows that LightGBM itself would find bins from, and sums of y.
    # 2. Each finds a port to listen at.
    def link(self, group: Any, rows: Sequence[Any]) -> list[LightGBMLink]:
        """Return what each rank needs to know of the others."""
        # After a loss the sums are the same. A sample that a lone rank kept is gone.
        if self._link is None or self._link.sample is None:
            self._link = self._summarize(group, rows)
        self._link.machines = []
        if self.job.n_ranks > 1:
            self._link.machines = group.call("listen", [(host,) for host in group.hosts])
        return [self._link] * self.job.n_ranks

    def _summarize(self, group: Any, rows: Sequence[Any]) -> LightGBMLink:
        params = self.job.params
        n_sampled = int(parameter(params, "bin_construct_sample_cnt", 200000))
        numbers = sampled_rows(self._stored.n_rows, dict(params), n_sampled)
        is_root = bool(parameter(params, "reg_sqrt", False))
        borders = np.searchsorted(numbers, [options["row_offset"] for _, options in rows])
        parts = np.split(numbers, borders[1:])
        is_alone = self.job.n_ranks == 1
        args = [(part, own, is_root, is_alone) for part, own in zip(rows, parts, strict=True)]
        results = group.call("summarize", args)
        sample = None if is_alone else concat_rows([Block(r.sample) for r in results]).X
        link = LightGBMLink([], sample, self._start_of(results))
        if self._class_weight is not None:
            counts = np.sum([result.class_counts for result in results], axis=0)
            link.class_weights = _weights_of_classes(self._class_weight, counts)
        return link

    def _start_of(self, results: Sequence[Any]) -> float | None:
        """Return what objectives start from that LightGBM does not sum over all ranks."""
        params, job = self.job.params, self.job
        objective = parameter(params, "objective", "regression")
        is_log = objective in _LOG_MEAN_STARTS
        is_entropy = objective in _LOG_ODDS_STARTS | _LOG_EXPM1_STARTS
        if (
            job.n_ranks == 1
            or job.objective is not None
            or job.model is not None
            or job.has_scores
            or self.is_one_segment
            or not (is_log or is_entropy or objective in _MEAN_STARTS or objective in _L2_NAMES)
            or not parameter(params, "boost_from_average", True)
        ):
            return None
        mean = sum(r.sum_y for r in results) / sum(r.sum_weights for r in results)
        start = float(np.log(mean)) if is_log else mean
        if objective in _LOG_ODDS_STARTS:
            # LightGBM's own bounds, within which the logarithm is finite.
            mean = min(max(mean, MIN_START), 1 - MIN_START)
            start = float(np.log(mean / (1 - mean)))
        elif objective in _LOG_EXPM1_STARTS:
            start = float(np.log(np.expm1(mean)))
        # LightGBM adds no smaller start either.
        return start if np.isfinite(start) and abs(start) > MIN_START else None

    def collect(self, results: Sequence[Any], n_done: int) -> list[list[Any]]:
        """Return the metrics of each round of a segment: each of all rows of a set."""
        log = [
            self._scores([result["log"][i] for result in results], results)
            for i in range(len(results[0]["log"]))
        ]
        # Rounds after the snapshot were lost, and are trained again.
        self._history = [*self._history[:n_done], *log]
        if "snapshot" in results[0]:
            results[0]["history"] = [list(map(tuple, scores)) for scores in self._history]
        return log

    def _scores(self, metrics: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Return a round's metrics: training rows first, as LightGBM has them."""
        sets = sorted(range(len(self.eval_ranks)), key=lambda i: self.eval_ranks[i] is not None)
        scores = []
        for number in sets:
            owner, name = self.eval_ranks[number], self._eval_names[number]
            if owner is not None:
                values = metrics[owner].get(number, [])
            else:
                weights = [result["weights"] for result in results]
                values = _combine([m[None] for m in metrics], weights)
            scores += [lightgbm.EvalResult(name, *value) for value in values]
        return scores

    def rounds_of(self, history: Any) -> list[list[Any]]:
        """Return the metrics of each round of a snapshot's history."""
        self._history = [[lightgbm.EvalResult(*s[:4]) for s in scores] for scores in history or []]
        return self._history


def _combine(parts: Sequence[Any], weights: Sequence[tuple[float, float]]) -> list[Any]:
    """Return metrics of all ranks' rows: means of theirs, weighted by their rows or queries.

    That is exact for metrics that are means over rows or queries, and nearly so for areas under
    curves.
    """
    combined = []
    for metrics in zip(*parts, strict=True):
        name, _, maximize = metrics[0]
        values = np.array([value for _, value, _ in metrics], dtype=np.float64)
        own = np.array([w[1 if name.startswith(("ndcg@", "map@")) else 0] for w in weights])
        if name == "gamma_deviance":  # a sum
            value = values.sum()
        elif name == "rmse":
            value = np.sqrt(np.average(values**2, weights=own))
        else:
            value = np.average(values, weights=own)
        combined.append((name, float(value), maximize))
    return combined


def _weights_of_classes(class_weight: Any, counts: np.ndarray) -> np.ndarray:
    """Return the weight of each class, as scikit-learn finds it."""
    if class_weight == "balanced":
        return counts.sum() / (len(counts) * counts)
    return np.array([class_weight.get(i, 1.0) for i in range(len(counts))])


def parameter(params: dict[str, Any], name: str, default: Any) -> Any:
    """Return the value of a parameter under any of its names."""
    value = choose_parameter(name, params, default)[name]
    return default if value is None else value


@dataclass
class Rounds:
    """The rounds of a fit, and those of the model that it goes on from."""

    n_rounds: int
    n_before: int = 0


class LightGBMMonitor:
    """Callbacks after each round, on the metrics of all rows; they see a booster without trees."""

    def __init__(
        self, callbacks: Sequence[Any], params: dict[str, Any], rounds: Rounds, train_name: str
    ) -> None:
        self.evals_result: dict[str, Any] = {}
        self.best_iteration = 0
        self.last_scores: list[Any] = []
        self._params, self._rounds = params, rounds
        self._booster = small_booster()
        self._booster.set_train_data_name(train_name)
        # LightGBM's order of callbacks: users' own come before its own.
        for i, callback in enumerate(callbacks):
            callback.__dict__.setdefault("order", i - len(callbacks))
        own = [lightgbm.record_evaluation(self.evals_result)]
        patience = parameter(params, "early_stopping_round", 0)
        if patience:
            own.append(
                lightgbm.early_stopping(
                    patience,
                    first_metric_only=params.get("first_metric_only", False),
                    min_delta=params.get("early_stopping_min_delta", 0.0),
                    verbose=parameter(params, "verbosity", 1) > 0,
                )
            )
        self._callbacks = sorted([*callbacks, *own], key=attrgetter("order"))

    def update(self, number: int, scores: list[Any]) -> bool:
        """Take the metrics of a round, and return whether training stops after it."""
        n_before, n_rounds = self._rounds.n_before, self._rounds.n_rounds
        self.last_scores = scores
        env = CallbackEnv(
            model=self._booster,
            params=self._params,
            iteration=n_before + number,
            begin_iteration=n_before,
            end_iteration=n_before + n_rounds,
            evaluation_result_list=scores,
        )
        try:
            for callback in self._callbacks:
                callback(env)
        except lightgbm.EarlyStopException as stop:
            self.best_iteration, self.last_scores = stop.best_iteration + 1, stop.best_score
            return True
        return False

    @property
    def best_score(self) -> Any:
        """The metrics of the best round, or of the last one."""
        best: Any = defaultdict(OrderedDict)
        for score in self.last_scores:
            best[score[0]][score[1]] = score[2]
        return best
