"""Fits whose scores follow from sums over the rows, which are not sent to anybody."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from sklearn.metrics import get_scorer
from sklearn.pipeline import Pipeline

from skfleet._config import config_context
from skfleet._sklearn_private import fit_result, scorers_of
from skfleet.blocks import is_lazy
from skfleet.engine import fleet_engine, run_on_gpu_worker
from skfleet.engine._dask._serialize import Pickled
from skfleet.model_selection._dispatch._context import SearchRun
from skfleet.model_selection._dispatch._requests import FitRequest, JobInputs
from skfleet.model_selection._shared_fits._registry import SharedFit

__all__ = ["AnalyticScores"]

logger = logging.getLogger(__name__)

# scikit-learn prints each fit from here on.
_TALKS = 2


class AnalyticScores:
    """The fits of a call that a family may score without a model."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._alike: dict[tuple[int, int, str], _Alike] = {}

    def __bool__(self) -> bool:
        return bool(self._alike)

    def add(self, fit: FitRequest, job: JobInputs, n_slots: int) -> bool:
        """Take a fit on; False if it must be made."""
        if fit.call.member is None or not fit.call.member.shared_fit.scorings:
            return False
        key = fit.job, fit.call.estimator, fit.device
        if key not in self._alike:
            family = fit.call.member.shared_fit
            client = self._client if fit.device == "cuda" else None
            self._alike[key] = _Alike(job, fit.call.estimator, family, n_slots, client)
        return self._alike[key].add(fit)

    def results(self, run: SearchRun) -> tuple[dict[FitRequest, dict[str, Any]], list[FitRequest]]:
        """Give the results of the fits taken on so far, and those that must be made after all."""
        alike, self._alike = self._alike, {}
        results: dict[FitRequest, dict[str, Any]] = {}
        others: list[FitRequest] = []
        for some in alike.values():
            found = None
            try:
                with run.here():
                    found = None if run.is_interrupted else some.results()
            except Exception as error:
                # What is wrong with them, or too much to ask, the fits themselves will tell.
                logger.debug("%d fits are made to be scored", len(some.fits), exc_info=True)
                for fit in some.fits:
                    fit.refused = str(error)
            if found is None:
                others += some.fits
            else:
                results |= found
        return results, others


class _Alike:
    """Fits of the same estimator on the same rows.

    When the second candidate comes all splits are known. What does not depend on the candidate is
    worked on from then on, while others are still being read. Given a client, all is done on its
    GPU workers.
    """

    def __init__(
        self, job: JobInputs, estimator: int, family: SharedFit, n_slots: int, gpu_client: Any
    ) -> None:
        self.fits: list[FitRequest] = []
        self._job = job
        self._family = family
        self._n_slots = n_slots
        self._gpu_client = gpu_client
        self._estimator = job.estimators[estimator]
        self._scorings = _scorings(job, family.scorings)
        self._folds: dict[int, int] = {}
        self._prepared: Future[Any] | None = None
        self._n_prepared = 0

    def add(self, fit: FitRequest) -> bool:
        """Take a fit on; False where the search asks for more than scores."""
        if not self._scorings or type(self._estimator) is Pipeline:
            return False
        self.fits.append(fit)
        if fit.fold not in self._folds:
            self._folds[fit.fold] = len(self._folds)
        elif self._prepared is None and not is_lazy(self._job.X) and self._gpu_client is None:
            self._prepare()
        return True

    def _prepare(self) -> None:
        """Begin with what all candidates have in common."""
        worker = ThreadPoolExecutor(1, thread_name_prefix="skfleet-family")
        run = contextvars.copy_context().run
        self._n_prepared = len(self._folds)
        self._prepared = worker.submit(run, self._family.prepare, *self._rows())
        worker.shutdown(wait=False)

    def _rows(self) -> tuple[Any, ...]:
        """Give what the family is to prepare."""
        splits = [self._job.folds[fold] for fold in self._folds]
        return self._job.X, self._job.y, splits, self._n_slots

    def _scores(self, *asked: Any) -> np.ndarray:
        """Give the scores that are asked for."""
        if self._gpu_client is None:
            if self._prepared is not None and self._n_prepared == len(self._folds):
                return _score(self._family, self._prepared.result(), *asked)
            return _prepare_and_score(self._family, *self._rows(), *asked)
        with config_context(device="cuda"):
            if is_lazy(self._job.X):
                return _prepare_and_score(self._family, *self._rows(), *asked)
            engine = fleet_engine(self._gpu_client)
        found = run_on_gpu_worker(engine, scores_from_sums, self._family, *self._rows(), *asked)
        if isinstance(found, Exception):
            raise found
        return found

    def results(self) -> dict[FitRequest, dict[str, Any]]:
        """Give the results of all fits."""
        start = time.perf_counter()
        own = self._estimator.get_params(deep=False)
        params = {fit.candidate: {**own, **fit.call.options["parameters"]} for fit in self.fits}
        both = bool(self._job.options.get("return_train_score"))
        scores = self._scores(list(params.values()), list(self._scorings.values()), both)
        if not np.isfinite(scores[: 1 + both]).all():
            raise NotImplementedError("scores must be finite")
        places = {candidate: n for n, candidate in enumerate(params)}
        seconds = (time.perf_counter() - start) / len(self.fits)
        results = {}
        for fit in self.fits:
            test, train = (
                dict(zip(self._scorings, side.tolist(), strict=True))
                for side in scores[:, :, self._folds[fit.fold], places[fit.candidate]]
            )
            n_test = len(self._job.folds[fit.fold][1])
            results[fit] = fit_result(self._job.options, test, train, n_test, seconds)
        return results


def _prepare_and_score(
    family: SharedFit, X: Any, y: Any, splits: Sequence[Any], n_slots: int, *asked: Any
) -> np.ndarray:
    """Score all candidates of a family, where the rows are or may be brought to."""
    return _score(family, family.prepare(X, y, splits, n_slots), *asked)


def scores_from_sums(*args: Any) -> np.ndarray | Exception:
    """Score all candidates, or return why not: Dask tells everybody what a task raises."""
    try:
        return _prepare_and_score(*args)
    except Exception as error:
        return error


def _score(
    family: SharedFit, prepared: Any, params: Sequence[Any], scorings: Sequence[str], both: bool
) -> np.ndarray:
    """Score all candidates of a family, also on the rows to train on if both are wanted."""
    return family.score(prepared, params, scorings, train_scores=both)


def _scorings(job: JobInputs, known: frozenset[str]) -> Mapping[str | None, str]:
    """Give the names of scikit-learn's scorers by what a search calls them.

    None where it has others, or wants to know more of its fits than scores.
    """
    options, found = job.options, {}
    if (
        not job.shares_rows
        or not job.shares_results
        or options.get("fit_params")
        or options.get("score_params")
        or options.get("verbose", 0) >= _TALKS
    ):
        return {}
    for name, one in scorers_of(options["scorer"]).items():
        named = one if isinstance(one, str) else _names(known).get(_content(one))
        if named not in known:
            return {}
        found[name] = named
    return found


@cache
def _names(known: frozenset[str]) -> dict[bytes, str]:
    """Give the names of scorers by what they are."""
    return {_content(get_scorer(name)): name for name in known - {"score"}}


def _content(scorer: Any) -> bytes:
    """Give what scorers that do the same have in common."""
    return Pickled.dumps(scorer).digest()
