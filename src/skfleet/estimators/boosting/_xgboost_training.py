"""The driver's part of XGBoost's training on ranks: links, metrics, early stopping, messages."""

from __future__ import annotations

import copy
import zlib
from typing import Any

from xgboost.callback import EarlyStopping, EvaluationMonitor

from skfleet.estimators.boosting._row_survey import StoredRows
from skfleet.estimators.boosting._xgboost_rank import XGBoostJob


class XGBoostTraining:
    """Links between ranks of XGBoost, and what they are built of."""

    def __init__(self, job: XGBoostJob) -> None:
        self.job, self.eval_ranks = job, job.eval_ranks
        # Trees that were dropped are drawn again by a booster that was loaded.
        self.is_one_segment = job.params.get("booster") == "dart"

    @property
    def parameters(self) -> str:
        """The parameters that a checkpoint must be of."""
        params = {k: v for k, v in self.job.params.items() if k not in ("nthread", "n_jobs")}
        return repr([sorted(params.items(), key=repr), zlib.crc32(self.job.model or b"")])

    def rank_options(self, stored: StoredRows) -> dict[str, Any]:
        """Return the arguments of all ranks' rows."""
        classes = stored.labels if self.job.has_labels else None
        return {"classes": classes, "categories": stored.categories}

    def link(self, group: Any, rows: Any) -> list[Any]:
        """Return what each rank needs to find the others."""
        job = self.job
        if job.n_ranks == 1:
            return [{}]
        args = (group.hosts[0], job.n_ranks, job.timeout)
        return group.call("listen", [args], ranks=[0]) * job.n_ranks

    @staticmethod
    def collect(results: list[Any], n_done: int) -> list[Any]:
        """Return the metrics of each round of a segment."""
        return results[0]["log"]

    @staticmethod
    def rounds_of(history: Any) -> list[list[tuple[str, str, float]]]:
        """Return the metrics of each round of a snapshot's history."""
        columns = [
            [(data, metric, score) for score in scores]
            for data, metrics in (history or {}).items()
            for metric, scores in metrics.items()
        ]
        return [list(scores) for scores in zip(*columns, strict=True)]


class XGBoostMonitor:
    """XGBoost's own callbacks for messages and early stopping, on the metrics of all rows."""

    def __init__(
        self, callbacks: Any, rounds: int | None, verbose: Any, n_rounds_before: int
    ) -> None:
        self.evals_result: dict[str, Any] = {}
        self.attributes: dict[str, str] = {}
        self._n_rounds_before = n_rounds_before
        self._callbacks = [copy.copy(c) for c in callbacks]
        if verbose:
            period = 1 if verbose is True else int(verbose)
            self._callbacks.append(EvaluationMonitor(period=period))
        for callback in self._callbacks:
            if isinstance(callback, EvaluationMonitor):
                callback._logger = _print
        if rounds:
            self._callbacks.append(EarlyStopping(rounds=rounds))
        for callback in self._callbacks:
            if isinstance(callback, EarlyStopping):
                # as its `before_training` does, which takes this for the boosters of `cv`
                callback.starting_round = n_rounds_before
            else:
                callback.before_training(self)

    @property
    def save_best(self) -> bool:
        """True if the rounds after the best one are dropped."""
        return any(getattr(c, "save_best", False) for c in self._callbacks)

    def update(self, number: int, scores: list[tuple[str, str, float]]) -> bool:
        """Take the metrics of a round, and return whether training stops after it."""
        for data, metric, score in scores:
            self.evals_result.setdefault(data, {}).setdefault(metric, []).append(score)
        callbacks: list[Any] = self._callbacks
        return any(c.after_iteration(self, number, self.evals_result) for c in callbacks)

    def finish(self) -> None:
        """Print what is to be printed after the last round."""
        monitors: list[Any] = [c for c in self._callbacks if isinstance(c, EvaluationMonitor)]
        for monitor in monitors:
            monitor.after_training(self)

    # What the callbacks use of a booster.

    def num_boosted_rounds(self) -> int:
        """Return the rounds of the booster that training goes on from."""
        return self._n_rounds_before

    def set_attr(self, **attributes: str) -> None:
        """Record attributes of the booster."""
        self.attributes.update(attributes)


def _print(message: str) -> None:
    print(message.strip(), flush=True)
