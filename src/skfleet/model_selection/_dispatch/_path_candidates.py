"""Candidates that cost little beside another one, as their fits are shared with its fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# the shared fits of estimators that are scored in closed form are registered by it
from skfleet.model_selection._dispatch._routes import _closed_form  # noqa: F401
from skfleet.model_selection._paths._registry import SharedFitMember, member_of
from skfleet.model_selection._samplers._parameter_space import ParameterSpace

_GOLDEN_RATIO = (1 + 5**0.5) / 2
_N_DRAWS = 10
# Of short lists the first points of the lattice have few values, so that more are tried.
_MAX_TRIED = 4


class Trial(NamedTuple):
    """A candidate, and its parameters as a trial of a sampler has them."""

    candidate: dict[str, Any]
    params: Mapping[str, Any]


class PathCandidates:
    """Chooses candidates that differ from another one in parameters over which fits are shared.

    The candidate and the others on its path are spread evenly over the quantiles of a distribution,
    or the places in a list: a lattice that is shifted so that the candidate is in it (Cranley and
    Patterson, *Randomization of Number Theoretic Methods for Multiple Integration*, SIAM Journal on
    Numerical Analysis 13, 1976). What was chosen before is left out.
    """

    def __init__(self, estimator: Any, parameters: Any, size: int, **options: bool) -> None:
        self.space = ParameterSpace(parameters)
        self._estimator, self._size, self._options = estimator, size, options
        self._chosen: set[tuple[tuple[str, Any], ...]] = set()

    def check(self) -> None:
        """Raise if no candidate may share its fits with others of the search."""
        rng, refused = np.random.default_rng(0), None
        for number in [*range(self.space.n_dicts)] * _N_DRAWS:
            member = self._member(self.space.candidate_of(self.space.draw(rng, number)))
            if member is not None and not member.refused:
                return
            refused = member.refused if member is not None else refused
        raise ValueError(
            f"path_size must be 1 where further candidates would cost a fit each. Got {self._size} "
            f"for {type(self._estimator).__name__} instead: "
            f"{refused or 'one fit serves several values of none of the searched parameters'}. "
            "Leave path_size out."
        )

    def of_batch(
        self, batch: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any] | None]
    ) -> list[list[Trial]]:
        """Return the others on the path of each candidate of a batch.

        ``known`` are the candidates as trials have them, where a sampler knows it.
        """
        trials = [
            self._trial_params_of(params) if trial_params is None else trial_params
            for params, trial_params in zip(batch, known, strict=True)
        ]
        self._chosen |= {_key(trial_params) for trial_params in trials if trial_params}
        return [
            [] if trial_params is None else self._path_of(params, trial_params)
            for params, trial_params in zip(batch, trials, strict=True)
        ]

    def _trial_params_of(self, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        try:
            return self.space.trial_params_of(params)
        except ValueError:
            return None  # values that are not of the search

    def _path_of(self, params: Mapping[str, Any], trial_params: Mapping[str, Any]) -> list[Trial]:
        member = self._member(params)
        if member is None or member.refused:
            return []
        names = [name for name in params if name not in member.common]
        path: list[Trial] = []
        for i in range(1, _MAX_TRIED * self._size):
            if len(path) == self._size - 1:
                break
            # evenly over the first parameter, and by steps of an irrational number over others
            steps = [i / self._size, *(i * _GOLDEN_RATIO**-j for j in range(1, len(names)))]
            moved = self.space.moved(trial_params, dict(zip(names, steps, strict=True)))
            trial = Trial(self.space.candidate_of(moved), moved)
            other = self._member(trial.candidate)
            is_new = _key(moved) not in self._chosen
            if is_new and other is not None and not other.refused:
                self._chosen.add(_key(moved))
                path.append(trial)
        return path

    def _member(self, params: Mapping[str, Any]) -> SharedFitMember | None:
        """Return a candidate as a member of a shared fit in which each costs little."""
        member = member_of(self._estimator, params, **self._options)
        return None if member is None or member.shared_fit.is_divisible else member


def _key(trial_params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    # a lattice that begins again has the same quantiles but for rounding
    return tuple(sorted((name, round(value, 9)) for name, value in trial_params.items()))
