"""XGBoost's training on the rows of one rank (`XGBoostRank`), in a process of its own."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost
from xgboost import collective
from xgboost.tracker import RabitTracker

from skfleet._array import to_host
from skfleet.blocks import Block, concat_rows
from skfleet.engine import ObjectLostError, report_progress, thread_count
from skfleet.estimators.boosting._rank_rows import RankRows, take_slice
from skfleet.exceptions import PlacementError


@dataclass
class XGBoostJob:
    """Everything that all ranks train with, but for the rows.

    `eval_ranks` are the rank that has all rows of each evaluation set, None for the training rows.
    """

    params: dict[str, Any]
    n_ranks: int
    timeout: float
    matrix: dict[str, Any]
    eval_names: Sequence[str] = ()
    eval_ranks: Sequence[int | None] = ()
    objective: Callable[..., Any] | None = None
    metric: Callable[..., Any] | None = None
    callbacks: Sequence[Any] = ()
    feature_weights: Any = None
    is_ranker: bool = False
    has_labels: bool = False
    is_on_disk: bool = False  # the binned rows, of which memory holds a part
    model: bytes | None = None  # that training goes on from


class XGBoostRank:
    """A booster, its binned rows and its communicator: one of `n_ranks` that train together."""

    def __init__(self, rank: int) -> None:
        self.rank, self._is_finished = rank, False

    def close(self) -> None:
        """Raise unless the process can train again: the others may still wait for this one."""
        if not self._is_finished:
            raise RuntimeError("training has not ended")

    def listen(self, host: str, n_ranks: int, timeout: float) -> dict[str, Any]:
        """Start the tracker, by which ranks find one another, and return its address."""
        self._tracker = RabitTracker(
            n_workers=n_ranks, host_ip=host, sortby="task", timeout=max(1, int(timeout))
        )
        self._tracker.start()
        return dict(self._tracker.worker_args())

    def build(
        self,
        job: XGBoostJob,
        tracker: dict[str, Any],
        rows: Any,
        evals: Sequence[Any],
        snapshot: bytes | None,
        n_done: int,
        history: Any,
    ) -> None:
        """Join the other ranks, bin the rows, and load the booster after `n_done` rounds."""
        self.job, self.params = job, dict(job.params)
        # Before the rows are binned: bins are those of the rows of all ranks.
        if job.n_ranks > 1:
            self.params["nthread"] = thread_count()
            try:
                collective.init(
                    dmlc_communicator="rabit",
                    dmlc_task_id=f"{self.rank:08d}",
                    dmlc_timeout=max(1, int(job.timeout)),
                    **tracker,
                )
            except xgboost.core.XGBoostError as error:
                raise ObjectLostError(f"XGBoost's network failed: {error}") from error
        self.train = self._matrix(RankRows.of(rows), None)
        # The communicator belongs to this thread. In another one XGBoost computes the metrics of an
        # evaluation set as a single process does.
        self._alone = ThreadPoolExecutor(1)
        self.evals = {}
        for name, owner, part in zip(job.eval_names, job.eval_ranks, evals, strict=True):
            if owner is None:
                self.evals[name] = self.train
            elif owner == self.rank:
                rows_of_set = RankRows.of(part)
                self.evals[name] = self._alone.submit(
                    self._matrix, rows_of_set, self.train
                ).result()
        matrices = [self.train, *(m for m in self.evals.values() if m is not self.train)]
        model = job.model if snapshot is None else snapshot
        model_file = None if model is None else bytearray(model)
        self.booster = xgboost.Booster(self.params, matrices, model_file=model_file)
        self.n_done, self.history = n_done, history or {}
        self._n_rounds_before = self.booster.num_boosted_rounds() - n_done
        if snapshot is None:
            for callback in job.callbacks:
                self.booster = callback.before_training(self.booster)

    def _matrix(self, rows: RankRows, reference: Any) -> Any:
        folder, cache, kind = None, None, xgboost.QuantileDMatrix
        if self.job.is_on_disk:
            folder = tempfile.mkdtemp(prefix="skfleet-")
            cache = os.path.join(folder, "page")
            kind = xgboost.ExtMemQuantileDMatrix
        blocks = BlockIterator(rows, self.job.is_ranker, cache)
        matrix = kind(blocks, ref=reference, nthread=self.params.get("nthread"), **self.job.matrix)
        if folder is not None:  # a process of its own has a folder for all that it leaves
            weakref.finalize(matrix, shutil.rmtree, folder, ignore_errors=True)
        if self.job.is_ranker and rows.query_weights is not None:
            matrix.set_weight(rows.query_weights)
        if reference is None and self.job.feature_weights is not None:
            matrix.set_info(feature_weights=self.job.feature_weights)
        return matrix

    def advance(self, n_rounds: int, takes_snapshot: bool) -> dict[str, Any]:
        """Train some rounds; rank 0 returns their metrics, and a snapshot of the booster."""
        start, log, stops = time.perf_counter(), [], False
        callbacks = self.job.callbacks
        for _ in range(n_rounds):
            number = self.n_done
            if callbacks and self._any(
                c.before_iteration(self.booster, number, self.history) for c in callbacks
            ):
                stops = True
                break
            self.booster.update(self.train, number, fobj=self.job.objective)
            self.n_done += 1
            scores = self._evaluate(number)
            for data, metric, score in scores:
                self.history.setdefault(data, {}).setdefault(metric, []).append(score)
            log.append(scores)
            report_progress()
            if callbacks and self._any(
                c.after_iteration(self.booster, number, self.history) for c in callbacks
            ):
                stops = True
                break
        result: dict[str, Any] = {"seconds": time.perf_counter() - start, "stops": stops}
        if self.rank == 0:
            result["log"] = log
            if takes_snapshot:
                result["snapshot"] = bytes(self.booster.save_raw("ubj"))
                result["history"] = self.history
        return result

    def _evaluate(self, number: int) -> list[tuple[str, str, float]]:
        """Return the metrics of a round: each of all rows of a set, on every rank."""
        builtin: list[tuple[str, str, float]] = []
        users: list[tuple[str, str, float]] = []
        for name, owner in zip(self.job.eval_names, self.job.eval_ranks, strict=True):
            matrix = self.evals.get(name)
            if owner is None:
                builtin += self._builtin_metrics(matrix, name, number)
                users += self._mean_metric(matrix, name)
                continue
            scores: Any = None
            if owner == self.rank:
                scores = self._alone.submit(self._all_metrics, matrix, name, number).result()
            if self.job.n_ranks > 1:
                scores = collective.broadcast(scores, owner)
            builtin += scores[0]
            users += scores[1]
        return builtin + users

    def _all_metrics(self, matrix: Any, name: str, number: int) -> tuple[list[Any], list[Any]]:
        return self._builtin_metrics(matrix, name, number), self._users_metric(matrix, name)

    def _builtin_metrics(self, matrix: Any, name: str, number: int) -> list[tuple[str, str, float]]:
        text = self.booster.eval_set([(matrix, name)], number)
        pairs = (item.rpartition(":") for item in text.split()[1:])
        return [(name, title.partition("-")[2], float(value)) for title, _, value in pairs]

    def _users_metric(self, matrix: Any, name: str) -> list[tuple[str, str, float]]:
        if self.job.metric is None:
            return []
        is_margin = self.job.objective is not None
        title, value = self.job.metric(
            self.booster.predict(matrix, output_margin=is_margin), matrix
        )
        return [(name, title, float(f"{value:f}"))]  # the digits that XGBoost keeps

    def _mean_metric(self, matrix: Any, name: str) -> list[tuple[str, str, float]]:
        """Return the user's metric of the training rows: the mean of the ranks, by their rows."""
        scores, n_rows = self._users_metric(matrix, name), matrix.num_row()
        if self.job.n_ranks == 1 or not scores:
            return scores
        ((_, title, value),) = scores
        sums = collective.allreduce(np.array([value * n_rows, n_rows]), collective.Op.SUM)
        return [(name, title, float(f"{sums[0] / sums[1]:f}"))]

    def _any(self, flags: Iterator[Any]) -> bool:
        """Return whether any flag of any rank is true: no rank stops alone."""
        # All of them, not up to the first true one: every callback sees every round.
        flag = any(list(flags))
        if self.job.n_ranks == 1:
            return flag
        return bool(collective.allreduce(np.array([int(flag)]), collective.Op.MAX)[0])

    def finish(self, n_rounds: int) -> bytes | None:
        """Return the booster on rank 0, pickled, with the first rounds of training."""
        booster = self.booster
        _check_device(booster, self.params.get("device"))
        for callback in self.job.callbacks:
            booster = callback.after_training(booster)
        if self.job.n_ranks > 1:
            collective.finalize()
        self._is_finished = True
        if self.rank != 0:
            return None
        n_rounds += self._n_rounds_before
        # The segment may have gone on after the round at which the driver stopped.
        if n_rounds < booster.num_boosted_rounds():
            booster = booster[:n_rounds]
        return pickle.dumps(booster.reset())


class BlockIterator(xgboost.DataIter):
    """Blocks of a rank's rows, which XGBoost reads several times.

    With `has_groups` a query's rows at the end of a block are put before those of the next one.
    """

    def __init__(self, rows: RankRows, has_groups: bool, cache: str | None) -> None:
        self._rows, self._has_groups = rows, has_groups
        self._blocks: Iterator[Block] = iter(())
        super().__init__(cache, release_data=True)

    def reset(self) -> None:
        """Begin again."""
        blocks = self._rows.blocks()
        self._blocks = whole_groups(blocks) if self._has_groups else blocks

    def next(self, input_data: Callable[..., Any]) -> bool:
        """Hand over the next block; return whether there was one."""
        block = next(self._blocks, None)
        if block is None:
            return False
        per_sample = block.per_sample or {}
        # Queries have weights, not rows; the matrix gets them once it has all rows.
        values = {
            "label": block.y,
            "weight": None if self._has_groups else block.sample_weight,
            "base_margin": per_sample.get("base_margin"),
            "qid": per_sample.get("qid"),
        }
        input_data(data=block.X, **{k: v for k, v in values.items() if v is not None})
        report_progress()
        return True


def is_gpu(device: Any) -> bool:
    """Return whether XGBoost's parameter of the device means one or any GPU."""
    return str(device or "cpu").startswith(("cuda", "gpu"))


def _check_device(booster: Any, device: Any) -> None:
    """Raise where XGBoost trained on the CPU in the place of a GPU, of which it only warns."""
    if is_gpu(device):
        config = json.loads(booster.save_config())
        used = config["learner"]["generic_param"]["device"]
        if not used.startswith("cuda"):
            raise PlacementError(
                f"device must be one that XGBoost has. Got {device!r} on a worker where it trained "
                f"on {used!r} instead. Start workers with a GPU, and XGBoost's build for it: pip "
                "install 'scikit-fleet[xgboost-gpu]' in the place of scikit-fleet[xgboost]."
            )


def whole_groups(blocks: Iterator[Block]) -> Iterator[Block]:
    """Yield blocks that end where a query does."""
    pending: Block | None = None
    for block in blocks:
        joined = block if pending is None else concat_rows([pending, block])
        qid = _qid_of(joined)
        last = int(np.searchsorted(qid, qid[-1])) if len(qid) else 0
        if last:
            yield take_slice(joined, 0, last)
        pending = take_slice(joined, last, len(qid))
    if pending is not None:
        yield pending


def _qid_of(block: Block) -> np.ndarray:
    assert block.per_sample is not None
    return to_host(block.per_sample["qid"])
