"""LightGBM's training on the rows of one rank (`LightGBMRank`), in a process of its own."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightgbm
import numpy as np
import scipy.sparse
from lightgbm.callback import CallbackEnv
from sklearn.utils.class_weight import compute_sample_weight

from skfleet._linalg import is_sparse
from skfleet.blocks import Block, concat_rows, is_frame
from skfleet.engine import ObjectLostError, report_progress, thread_count
from skfleet.estimators.boosting._lightgbm_model import first_rounds, join_models, with_start
from skfleet.estimators.boosting._rank_rows import RankRows

# Rows that are converted at a time.
BATCH_ROWS = 1 << 16


@dataclass
class LightGBMJob:
    """Everything that all ranks train with, but for the rows.

    `eval_ranks` are the rank that has all rows of each evaluation set, None for the training rows.
    """

    params: dict[str, Any]
    n_rounds: int
    n_ranks: int
    timeout: float
    dataset: dict[str, Any] = field(default_factory=dict)  # names of features, categorical ones
    eval_ranks: Sequence[int | None] = ()
    eval_class_weights: Sequence[Any] = ()
    objective: Callable[..., Any] | None = None
    metrics: Sequence[Callable[..., Any]] = ()
    callbacks: Sequence[Any] = ()
    is_local: bool = False
    has_scores: bool = False  # whether users give scores to start from
    model: str | None = None  # that training goes on from
    n_rounds_before: int = 0


@dataclass
class RowSummary:
    """Statistics of a rank's rows that all ranks must know."""

    sample: Any  # rows that bins are found from; None where the only rank keeps them
    class_counts: np.ndarray | None
    sum_y: float
    sum_weights: float


@dataclass
class LightGBMLink:
    """Knowledge that a rank needs of the others: addresses, and statistics of all rows."""

    machines: Sequence[str]
    sample: Any
    start: float | None = None  # prediction before the first round, where it is not LightGBM's own
    class_weights: np.ndarray | None = None


class LightGBMRank:
    """A booster, its binned rows and its network: one of `n_ranks` that train together."""

    def __init__(self, rank: int) -> None:
        self.rank, self._is_finished = rank, False
        self._sample: Any = None

    def close(self) -> None:
        """Raise unless the process can train again: the others may still wait for this one."""
        if not self._is_finished:
            raise RuntimeError("training has not ended")

    def summarize(
        self, rows: Any, numbers: np.ndarray, is_root: bool, is_alone: bool
    ) -> RowSummary:
        """Return the rows of these numbers, and sums of y; of its roots with `is_root`."""
        rows = RankRows.of(rows)
        sample, counts, sums, first = [], None, np.zeros(2), rows.row_offset
        if rows.classes is not None:
            counts = np.zeros(len(rows.classes), dtype=np.int64)
        for block in rows.blocks():
            low, high = np.searchsorted(numbers, [first, first + block.n_rows])
            sample.append(Block(_rows_at(block.X, numbers[low:high] - first)))
            first += block.n_rows
            if counts is not None:
                counts += np.bincount(block.y, minlength=len(counts))
            # In single precision, in which LightGBM holds labels and weights.
            y = np.asarray(block.y, dtype=np.float32)
            if is_root:
                y = np.sign(y) * np.sqrt(np.abs(y))
            weight = block.sample_weight
            w = np.ones(len(y)) if weight is None else np.asarray(weight, dtype=np.float32)
            sums += [np.dot(y.astype(np.float64), w), w.sum(dtype=np.float64)]
            report_progress()
        rows_of_bins = concat_rows(sample).X
        # A single rank has nothing to exchange: its sample stays in the process.
        if is_alone:
            self._sample, rows_of_bins = rows_of_bins, None
        return RowSummary(rows_of_bins, counts, *sums.tolist())

    def listen(self, host: str) -> str:
        """Return an address of this process that the others can reach."""
        # LightGBM binds the port itself; until then no other process is given it.
        self._port = socket.socket()
        self._port.bind(("", 0))
        return f"{socket.gethostbyname(host)}:{self._port.getsockname()[1]}"

    # 1. Bins are those of the sample of all rows, on every rank: with a network, LightGBM would
    #    find them from each rank's own rows.
    # 2. The rows are binned, with the predictions of the rounds before as scores.
    # 3. The ranks find one another, and the booster is made.
    def build(
        self,
        job: LightGBMJob,
        link: LightGBMLink,
        rows: Any,
        evals: Sequence[Any],
        snapshot: bytes | None,
        n_done: int,
        history: Any,
    ) -> None:
        """Bin the rows, join the other ranks, and make the booster that follows `n_done` rounds."""
        self.job, self.link, self.n_done = job, link, n_done
        self.params = dict(job.params)
        if not job.is_local:
            self.params["num_threads"] = thread_count()
        self.base = job.model if snapshot is None else snapshot.decode()
        model = None if self.base is None else lightgbm.Booster(model_str=self.base)
        sample = self._sample if link.sample is None else link.sample
        self._sample = None
        reference = lightgbm.Dataset(
            sample, label=np.zeros(sample.shape[0]), params=dict(self.params), **job.dataset
        ).construct()
        del sample
        report_progress()
        train_rows = RankRows.of(rows)
        train = self._dataset(train_rows, reference, model, link.class_weights)
        valid = []
        for number, part in enumerate(evals):
            if part is not None and job.eval_ranks[number] == self.rank:
                valid.append((str(number), self._eval_dataset(part, number, reference, model)))
        self._weights = _metric_weights(train)
        self._connect()
        self.booster = lightgbm.Booster(self.params, train)
        for name, dataset in valid:
            self.booster.add_valid(dataset, name)

    def _eval_dataset(self, part: Any, number: int, reference: Any, model: Any) -> Any:
        rows, weights = RankRows.of(part), self.job.eval_class_weights
        class_weight = weights[number] if weights else None
        return self._dataset(rows, reference, model, None, class_weight)

    def _dataset(
        self,
        rows: RankRows,
        reference: Any,
        model: Any,
        class_weights: np.ndarray | None,
        class_weight: Any = None,
    ) -> Any:
        """Return binned rows; weights of classes multiply those of rows."""
        columns = _columns_of(rows)
        y, weight, qid = columns["y"], columns.get("sample_weight"), columns.get("qid")
        if class_weight is not None:
            factors = compute_sample_weight(class_weight, y)
            weight = factors if weight is None else weight * factors
        if class_weights is not None:
            factors = class_weights[y]
            weight = factors if weight is None else weight * factors
        dataset = lightgbm.Dataset(
            _data_of(rows, reference),
            label=y,
            weight=weight,
            group=None if qid is None else sizes_of_runs(qid),
            init_score=self._scores(rows, model, columns.get("init_score")),
            reference=reference,
            params=reference.get_params(),
        )
        return dataset.construct()

    def _scores(self, rows: RankRows, model: Any, own: np.ndarray | None) -> np.ndarray | None:
        """Return the predictions before the next round; None where LightGBM starts by itself.

        They are summed in the order in which training sums them, for the same last bit.
        """
        own = own if self.job.model is None else None
        if model is None:
            if self.link.start is None:
                return own
            return np.full(rows.n_rows, self.link.start) if own is None else own + self.link.start
        scores, first = [], 0
        for block in rows.blocks():
            options = {"raw_score": True, "num_threads": self.params.get("num_threads", 0)}
            if own is None:
                total = model.predict(block.X, num_iteration=-1, **options)
            else:
                total = np.array(own[first : first + block.n_rows], dtype=np.float64)
                for i in range(model.current_iteration()):
                    total += model.predict(block.X, start_iteration=i, num_iteration=1, **options)
            scores.append(total)
            first += block.n_rows
            report_progress()
        return np.concatenate(scores)

    def _connect(self) -> None:
        """Join the network of all ranks."""
        if self.job.n_ranks == 1:
            return
        self._port.close()
        # Any booster holds the process's network.
        self._network = small_booster()
        try:
            self._network.set_network(
                machines=",".join(self.link.machines),
                local_listen_port=int(self.link.machines[self.rank].rpartition(":")[2]),
                listen_time_out=math.ceil(self.job.timeout / 60),
                num_machines=self.job.n_ranks,
            )
        except lightgbm.basic.LightGBMError as error:
            raise _network_loss(error) from error

    def advance(self, n_rounds: int, takes_snapshot: bool) -> dict[str, Any]:
        """Train some rounds, and return the metrics of this rank's rows.

        Rank 0 returns a snapshot of the model.
        """
        start, log, job = time.perf_counter(), [], self.job
        for _ in range(n_rounds):
            env = CallbackEnv(
                model=self.booster,
                params=self.params,
                iteration=job.n_rounds_before + self.n_done,
                begin_iteration=job.n_rounds_before,
                end_iteration=job.n_rounds_before + job.n_rounds,
                evaluation_result_list=None,
            )
            for callback in job.callbacks:
                callback(env)
            try:
                self.booster.update(fobj=job.objective)
            except lightgbm.basic.LightGBMError as error:
                # The only sign of a lost rank, spelt with and without a capital.
                if "ocket" in str(error):
                    raise _network_loss(error) from error
                raise
            self.n_done += 1
            log.append(self._evaluate())
            report_progress()
        result: dict[str, Any] = {
            "seconds": time.perf_counter() - start,
            "stops": False,
            "log": log,
            "weights": self._weights,
        }
        if takes_snapshot and self.rank == 0:
            result |= {"snapshot": self._text().encode(), "history": None}
        return result

    def _evaluate(self) -> dict[int | None, list[tuple[str, float, bool]]]:
        """Return the metrics of each evaluation set that is here; of training rows as None."""
        metrics, results = list(self.job.metrics), {}
        if None in self.job.eval_ranks:
            results[None] = [tuple(r[1:4]) for r in self.booster.eval_train(metrics)]
        for result in self.booster.eval_valid(metrics):
            results.setdefault(int(result[0]), []).append(tuple(result[1:4]))
        return results

    def _text(self) -> str:
        """Return the model of all rounds."""
        text = self.booster.model_to_string(num_iteration=-1)
        if self.base is not None:
            return join_models(self.base, text)
        return text if self.link.start is None else with_start(text, self.link.start)

    def finish(self, n_rounds: int) -> bytes | None:
        """Return the model on rank 0, with the first rounds of training."""
        if self.job.n_ranks > 1:
            self._network.free_network()
        self._is_finished = True
        if self.rank != 0:
            return None
        return first_rounds(self._text(), self.job.n_rounds_before + n_rounds).encode()


class PartSequence(lightgbm.Sequence):
    """Rows of a part of a block, which is loaded with the first one and freed with the last one."""

    batch_size = BATCH_ROWS

    def __init__(self, rows: RankRows, number: int, categorical: Any) -> None:
        self._rows, self._number, self._categorical = rows, number, categorical
        _, low, high = rows.parts[number]
        self._n_rows, self._X = high - low, None

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, index: Any) -> np.ndarray:
        if self._X is None:
            self._X = self._rows.block(self._number).X
        X = self._X
        batch = X.iloc[index] if is_frame(X) else X[index]
        if isinstance(index, slice) and index.stop >= self._n_rows:
            self._X = None
            report_progress()
        return np.ascontiguousarray(as_floats(batch, self._categorical))


class LocationSequence(lightgbm.Sequence):
    """Rows without values, of which LightGBM's own sample is recorded."""

    def __init__(self, n_rows: int, n_sampled: int) -> None:
        self._n_rows, self._n_sampled = n_rows, n_sampled
        self.numbers: list[int] = []

    def __len__(self) -> int:
        return self._n_rows

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, slice):
            raise _SampledError
        self.numbers.append(int(index))
        if len(self.numbers) >= self._n_sampled:
            raise _SampledError
        return np.array([float(index)])


class _SampledError(Exception):
    """All sampled rows are known."""


def sampled_rows(n_rows: int, params: dict[str, Any], n_sampled: int) -> np.ndarray:
    """Return the numbers of the rows that LightGBM finds bins from, in ascending order."""
    if n_rows <= n_sampled:
        return np.arange(n_rows)
    rows = LocationSequence(n_rows, n_sampled)
    with contextlib.suppress(_SampledError):
        lightgbm.Dataset(rows, label=np.zeros(0), params=params).construct()
    return np.array(rows.numbers, dtype=np.int64)


def small_booster() -> Any:
    """Return a booster of a few rows, in the place of one that is elsewhere."""
    params = {"verbosity": -1, "min_data_in_bin": 1, "min_data_in_leaf": 1}
    rows = np.arange(4.0)
    return lightgbm.Booster(dict(params), lightgbm.Dataset(rows[:, None], rows, params=params))


def as_floats(X: Any, categories: Sequence[Any] | None) -> np.ndarray:
    """Return rows as LightGBM would: categories of a frame as their numbers, NaN where missing."""
    if not is_frame(X):
        return X if X.dtype in (np.float32, np.float64) else X.astype(np.float32)
    X = X.copy(deep=False)
    names = [n for n, dtype in X.dtypes.items() if str(dtype) == "category"]
    if len(names) != len(categories or ()):
        raise ValueError("train and valid dataset categorical_feature do not match.")
    for name, values in zip(names, categories or (), strict=True):
        codes = X[name].cat.set_categories(values).cat.codes
        X[name] = codes.where(codes >= 0).astype(np.float64)
    kinds = [getattr(dtype, "numpy_dtype", dtype) for dtype in X.dtypes]
    target = np.result_type(*kinds, np.float32)
    try:
        return X.to_numpy(dtype=target)
    except (TypeError, ValueError):  # columns with pandas.NA
        return X.to_numpy(dtype=target, na_value=np.nan)


def sizes_of_runs(qid: np.ndarray) -> np.ndarray:
    """Return the number of rows of each run of equal values."""
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(qid)), bool), np.diff(qid) != 0]))
    return np.diff(np.append(starts, len(qid)))


def _data_of(rows: RankRows, reference: Any) -> Any:
    """Return a rank's rows as LightGBM reads them: block by block, or one sparse matrix."""
    blocks = list(rows.filled)
    first = rows.block(blocks[0]).X
    if is_sparse(first):
        parts = [scipy.sparse.csr_matrix(rows.block(number).X) for number in blocks]
        stacked = scipy.sparse.vstack(parts, format="csr")
        return stacked if stacked.dtype in (np.float32, np.float64) else stacked.astype(np.float32)
    return [PartSequence(rows, number, reference.pandas_categorical) for number in blocks]


def _columns_of(rows: RankRows) -> dict[str, np.ndarray]:
    """Return the values of all rows but for those of X, by name."""
    parts: dict[str, list[Any]] = {}
    for block in rows.blocks():
        values = {"y": block.y, "sample_weight": block.sample_weight, **(block.per_sample or {})}
        for name, value in values.items():
            if value is not None:
                parts.setdefault(name, []).append(np.asarray(value))
        report_progress()
    return {name: np.concatenate(values) for name, values in parts.items()}


def _rows_at(X: Any, numbers: np.ndarray) -> Any:
    return X.iloc[numbers] if is_frame(X) else X[numbers]


def _metric_weights(dataset: Any) -> tuple[float, float]:
    """Return the weight of rows in means of metrics, and that of queries."""
    weight, group = dataset.get_weight(), dataset.get_group()
    n_rows = float(dataset.num_data())
    total = n_rows if weight is None else float(np.sum(weight, dtype=np.float64))
    if group is None:
        return total, total
    if weight is None:
        return total, float(len(group))
    starts = np.concatenate([[0], np.cumsum(group)[:-1]])
    return total, float(np.sum(np.add.reduceat(weight, starts) / group))


def _network_loss(error: Exception) -> ObjectLostError:
    """Return the error by which the driver starts all ranks anew."""
    return ObjectLostError(f"LightGBM's network failed: {error}")
