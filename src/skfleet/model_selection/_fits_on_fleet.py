"""Rows, the fleet, and docstrings that the functions of cross-validation have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from skfleet._captured_output import deduplicate_warnings
from skfleet._docstrings import compose_docstring
from skfleet.blocks import is_lazy
from skfleet.engine import rows_cached_on_workers
from skfleet.metrics import check_scorer
from skfleet.model_selection._backends import fleet_backend, sequential_fits
from skfleet.model_selection._dispatch._search_context import SearchContext
from skfleet.model_selection._dispatch._split_views import as_indexable
from skfleet.model_selection._input_rows import (
    check_input_rows,
    gathered_bytes,
    may_gather,
    place_rows,
    rows_in_memory,
)
from skfleet.model_selection._records._evaluations import CandidateResults

document = compose_docstring(
    {
        "rows": """\
estimator : estimator object
    Estimator to fit. Each fit is of a clone.
{X_and_y}""",
        "X_and_y": """\
X : {array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} of shape \\
        (n_samples, n_features)
    Data to fit. Estimators of this library are fitted on the splits of Dask collections where
    the rows are; for others the rows are computed in the calling process.
y : array-like, Dask array or Dask Series of shape (n_samples,) or (n_samples, n_outputs), \\
        default=None
    Targets. Labels are computed in the calling process.""",
        "groups": """\
groups : {array-like, Dask array or Dask Series} of shape (n_samples,), default=None
    Groups of the rows, for a splitter that keeps groups together.""",
        "scoring": """\
scoring : str or callable, default=None
    Metric; by default the estimator's own ``score``.""",
        "cv": """\
cv : int, cross-validation generator or iterable, default=None
    The splits; None means 5 folds.""",
        "n_jobs": """\
n_jobs : int, default=None
    Maximum number of fits at once. None and -1 mean the whole fleet, 1 the calling process.""",
        "verbose": """\
verbose : int, default=0
    1 shows the progress in a bar, or in lines at intervals; from 2 on each fit is printed.""",
        "params": """\
params : dict, default=None
    Parameters of the estimator's ``fit``, such as ``sample_weight``; with metadata routing those
    of the splitter and the scorer too.""",
        "pre_dispatch": """\
pre_dispatch : int or str, default='2*n_jobs'
    Maximum number of batches of fits on the fleet at once.""",
        "error_score": """\
error_score : 'raise' or numeric, default=np.nan
    The score of a fit that fails.""",
        "errors": """\
Raises
------
ValueError
    For rows, a score or splits that are not valid, and for Dask rows under another backend of
    joblib.
skfleet.exceptions.FleetError
    If a fit kills its workers again and again, or the fleet is gone.""",
        "fleet": """\
Fits run on the current fleet, or on the embedded one that is started where there is none; an
enclosing ``joblib.parallel_config`` that names a backend wins. Rows in this process travel
once.""",
        "lazy_fits": """\
On Dask rows a part of a split has its rows in their order, and first steps of a pipeline are fitted
on all splits in shared passes; each fit of the last step takes the passes of a fit by itself.""",
    }
)


# Key of the parameter ``groups`` of a function among its ``params``, of which none has this name.
_GROUPS = "groups of the function"


class IndexableInputs(NamedTuple):
    """Rows and parameters as scikit-learn's functions index them."""

    X: Any
    y: Any
    groups: Any
    params: dict[str, Any]
    collection: Any  # the rows on Dask; None for rows in this process


@contextmanager
def fits_on_fleet(
    function: Callable[..., Any],
    estimator: Any,
    X: Any,
    y: Any,
    groups: Any,
    params: Mapping[str, Any] | None,
    *,
    n_jobs: int | None,
    verbose: int = 0,
    scoring: Any = None,
) -> Iterator[IndexableInputs]:
    """Check and place the rows, and let the fits of a function run on the fleet."""
    check_input_rows(estimator, X, y, type(estimator).__name__)
    check_scorer(scoring)
    with fleet_backend():
        # with metadata routing, and for a search inside, params have a name "groups" too
        arrays = {_GROUPS: groups, **(params or {})}
        labels = _GROUPS, "groups"
        rows, targets, arrays = place_rows(estimator, X, y, arrays, labels=labels, scoring=scoring)
        run = SearchContext(
            fit_in_driver=is_lazy(rows),
            verbose=verbose,
            name=function.__name__,
            gathered_bytes=gathered_bytes(X, rows),
            may_gather=may_gather(estimator, scoring),
        )
        run.expect(CandidateResults((), 1))
        with (
            deduplicate_warnings(),
            run(),
            rows_cached_on_workers(rows, run.device_cache),
            sequential_fits(n_jobs) if run.fit_in_driver else nullcontext(),
            rows_in_memory(rows, targets, arrays) as (rows, targets, arrays),
        ):
            arrays = {name: as_indexable(values) for name, values in arrays.items()}
            groups = arrays.pop(_GROUPS)
            collection = rows if run.fit_in_driver else None
            yield IndexableInputs(
                as_indexable(rows), as_indexable(targets), groups, arrays, collection
            )
