"""Samplers of candidates: random, quasi-random (Sobol, Halton), grid, and `CandidateSource`."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.utils import check_random_state

SAMPLERS = ("random", "sobol", "halton")


class CandidateSource(ABC):
    """Ask-and-tell interface of samplers that choose each candidate by the scores so far.

    The schedule decides which candidates are trained: one whose score was reported may be trained
    further and reported again, after more calls. Candidates are numbered from 0. An order is a
    tuple ``(candidate, n_calls, bracket, rung)``: train that candidate until it has had `n_calls`
    calls of ``partial_fit``. Any object with these two methods will do.

    Examples
    --------
    >>> from skfleet.model_selection import CandidateSource
    >>> class Countdown(CandidateSource):
    ...     def ask(self, order, pending):
    ...         return {"alpha": 10.0 ** -order.candidate}
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import SGDClassifier
    >>> from skfleet.model_selection import SuccessiveHalvingSearchCV
    >>> search = SuccessiveHalvingSearchCV(
    ...     SGDClassifier(random_state=0), {}, sampler=Countdown(), n_jobs=1
    ... )
    >>> len(search.fit(*load_iris(return_X_y=True)).cv_results_["params"])
    10
    """

    @abstractmethod
    def ask(self, order: Any, pending: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
        """Return the parameters of a new candidate.

        Parameters
        ----------
        order : tuple
            The candidate's first order.
        pending : mapping of int to mapping
            The parameters of the candidates that are being trained, by number.

        Returns
        -------
        params : mapping of str to object
            Parameters for the estimator's ``set_params``.
        """

    def tell(  # noqa: B027
        self, order: Any, params: Mapping[str, Any], score: float
    ) -> None:
        """Record a score; the default ignores it.

        Parameters
        ----------
        order : tuple
            The order that was executed.
        params : mapping of str to object
            The parameters of its candidate.
        score : float
            The score that `refit` names, the higher the better; NaN where the candidate failed.
        """


class FixedCandidates(CandidateSource):
    """A list of candidates, fixed before the search."""

    def __init__(self, candidates: Sequence[dict[str, Any]]) -> None:
        self.candidates = candidates

    def ask(self, order: Any, pending: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the parameters of the next candidate."""
        return self.candidates[order.candidate]


def candidates_of(
    parameters: Any,
    n: int | str,
    sampler: str,
    points: Sequence[Mapping[str, Any]] | None,
    random_state: Any,
    *,
    may_be_fewer: bool = True,
) -> FixedCandidates:
    """Draw n candidates, or list the whole grid; `points` are the first candidates.

    Parameters that a point does not have are drawn. A grid with fewer points than n is taken as a
    whole, or repeatedly where the number of candidates is fixed.
    """
    if n == "grid":
        drawn: list[dict[str, Any]] = list(ParameterGrid(parameters))
    elif sampler == "random":
        drawn = _draw(parameters, int(n), random_state, may_be_fewer)
    else:
        drawn = _quasi_random(parameters, int(n), sampler, random_state)
    empty: dict[str, Any] = {}
    pairs = zip_longest(drawn, points or (), fillvalue=empty)
    return FixedCandidates([{**params, **point} for params, point in pairs])


def _draw(parameters: Any, n: int, random_state: Any, may_be_fewer: bool) -> list[dict[str, Any]]:
    """Draw candidates at random, without replacement where all parameters are lists."""
    rng = check_random_state(random_state)
    with warnings.catch_warnings():
        if not may_be_fewer:
            warnings.filterwarnings("ignore", "The total space of parameters", UserWarning)
        drawn = list(ParameterSampler(parameters, n, random_state=rng))
        while len(drawn) < n and not may_be_fewer:
            drawn += ParameterSampler(parameters, n - len(drawn), random_state=rng)
    return drawn


def _quasi_random(parameters: Any, n: int, sampler: str, random_state: Any) -> list[dict[str, Any]]:
    """Draw candidates from a low-discrepancy sequence, by the quantiles of each parameter.

    (Bergstra and Bengio, *Random Search for Hyper-Parameter Optimization*, JMLR 13, 2012, section
    3, compare such sequences.) Several parameter dicts get equal numbers of candidates.
    """
    from scipy.stats import qmc

    spaces = [parameters] if isinstance(parameters, Mapping) else list(parameters)
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
    engine = qmc.Sobol if sampler == "sobol" else qmc.Halton
    drawn: list[dict[str, Any]] = []
    for i, space in enumerate(spaces):
        n_points = n // len(spaces) + (i < n % len(spaces))
        names = sorted(space)
        # Sobol' points are balanced only for a power of two, which SciPy asks for.
        n_drawn = 1 << max(0, n_points - 1).bit_length() if sampler == "sobol" else n_points
        points = engine(len(names), rng=rng).random(n_drawn)
        drawn += [
            {name: _quantile(space[name], name, u) for name, u in zip(names, point, strict=True)}
            for point in points[:n_points]
        ]
    return drawn


def _quantile(values: Any, name: str, u: float) -> Any:
    """Return the u-quantile of a list or a distribution."""
    if hasattr(values, "ppf"):
        value = values.ppf(u)
        return value.item() if hasattr(value, "item") else value
    if hasattr(values, "rvs"):
        raise ValueError(
            f"{name} must be a list or a distribution with ppf to be drawn evenly. Got "
            f'{type(values).__name__} instead. Take one of scipy.stats, or sampler="random".'
        )
    return values[min(int(u * len(values)), len(values) - 1)]
