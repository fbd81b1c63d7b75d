"""Searches by successive halving, Hyperband and ASHA."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from skfleet._typing import Estimator, RandomState, Scoring, Splitter
from skfleet._validation import check_in_interval, check_positive_int
from skfleet.model_selection._adaptive._schedules import (
    AsynchronousHalving,
    Hyperband,
    Rung,
    Schedule,
    SuccessiveHalving,
    asynchronous_levels,
    halving_rungs,
    hyperband_rungs,
)
from skfleet.model_selection._adaptive._search import AdaptiveSearch
from skfleet.model_selection._init_params import init_params
from skfleet.model_selection._search_docstrings import adaptive_docstring


@adaptive_docstring
class SuccessiveHalvingSearchCV(AdaptiveSearch):
    r"""Train many candidates a little, the best of them longer, and so on.

    All candidates are trained for `n_initial_iter` calls of ``partial_fit``. The best
    :math:`1 / \eta` of them are trained on until they have had :math:`\eta` times as many, and so
    on (Jamieson and Talwalkar, *Non-stochastic best arm identification and hyperparameter
    optimization*, AISTATS 2016, section 2): after rung i there are

    .. math:: n_i = \lfloor n \eta^{-i} \rfloor \text{ candidates with }
              r_i = \lfloor r \eta^i \rfloor \text{ calls.}

    Parameters
    ----------
    {adaptive_estimator}
    n_initial_parameters : int or "grid", default=10
        Number n of candidates to begin with; "grid" is every combination of lists.
    n_initial_iter : int, default=1
        Calls r of ``partial_fit`` that all of them get.
    max_iter : int, default=None
        Maximum number of calls per candidate. By default as many as the schedule gives the last
        remaining candidate.
    {aggressiveness}
    {patience}
    {adaptive_parameters}

    Attributes
    ----------
    {metadata}
    {adaptive_attributes}

    See Also
    --------
    HyperbandSearchCV : Chooses `n_initial_parameters` and `n_initial_iter` by itself.
    HalvingRandomSearchCV : scikit-learn's, with its own draws of rows.

    Notes
    -----
    {adaptive_notes}

    {reproducible}

    Examples
    --------
    {digits}
    >>> from skfleet.model_selection import SuccessiveHalvingSearchCV
    >>> X, y = load_digits(return_X_y=True)
    >>> search = SuccessiveHalvingSearchCV(
    ...     SGDClassifier(random_state=0), {"alpha": loguniform(1e-6, 1e-1)},
    ...     n_initial_parameters=9, random_state=0
    ... )
    >>> search.metadata["brackets"][0]["rungs"]
    [(9, 1), (3, 3), (1, 9)]
    {fit_digits}
    """

    def __init__(
        self,
        estimator: Estimator,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        n_initial_parameters: int | str = 10,
        n_initial_iter: int = 1,
        max_iter: int | None = None,
        aggressiveness: float = 3,
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
        check_positive_int("n_initial_iter", self.n_initial_iter)
        if self._max_iter is not None:
            check_positive_int("max_iter", self._max_iter, self.n_initial_iter)
        check_in_interval("aggressiveness", self.aggressiveness, 1, open="lr")

    def _rungs(self, n: int) -> list[list[Rung]]:
        return [halving_rungs(n, self.n_initial_iter, self._max_iter, self.aggressiveness)]

    def _schedule(self, n: int) -> Schedule:
        return SuccessiveHalving(self._rungs(n)[0])


@adaptive_docstring
class HyperbandSearchCV(AdaptiveSearch):
    r"""Several searches by successive halving at once, from many short ones to few long ones.

    With R = `max_iter` calls of ``partial_fit`` at most for a candidate, and
    :math:`s_\max = \lfloor \log_\eta R \rfloor`, there is a bracket of successive halving for each
    s from :math:`s_\max` to 0, that begins with

    .. math:: n = \left\lceil \frac{s_\max + 1}{s + 1} \eta^s \right\rceil
              \text{ candidates and } r = R \eta^{-s} \text{ calls each}

    (Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar, *Hyperband: A Novel Bandit-Based Approach to
    Hyperparameter Optimization*, JMLR 18, 2018, algorithm 1). The brackets run at the same time.
    The best is the one with the best score seen in any of them, all on the same rows.

    Parameters
    ----------
    {adaptive_estimator}
    max_iter : int, default=81
        Maximum number R of calls of ``partial_fit`` per candidate. It determines the number of
        candidates: see `metadata`.
    {aggressiveness}
    {patience}
    {adaptive_parameters}

    Attributes
    ----------
    {metadata}
    {adaptive_attributes}

    See Also
    --------
    SuccessiveHalvingSearchCV : One bracket alone.
    ASHASearchCV : Without waiting for the last of a rung.

    Notes
    -----
    {adaptive_notes}

    {reproducible}

    Examples
    --------
    {digits}
    >>> from skfleet.model_selection import HyperbandSearchCV
    >>> X, y = load_digits(return_X_y=True)
    >>> search = HyperbandSearchCV(
    ...     SGDClassifier(random_state=0), {"alpha": loguniform(1e-6, 1e-1)},
    ...     max_iter=9, random_state=0
    ... )
    >>> search.metadata["n_models"], search.metadata["partial_fit_calls"]
    (17, 69)
    {fit_digits}
    """

    def __init__(
        self,
        estimator: Estimator,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        max_iter: int = 81,
        aggressiveness: float = 3,
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

    _has_fixed_number = True

    def _check_schedule(self) -> None:
        super()._check_schedule()
        check_positive_int("max_iter", self._max_iter)
        check_in_interval("aggressiveness", self.aggressiveness, 1, open="lr")

    def _n_candidates(self) -> int | str:
        return self._schedule(0).n_candidates

    def _rungs(self, n: int) -> list[list[Rung]]:
        return hyperband_rungs(self._max_iter, self.aggressiveness)

    def _schedule(self, n: int) -> Schedule:
        return Hyperband(self._rungs(n), self.aggressiveness)


@adaptive_docstring
class ASHASearchCV(AdaptiveSearch):
    r"""Successive halving without waiting: a candidate goes on as soon as it is good enough.

    The rungs are those of successive halving, without waiting for the last of a rung: whenever a
    worker is free, the best candidate of the highest rung that is among the best
    :math:`1 / \eta` of those scored there so far goes on, where it stood, until it has had
    :math:`\eta` times as many calls of ``partial_fit``; if there is none, another candidate begins
    (Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht and Talwalkar, *A System for
    Massively Parallel Hyperparameter Tuning*, MLSys 2020, algorithm 2, with early-stopping rate 0).

    Parameters
    ----------
    {adaptive_estimator}
    n_initial_parameters : int or "grid", default=50
        Number of candidates; "grid" is every combination of lists.
    n_initial_iter : int, default=1
        Calls of ``partial_fit`` after which a candidate is first compared.
    max_iter : int, default=81
        Maximum number of calls per candidate.
    {aggressiveness}
    {patience}
    {adaptive_parameters}

    Attributes
    ----------
    {metadata} The search makes more calls if better
        candidates come after others were promoted.
    {adaptive_attributes}

    See Also
    --------
    SuccessiveHalvingSearchCV : Waits for the last of a rung, and so promotes no wrong candidate.

    Notes
    -----
    {adaptive_notes}

    Promotions depend on which candidate is scored first, so the result may depend on the number and
    the speed of workers; with ``n_jobs=1`` it does not.

    Examples
    --------
    {digits}
    >>> from skfleet.model_selection import ASHASearchCV
    >>> X, y = load_digits(return_X_y=True)
    >>> search = ASHASearchCV(
    ...     SGDClassifier(random_state=0), {"alpha": loguniform(1e-6, 1e-1)},
    ...     n_initial_parameters=9, random_state=0
    ... )
    >>> search.metadata["brackets"][0]["rungs"]
    [(9, 1), (3, 3), (1, 9)]
    {fit_digits}
    """

    def __init__(
        self,
        estimator: Estimator,
        parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        n_initial_parameters: int | str = 50,
        n_initial_iter: int = 1,
        max_iter: int = 81,
        aggressiveness: float = 3,
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
        check_positive_int("n_initial_iter", self.n_initial_iter)
        check_positive_int("max_iter", self._max_iter, self.n_initial_iter)
        check_in_interval("aggressiveness", self.aggressiveness, 1, open="lr")

    def _rungs(self, n: int) -> list[list[Rung]]:
        return [halving_rungs(n, self.n_initial_iter, self._max_iter, self.aggressiveness)]

    def _schedule(self, n: int) -> Schedule:
        levels = asynchronous_levels(self.n_initial_iter, self._max_iter, self.aggressiveness)
        return AsynchronousHalving(n, levels, self.aggressiveness)
