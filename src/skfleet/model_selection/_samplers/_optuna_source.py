"""Candidates of the samplers of Optuna, asked and told in this process."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from skfleet.model_selection._samplers._candidate_source import CandidateSource
from skfleet.model_selection._samplers._parameter_space import ParameterSpace

logger = logging.getLogger("skfleet.model_selection")

# Of the candidates of a search with rungs so many are drawn at random, as in BOHB.
RANDOM_FRACTION = 1 / 3
# A rung has enough scores for a model with so many more than there are parameters, as in BOHB.
_MORE_THAN_PARAMETERS = 3
# From so many scores samplers choose by a model of them, by default.
_MANY_SCORES = 30
# A sampler that proposes one candidate again and again is asked no more often than this.
_MAX_REPEATED = 10


class PastScore(NamedTuple):
    """Score of a candidate in an earlier search, after so many calls."""

    params: Mapping[str, Any]
    score: float
    n_calls: int


@dataclass
class _Rung:
    """Study of the scores after a number of calls, with open trials for candidates that run."""

    study: Any
    open_trials: dict[int, Any] = field(default_factory=dict)  # by the number of the candidate
    n_trials: int = 0
    n_scores: int = 0

    def close(self, trial: Any, score: float, dropped_after: int | None = None) -> None:
        """End an open trial with a score, from which with NaN nothing is learned.

        A candidate that was dropped after so many splits is a pruned trial.
        """
        if math.isnan(score):
            self.study.tell(trial, state=_state("FAIL"))
            return
        self.n_scores += 1
        if dropped_after is None:
            self.study.tell(trial, score)
        else:
            trial.report(score, dropped_after)
            self.study.tell(trial, state=_state("PRUNED"))

    def add(self, params: Mapping[str, Any], distributions: Any, score: float | None) -> int:
        """Add a trial with a score, with None one that runs; return its number."""
        from optuna.trial import create_trial

        state = _state("RUNNING" if score is None else "COMPLETE")
        values = {"params": dict(params), "distributions": distributions}
        self.study.add_trial(create_trial(state=state, value=score, **values))
        self.n_scores += score is not None
        self.n_trials += 1
        return self.n_trials - 1


class OptunaSource(CandidateSource):
    """Source of candidates that a sampler of Optuna chooses by the scores so far.

    Without rungs there is one study whose trials are the candidates: asked one by one, they are
    those of Optuna's own loop. With rungs there is a study for each number of calls; the sampler
    learns from the one with most calls that has enough scores, and a third of the candidates is
    random (Falkner, Klein and Hutter, *BOHB: Robust and Efficient Hyperparameter Optimization at
    Scale*, ICML 2018, section 4). Candidates that run are open trials of the study that is asked.

    ``sampler`` is "tpe" or a sampler of Optuna, and ``points`` are the first candidates. Without
    rungs the calls of an order are the splits on which a candidate was scored, which are fewer than
    ``n_splits`` where it was dropped.
    """

    def __init__(
        self,
        parameters: Any,
        sampler: Any,
        seed: int,
        *,
        points: Sequence[Mapping[str, Any]] = (),
        past: Iterable[PastScore] = (),
        has_rungs: bool = False,
        n_splits: int = 1,
    ) -> None:
        self.space = ParameterSpace(parameters)
        self._has_rungs, self._n_splits, self._points = has_rungs, n_splits, list(points)
        self._n_enough = self.space.n_parameters + _MORE_THAN_PARAMETERS
        is_name = isinstance(sampler, str)
        # a copy, as the next search with this sampler has the same draws
        self._sampler = self._tree_of_parzen_estimators(seed) if is_name else copy.deepcopy(sampler)
        self._rng = np.random.default_rng(seed)
        self._rungs: dict[int, _Rung] = {}  # by the number of calls
        self._trial_params: dict[int, dict[str, Any]] = {}  # by the number of the candidate
        # latest scores, NaN of those without, of all that was asked for
        self._scores_by_params: dict[tuple[tuple[str, Any], ...], float] = {}
        self._add_past(past)

    def _add_past(self, past: Iterable[PastScore]) -> None:
        """Add the scores of earlier searches whose parameters are among those of this one."""
        n_skipped = 0
        for score in past:
            try:
                params = self.space.trial_params_of(score.params)
                distributions = self.space.distributions_of(params)
            except ValueError:
                n_skipped += 1
                continue
            n_skipped += params.keys() != distributions.keys()
            if params.keys() == distributions.keys():
                self._rung(score.n_calls).add(params, distributions, score.score)
        if n_skipped:
            text = "%d past results have other parameters than the search, and count for nothing"
            logger.warning(text, n_skipped)

    def examples(self) -> list[dict[str, Any]]:
        """Return the points that are given, and a random candidate of each dict of parameters."""
        rng = np.random.default_rng(0)
        drawn = [self.space.draw(rng, number) for number in range(self.space.n_dicts)]
        first = self.space.candidate_of(drawn[0])
        points = [{**first, **point} for point in self._points]
        return [*points, *map(self.space.candidate_of, drawn)]

    def ask(self, order: Any, pending: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the parameters of a new candidate."""
        number = order.candidate
        point = self._points[number] if number < len(self._points) else {}
        is_random = self._has_rungs and self._rng.random() < RANDOM_FRACTION
        if is_random and not point:
            return self._draw(number)
        rung = self._rung_to_ask(order)
        self._update_open_trials(rung, pending)
        is_known = True
        try:
            if point:
                rung.study.enqueue_trial(self.space.trial_params_of(point))
        except ValueError:  # values that the model does not know: it learns nothing from them
            is_known = False
        trial, params = self._new_trial(rung, may_repeat=bool(point))
        if is_known:
            rung.open_trials[number] = trial
            self._trial_params[number] = trial.params
        else:
            rung.close(trial, math.nan)
        return {**params, **point}

    def _draw(self, number: int) -> dict[str, Any]:
        """Return the parameters of a random candidate."""
        params = self.space.draw(self._rng) if self.is_exhausted else self._untried()
        self._scores_by_params.setdefault(_key(params), math.nan)
        self._trial_params[number] = params
        return self.space.candidate_of(params)

    @property
    def is_exhausted(self) -> bool:
        """True if all candidates were asked for."""
        return len(self._scores_by_params) >= self.space.size

    def _new_trial(self, rung: _Rung, *, may_repeat: bool) -> tuple[Any, dict[str, Any]]:
        """Ask for a trial, where there are lists alone for one that was not asked for yet."""
        may_repeat = may_repeat or self.space.size == math.inf
        n_repeated = 0
        while True:
            with _without_warnings():
                trial = rung.study.ask()
                params = self.space.suggest(trial)
            rung.n_trials += 1
            key = _key(trial.params)
            if may_repeat or self.is_exhausted or key not in self._scores_by_params:
                self._scores_by_params.setdefault(key, math.nan)
                return trial, params
            rung.close(trial, self._scores_by_params[key])
            n_repeated += 1
            if n_repeated > _MAX_REPEATED:
                rung.study.enqueue_trial(self._untried())

    def _untried(self) -> dict[str, Any]:
        """Return the parameters of a trial that was not asked for yet, drawn at random."""
        while True:
            params = self.space.draw(self._rng)
            if _key(params) not in self._scores_by_params:
                return params

    def _rung_to_ask(self, order: Any) -> _Rung:
        """Return the rung with most calls that has enough scores, or that of a new candidate."""
        enough = [n for n, rung in self._rungs.items() if rung.n_scores >= self._n_enough]
        return self._rung(max(enough) if self._has_rungs and enough else order.n_calls)

    def _rung(self, n_calls: int) -> _Rung:
        """Return the rung of a number of calls, made when it is first used."""
        n_calls = int(n_calls) if self._has_rungs else 0
        if n_calls not in self._rungs:
            # all with one sampler, which so draws nothing twice
            self._rungs[n_calls] = _Rung(new_study(self._sampler))
        return self._rungs[n_calls]

    def _tree_of_parzen_estimators(self, seed: int) -> Any:
        """Return Optuna's sampler, for rungs with as many random candidates as BOHB has."""
        from optuna.samplers import TPESampler

        n_startup: dict[str, Any] = {"n_startup_trials": self._n_enough} if self._has_rungs else {}
        with _without_warnings():
            return TPESampler(
                seed=seed,
                multivariate=True,
                group=self.space.is_conditional,
                constant_liar=True,
                **n_startup,
            )

    def _update_open_trials(self, rung: _Rung, pending: Mapping[int, Any]) -> None:
        """Let the open trials of a rung be those of the candidates that run."""
        for number in rung.open_trials.keys() - pending.keys():
            rung.close(rung.open_trials.pop(number), math.nan)
        for number in sorted(pending.keys() - rung.open_trials.keys()):
            params = self._trial_params.get(number)
            if params is not None:
                distributions = self.space.distributions_of(params)
                rung.open_trials[number] = rung.add(params, distributions, None)

    def tell(self, order: Any, params: Mapping[str, Any], score: float) -> None:
        """Record a score."""
        number = order.candidate
        trial_params = self._trial_params.get(number)
        if trial_params is None:
            return
        self._scores_by_params[_key(trial_params)] = score
        rung = self._rung(order.n_calls)
        if number in rung.open_trials:
            is_dropped = not self._has_rungs and order.n_calls < self._n_splits
            dropped_after = order.n_calls if is_dropped else None
            rung.close(rung.open_trials.pop(number), score, dropped_after)
        elif not math.isnan(score):
            rung.add(trial_params, self.space.distributions_of(trial_params), score)

    def trial_params_of(self, number: int) -> dict[str, Any] | None:
        """Return the parameters of a candidate's trial; None if the model does not know them."""
        return self._trial_params.get(number)

    def tell_path(
        self, scores: Iterable[tuple[Mapping[str, Any], float]], order: Any, score: float
    ) -> None:
        """Record the scores of trials beside one that was asked for and has this score.

        None of them is proposed again, and the model learns from the best if it is better than that
        one. NaN stands for no score.
        """
        trials = list(scores)
        self._scores_by_params |= {_key(params): other for params, other in trials}
        better = [
            trial for trial in trials if trial[1] > (-math.inf if math.isnan(score) else score)
        ]
        if better:
            params, best = max(better, key=itemgetter(1))
            self._rung(order.n_calls).add(params, self.space.distributions_of(params), best)


def new_study(sampler: Any = None) -> Any:
    """Return a study in memory."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it reports each new study
    try:
        return optuna.create_study(sampler=sampler, direction="maximize")
    finally:
        optuna.logging.set_verbosity(verbosity)


def is_reproducible(parameters: Any, sampler: Any) -> bool:
    """Return whether copies of a sampler choose the same candidates: it has a seed, or needs none.

    Samplers have no public sign of it, so two are asked, with random scores behind them.
    """
    space, rng = ParameterSpace(parameters), np.random.default_rng(0)
    points = [space.candidate_of(space.draw(rng)) for _ in range(_MANY_SCORES)]
    past = [PastScore(params, float(rng.random()), 1) for params in points]
    order = SimpleNamespace(candidate=0, n_calls=1)
    first, second = (OptunaSource(parameters, sampler, 0, past=past) for _ in range(2))
    return first.ask(order, {}) == second.ask(order, {})


def _key(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(params.items()))


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Ignore that the groups of parameters which several dicts need are experimental."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
