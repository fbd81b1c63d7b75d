"""Base of the estimators of boosting libraries: rows of any container, and plain models."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from skfleet._display import count
from skfleet._doc_link import DocumentationLink
from skfleet.blocks import Block, RowBlocks, check_rows, is_lazy, meta_of, warn_of_trip
from skfleet.engine import LocalLauncher, engine_for, limit_threadpools, run_in_one_task
from skfleet.estimators._fleet_estimator import check_two_dims
from skfleet.estimators._method_dispatch import unchanged_on_failure
from skfleet.estimators.boosting._checkpoint import BoostingCheckpoint
from skfleet.estimators.boosting._fit_inputs import FitInputs
from skfleet.estimators.boosting._rank_training import RankTraining, Snapshot
from skfleet.estimators.boosting._row_survey import (
    StoredRows,
    count_ranks,
    survey_block,
)
from skfleet.inference import call_method
from skfleet.metrics import check_scoring

logger = logging.getLogger("skfleet.estimators")

# Parameters of this project, which the libraries are not given.
OWN_PARAMETERS = ("checkpoint", "checkpoint_interval", "timeout", "max_retries")
# Rows of fewer bytes are fitted by the library itself, in one task with the threads of a machine:
# 20 rounds on 32 MB of them take two threads .6 to .8 s so, and .8 to 1.1 s in a rank.
ONE_WORKER_BYTES = 32 * 2**20
# Fraction of a worker's memory that a rank may take.
MEMORY_FRACTION = 0.8


class BoostedEstimator(DocumentationLink):
    """Base of estimators that are a library's own for rows in this process.

    On Dask rows ``fit`` trains on all machines of a cluster.
    """

    def __init__(
        self,
        *,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_interval: Any = "auto",
        timeout: float = 300,
        max_retries: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint = checkpoint
        self.checkpoint_interval = checkpoint_interval
        self.timeout = timeout
        self.max_retries = max_retries

    # The library, by the name of its package.
    _library: str
    _has_processes = True

    @classmethod
    def _library_class(cls) -> Any:
        """Return the library's class that this one is derived from."""
        return next(c for c in cls.__mro__ if c.__module__.split(".")[0] == cls._library)

    def _plain(self) -> Any:
        """Return an unfitted estimator of the library's class, with the same parameters."""
        params = self.get_params(deep=False)
        return self._library_class()(
            **{name: value for name, value in params.items() if name not in OWN_PARAMETERS}
        )

    def _learned(self, fitted: Any) -> dict[str, Any]:
        """Return what ``fit`` of an estimator of the library's class has set."""
        before, parameters = vars(self._plain()), self.get_params(deep=False)
        return {
            name: value
            for name, value in vars(fitted).items()
            if name not in before or (name not in parameters and value is not before[name])
        }

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
        before = vars(self._plain())
        for name in self._learned_names:
            if name in before:
                setattr(self, name, before[name])
            else:
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

    def _n_threads(self) -> int | None:
        """Return the threads that users allow a rank; None for those of its worker."""
        return self.n_jobs if self.n_jobs and self.n_jobs > 0 else None

    def _has_gpu(self) -> bool:
        """Return whether each rank trains on a GPU, that of its worker."""
        return False

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

    def _fit(self, inputs: FitInputs) -> Any:
        """Fit on rows in any container."""
        check_rows(X=inputs.X, y=inputs.y, sample_weight=inputs.sample_weight)
        if is_lazy(inputs.X):
            return self._fit_on_blocks(inputs)
        if self.checkpoint is not None:
            raise ValueError(
                "checkpoint must be None for rows of this process, which are trained on by the "
                f"library's own fit. Got {self.checkpoint!r} instead. Fit on Dask rows, "
                "dask.array.from_array(X) say."
            )
        warn_of_trip(inputs.X, inputs.y, inputs.sample_weight)
        logger.debug("%s is fitted in this process", type(self).__name__)
        with unchanged_on_failure(self):
            self._fit_plain(inputs.computed())
        return self

    def _fit_plain(self, inputs: FitInputs, n_threads: int | None = None) -> None:
        """Fit the library's estimator on rows of this process, and take over what it learns.

        `n_threads` is for libraries that count the cores themselves.
        """
        raise NotImplementedError

    def _check_inputs(self, inputs: FitInputs) -> None:
        """Raise, before any task, for arguments that the library would not take."""
        raise NotImplementedError

    def _train(
        self,
        launcher: Any,
        stored: StoredRows,
        evals: list[StoredRows | None],
        inputs: FitInputs,
        n_ranks: int,
        fits_in_memory: bool,
    ) -> None:
        """Train on ranks, and set the fitted attributes."""
        raise NotImplementedError

    # 1. Rows that one worker holds easily are fitted there by the library itself.
    # 2. Others are stored on the workers' disks, and surveyed: lengths, labels, categories.
    # 3. The driver checks what it has learned, and deals the rows to ranks.
    # 4. The ranks train, in processes beside the workers; without a cluster one does, here.
    def _fit_on_blocks(self, inputs: FitInputs) -> Any:
        with unchanged_on_failure(self), ExitStack() as stack:
            # Everything that can be refused without a task.
            self._check_own_parameters()
            check_two_dims(meta_of(inputs.X))
            self._check_inputs(inputs)
            rows = inputs.row_blocks()
            engine = engine_for(rows, self)
            if self._fit_on_one_worker(engine, rows, inputs):
                return self
            # Where the ranks run: in this process, or beside the workers, on GPUs inside them.
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
                    in_workers=self._has_gpu(),
                )
            # Rows are stored once: ranks that start again after a loss read them from the disks.
            launcher.preload()
            stored = self._store(launcher, rows.blocks)
            evals = [
                None if part is None else self._store(launcher, part.row_blocks().blocks)
                for part in inputs.eval_parts or ()
            ]
            self._check_stored(stored, evals)
            # Blocks are not divided among ranks before their lengths are known.
            n_ranks = count_ranks(len(launcher.threads), stored)
            ranks = count(n_ranks, "rank")
            logger.info("%s is trained on %d rows by %s", type(self).__name__, stored.n_rows, ranks)
            fits = self._fits_in_memory(launcher, stored, evals, inputs, n_ranks)
            self._train(launcher, stored, evals, inputs, n_ranks, fits)
        return self

    def _fits_in_memory(
        self,
        launcher: Any,
        stored: StoredRows,
        evals: list[StoredRows | None],
        inputs: FitInputs,
        n_ranks: int,
    ) -> bool:
        """Return whether a machine can hold a rank's binned rows, and blocks on their way there."""
        n_outputs = len(stored.labels) if len(stored.labels) > 2 else 1
        n_eval = max((part.n_rows for part in evals if part is not None), default=0)
        width = meta_of(inputs.X).shape[1]
        block = max(survey.n_bytes for survey in stored.surveys)
        density = stored.n_values / max(1, stored.n_rows * width)
        threads = launcher.threads[:n_ranks]
        for n_threads, limit in zip(threads, launcher.memory_limits, strict=False):
            n_rows = -(-stored.n_rows * n_threads // sum(threads)) + n_eval
            n_bytes = self._binned_bytes(n_rows, width, n_outputs, density) + 2 * block
            logger.debug("a rank takes about %.0f MB of %.0f", n_bytes / 1e6, limit / 1e6)
            if n_bytes > MEMORY_FRACTION * limit:
                return False
        return True

    def _binned_bytes(self, n_rows: int, n_features: int, n_outputs: int, density: float) -> float:
        """Return an estimate of the memory that a rank's binned rows take in training.

        `density` is the fraction of values that are not missing.
        """
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
    ) -> bytes:
        """Train on ranks, and return the booster as the library's ranks send it."""
        checkpoint = None
        if self.checkpoint is not None:
            inputs = {
                "parameters": library.parameters,
                "rows": stored.fingerprint,
                "eval_set": [part and part.fingerprint for part in evals],
            }
            checkpoint = BoostingCheckpoint(self.checkpoint, inputs, Snapshot)
        return RankTraining(
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
        ).run()

    def _threads_of_task(self, engine: Any) -> int | None:
        """Return the threads of a fit in one task: those of a rank, alone on its machine."""
        if engine.is_local or self._has_gpu():
            return None
        from skfleet.engine import threads_of_machine

        return self._n_threads() or threads_of_machine(engine)

    def _fit_on_one_worker(self, engine: Any, rows: RowBlocks, inputs: FitInputs) -> bool:
        """Fit small rows by the library itself, in one task; return whether they were small."""
        if self.checkpoint is not None:
            return False
        parts = [rows, *(part.row_blocks() for part in inputs.sets[1:])]
        fit = partial(_fit_plain, self, inputs.without_rows(), self._threads_of_task(engine))
        name = type(self).__name__
        learned = run_in_one_task(engine, fit, parts, limit=ONE_WORKER_BYTES, name=f"fit-{name}")
        if learned is None:
            return False
        logger.info("%s is fitted on one worker, which holds all rows", name)
        self._take(learned)
        return True


def _fit_plain(
    estimator: Any, inputs: FitInputs, n_threads: int | None, blocks: Sequence[Block]
) -> dict[str, Any]:
    """Fit an estimator in a task, on these rows of the inputs; return what it has learned."""
    with nullcontext() if n_threads is None else limit_threadpools(n_threads):
        estimator._fit_plain(inputs.with_rows(blocks), n_threads)
    return {name: getattr(estimator, name) for name in estimator._learned_names}


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
