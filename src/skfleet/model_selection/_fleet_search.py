"""Mixin that runs scikit-learn's searches on a fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Self

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data

from skfleet._captured_output import deduplicate_warnings
from skfleet._config import config_context
from skfleet._doc_link import DocumentationLink
from skfleet._method_override import override_method, restore_method
from skfleet._typing import Rows, Values
from skfleet._validation import check_in_interval
from skfleet._warnings import warn
from skfleet.blocks import (
    Block,
    as_sized,
    block_bytes,
    check_rows,
    compute_chunk_sizes,
    compute_together,
    is_lazy,
    meta_of,
    row_blocks,
)
from skfleet.engine import (
    CandidateDevices,
    check_fits_in_memory,
    device_of,
    fit_on_gpu_worker,
    fleet_engine,
    rows_cached_on_workers,
    with_known_lengths,
)
from skfleet.metrics import check_scorer
from skfleet.model_selection._checkpoint import RUN_PARAMETERS, Checkpoint
from skfleet.model_selection._dispatch._blockwise_steps import (
    fit_last_step,
    fit_on_gathered_rows,
    n_blockwise_steps,
    n_steps_of,
)
from skfleet.model_selection._dispatch._context import SearchContext, current_context, is_running
from skfleet.model_selection._dispatch._sequential_fits import SequentialFits
from skfleet.model_selection._dispatch._split_views import (
    as_indexable,
    collection_of,
    collections_of,
)
from skfleet.model_selection._early_stopping import (
    ValidationRows,
    best_iterations,
    check_candidates,
    check_early_stopping,
    prepare_refit,
)
from skfleet.model_selection._evaluations import CandidateResults, LaterIteration, set_results
from skfleet.model_selection._plot import plot_search


class FleetSearchMixin(DocumentationLink):
    """Mixin for scikit-learn's searches: rows, checkpoint, joblib backend, refit on a GPU."""

    estimator: Any
    n_jobs: int | None
    refit: Any
    scoring: Any
    share_fits: bool | str
    checkpoint: Any
    time_budget: float | None = None
    early_stopping: float | str | None
    verbose: int
    n_splits_: int
    best_index_: int
    get_params: Callable[..., dict[str, Any]]

    def __init__(self, **params: Any) -> None:
        for name in ("share_fits", "checkpoint", "time_budget", "early_stopping"):
            if name in params:
                setattr(self, name, params.pop(name))
        super().__init__(**params)

    def fit(self, X: Rows, y: Values | None = None, **params: Any) -> Self:
        """Fit and score every candidate on every split, on the workers of the fleet.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Training data. Dask collections stay on the workers for estimators of this library; for
            others they are computed in the calling process, and scattered to each worker once.
        y : array-like, Dask array or Dask Series of shape (n_samples,) or \
                (n_samples, n_outputs), default=None
            Targets; None for unsupervised learning. Labels are computed in the calling process.
        **params : dict of str -> object
            Parameters for the estimator, the scorer and the splitter: ``groups``,
            ``sample_weight``, or the metadata that they request.

        Returns
        -------
        self : object
            Fitted search.
        """
        is_bool = isinstance(self.share_fits, (bool, np.bool_))
        if not is_bool and not _is_approximate(self.share_fits):
            raise ValueError(
                f"share_fits must be True, False or 'approximate'. Got {self.share_fits!r} "
                "instead. Leave it out for the scores of separate fits, and give 'approximate' "
                "where scores within the tolerance of a solver will do."
            )
        if self.time_budget is not None:
            check_in_interval("time_budget", self.time_budget, 0, open="l")
        self._check_rows(X, y)
        check_scorer(self.scoring)
        check_early_stopping(self, y, params)
        with _fleet_backend():
            original = {"X": X, "y": y, **params}
            X, y, params = self._prepare_rows(X, y, params)
            prepared = {"X": X, "y": y, **params}
            # Lazy rows whose chunk sizes were computed have other tokens than the original ones.
            checkpoint = self._open_checkpoint(
                {name: original[name] if is_lazy(v) else v for name, v in prepared.items()}
            )
            n_recorded = 0 if checkpoint is None else len(checkpoint.results)
            run = SearchContext(
                share_fits=bool(self.share_fits) if is_bool else self.share_fits,
                records=checkpoint,
                time_budget=self.time_budget,
                validation_rows=ValidationRows.of(self, params, is_lazy=is_lazy(X)),
                fit_in_driver=is_lazy(X),
                verbose=self.verbose,
                name=type(self).__name__,
                refits=bool(self.refit),
                gathered_bytes=self._n_gathered_bytes(original["X"], X),
            )
            try:
                with (
                    deduplicate_warnings(),
                    run(),
                    rows_cached_on_workers(X, run.device_cache),
                    self._sequential_fits(),
                ):
                    rows = {name: as_indexable(values) for name, values in params.items()}
                    super().fit(as_indexable(X), as_indexable(y), **rows)  # type: ignore[misc]
            except KeyboardInterrupt:
                if set_results(self, run.evaluations):
                    self._set_uses(run)
                raise KeyboardInterrupt from None  # the traceback shows only where it waited
            self._set_uses(run)
        if n_recorded and not run.n_checkpoint_fits:
            warn(
                f"checkpoint={self.checkpoint!r} has {n_recorded} fits, and none of them was asked "
                "for: other candidates were drawn, or other splits. Give random_state a number, "
                "and the splitter.",
                UserWarning,
            )
        return self

    def _check_rows(self, X: Any, y: Any) -> None:
        """Raise for invalid rows and targets, before any work."""
        check_rows(X=X, y=y)
        if is_lazy(X) and hasattr(X, "columns"):  # the splits have no column names
            validate_data(BaseEstimator(), meta_of(X), skip_check_array=True)
        for name, values in {"X": X, "y": y}.items():
            if not is_lazy(values) and (values is not None or name == "X"):
                as_sized(name, values)
        # estimators of other libraries may have no tags
        has_tags = hasattr(self.estimator, "__sklearn_tags__")
        if y is None and has_tags and get_tags(self.estimator).target_tags.required:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None. Pass y."
            )

    def score(self, X: Rows, y: Values | None = None, **params: Any) -> float:
        """Score the best estimator by the metric that `refit` names.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Test data.
        y : array-like, Dask array or Dask Series of shape (n_samples,) or \
                (n_samples, n_outputs), default=None
            True labels or targets.
        **params : dict
            Further parameters of the scorer, with metadata routing.

        Returns
        -------
        score : float
            The higher the better.
        """
        check_rows(X=X, y=y)
        return super().score(X, y, **params)  # type: ignore[misc]

    def _set_uses(self, run: SearchContext) -> None:
        """Set the attributes on shared fits, workers and checkpoint."""
        self.shared_fits_ = run.sharing.uses()
        self.timeline_ = tuple(run.timeline)
        self.n_checkpoint_fits_ = run.n_checkpoint_fits

    def plot(self, scoring: str | None = None) -> np.ndarray:
        """Draw the scores over the parameters, and the fits of each worker over time.

        Needs matplotlib.

        Parameters
        ----------
        scoring : str, default=None
            Name of the metric; by default the one that ``refit`` names, or the first.

        Returns
        -------
        axes : ndarray of matplotlib.axes.Axes of shape (2,)
            Scores, and fits. ``axes[0].figure`` is the figure.

        Raises
        ------
        ImportError
            Without matplotlib.
        ValueError
            When there is no such score.
        """
        return plot_search(self, scoring)

    def _prepare_rows(
        self, X: Any, y: Any, params: dict[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Compute Dask collections, unless the estimator is fitted on them blockwise.

        Labels and groups are computed in any case, for the splitter.
        """
        keep_lazy = is_lazy(X) and n_blockwise_steps(self.estimator) > 0
        if keep_lazy and not getattr(_joblib_backend(), "supports_fit_planning", False):
            raise ValueError(
                "X must be in this process under another backend of joblib. Got a Dask collection "
                'instead. Use parallel_config("skfleet").'
            )
        if not keep_lazy:
            if is_lazy(X):
                check_fits_in_memory(row_blocks(X, dtype=None), type(self.estimator).__name__)
            X, y, *values = compute_together(X, y, *params.values())
            return X, y, dict(zip(params, values, strict=True))
        arrays = {"X": X, "y": y, **params}
        lazy = [name for name, value in arrays.items() if is_lazy(value)]
        # of a frame the columns keep their names and types
        with_lengths = with_known_lengths if hasattr(X, "columns") else compute_chunk_sizes
        arrays |= zip(lazy, with_lengths(*(arrays[name] for name in lazy)), strict=True)
        labels = ("y", "groups") if is_classifier(self.estimator) else ("groups",)
        computed = [name for name in labels if name in lazy]
        arrays |= zip(computed, compute_together(*(arrays[name] for name in computed)), strict=True)
        return arrays.pop("X"), arrays.pop("y"), arrays

    @staticmethod
    def _n_gathered_bytes(original: Any, X: Any) -> int:
        """Return the bytes of rows that were on Dask and are in this process."""
        return block_bytes(Block(X)) if is_lazy(original) and not is_lazy(X) else 0

    def _later_iterations(
        self, n_candidates: int, more_results: Mapping[str, Any]
    ) -> list[LaterIteration]:
        """Return the iterations that follow that of some candidates."""
        return []

    def _open_checkpoint(self, rows: dict[str, Any]) -> Checkpoint | None:
        """Open the checkpoint of this search, or raise."""
        needs_fleet = {"checkpoint": self.checkpoint, "time_budget": self.time_budget}
        name = next((name for name, value in needs_fleet.items() if value is not None), None)
        if name is not None and self._backend() is None:
            raise ValueError(
                f"{name} must be used with fits that a fleet makes. Got n_jobs=1 or "
                "another backend of joblib instead. Leave n_jobs out, or use "
                'parallel_config("skfleet").'
            )
        if self.checkpoint is None:
            return None
        params = self.get_params(deep=False).items()
        search = {name: value for name, value in params if name not in RUN_PARAMETERS}
        # the scores with share_fits=True are those with share_fits=False
        search["share_fits"] = "approximate" if _is_approximate(self.share_fits) else True
        cv = search.get("cv")
        if not hasattr(cv, "__getitem__") and hasattr(cv, "__next__"):
            del search["cv"]  # hashing a generator would consume it
        return Checkpoint(self.checkpoint, {**search, **rows})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; prepare the refit of ``best_estimator_``, on Dask rows or a GPU worker.

        scikit-learn has no hook for the refit, as of 1.9: it sets the attribute, and calls ``fit``
        in the next line. Estimators of this library find a GPU worker themselves.
        """
        is_refit = name == "best_estimator_" and is_running()
        if is_refit and current_context().validation_rows is not None:
            best = self._best_iterations()["best_iteration"]
            prepare_refit(value, float(best[self.best_index_]))
        if is_refit:
            is_skfleet = type(value).__module__.startswith("skfleet.")
            is_remote = not is_skfleet and self._backend() is not None
            if current_context().fit_in_driver or (is_remote and device_of(value) == "cuda"):
                override_method(value, "fit", partial(self._refit, value))
        super().__setattr__(name, value)

    def _backend(self) -> Any:
        """Return the joblib backend if it schedules the fits of searches; None with n_jobs=1."""
        backend = _joblib_backend()
        is_planned = getattr(backend, "supports_fit_planning", False)
        return backend if is_planned and joblib.effective_n_jobs(self.n_jobs) != 1 else None

    @contextmanager
    def _sequential_fits(self) -> Iterator[None]:
        """Make fits on Dask rows, or with validation rows, in this process if a fleet does not.

        That is so with ``n_jobs=1``, and within a task where all workers are busy.
        """
        is_stock = self.early_stopping is None and not current_context().fit_in_driver
        if is_stock or self._backend() is not None:
            yield
            return
        backend = _joblib_backend()
        if joblib.effective_n_jobs(self.n_jobs) != 1:
            raise ValueError(
                "early_stopping must be used with fits that a fleet makes, or this process. Got "
                f"n_jobs={self.n_jobs} with joblib's {type(backend).__name__} instead. Set "
                'n_jobs=1, or use parallel_config("skfleet").'
            )
        with joblib.parallel_config(SequentialFits(backend)):
            yield

    def _refit(self, estimator: Any, X: Any, *args: Any, **params: Any) -> Any:
        """Fit the best estimator on Dask rows, or on a GPU worker to be replaced by the fitted."""
        restore_method(estimator, "fit")
        if not current_context().fit_in_driver:
            fitted = self._fit(estimator, X, *args, **params)
        else:
            X, *args = map(collection_of, (X, *args))  # type: ignore[assignment]
            params = collections_of(params)
            if n_blockwise_steps(estimator) == n_steps_of(estimator):
                first, y = current_context().refit_steps, args[0] if args else None
                if first is not None and fit_last_step(estimator, X, y, params, first):
                    return estimator
                return estimator.fit(X, *args, **params)
            fitted = fit_on_gathered_rows(
                estimator, X, args[0] if args else None, params, self._fit
            )
        super().__setattr__("best_estimator_", fitted)
        return fitted

    @staticmethod
    def _fit(estimator: Any, X: Any, *args: Any, **params: Any) -> Any:
        """Fit an estimator here, or on a GPU worker if it needs one."""
        if device_of(estimator) != "cuda":
            return estimator.fit(X, *args, **params)
        with config_context(device="cuda"):
            engine = fleet_engine(_joblib_backend().client)
        return fit_on_gpu_worker(engine, estimator, X, args, params)

    def _run_search(
        self, evaluate_candidates: Callable[..., dict[str, Any]], *, callback_ctx: Any = None
    ) -> None:
        """Evaluate the candidates, and announce them to the running search."""

        def evaluate(
            candidate_params: Any, cv: Any = None, more_results: Any = None, **kwargs: Any
        ) -> dict[str, Any]:
            candidates, devices = list(candidate_params), CandidateDevices(self.estimator)
            if any(devices.of(candidate) == "cuda" for candidate in candidates):
                backend = self._backend()
                if backend is not None:
                    backend.check_device("cuda")
            more_results = more_results or {}
            later = self._later_iterations(len(candidates), more_results)
            evaluation = CandidateResults(candidates, self.n_splits_, more_results, later)
            current_context().expect(evaluation)
            rows = current_context().validation_rows
            if rows is None:
                return evaluate_candidates(candidates, cv, more_results, **kwargs)
            check_candidates(self, candidates, rows.params)
            results = evaluate_candidates(candidates, cv, more_results, **kwargs)
            results |= self._best_iterations()  # in place: it becomes cv_results_
            return results

        super()._run_search(evaluate, callback_ctx=callback_ctx)  # type: ignore[misc]

    def _best_iterations(self) -> dict[str, np.ndarray]:
        """Return the columns on best iterations of all candidates evaluated so far."""
        evaluations = current_context().evaluations
        return best_iterations([f for e in evaluations for f in e.all_fits], self.n_splits_)


def _is_approximate(share_fits: Any) -> bool:
    return isinstance(share_fits, str) and share_fits == "approximate"


def _joblib_backend() -> Any:
    """Return the joblib backend in use, or the name of the default one."""
    with joblib.parallel_config() as config:
        return config["backend"]


def _fleet_backend() -> AbstractContextManager[Any]:
    """Make the fleet joblib's backend, unless an enclosing context has set a backend."""
    has_backend = isinstance(_joblib_backend(), ParallelBackendBase)
    return nullcontext() if has_backend else joblib.parallel_config("skfleet")
