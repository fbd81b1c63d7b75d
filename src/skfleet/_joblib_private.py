"""Private names of joblib that have no public equivalent; a test fails where one goes.

Where one is gone, a progress bar may have no total, and errors of generators are left to joblib.
"""

from __future__ import annotations

from typing import Any

from skfleet._private_names import PrivateNames

PrivateNames("joblib")  # whose version is looked at


def has_all_calls(parallel: Any) -> bool:
    """Return whether a Parallel object has come to the end of its calls, and knows their number."""
    return not getattr(parallel, "_iterating", True)


def raise_error_of_calls(parallel: Any) -> None:
    """Raise the error of a generator of calls that failed before it made any.

    joblib 1.6 returns no results where ``pre_dispatch`` is "all".
    """
    has_error = getattr(parallel, "_aborting", False) and not parallel.n_dispatched_tasks
    if has_error and hasattr(parallel, "_raise_error_fast"):
        parallel._raise_error_fast()
