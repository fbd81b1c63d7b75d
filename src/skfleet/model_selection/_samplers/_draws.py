"""Candidates that are drawn before a search: at random, quasi-random (Sobol, Halton), the grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.utils import check_random_state

from skfleet._warnings import warn
from skfleet.model_selection._samplers._candidate_source import FixedCandidates

DRAWS = ("random", "sobol", "halton")

# Distance from 0 and 1 of all quantiles: at the ends they may be infinite, or below all values.
_MARGIN = 1e-12
# Points of a grid up to which all are shuffled; of more, points are drawn until they are different.
_MAX_PERMUTATION = 100_000


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
    whole, or repeatedly where the number of candidates is fixed. The first candidates do not depend
    on n.
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
    if not is_grid(parameters):
        return list(ParameterSampler(parameters, n, random_state=rng))
    # scikit-learn's draws of n points without replacement do not begin with those of fewer
    grid = ParameterGrid(parameters)
    if may_be_fewer and len(grid) < n:
        warn(
            f"The total space of parameters {len(grid)} is smaller than n_iter={n}. Running "
            f"{len(grid)} iterations. For exhaustive searches, use GridSearchCV."
        )
        n = len(grid)
    drawn: list[dict[str, Any]] = []
    while len(drawn) < n:
        drawn += map(grid.__getitem__, _shuffled(len(grid), n - len(drawn), rng))
    return drawn


def is_grid(parameters: Any) -> bool:
    """Return whether all parameters have a list of values."""
    spaces = [parameters] if isinstance(parameters, Mapping) else parameters
    return all(not hasattr(values, "rvs") for space in spaces for values in space.values())


def _shuffled(size: int, n: int, rng: np.random.RandomState) -> list[int]:
    """Return the first n numbers of a random permutation, or all if they are fewer."""
    if size <= _MAX_PERMUTATION:
        return rng.permutation(size)[:n].tolist()
    numbers: dict[int, None] = {}
    while len(numbers) < min(n, size):
        numbers[int(rng.random_sample() * size)] = None
    return list(numbers)


def _quasi_random(parameters: Any, n: int, sampler: str, random_state: Any) -> list[dict[str, Any]]:
    """Draw candidates from a low-discrepancy sequence, by the quantiles of each parameter.

    (Bergstra and Bengio, *Random Search for Hyper-Parameter Optimization*, JMLR 13, 2012, section
    3, compare such sequences.) Several parameter dicts get equal numbers of candidates.
    """
    from scipy.stats import qmc

    spaces = [parameters] if isinstance(parameters, Mapping) else list(parameters)
    rng = np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
    engine = qmc.Sobol if sampler == "sobol" else qmc.Halton
    by_space: list[list[dict[str, Any]]] = []
    n_points = -(-n // len(spaces))
    for space in spaces:
        names = sorted(space)
        # Sobol' points are balanced only for a power of two, which SciPy asks for.
        n_drawn = 1 << max(0, n_points - 1).bit_length() if sampler == "sobol" else n_points
        points = engine(len(names), rng=rng).random(n_drawn)
        by_space.append(
            [
                {name: _value_at(space[name], name, u) for name, u in zip(names, p, strict=True)}
                for p in points[:n_points]
            ]
        )
    return [params for turn in zip(*by_space, strict=True) for params in turn][:n]


def quantile(distribution: Any, u: float) -> Any:
    """Return the u-quantile of a distribution, as a number of Python."""
    value = distribution.ppf(min(max(u, _MARGIN), 1 - _MARGIN))
    value = value.item() if hasattr(value, "item") else value
    return int(value) if hasattr(distribution, "pmf") else value  # SciPy returns 3.0 for 3


def is_distribution(values: Any, name: str) -> bool:
    """Return whether a parameter has a distribution, not a list; raise if that has no quantiles."""
    if hasattr(values, "rvs") and not hasattr(values, "ppf"):
        raise ValueError(
            f"{name} must be a list or a distribution with ppf for this sampler. Got "
            f'{type(values).__name__} instead. Take one of scipy.stats, or sampler="random".'
        )
    return hasattr(values, "ppf")


def _value_at(values: Any, name: str, u: float) -> Any:
    """Return the u-quantile of a list or a distribution."""
    if is_distribution(values, name):
        return quantile(values, u)
    return values[min(int(u * len(values)), len(values) - 1)]
