"""Importance of the parameters of a search for its scores, by Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skfleet._optional_dependencies import check_extra
from skfleet.model_selection._samplers._optuna_source import new_study
from skfleet.model_selection._samplers._parameter_space import ParameterSpace

_MAX_DEPTH = 8  # without a limit the trees of many candidates take long
_TOO_FEW = "Importance of parameters needs two candidates with different scores."


def draw_importances(axes: Any, parameters: Any, results: Mapping[str, Any], metric: str) -> None:
    """Draw a bar for each parameter, in groups where there are several dicts of parameters."""
    check_extra("Importance of parameters", "optuna", "optuna")
    groups = param_importances(parameters, results["params"], results[f"mean_test_{metric}"])
    rows = [(number, *bar) for number, group in enumerate(groups) for bar in group.items()]
    if not rows:
        draw_note(axes, _TOO_FEW)
        return
    numbers, names, widths = map(np.array, zip(*rows, strict=True))
    for number in dict.fromkeys(numbers):
        (places,) = np.nonzero(numbers == number)
        bars = axes.barh(places, widths[places], label=f"dict {number}")
        axes.bar_label(bars, fmt="%.2f", padding=3)
    if len(groups) > 1:
        axes.legend(loc="lower right", fontsize="small")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 4) - 0.5, -0.5)  # the largest on top
    axes.set_xlim(0, 1.1)  # with room for the numbers
    axes.set_xlabel("fraction of the variance of the scores")
    axes.set_title("Importance of the parameters")


def draw_note(axes: Any, text: str) -> None:
    """Write a line in place of a picture."""
    axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True, transform=axes.transAxes)
    axes.set_axis_off()


def param_importances(
    parameters: Any, candidates: Sequence[Mapping[str, Any]], scores: Sequence[float]
) -> list[dict[str, float]]:
    """Return each parameter's fraction of the variance of the scores, for each dict of them.

    Optuna compares trials with the same parameters, so each dict has fractions of its own, of those
    candidates that are among its values. It has none without different scores. Parameters with a
    single value, and those with a distribution without ``ppf``, have none either.
    """
    dicts = [parameters] if isinstance(parameters, Mapping) else parameters or ()
    is_open = np.isfinite(scores)
    groups = []
    for values in dicts:
        known = {k: v for k, v in values.items() if hasattr(v, "ppf") or not hasattr(v, "rvs")}
        space = ParameterSpace(known)
        trials = []
        for number in np.flatnonzero(is_open).tolist():
            candidate = candidates[number]
            if candidate.keys() != values.keys():
                continue
            try:
                params = space.trial_params_of({name: candidate[name] for name in known})
            except ValueError:  # of another dict, or a point outside of the space
                continue
            trials.append((params, float(scores[number])))
            is_open[number] = False
        groups.append(_importances(space, trials))
    return groups


def _importances(
    space: ParameterSpace, trials: Sequence[tuple[dict[str, Any], float]]
) -> dict[str, float]:
    """Return the fractions of the parameters of some trials with scores, the largest first."""
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances
    from optuna.trial import create_trial

    distributions = space.distributions_of({})
    names = [name for name, own in distributions.items() if not own.single()]
    if not names or len({score for _, score in trials}) < 2:
        return {}
    study = new_study()
    study.add_trials(
        create_trial(params=params, distributions=distributions, value=score)
        for params, score in trials
    )
    evaluator = FanovaImportanceEvaluator(max_depth=_MAX_DEPTH, seed=0)
    try:
        importances = get_param_importances(study, evaluator=evaluator, params=names)
    except RuntimeError:  # no tree has any variance: scores differ by rounding alone
        return {}
    return {name: float(value) for name, value in importances.items()}
