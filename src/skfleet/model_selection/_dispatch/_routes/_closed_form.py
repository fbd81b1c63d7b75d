"""The route of fits scored in closed form, from sums over the rows, without the fits themselves."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import joblib
import numpy as np
from sklearn.pipeline import Pipeline

from skfleet._config import config_context
from skfleet._joblib import BatchResult
from skfleet._sklearn_private import fit_result, scorers_of
from skfleet.blocks import as_folds, is_lazy, n_rows_of
from skfleet.engine import fleet_engine, run_on_gpu_worker
from skfleet.model_selection._closed_form import ScoredPipeline
from skfleet.model_selection._dispatch._requests import FitRequest, RequestReader, SearchJob
from skfleet.model_selection._dispatch._routes._route import Outcome, Route, offer_in_turn
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._dispatch._split_views import collections_of
from skfleet.model_selection._paths._registry import ParamSets, SharedFit
from skfleet.model_selection._scorer_names import scorer_name

logger = logging.getLogger(__name__)

# scikit-learn prints each fit from here on.
_VERBOSE_PER_FIT = 2


class ClosedFormScores:
    """Fits that a shared fit may score without a model; others are left to the following routes.

    ``n_slots`` returns the number of slots for a fit.
    """

    def __init__(
        self,
        client: Any,
        requests: RequestReader,
        context: SearchContext,
        lock: AbstractContextManager[Any],
        *,
        candidates: ParamSets,
        n_slots: Callable[[FitRequest], int],
        following: Sequence[Route],
    ) -> None:
        self._client, self._requests, self._context = client, requests, context
        self._lock, self._candidates = lock, candidates
        self._n_slots, self._following = n_slots, following
        self._groups: dict[tuple[int, int, str], _CandidateGroup] = {}
        self._pipelines: dict[tuple[int, int], ScoredPipeline] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def offer(self, fit: FitRequest) -> bool:
        """Take a fit that may be scored."""
        job = self._requests.jobs[fit.job]
        scored = self._scored_by(fit, job)
        if scored is None or not scored.scorings:
            return False
        number = fit.call.estimator
        key = fit.job, number, fit.device
        if key not in self._groups:
            client = self._client if fit.device == "cuda" else None
            self._groups[key] = _CandidateGroup(job, number, scored, self._n_slots(fit), client)
        fit.no_analytic_score = self._groups[key].refused(fit)
        if fit.no_analytic_score is not None:
            return False
        self._groups[key].add(fit)
        return True

    def run(self) -> list[Outcome] | None:
        """Return the scores of the fits; those that must be made after all go on their way."""
        groups, self._groups = self._groups, {}
        scored: dict[FitRequest, dict[str, Any]] = {}
        unscored: list[FitRequest] = []
        for group in groups.values():
            if not group.fits:  # none can be scored
                continue
            results = None
            try:
                # columns are prepared by scikit-learn, whose small tasks are not for the fleet
                with self._context.running_locally(), joblib.parallel_config("sequential"):
                    results = None if self._context.is_interrupted else group.results()
            except Exception as error:
                # The fits themselves raise what is wrong with the data.
                logger.debug("%d fits are made to be scored", len(group.fits), exc_info=True)
                for fit in group.fits:
                    fit.no_analytic_score = str(error)
            if results is None:
                unscored += group.fits
            else:
                scored |= results
        outcomes = []
        with self._lock:
            offer_in_turn(unscored, self._following)
            seen: set[tuple[int, int]] = set()  # the first fit of each split counts as computed
            for fit, result in scored.items():
                is_reused = (fit.job, fit.fold) in seen
                seen.add((fit.job, fit.fold))
                self._requests.finish_scored(fit, was_saved=is_reused)
                outcomes.append(Outcome(fit, BatchResult(True, [result]), is_reused=is_reused))
        return outcomes or None

    def clear(self) -> list[FitRequest]:
        """Remove all fits, and what was computed for them; return them."""
        groups, self._groups = self._groups, {}
        self._pipelines.clear()
        return [fit for group in groups.values() for fit in group.fits]

    def _scored_by(self, fit: FitRequest, job: SearchJob) -> SharedFit | None:
        """Return the shared fit that may score a fit."""
        estimator, key = job.estimators[fit.call.estimator], (fit.job, fit.call.estimator)
        if not fit.may_be_scored:
            return None
        if type(estimator) is not Pipeline:
            return None if fit.call.member is None else fit.call.member.shared_fit
        if not self._candidates:
            return None
        if key not in self._pipelines:
            fit_params = collections_of(job.options.get("fit_params") or {})
            refit = None
            if self._context.refits and self._context.fit_in_driver:
                from skfleet.estimators.pipeline import RefitFirstSteps  # not at import

                refit = self._context.refit_steps = RefitFirstSteps()
            self._pipelines[key] = ScoredPipeline(estimator, self._candidates, fit_params, refit)
        pipeline = self._pipelines[key]
        fit.pipeline = pipeline if pipeline.scorings else None
        return fit.pipeline


class _CandidateGroup:
    """Fits of the same estimator on the same rows.

    All splits are known when the second candidate is added. What does not depend on the candidate
    is computed from then on, while further candidates are read. With a client, everything is
    computed on its GPU workers.
    """

    def __init__(
        self, job: SearchJob, estimator: int, shared_fit: SharedFit, n_slots: int, gpu_client: Any
    ) -> None:
        self.fits: list[FitRequest] = []
        self._estimator = job.estimators[estimator]
        self._job, self._n_slots, self._gpu_client = job, n_slots, gpu_client
        self._shared_fit = shared_fit
        self._scorings: Mapping[str | None, str] = {}
        self._refused: str | None = None
        try:
            self._scorings = _scoring_names(
                job, shared_fit.scorings, isinstance(shared_fit, ScoredPipeline)
            )
        except NotImplementedError as error:
            self._refused = str(error)
        self._reasons: dict[Hashable, str | None] = {}
        self._folds: dict[int, int] = {}
        self._summary: Future[Any] | None = None
        self._n_summarized = 0

    def refused(self, fit: FitRequest) -> str | None:
        """Return why a fit must be made, or None if it may be scored."""
        if self._refused is not None or not isinstance(self._shared_fit, ScoredPipeline):
            return self._refused
        if fit.candidate not in self._reasons:
            params = fit.call.options["parameters"]
            names = frozenset(self._scorings.values())
            is_trained_on = bool(self._job.options.get("return_train_score"))
            self._reasons[fit.candidate] = self._shared_fit.unscored_reason(
                params, names, train_scores=is_trained_on
            )
        return self._reasons[fit.candidate]

    def add(self, fit: FitRequest) -> None:
        """Add a fit."""
        self.fits.append(fit)
        if fit.fold not in self._folds:
            self._folds[fit.fold] = len(self._folds)
        elif self._summary is None and not is_lazy(self._job.X) and self._gpu_client is None:
            self._summarize()

    def _summarize(self) -> None:
        """Start a thread that computes what all candidates have in common."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="skfleet-shared-fit")
        run = contextvars.copy_context().run
        self._n_summarized = len(self._folds)
        self._summary = executor.submit(run, self._shared_fit.summarize, *self._data())
        executor.shutdown(wait=False)

    def _data(self) -> tuple[Any, ...]:
        splits = [self._job.folds[fold] for fold in self._folds]
        return self._job.X, self._job.y, splits, self._n_slots

    def _scores(self, *args: Any) -> np.ndarray:
        """Return the scores of candidates, computed in this process or on GPU workers."""
        if self._gpu_client is None:
            if self._summary is not None and self._n_summarized == len(self._folds):
                return _score(self._shared_fit, self._summary.result(), *args)
            return _summarize_and_score(self._shared_fit, *self._data(), *args)
        with config_context(device="cuda"):
            if is_lazy(self._job.X):
                return _summarize_and_score(self._shared_fit, *self._data(), *args)
            engine = fleet_engine(self._gpu_client)
        X, y, splits, n_slots = self._data()
        # row numbers of all splits would take more bytes than X
        folds = as_folds(splits, n_rows_of(X), X, y)
        rows = X, y, folds, n_slots
        scores = run_on_gpu_worker(engine, scores_or_error, self._shared_fit, *rows, *args)
        if isinstance(scores, Exception):
            raise scores
        return scores

    def results(self) -> dict[FitRequest, dict[str, Any]]:
        """Return the results of all fits."""
        start = time.perf_counter()
        is_pipeline = isinstance(self._shared_fit, ScoredPipeline)
        own = {} if is_pipeline else self._estimator.get_params(deep=False)
        params = {fit.candidate: {**own, **fit.call.options["parameters"]} for fit in self.fits}
        has_train_scores = bool(self._job.options.get("return_train_score"))
        names = list(self._scorings.values())
        scores = self._scores(list(params.values()), names, has_train_scores)
        if not np.isfinite(scores[: 1 + has_train_scores]).all():
            raise NotImplementedError("scores must be finite")
        positions = {candidate: n for n, candidate in enumerate(params)}
        seconds = (time.perf_counter() - start) / len(self.fits)
        results = {}
        for fit in self.fits:
            test, train = (
                dict(zip(self._scorings, side.tolist(), strict=True))
                for side in scores[:, :, self._folds[fit.fold], positions[fit.candidate]]
            )
            n_test = len(self._job.folds[fit.fold][1])
            results[fit] = fit_result(self._job.options, test, train, n_test, seconds)
        return results


def _summarize_and_score(
    shared_fit: SharedFit, X: Any, y: Any, splits: Sequence[Any], n_slots: int, *args: Any
) -> np.ndarray:
    return _score(shared_fit, shared_fit.summarize(X, y, splits, n_slots), *args)


def scores_or_error(*args: Any) -> np.ndarray | Exception:
    """Return the scores, or the exception: Dask logs what a task raises."""
    try:
        return _summarize_and_score(*args)
    except Exception as error:
        return error


def _score(shared_fit: SharedFit, summary: Any, *args: Any) -> np.ndarray:
    params, scorings, has_train_scores = args
    return shared_fit.score(summary, params, scorings, train_scores=has_train_scores)


def _scoring_names(
    job: SearchJob, supported: frozenset[str], is_pipeline: bool
) -> Mapping[str | None, str]:
    """Return the names of scikit-learn's scorers by the search's own names of its scores.

    Raises NotImplementedError for other scorers, and where it needs more of its fits than scores.
    """
    options = job.options
    if options.get("score_params") or (options.get("fit_params") and not is_pipeline):
        raise NotImplementedError("fit and score must have no parameters, such as sample_weight")
    if options.get("verbose", 0) >= _VERBOSE_PER_FIT:
        raise NotImplementedError(f"verbose must be less than {_VERBOSE_PER_FIT} to print no fits")
    names: dict[str | None, str] = {}
    for key, scorer in scorers_of(options["scorer"]).items():
        name = scorer_name(scorer, supported)
        if name is None:
            scorers = ", ".join(sorted(supported - {"score"}))
            raise NotImplementedError(f"scoring must be of {scorers}. Got {scorer} instead")
        names[key] = name
    return names
