"""Private names of joblib that have no public equivalent; a test fails where one goes."""

from __future__ import annotations

from typing import Any


def has_all_calls(parallel: Any) -> bool:
    """Return whether a Parallel object has come to the end of its calls, and knows their number."""
    return not parallel._iterating


def raise_error_of_calls(parallel: Any) -> None:
    """Raise the error of a generator of calls that failed before it made any.

    joblib 1.6 returns no results where ``pre_dispatch`` is "all".
    """
    if parallel._aborting and not parallel.n_dispatched_tasks:
        parallel._raise_error_fast()
