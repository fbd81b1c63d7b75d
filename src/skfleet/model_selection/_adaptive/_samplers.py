"""Where parameters of candidates come from: drawn, listed, or asked of something that learns."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.utils import check_random_state

__all__ = ["SAMPLERS", "CandidateSource", "Listed", "candidates_of"]

SAMPLERS = ("random", "sobol", "halton")


class CandidateSource(ABC):
    """Gives the parameters of candidates, one candidate at a time, and hears of their scores.

    The schedule decides what is trained: a candidate that was told of may be trained further and
    told of again, after more calls. Candidates go by number, from 0 on. Orders are
    ``(candidate, n_calls, bracket, rung)``: to train that candidate until it has had so many calls
    of ``partial_fit``. Any object with these two methods will do.

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
        """Give the parameters of a candidate that is to begin.

        Parameters
        ----------
        order : tuple
            Its first order.
        pending : mapping of int to mapping
            The parameters of the candidates that are being trained, by number.

        Returns
        -------
        params : mapping of str to object
            What the estimator is to be set to.
        """

    def tell(  # noqa: B027
        self, order: Any, params: Mapping[str, Any], score: float
    ) -> None:
        """Take note of a score; by default nothing is learned from it.

        Parameters
        ----------
        order : tuple
            What was carried out.
        params : mapping of str to object
            The parameters of its candidate.
        score : float
            The score that decides, the higher the better; NaN where the candidate failed.
        """


class Listed(CandidateSource):
    """Candidates that are known beforehand."""

    def __init__(self, candidates: Sequence[Mapping[str, Any]]) -> None:
        self._candidates = [dict(params) for params in candidates]

    def __len__(self) -> int:
        return len(self._candidates)

    def all(self) -> list[dict[str, Any]]:
        """Give the parameters of all candidates."""
        return self._candidates

    def ask(self, order: Any, pending: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Give the parameters of the next candidate."""
        return self._candidates[order.candidate]


def candidates_of(
    parameters: Any,
    n: int | str,
    sampler: str,
    points: Sequence[Mapping[str, Any]] | None,
    random_state: Any,
    *,
    may_be_fewer: bool = True,
) -> Listed:
    """Draw n candidates, or list the whole grid; the given points come first.

    A point that leaves parameters out gets those that were drawn in its place. Of a grid with
    fewer points than n all are taken, or each several times where the number is fixed.
    """
    if n == "grid":
        drawn: list[dict[str, Any]] = list(ParameterGrid(parameters))
    elif sampler == "random":
        drawn = _draw(parameters, int(n), random_state, may_be_fewer)
    else:
        drawn = _fill(parameters, int(n), sampler, random_state)
    for i, point in enumerate(points or ()):
        if i < len(drawn):
            drawn[i] = {**drawn[i], **point}
        else:
            drawn.append(dict(point))
    return Listed(drawn)


def _draw(parameters: Any, n: int, random_state: Any, may_be_fewer: bool) -> list[dict[str, Any]]:
    """Draw candidates at random, without repetition where all parameters are lists."""
    rng = check_random_state(random_state)
    with warnings.catch_warnings():
        if not may_be_fewer:
            warnings.filterwarnings("ignore", "The total space of parameters", UserWarning)
        drawn = list(ParameterSampler(parameters, n, random_state=rng))
        while len(drawn) < n and not may_be_fewer:
            drawn += ParameterSampler(parameters, n - len(drawn), random_state=rng)
    return drawn


def _fill(parameters: Any, n: int, sampler: str, random_state: Any) -> list[dict[str, Any]]:
    """Place candidates evenly, each parameter by the inverse of its distribution's function.

    (Bergstra and Bengio, *Random Search for Hyper-Parameter Optimization*, JMLR 13, 2012, section
    3, compare such sequences.) With several dicts of parameters, each gets its share of candidates.
    """
    from scipy.stats import qmc

    spaces = [parameters] if isinstance(parameters, Mapping) else list(parameters)
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
    engine = qmc.Sobol if sampler == "sobol" else qmc.Halton
    drawn: list[dict[str, Any]] = []
    for i, space in enumerate(spaces):
        share = n // len(spaces) + (i < n % len(spaces))
        names = sorted(space)
        if sampler == "sobol":
            # A power of two is what makes the sequence even, and what SciPy asks for.
            places = engine(len(names), rng=rng).random_base2(max(0, (share - 1)).bit_length())
        else:
            places = engine(len(names), rng=rng).random(share)
        drawn += [
            {name: _at(space[name], name, u) for name, u in zip(names, place, strict=True)}
            for place in places[:share]
        ]
    return drawn


def _at(values: Any, name: str, u: float) -> Any:
    """Return the value of a list or a distribution below which a share u of it lies."""
    if hasattr(values, "ppf"):
        value = values.ppf(u)
        return value.item() if hasattr(value, "item") else value
    if hasattr(values, "rvs"):
        raise ValueError(
            f"{name} must be a list or a distribution with ppf to be drawn evenly. Got "
            f'{type(values).__name__} instead. Take one of scipy.stats, or sampler="random".'
        )
    return values[min(int(u * len(values)), len(values) - 1)]
