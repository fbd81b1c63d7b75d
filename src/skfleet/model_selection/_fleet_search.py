"""Mixin that runs scikit-learn's searches on a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.metrics import check_scoring

from skfleet._captured_output import deduplicate_warnings
from skfleet._doc_link import DocumentationLink, is_own
from skfleet._method_override import override_method, restore_method
from skfleet._pipeline_steps import takes_dask_rows
from skfleet._typing import Rows, Values
from skfleet._validation import check_in_interval
from skfleet._warnings import warn
from skfleet.blocks import check_rows, is_lazy, with_pandas_text
from skfleet.engine import (
    CandidateDevices,
    SmallFitMixin,
    device_of,
    rows_cached_on_workers,
)
from skfleet.metrics import check_scorer
from skfleet.model_selection._backends import (
    fit_on_device,
    fleet_backend,
    planning_backend,
    sequential_fits,
)
from skfleet.model_selection._dispatch._search_context import (
    SearchContext,
    current_context,
    is_running,
)
from skfleet.model_selection._dispatch._split_views import (
    as_indexable,
    collection_of,
    collections_of,
)
from skfleet.model_selection._early_stopping._validation_rows import (
    ValidationRows,
    best_iterations,
    check_candidates,
    check_early_stopping,
    set_iterations,
)
from skfleet.model_selection._input_rows import (
    check_input_rows,
    gathered_bytes,
    may_gather,
    place_rows,
    rows_in_memory,
)
from skfleet.model_selection._lazy_answers import (
    LazyRowMethods,
    gathered,
    score_lazily,
)
from skfleet.model_selection._plot import plot_search, timeline_of
from skfleet.model_selection._racing._columns import set_race_results, without_iterations
from skfleet.model_selection._racing._parameter import begin_race, check_racing, report_race
from skfleet.model_selection._records._checkpoint import RUN_PARAMETERS, Checkpoint
from skfleet.model_selection._records._evaluations import (
    CandidateResults,
    LaterIteration,
    set_results,
)
from skfleet.model_selection._search_html import SearchHTML

# How the fits of a search ran, beside scikit-learn's attributes.
RUN_ATTRIBUTES = (
    "shared_fits_", "timeline_", "n_checkpoint_fits_", "n_dropped_candidates_", "n_dropped_fits_",
)  # fmt: skip


class FleetSearchMixin(DocumentationLink, SearchHTML, LazyRowMethods):
    """Mixin for scikit-learn's searches: rows, checkpoint, joblib backend, refit on a GPU."""

    estimator: Any
    n_jobs: int | None
    refit: Any
    scoring: Any
    share_fits: bool | str
    checkpoint: Any
    time_budget: float | None = None
    racing: str | None = None
    early_stopping: float | str | None
    verbose: int
    n_splits_: int
    best_index_: int
    multimetric_: bool
    get_params: Callable[..., dict[str, Any]]
    _in_batches = False  # candidates are evaluated a few at a time

    def __init__(self, **params: Any) -> None:
        for name in ("share_fits", "checkpoint", "time_budget", "racing", "early_stopping"):
            if name in params:
                setattr(self, name, params.pop(name))
        super().__init__(**params)

    def fit(self, X: Rows, y: Values | None = None, **params: Any) -> Self:
        """Fit and score every candidate on every split, on the workers of the fleet.

        Parameters
        ----------
        X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \
                (n_samples, n_features)
            Training data. Dask collections stay on the workers for estimators of this library,
            unless they are small (``config_context(single_task_below=)``); for others they are
            computed in the calling process, and scattered to each worker once.
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
        # Invalid arguments are refused before rows move or a cluster is asked.
        is_bool = isinstance(self.share_fits, (bool, np.bool_))
        if not is_bool and not is_approximate(self.share_fits):
            raise ValueError(
                f"share_fits must be True, False or 'approximate'. Got {self.share_fits!r} "
                "instead. Leave it out for the scores of separate fits, and give 'approximate' "
                "where scores within the tolerance of a solver will do."
            )
        self._check_candidates()
        if self.time_budget is not None:
            check_in_interval("time_budget", self.time_budget, 0, open="l")
        check_scorer(self.scoring)
        if self.racing is not None:
            check_racing(self)
        check_early_stopping(self, y, params)
        if self.scoring is None:
            # The estimator must then have a score of its own.
            check_scoring(self.estimator)
        check_input_rows(self.estimator, X, y, type(self).__name__)
        with fleet_backend():
            # Rows and the checkpoint that may already have their fits.
            original = {"X": X, "y": y, **params}
            X, y, params = place_rows(self.estimator, X, y, params, scoring=self.scoring)
            arrays = {"X": X, "y": y, **params}
            # Lazy rows whose chunk sizes were computed have other tokens than the original ones.
            checkpoint = self._open_checkpoint(
                {name: original[name] if is_lazy(v) else v for name, v in arrays.items()}
            )
            n_recorded = 0 if checkpoint is None else len(checkpoint.results)
            # What the backend must know of the search; scikit-learn's `fit` passes none of it.
            run = SearchContext(
                share_fits=bool(self.share_fits) if is_bool else self.share_fits,
                records=checkpoint,
                time_budget=self.time_budget,
                validation_rows=ValidationRows.of(self, params, is_lazy=is_lazy(X)),
                fit_in_driver=is_lazy(X),
                verbose=self.verbose,
                name=type(self).__name__,
                refits=bool(self.refit),
                gathered_bytes=gathered_bytes(original["X"], X),
                may_gather=may_gather(self.estimator, self.scoring),
            )
            # Joblib's own workers know neither Dask rows nor validation rows.
            has_own_fits = run.fit_in_driver or self.early_stopping is not None
            has_own_fits |= self._in_batches and effective_n_jobs(self.n_jobs) == 1
            try:
                with (
                    deduplicate_warnings(),
                    run(),
                    rows_cached_on_workers(X, run.device_cache),
                    sequential_fits(self.n_jobs) if has_own_fits else nullcontext(),
                    rows_in_memory(X, y, params) as (X, y, params),
                ):
                    rows = {name: as_indexable(values) for name, values in params.items()}
                    super().fit(as_indexable(X), as_indexable(y), **rows)  # type: ignore[misc]
            except KeyboardInterrupt:
                # Candidates that were scored on all splits are results too.
                if numbers := set_results(self, run.evaluations):
                    self._set_uses(run, numbers)
                    raise KeyboardInterrupt from None  # the traceback shows only where it waited
                raise KeyboardInterrupt(
                    "no candidate had been scored on all splits, so the search has no results"
                ) from None
            self._set_uses(run)
        # Answers come in the container that the user passed, not in that which the search has.
        self._answer_as(original["X"])
        best = getattr(self, "best_estimator_", None)
        if is_lazy(original["X"]) and isinstance(best, SmallFitMixin):
            best._set_row_attributes(original["X"])
        # A checkpoint that did not serve is the sign of a search that is not reproducible.
        if n_recorded and not run.n_checkpoint_fits:
            warn(
                f"checkpoint={self.checkpoint!r} has {n_recorded} fits, and none of them was asked "
                "for: other candidates were drawn, or other splits. Give random_state a number, "
                "and the splitter.",
                UserWarning,
            )
        return self

    def score(self, X: Rows, y: Values | None = None, **params: Any) -> float:
        """Score the best estimator by the metric that `refit` names.

        For Dask rows, too, the score is a number, which is computed at once.

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
        best = getattr(self, "best_estimator_", None)
        if is_lazy(X) and best is not None and not takes_dask_rows(best):
            metric = self.scoring
            if self.multimetric_:
                metric = metric[self.refit] if isinstance(metric, Mapping) else self.refit
            score = score_lazily(self, best, metric, X, y, params)
            if score is not None:
                return score
            X, y, *values = gathered(best, X, y, *params.values())
            params = dict(zip(params, values, strict=True))
        return super().score(with_pandas_text(X), y, **params)  # type: ignore[misc]

    def __dir__(self) -> list[str]:
        # Code that compares all attributes of two searches compares results, not how fits ran.
        return [name for name in super().__dir__() if name not in RUN_ATTRIBUTES]

    def _set_uses(self, run: SearchContext, numbers: Sequence[int] | None = None) -> None:
        """Set the attributes on shared fits, workers and checkpoint.

        After an interrupt the results have rows for the candidates of these numbers alone.
        """
        self.shared_fits_ = run.sharing.uses()
        self.timeline_ = timeline_of(run.timeline, numbers)
        self.n_checkpoint_fits_ = run.n_checkpoint_fits
        for name in ("n_dropped_candidates_", "n_dropped_fits_"):  # of an earlier fit
            vars(self).pop(name, None)
        if run.race is not None:
            self.n_dropped_candidates_ = len(run.race.drops)
            self.n_dropped_fits_ = sum(own.n_withdrawn for own in run.evaluations)
            report_race(run.race, self.n_dropped_fits_, is_printed=bool(self.verbose))

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

    def _check_candidates(self) -> None:
        """Raise for invalid parameters of how candidates are chosen."""

    def _later_iterations(
        self, n_candidates: int, more_results: Mapping[str, Any]
    ) -> list[LaterIteration]:
        """Return the iterations that follow that of some candidates."""
        return []

    def _open_checkpoint(self, rows: dict[str, Any]) -> Checkpoint | None:
        """Open the checkpoint of this search, or raise."""
        needs_fleet = ("checkpoint", "time_budget", "racing")
        name = next((name for name in needs_fleet if getattr(self, name) is not None), None)
        if name is not None and planning_backend(self.n_jobs) is None:
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
        search["share_fits"] = "approximate" if is_approximate(self.share_fits) else True
        cv = search.get("cv")
        if not hasattr(cv, "__getitem__") and hasattr(cv, "__next__"):
            del search["cv"]  # hashing a generator would consume it
        return Checkpoint(self.checkpoint, {**search, **rows})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; set up the refit of ``best_estimator_``, on Dask rows or a GPU worker.

        scikit-learn has no hook for the refit, as of 1.9: it sets the attribute, and calls ``fit``
        in the next line. Estimators of this library find a GPU worker themselves.
        """
        is_refit = name == "best_estimator_" and is_running()
        if is_refit and current_context().validation_rows is not None:
            best = self._best_iterations()["best_iteration"]
            set_iterations(value, float(best[self.best_index_]))
        if is_refit:
            is_remote = not is_own(value) and planning_backend(self.n_jobs) is not None
            if current_context().fit_in_driver or (is_remote and device_of(value) == "cuda"):
                override_method(value, "fit", partial(self._refit, value))
        super().__setattr__(name, value)

    def _refit(self, estimator: Any, X: Any, *args: Any, **params: Any) -> Any:
        """Fit the best estimator on Dask rows, or on a GPU worker to be replaced by the fitted."""
        restore_method(estimator, "fit")
        if not current_context().fit_in_driver:
            fitted = fit_on_device(estimator, X, *args, **params)
        else:
            from skfleet.estimators.pipeline import fit_last_step, fit_on_gathered_rows

            X, *args = map(collection_of, (X, *args))  # type: ignore[assignment]
            params = collections_of(params)
            if takes_dask_rows(estimator):
                first, y = current_context().refit_steps, args[0] if args else None
                if first is not None and fit_last_step(estimator, X, y, params, first):
                    return estimator
                return estimator.fit(X, *args, **params)
            fitted = fit_on_gathered_rows(
                estimator, X, args[0] if args else None, params, fit_on_device
            )
        super().__setattr__("best_estimator_", fitted)
        return fitted

    def _run_search(
        self, evaluate_candidates: Callable[..., dict[str, Any]], *, callback_ctx: Any = None
    ) -> None:
        """Evaluate the candidates, and announce them to the running search."""

        def evaluate(
            candidate_params: Any, cv: Any = None, more_results: Any = None, **kwargs: Any
        ) -> dict[str, Any]:
            candidates, devices = list(candidate_params), CandidateDevices(self.estimator)
            if any(devices.of(candidate) == "cuda" for candidate in candidates):
                backend = planning_backend(self.n_jobs)
                if backend is not None:
                    backend.check_device("cuda")
            more_results, context = more_results or {}, current_context()
            later = self._later_iterations(len(candidates), more_results)
            if self.racing is not None and context.race is None:
                context.race = begin_race(self.racing, self.n_splits_)
            evaluation = CandidateResults(
                candidates,
                self.n_splits_,
                more_results,
                later,
                race=context.race,
                metric=self.refit,
                is_batch=self._in_batches,
                n_earlier=sum(len(earlier.candidates) for earlier in context.evaluations),
            )
            context.expect(evaluation)
            rows = context.validation_rows
            if rows is not None:
                check_candidates(self, candidates, rows.params)
            results = evaluate_candidates(candidates, cv, more_results, **kwargs)
            if context.race is not None:
                fits = [fit for e in context.evaluations for fit in e.all_fits]
                set_race_results(results, context.race.result(), fits, self.n_splits_)
            _check_fitted(results, context.stop_reason)
            if rows is not None:
                results |= self._best_iterations()  # in place: it becomes cv_results_
            return results

        super()._run_search(evaluate, callback_ctx=callback_ctx)  # type: ignore[misc]

    def _best_iterations(self) -> dict[str, np.ndarray]:
        """Return the columns on best iterations of all candidates evaluated so far."""
        context = current_context()
        fits = [fit for evaluation in context.evaluations for fit in evaluation.all_fits]
        if context.race is not None:
            fits = without_iterations(fits, context.race.result(), self.n_splits_)
        return best_iterations(fits, self.n_splits_)


def _check_fitted(results: Mapping[str, Any], stop_reason: str | None) -> None:
    """Raise where the time was over before any candidate had been fitted on all splits."""
    if stop_reason is not None and np.isnan(results["mean_fit_time"]).all():  # of fits not made
        raise ValueError(
            f"{stop_reason} before any candidate had been fitted on all splits. Raise time_budget, "
            "or take fewer splits. With a checkpoint, another fit goes on with those that are made."
        )


def is_approximate(share_fits: Any) -> bool:
    return isinstance(share_fits, str) and share_fits == "approximate"
