"""Searches that train all candidates in turns: incremental and inverse decay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from skfleet._typing import Estimator, RandomState, Scoring, Splitter
from skfleet._validation import check_in_interval, check_positive_int
from skfleet.model_selection._adaptive._schedules import (
    RoundRobin,
    Rung,
    Schedule,
    SuccessiveHalving,
    inverse_decay_rungs,
)
from skfleet.model_selection._adaptive._search import AdaptiveSearch
from skfleet.model_selection._init_params import init_params
from skfleet.model_selection._search_docstrings import adaptive_docstring


@adaptive_docstring
class IncrementalSearchCV(AdaptiveSearch):
    """Train all candidates in turns, each until its score rises no more.

    Every candidate gets `fits_per_score` calls of ``partial_fit`` and a score, then the next one,
    until each has had `max_iter` calls or, with `patience`, gains nothing any more
    (Prechelt, *Early Stopping, But When?*, 1998, compares such rules).

    Parameters
    ----------
    {adaptive_estimator}
    n_initial_parameters : int or "grid", default=10
        Number of candidates; "grid" is every combination of lists.
    max_iter : int, default=100
        Maximum number of calls of ``partial_fit`` per candidate.
    fits_per_score : int, default=1
        Number of calls between two scores.
    patience : int or bool, default=False
        Number of calls without an improvement of the score after which a candidate is not trained
        any more; True is a third of `max_iter`.
    {tol}
    {adaptive_parameters}

    Attributes
    ----------
    metadata : dict
        Planned models, calls and rungs at most, known before the fit.
    {adaptive_attributes}

    See Also
    --------
    InverseDecaySearchCV : Drops candidates on the way.
    HyperbandSearchCV : Finds as good ones with fewer calls.

    Notes
    -----
    {adaptive_notes}

    Examples
    --------
    {digits}
    >>> from skfleet.model_selection import IncrementalSearchCV
    >>> X, y = load_digits(return_X_y=True)
    >>> search = IncrementalSearchCV(
    ...     SGDClassifier(random_state=0), {"alpha": loguniform(1e-6, 1e-1)},
    ...     n_initial_parameters=4, max_iter=20, patience=5, random_state=0
    ... )
    >>> search.metadata["partial_fit_calls"]
    80
    {fit_digits}
    """

    def __init__(
        self,
        estimator: Estimator,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        n_initial_parameters: int | str = 10,
        max_iter: int = 100,
        fits_per_score: int = 1,
        patience: int | bool = False,
        tol: float = 1e-3,
        resource: str = "calls",
        scoring: Scoring = None,
        cv: Splitter | None = None,
        test_size: float | int | None = None,
        batch_size: int | None = None,
        sampler: str | object | None = "random",
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        past_results: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., Any] = True,
        refit_on_test: bool = False,
        error_score: float | str = np.nan,
        retries: int = 0,
        resources: Mapping[str, float] | None = None,
        time_budget: float | None = None,
        checkpoint: str | PathLike[str] | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(**init_params(locals()))

    def _check_schedule(self) -> None:
        super()._check_schedule()
        check_positive_int("max_iter", self._max_iter)
        check_positive_int("fits_per_score", self.fits_per_score)

    def _rungs(self, n: int) -> list[list[Rung]]:
        return [[Rung(n, self._max_iter)]]

    def _schedule(self, n: int) -> Schedule:
        return RoundRobin(n, self._max_iter, self.fits_per_score)

    def _scoring_interval(self, patience: int) -> int:
        return self.fits_per_score


@adaptive_docstring
class InverseDecaySearchCV(AdaptiveSearch):
    r"""Train all candidates in turns, and drop the worst of them at a decaying rate.

    After t calls of ``partial_fit`` the best

    .. math:: \left\lceil n (1 + t)^{-d} \right\rceil

    of n candidates remain, with d = `decay_rate`, until one remains, which is trained to the end.
    This is the rule of dask-ml's search of the same name.

    Parameters
    ----------
    {adaptive_estimator}
    n_initial_parameters : int or "grid", default=10
        Number n of candidates to begin with; "grid" is every combination of lists.
    max_iter : int, default=100
        Maximum number of calls of ``partial_fit`` per candidate.
    decay_rate : float, default=1.0
        Rate d at which candidates are dropped; 0 drops none.
    {patience}
    {adaptive_parameters}

    Attributes
    ----------
    {metadata}
    {adaptive_attributes}

    See Also
    --------
    IncrementalSearchCV : Drops no candidate.
    SuccessiveHalvingSearchCV : Drops them at an exponential rate.

    Notes
    -----
    {adaptive_notes}

    {reproducible}

    Examples
    --------
    {digits}
    >>> from skfleet.model_selection import InverseDecaySearchCV
    >>> X, y = load_digits(return_X_y=True)
    >>> search = InverseDecaySearchCV(
    ...     SGDClassifier(random_state=0), {"alpha": loguniform(1e-6, 1e-1)},
    ...     max_iter=20, random_state=0
    ... )
    >>> search.metadata["brackets"][0]["rungs"]
    [(10, 1), (5, 2), (4, 3), (3, 4), (2, 9), (1, 20)]
    {fit_digits}
    """

    def __init__(
        self,
        estimator: Estimator,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        n_initial_parameters: int | str = 10,
        max_iter: int = 100,
        decay_rate: float = 1.0,
        patience: int | bool = False,
        tol: float = 1e-3,
        resource: str = "calls",
        scoring: Scoring = None,
        cv: Splitter | None = None,
        test_size: float | int | None = None,
        batch_size: int | None = None,
        sampler: str | object | None = "random",
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        past_results: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., Any] = True,
        refit_on_test: bool = False,
        error_score: float | str = np.nan,
        retries: int = 0,
        resources: Mapping[str, float] | None = None,
        time_budget: float | None = None,
        checkpoint: str | PathLike[str] | None = None,
        random_state: RandomState = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(**init_params(locals()))

    def _check_schedule(self) -> None:
        super()._check_schedule()
        check_positive_int("max_iter", self._max_iter)
        check_in_interval("decay_rate", self.decay_rate, 0, open="r")

    def _rungs(self, n: int) -> list[list[Rung]]:
        return [inverse_decay_rungs(n, self._max_iter, self.decay_rate)]

    def _schedule(self, n: int) -> Schedule:
        return SuccessiveHalving(self._rungs(n)[0])
