"""The parameters of a search as a sampler of Optuna sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from skfleet.model_selection._records._tokenize import content_key, unfitted
from skfleet.model_selection._samplers._draws import is_distribution, quantile

_PRIORS = ("uniform", "log-uniform")  # with which other libraries describe a range
_DICT = "dict"  # the parameter that says which of several dicts a candidate is of


class ParameterSpace:
    """Parameters in the forms of Optuna: uniform numbers for distributions, indices for lists.

    A number in [0, 1] stands for the quantile of a distribution. Of a list of dicts, the index of
    the dict is a further parameter, and names are preceded by that index.
    """

    def __init__(self, parameters: Any) -> None:
        dicts = [parameters] if isinstance(parameters, Mapping) else list(parameters)
        self.n_dicts = len(dicts)
        self.is_conditional = self.n_dicts > 1
        self._dicts: list[dict[str, Any]] = [
            {
                name: choices if is_distribution(choices, name) else _as_list(choices, name)
                for name, choices in values_by_name.items()
            }
            for values_by_name in dicts
        ]

    @property
    def size(self) -> float:
        """Number of candidates; infinite where there is a distribution."""
        lengths = (map(_n_values, values_by_name.values()) for values_by_name in self._dicts)
        return sum(map(math.prod, lengths))

    @property
    def n_parameters(self) -> int:
        """Number of parameters that a candidate has, of the dict with most."""
        return max(map(len, self._dicts)) + self.is_conditional

    def _trial_name(self, number: int, name: str) -> str:
        return f"{number}:{name}" if self.is_conditional else name

    def distributions_of(self, trial_params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the distributions of the parameters of a trial."""
        return self._distributions[trial_params.get(_DICT, 0)]

    @cached_property
    def _distributions(self) -> list[dict[str, Any]]:
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        number_of_dict = CategoricalDistribution(range(self.n_dicts))
        first = {_DICT: number_of_dict} if self.is_conditional else {}
        return [
            first
            | {
                self._trial_name(number, name): FloatDistribution(0.0, 1.0)
                if hasattr(values, "ppf")
                else CategoricalDistribution(range(len(values)))
                for name, values in values_by_name.items()
            }
            for number, values_by_name in enumerate(self._dicts)
        ]

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Let a trial suggest its parameters; return those of the candidate."""
        number = 0
        if self.is_conditional:
            number = trial.suggest_categorical(_DICT, range(len(self._dicts)))
        for name, values in self._dicts[number].items():
            trial_name = self._trial_name(number, name)
            if hasattr(values, "ppf"):
                trial.suggest_float(trial_name, 0.0, 1.0)
            else:
                trial.suggest_categorical(trial_name, range(len(values)))
        return self.candidate_of(trial.params)

    def draw(self, rng: np.random.Generator, number: int | None = None) -> dict[str, Any]:
        """Draw the parameters of a trial at random, of any dict or of one."""
        number = int(rng.integers(self.n_dicts)) if number is None else number
        params: dict[str, Any] = {_DICT: number} if self.is_conditional else {}
        for name, values in self._dicts[number].items():
            is_number = hasattr(values, "ppf")
            u = float(rng.random()) if is_number else int(rng.integers(len(values)))
            params[self._trial_name(number, name)] = u
        return params

    def candidate_of(self, trial_params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a candidate from those of a trial."""
        number = trial_params.get(_DICT, 0)
        return {
            name: quantile(values, trial_params[self._trial_name(number, name)])
            if hasattr(values, "ppf")
            else values[trial_params[self._trial_name(number, name)]]
            for name, values in self._dicts[number].items()
        }

    def moved(self, trial_params: Mapping[str, Any], steps: Mapping[str, float]) -> dict[str, Any]:
        """Return a trial with parameters moved on by steps, of which one is all their values.

        From the last value they go on with the first.
        """
        number, moved = trial_params.get(_DICT, 0), dict(trial_params)
        for name, step in steps.items():
            values, trial_name = self._dicts[number][name], self._trial_name(number, name)
            if not hasattr(values, "ppf"):
                n = len(values)
                moved[trial_name] = int(((moved[trial_name] + 0.5) / n + step) % 1 * n)
                continue
            u = (moved[trial_name] + step) % 1
            if hasattr(values, "pmf"):  # several quantiles have one value
                place = _place_of(quantile(values, u), values)
                u = u if place is None else float(place)
            moved[trial_name] = u
        return moved

    def trial_params_of(self, candidate: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a trial would have for the parameters of a candidate, all or some of them.

        Raises a ValueError for other parameters, or values that none of them has.
        """
        if not candidate:
            return {}
        for number, values_by_name in enumerate(self._dicts):
            if candidate.keys() <= values_by_name.keys():
                places = {n: _place_of(v, values_by_name[n]) for n, v in candidate.items()}
                if None not in places.values():
                    params = {self._trial_name(number, name): u for name, u in places.items()}
                    return {_DICT: number, **params} if self.is_conditional else params
        raise ValueError(f"{dict(candidate)!r} is not among the parameters of the search.")


def _n_values(values: Any) -> float:
    return math.inf if hasattr(values, "ppf") else len(values)


def _as_list(values: Any, name: str) -> list[Any]:
    """Return the values of a parameter, or raise if there are none."""
    is_range = isinstance(values, tuple) and len(values) == 3 and values[-1] in _PRIORS
    if isinstance(values, str) or not hasattr(values, "__len__") or is_range:
        raise TypeError(
            f"{name} must be a list, or a distribution such as scipy.stats.loguniform(1e-3, 1e3). "
            f"Got {values!r} instead. Put a single value into a list."
        )
    if not len(values):
        raise ValueError(f"{name} must have values. Got none instead.")
    return list(values)


def _place_of(value: Any, values: Any) -> float | int | None:
    """Return the index of a value in a list, or its quantile; None for one that is not theirs."""
    if not hasattr(values, "ppf"):
        return _index_of(value, values)
    try:
        if hasattr(values, "pmf"):
            u = float(values.cdf(value) + values.cdf(value - 1)) / 2
        else:
            u = float(values.cdf(value))
        deviation = abs(quantile(values, u) - value)
    except (AttributeError, TypeError):
        return None  # no number, or a distribution without cdf
    return u if 0 <= u <= 1 and deviation <= 1e-6 * max(abs(value), 1e-300) else None


def _index_of(value: Any, values: Sequence[Any]) -> int | None:
    """Return the index of a value of equal content in a list, or None."""
    key = content_key(unfitted(value))
    keys = [content_key(unfitted(choice)) for choice in values]
    return keys.index(key) if key in keys else None
