"""What the estimators of boosting libraries share: rows of any container, and plain models."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from skfleet._captured_output import capture_output, output_replayer, process_token
from skfleet._doc_link import DocumentationLink
from skfleet.blocks import (
    Block,
    BlockRef,
    RowBlocks,
    check_rows,
    compute_together,
    concat_rows,
    is_lazy,
    meta_of,
    open_block,
    row_blocks,
    size_of,
    warn_of_trip,
)
from skfleet.engine import LocalLauncher, engine_for
from skfleet.estimators._base import check_two_dims
from skfleet.estimators._device_dispatch import unchanged_on_failure
from skfleet.estimators.boosting._checkpoint import BoostingCheckpoint
from skfleet.estimators.boosting._rank_training import Outcome, RankTraining, Snapshot
from skfleet.estimators.boosting._row_survey import (
    StoredRows,
    count_ranks,
    survey_block,
    with_united_categories,
)
from skfleet.inference import call_method, constant_per_row
from skfleet.metrics import check_scoring

logger = logging.getLogger("skfleet.estimators")

# Parameters of this project, which the libraries are not given.
OWN_PARAMETERS = ("checkpoint", "checkpoint_interval", "timeout", "max_retries")
# Rows of fewer bytes are fitted by the library itself, on one worker; and of the blocks of unknown
# size, which that worker loads one after the other until they are too large.
ONE_WORKER_BYTES, MAX_SMALL_BLOCKS = 16 * 2**20, 8
# Share of a worker's memory that a rank may take.
MEMORY_SHARE = 0.8


class BoostedEstimator(DocumentationLink):
    """Base of estimators that are a library's own for rows in this process.

    On Dask rows ``fit`` trains on all workers.
    """

    checkpoint: Any
    checkpoint_interval: Any
    timeout: float
    max_retries: int

    @classmethod
    def _library_class(cls) -> Any:
        """Return the library's class that this one is derived from."""
        return next(c for c in cls.__mro__ if not c.__module__.startswith("skfleet."))

    def _plain(self) -> Any:
        """Return an unfitted estimator of the library's class, with the same parameters."""
        params = self.get_params(deep=False)
        return self._library_class()(
            **{name: value for name, value in params.items() if name not in OWN_PARAMETERS}
        )

    def _learned(self, fitted: Any) -> dict[str, Any]:
        """Return what ``fit`` of an estimator of the library's class has set."""
        before = vars(self._plain())
        return {name: value for name, value in vars(fitted).items() if name not in before}

    # What this class learns beside the library's.
    _own_attributes: tuple[str, ...] = ()
    # All that the last ``fit`` has learned.
    _learned_names: tuple[str, ...] = ()

    def to_sklearn(self) -> Any:
        """Return a fitted estimator of the library's own class.

        Returns
        -------
        estimator : estimator
            With the same parameters and the same booster.
        """
        check_is_fitted(self)
        plain = self._plain()
        own = self._own_attributes
        vars(plain).update({n: getattr(self, n) for n in self._learned_names if n not in own})
        return plain

    def _take(self, state: dict[str, Any]) -> None:
        """Set what a ``fit`` has learned, in the place of what an earlier one has."""
        for name in self._learned_names:
            delattr(self, name)
        vars(self).update(state)
        self._learned_names = tuple(state)

    def _check_own_parameters(self) -> None:
        """Raise for invalid parameters of this project."""
        interval = self.checkpoint_interval
        if interval != "auto" and not (_is_number(interval, Integral) and interval > 0):
            raise ValueError(
                "checkpoint_interval must be 'auto' or a number of rounds. Got "
                f"{interval!r} instead. Leave it at 'auto'."
            )
        if not (_is_number(self.timeout, Real) and self.timeout > 0):
            raise ValueError(
                f"timeout must be a positive number of seconds. Got {self.timeout!r} instead."
            )
        if not (_is_number(self.max_retries, Integral) and self.max_retries >= 0):
            raise ValueError(
                f"max_retries must be a number of losses, 0 or more. Got {self.max_retries!r} "
                "instead."
            )

    def _map(self, X: Any, method: str, **params: Any) -> Any:
        """Return the answer of a method to Dask rows, lazily."""
        check_rows(X=X)
        check_is_fitted(self)
        for name, value in params.items():
            if is_lazy(value) or len(getattr(value, "shape", ())):
                raise ValueError(
                    f"{name} must be None for Dask rows in {method}. Got {type(value).__name__} "
                    "instead. Take to_sklearn() and X.map_blocks."
                )
        return call_method(self, self, method, X, **params)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of a classifier, r2 of a regressor.

        Parameters
        ----------
        X : rows in any container, of shape (n_samples, n_features)
            Rows to predict.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            True values.
        sample_weight : array-like, Dask array or Dask Series of shape (n_samples,), default=None
            Weights.

        Returns
        -------
        score : float
            The higher the better.
        """
        check_rows(X=X, y=y, sample_weight=sample_weight)
        if is_lazy(X):
            return check_scoring(self)(self, X, y, sample_weight)
        return super().score(X, y, sample_weight=sample_weight)

    def _fit(self, request: FitRequest) -> Any:
        """Fit on rows in any container."""
        check_rows(X=request.X, y=request.y, sample_weight=request.sample_weight)
        if is_lazy(request.X):
            return self._fit_on_blocks(request)
        warn_of_trip(request.X, request.y, request.sample_weight)
        logger.debug("%s is fitted in this process", type(self).__name__)
        with unchanged_on_failure(self):
            self._fit_plain(request.computed())
        return self

    def _fit_plain(self, request: FitRequest) -> None:
        """Fit the library's estimator on rows of this process, and take over what it learns."""
        raise NotImplementedError

    def _check_request(self, request: FitRequest) -> None:
        """Raise, before any task, for arguments that the library would not take."""
        raise NotImplementedError

    def _train(
        self,
        launcher: Any,
        stored: StoredRows,
        evals: list[StoredRows | None],
        request: FitRequest,
        n_ranks: int,
        fits_in_memory: bool,
    ) -> None:
        """Train on ranks, and set the fitted attributes."""
        raise NotImplementedError

    # 1. Rows that one worker holds easily are fitted there by the library itself.
    # 2. Others are stored on the workers' disks, and surveyed: lengths, labels, categories.
    # 3. The driver checks what it has learned, and deals the rows to ranks.
    # 4. The ranks train, in processes beside the workers; without a cluster one does, here.
    def _fit_on_blocks(self, request: FitRequest) -> Any:
        with unchanged_on_failure(self), ExitStack() as stack:
            self._check_own_parameters()
            check_two_dims(meta_of(request.X))
            self._check_request(request)
            rows = request.row_blocks()
            engine = engine_for(rows, self)
            if self._fit_on_one_worker(engine, rows, request):
                return self
            if engine.is_local:
                rows = stack.enter_context(engine.persist(rows))
                launcher: Any = LocalLauncher(engine, self._rank_class())
            else:
                from skfleet.engine import ProcessLauncher

                launcher = ProcessLauncher(
                    engine,
                    self._rank_class(),
                    timeout=self.timeout,
                    name=type(self).__name__,
                    n_threads=self._n_threads(),
                )
            stored = self._store(launcher, rows.blocks)
            evals = [
                None if part is None else self._store(launcher, part.row_blocks().blocks)
                for part in request.eval_parts or ()
            ]
            self._check_stored(stored, evals)
            n_ranks = count_ranks(launcher.n_workers, stored)
            logger.info(
                "%s is trained on %d rows by %d ranks", type(self).__name__, stored.n_rows, n_ranks
            )
            fits = self._fits_in_memory(launcher, stored, evals, request, n_ranks)
            self._train(launcher, stored, evals, request, n_ranks, fits)
        return self

    def _fits_in_memory(
        self,
        launcher: Any,
        stored: StoredRows,
        evals: list[StoredRows | None],
        request: FitRequest,
        n_ranks: int,
    ) -> bool:
        """Return whether a worker can hold a rank's binned rows, and blocks on their way there."""
        n_outputs = max(1, len(stored.labels) if len(stored.labels) > 2 else 1)
        n_rows = -(-stored.n_rows // n_ranks)
        n_rows += max((part.n_rows for part in evals if part is not None), default=0)
        width = meta_of(request.X).shape[1]
        block = max(survey.n_bytes for survey in stored.surveys)
        n_bytes = self._binned_bytes(n_rows, width, n_outputs) + 2 * block
        limit = launcher.engine.memory_limit
        logger.debug("a rank takes about %.0f MB of %.0f", n_bytes / 1e6, limit / 1e6)
        return n_bytes <= MEMORY_SHARE * limit

    def _binned_bytes(self, n_rows: int, n_features: int, n_outputs: int) -> int:
        """Return an estimate of the memory that a rank's binned rows take in training."""
        raise NotImplementedError

    def _store(self, launcher: Any, blocks: Any) -> StoredRows:
        """Store blocks on the workers, and survey them."""
        engine, has_labels = launcher.engine, is_classifier(self)
        stored = launcher.store(blocks)
        surveys = engine.gather(engine.map(survey_block, stored, has_labels, name="survey-block"))
        filled = [i for i, survey in enumerate(surveys) if survey.n_rows]
        if not filled:
            raise ValueError("X must have at least one row. Got none instead.")
        return StoredRows([stored[i] for i in filled], [surveys[i] for i in filled])

    def _check_stored(self, stored: StoredRows, evals: list[StoredRows | None]) -> None:
        """Raise for targets that the library could not learn."""
        for name, part in [
            ("y", stored),
            *((f"y of eval_set[{i}]", e) for i, e in enumerate(evals)),
        ]:
            if part is not None and any(survey.has_missing_y for survey in part.surveys):
                raise ValueError(
                    f"{name} must have a finite value in every row. Got NaN or infinity instead. "
                    "Drop the rows that have none: X[y.notnull()] of a frame."
                )
        if not is_classifier(self):
            return
        for i, part in enumerate(evals):
            unknown = [] if part is None else np.setdiff1d(part.labels, stored.labels)
            if len(unknown):
                raise ValueError(
                    f"y of eval_set[{i}] must have labels of the training rows. Got "
                    f"{unknown[0]!r} instead, which no training row has."
                )

    def _run(
        self,
        launcher: Any,
        library: Any,
        stored: StoredRows,
        evals: list[StoredRows | None],
        n_rounds: int,
        monitor: Any,
        n_ranks: int,
    ) -> Outcome:
        """Train on ranks, and record how that went."""
        checkpoint = None
        if self.checkpoint is not None:
            inputs = {
                "parameters": library.parameters,
                "rows": stored.fingerprint,
                "eval_set": [part and part.fingerprint for part in evals],
            }
            checkpoint = BoostingCheckpoint(self.checkpoint, inputs, Snapshot)
        training = RankTraining(
            launcher,
            library,
            stored,
            evals,
            n_rounds,
            monitor,
            n_ranks,
            self.max_retries,
            self.checkpoint_interval,
            checkpoint,
            library.rank_options(stored),
        )
        return training.run()

    def _fit_on_one_worker(self, engine: Any, rows: RowBlocks, request: FitRequest) -> bool:
        """Fit small rows by the library itself, in one task; return whether they were small."""
        parts = [rows, *(part.row_blocks() for part in request.requests[1:])]
        known = [part.n_bytes for part in parts if part.n_bytes is not None]
        n_blocks = sum(len(part.blocks) for part in parts)
        if self.checkpoint is not None or sum(known) > ONE_WORKER_BYTES:
            return False
        if len(known) < len(parts) and n_blocks > MAX_SMALL_BLOCKS:
            return False
        has_rows = None
        if request.eval_parts is not None:
            has_rows = [part is not None for part in request.eval_parts]
        with output_replayer(lambda: 1) as replay:
            task = engine.submit(
                fit_small,
                process_token(),
                self,
                [list(part.blocks) for part in parts],
                has_rows,
                request.options,
                name=f"fit-{type(self).__name__}",
            )
            ((learned, notes),) = engine.gather([task])
            replay(notes)
        if learned is None:
            return False
        logger.info("%s is fitted on one worker, which holds all rows", type(self).__name__)
        self._take(learned)
        return True


class FitRequest:
    """The rows, values per row, evaluation sets and other arguments of a ``fit``.

    The evaluation sets are requests themselves, None for the training rows.
    """

    def __init__(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        per_sample: dict[str, Any] | None = None,
        eval_parts: list[FitRequest | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.X, self.y, self.sample_weight = X, y, sample_weight
        self.per_sample = {k: v for k, v in (per_sample or {}).items() if v is not None}
        self.eval_parts, self.options = eval_parts, options or {}
        self.query_weights: Any = None  # of a ranker, whose rows have none

    @classmethod
    def of_blocks(
        cls, train: Block, evals: list[Block | None] | None, options: dict[str, Any]
    ) -> FitRequest:
        """Return the request of rows in memory."""
        parts = None
        if evals is not None:
            parts = [
                None if b is None else cls(b.X, b.y, b.sample_weight, b.per_sample) for b in evals
            ]
        return cls(train.X, train.y, train.sample_weight, train.per_sample, parts, options)

    @property
    def requests(self) -> list[FitRequest]:
        """The request itself and those of the evaluation sets that are no training rows."""
        return [self, *(part for part in self.eval_parts or () if part is not None)]

    def computed(self) -> FitRequest:
        """Return the request with all values in this process, computed in one graph."""
        columns = [(r.X, r.y, r.sample_weight, *r.per_sample.values()) for r in self.requests]
        values = iter(compute_together(*(value for column in columns for value in column)))
        results = []
        for request in self.requests:
            X, y, weight = (next(values) for _ in range(3))
            per_sample = {name: next(values) for name in request.per_sample}
            results.append(FitRequest(X, y, weight, per_sample, None, request.options))
        result, *others = results
        if self.eval_parts is not None:
            remaining = iter(others)
            result.eval_parts = [p if p is None else next(remaining) for p in self.eval_parts]
        return result

    def row_blocks(self) -> RowBlocks:
        """Return blocks in the containers of the rows, whose values the library checks."""
        weight = self.sample_weight
        if isinstance(weight, Real) and is_lazy(self.X):
            weight = constant_per_row(float(weight), self.X)
        rows = row_blocks(self.X, self.y, weight, per_sample=self.per_sample, dtype=None)
        return replace(rows, checked=True)


def fit_small(
    origin: str,
    estimator: Any,
    parts: list[list[BlockRef]],
    has_rows: list[bool] | None,
    options: dict[str, Any],
) -> tuple[dict[str, Any] | None, Any]:
    """Fit an estimator on the blocks of the training rows, and those of evaluation sets.

    An evaluation set without rows of its own is the training rows. Return what the estimator has
    learned, None where the blocks are too large; and the captured output.
    """
    n_bytes, joined = 0, []
    for part in parts:
        opened = []
        for block_ref in part:
            block = open_block(block_ref)
            n_bytes += size_of(block)
            if n_bytes > ONE_WORKER_BYTES:
                return None, []
            opened.append(block)
        joined.append(concat_rows(with_united_categories(opened)))
    evals = iter(joined[1:])
    eval_blocks = None
    if has_rows is not None:
        eval_blocks = [next(evals) if has_own else None for has_own in has_rows]
    with capture_output(origin) as notes:
        estimator._fit_plain(FitRequest.of_blocks(joined[0], eval_blocks, options))
    names = estimator._learned_names
    return {name: getattr(estimator, name) for name in names}, notes


def with_validation_set(eval_set: Any, X_val: Any, y_val: Any) -> Any:
    """Return the evaluation sets of either way to name them, or raise for both."""
    if X_val is None and y_val is None:
        return eval_set
    if eval_set is not None or X_val is None or y_val is None:
        raise ValueError(
            "X_val and y_val must come together, and without eval_set. Got "
            f"{'both ways' if eval_set is not None else 'one of them'} instead. Name the "
            "validation rows in one way."
        )
    return [(X_val, y_val)]


def check_eval_set(eval_set: Any, X: Any, per_set: dict[str, Any]) -> None:
    """Raise for evaluation sets that do not fit the rows, or values for another number of sets."""
    if eval_set is not None:
        if not isinstance(eval_set, list | tuple) or any(len(pair) != 2 for pair in eval_set):
            raise ValueError(
                "eval_set must be a list of pairs (X, y). Got "
                f"{type(eval_set).__name__} of other things instead."
            )
        n_features = _width_of(X)
        for i, (X_eval, _) in enumerate(eval_set):
            width = _width_of(X_eval)
            if None not in (width, n_features) and width != n_features:
                raise ValueError(
                    f"eval_set[{i}] must have the columns of X, {n_features}. Got {width} instead."
                )
    for name, values in per_set.items():
        if values is not None and len(values) != len(eval_set or ()):
            raise ValueError(
                f"{name} must have an entry for each evaluation set. Got {len(values)} of "
                f"{len(eval_set or ())} instead."
            )


def _width_of(X: Any) -> int | None:
    return X.shape[1] if len(getattr(X, "shape", ())) == 2 else None


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
