"""Choice of a sampler: by name, one of Optuna, or the user's own."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from skfleet._optional_dependencies import check_extra
from skfleet._validation import check_option
from skfleet.model_selection._samplers._draws import DRAWS
from skfleet.model_selection._samplers._optuna_source import PastScore, is_reproducible
from skfleet.model_selection._samplers._parameter_space import ParameterSpace

logger = logging.getLogger("skfleet.model_selection")

SAMPLERS = (*DRAWS, "tpe", "auto")


def choose_sampler(sampler: Any) -> Any:
    """Return a sampler with "auto" resolved: TPE where Optuna is installed, else random."""
    if not (isinstance(sampler, str) and sampler == "auto"):
        return sampler
    return "random" if find_spec("optuna") is None else "tpe"


def has_model(sampler: Any) -> bool:
    """Return whether a sampler chooses by the scores so far: "tpe", or one of Optuna's objects."""
    if isinstance(sampler, str):
        return sampler == "tpe"
    if "optuna" not in sys.modules:  # which only made such an object if it is
        return False
    from optuna.samplers import BaseSampler

    return isinstance(sampler, BaseSampler)


def check_sampler(search: Any, parameters: Any) -> None:
    """Raise for a sampler that is none, or that cannot choose among these parameters.

    Which one "auto" stands for is logged.
    """
    sampler, past_results = search.sampler, search.past_results
    choice = choose_sampler(sampler)
    if choice is not sampler:
        logger.info(
            'sampler="auto" is "%s", as Optuna is %sinstalled',
            choice,
            "" if choice == "tpe" else "not ",
        )
    if has_model(choice):
        check_extra(f"sampler={sampler!r}", "optuna", "optuna")
        ParameterSpace(parameters)
        if not isinstance(choice, str):
            _check_object(choice, parameters, needs_seed=search.checkpoint is not None)
        return
    if past_results is not None:
        raise ValueError(
            'past_results must be used with sampler="tpe" or a sampler of Optuna, which learn from '
            f"them. Got sampler={sampler!r} instead."
        )
    if isinstance(choice, str) or not all(hasattr(choice, name) for name in ("ask", "tell")):
        check_option("sampler", choice, SAMPLERS)
    elif search.points_to_evaluate is not None:
        raise ValueError(
            "points_to_evaluate must not be given with a sampler of your own. Got both. Let the "
            "sampler ask for them."
        )


def _check_object(sampler: Any, parameters: Any, *, needs_seed: bool) -> None:
    """Raise for an object of Optuna that cannot choose, or would choose something else again."""
    from optuna.samplers import BruteForceSampler, GridSampler

    name = type(sampler).__name__
    if isinstance(sampler, (BruteForceSampler, GridSampler)):
        raise ValueError(
            f"sampler must choose among the parameters of the search. Got {name}, which lists its "
            "own, instead. Use GridSearchCV, or another sampler."
        )
    # a trial shows too whether the libraries are there that the sampler imports when it is asked
    if not is_reproducible(parameters, sampler) and needs_seed:
        raise ValueError(
            "sampler must have a seed with a checkpoint, to choose the same candidates again. Got "
            f"{name} without one instead. Give it a seed."
        )


def past_scores(past_results: Any, metric: str, n_calls: int) -> list[PastScore]:
    """Return the scores in the ``cv_results_`` of earlier searches.

    Where there is no column of budgets, candidates count as if they had had ``n_calls`` calls.
    """
    if past_results is None:
        return []
    tables = [past_results] if isinstance(past_results, Mapping) else list(past_results)
    return [score for table in tables for score in _scores_in(table, metric, n_calls)]


def _scores_in(
    results: Mapping[str, Sequence[Any]], metric: str, n_calls: int
) -> Iterator[PastScore]:
    column = f"mean_test_{metric}"
    if "params" not in results or column not in results:
        raise ValueError(
            f"past_results must be cv_results_ with params and {column}, or a list of such. Got "
            f"{sorted(map(str, results))} instead. Score the earlier search by the same metric."
        )
    budgets = results.get("budget", [n_calls] * len(results["params"]))
    for params, score, budget in zip(results["params"], results[column], budgets, strict=True):
        if not np.isnan(score):
            yield PastScore(params, float(score), int(budget))
