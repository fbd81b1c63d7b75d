"""The parameter ``racing`` of a search: its checks, its race, and what the race saved."""

from __future__ import annotations

import logging
from typing import Any

from skfleet._display import count
from skfleet.model_selection._racing._race import RULES, Race


def check_racing(search: Any) -> None:
    """Raise for an unknown rule, and where it is open which of several metrics decides."""
    if search.racing is None:
        return
    if search.racing not in RULES:
        rules = " or ".join(map(repr, RULES))
        raise ValueError(
            f"racing must be None, {rules}. Got {search.racing!r} instead. Leave it out to make "
            "all fits."
        )
    scoring = search.scoring
    has_several = hasattr(scoring, "__iter__") and not isinstance(scoring, str) and len(scoring) > 1
    if has_several and not isinstance(search.refit, str):
        names = ", ".join(map(repr, scoring))
        raise ValueError(
            "refit must name the metric by which racing compares candidates. Got "
            f"refit={search.refit!r} and {len(scoring)} metrics instead. Set refit to one of "
            f"{names}, or leave racing out."
        )


def begin_race(rule: str, n_splits: int) -> Race:
    """Return the race of a search, or raise where there are too few splits for it."""
    _, min_splits = RULES[rule]
    if n_splits <= min_splits:
        raise ValueError(
            f"cv must have more than {min_splits} splits with racing={rule!r}, which drops no "
            f"candidate before it has so many. Got {n_splits} splits instead. Take more splits, or "
            "leave racing out."
        )
    return Race(rule, n_splits)


def report_race(race: Race, n_withdrawn: int, *, is_printed: bool) -> None:
    """Log, and print, how many candidates a race has dropped, and how many fits that saved."""
    n_fits = race.n_candidates * race.n_splits
    text = (
        f"racing dropped {len(race.drops)} of {count(race.n_candidates, 'candidate')}, "
        f"{n_withdrawn} fits of {n_fits} were not made"
    )
    logging.getLogger("skfleet.model_selection").info("%s", text)
    if is_printed:
        print(text)
