"""Results of a fitted search, above scikit-learn's diagram of it in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from skfleet._display import Cell, count, format_value, html_table, shorten
from skfleet._progress_bar import format_duration

_MAX_PARAMETERS, _MAX_REASONS = 20, 3


class SearchHTML:
    """Mixin that puts the results of a fitted search above its diagram.

    Notebooks ask for the two methods; scikit-learn's own return the diagram.
    """

    @property
    def _repr_html_(self) -> Callable[[], str]:
        diagram = super()._repr_html_  # type: ignore[misc]  # not there with `display="text"`
        return lambda: search_html(self) + diagram()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**kwargs)  # type: ignore[misc]
        if "text/html" in bundle:
            bundle["text/html"] = search_html(self) + bundle["text/html"]
        return bundle


def search_html(search: Any) -> str:
    """Return a table of what a search found; nothing if it has no results."""
    fitted = vars(search)
    results: Mapping[str, Any] | None = fitted.get("cv_results_")
    if not results:
        return ""
    cells: dict[str, Cell] = {
        **_scores(search, results),
        "Best parameters": _parameters(fitted.get("best_params_")),
        "Candidates": _candidates(fitted, results),
        "Time": _times(fitted, results),
        "Fits saved": _saved_fits(fitted),
        "Racing": _racing(fitted, results),
        "From the checkpoint": _checkpoint(search, results),
        "Time budget": _time_budget(search, results),
        "Refit": _missing_refit(search),
    }
    rows = [(name, cell) for name, cell in cells.items() if cell]
    return html_table(f"Results of {type(search).__name__}", rows)


def _scores(search: Any, results: Mapping[str, Any]) -> dict[str, Cell]:
    """Return the scores of the best candidate; the highest of each metric where none was chosen."""
    fitted, metrics = vars(search), _metrics(results)
    best = fitted.get("best_index_")
    if best is None:
        highest = [_argmax(results[f"mean_test_{metric}"]) for metric in metrics]
        texts = [_score(results, m, i) for m, i in zip(metrics, highest, strict=True)]
        return {"Highest scores": texts}
    if search.refit in metrics:  # the metric that chose is the first
        metrics = [search.refit, *(metric for metric in metrics if metric != search.refit)]
    name = "Best score" if "best_score_" in fitted else "Scores at best_index_"
    texts = [_score(results, metric, best) for metric in metrics]
    n_splits = _n_splits(results) if "n_folds" not in results else results["n_folds"][best]
    if n_splits > 1:
        texts.append(f"mean ± standard deviation of {n_splits} splits")
    return {name: texts}


def _score(results: Mapping[str, Any], metric: str, index: int) -> str:
    name = "" if metric == "score" else f"{metric}: "
    text = f"{name}{results[f'mean_test_{metric}'][index]:.4g}"
    if _n_splits(results) == 1:
        return text
    return f"{text} ± {results[f'std_test_{metric}'][index]:.2g}"


def _parameters(params: Mapping[str, Any] | None) -> list[str]:
    if params is None:
        return []
    texts = [f"{name} = {format_value(value)}" for name, value in params.items()]
    n_more = len(texts) - _MAX_PARAMETERS
    return [*texts[:_MAX_PARAMETERS], f"and {n_more} more"] if n_more > 0 else texts or ["defaults"]


def _candidates(fitted: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """Return the number of candidates, of their splits, and of those without a score."""
    n_candidates, splits = len(results["params"]), count(_n_splits(results), "split")
    if "metadata_" in fitted:
        texts = _levels(fitted, n_candidates)
    elif "n_resources" in results:  # of halving
        iterations, first = np.unique(results["iter"], return_index=True)
        steps = [
            f"{np.sum(results['iter'] == i)} on {results['n_resources'][row]}"
            for i, row in zip(iterations, first, strict=True)
        ]
        texts = [f"{', '.join(steps)} {fitted.get('resource', 'resources')}; {splits}"]
    else:
        texts = [f"{n_candidates} on {splits}"]
    scores = [results[f"mean_test_{metric}"] for metric in _metrics(results)]
    if n_missing := int(np.isnan(scores).any(axis=0).sum()):
        texts.append(f"{n_missing} without a score")
    return texts


def _levels(fitted: Mapping[str, Any], n_candidates: int) -> list[str]:
    """Return what the candidates of an adaptive search had of its resource, and the best had."""
    metadata, best = fitted["metadata_"], fitted.get("n_iter_")
    if "n_resources" in metadata:
        resource = fitted["resource"]
        texts = [f"{n_candidates}, with {metadata['n_resources']} of resource={resource!r}"]
        return texts if best is None else [*texts, f"best with {best}"]
    texts = [f"{n_candidates}, in {count(metadata['partial_fit_calls'], 'call')} of partial_fit"]
    return texts if best is None else [*texts, f"best after {count(best, 'call')}"]


def _times(fitted: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """Return the seconds of the search, the fits and the refit, where they are known."""
    # those of an adaptive search are totals
    n_fits = 1 if "history_" in fitted else results.get("n_folds", _n_splits(results))
    seconds = {
        name: float(np.nansum(results[f"mean_{phase}_time"] * n_fits))
        for name, phase in {"fits": "fit", "scores": "score"}.items()
    }
    texts = [f"{format_duration(value)} for {name}" for name, value in seconds.items()]
    if "refit_time_" in fitted:
        texts.append(f"{format_duration(fitted['refit_time_'])} for the refit")
    lines = [", ".join(texts)]
    if "search_time_" in fitted:
        lines.insert(0, f"{format_duration(fitted['search_time_'])} from begin to end")
    return lines


def _saved_fits(fitted: Mapping[str, Any]) -> list[str]:
    """Return for each estimator how many fits were shared, over what, or why none was.

    Those of different steps of a pipeline are different fits, which have no sum.
    """
    uses = sorted(fitted.get("shared_fits_", ()), key=lambda use: -use.n_saved)
    lines = [
        f"{use.n_saved} of {use.n_fits} of {use.estimator}, shared over "
        + (" and ".join(use.parameters) or "all candidates")
        if use.n_saved
        else f"none of {use.n_fits} of {use.estimator}: {use.refused}"
        for use in uses
        if use.n_saved or use.refused
    ]
    return [shorten(line) for line in lines[:_MAX_REASONS]]


def _racing(fitted: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Return how many candidates and fits a race has saved."""
    if "n_dropped_candidates_" not in fitted:
        return ""
    n_candidates, n_fits = len(results["params"]), len(results["params"]) * _n_splits(results)
    return (
        f"{fitted['n_dropped_candidates_']} of {count(n_candidates, 'candidate')} dropped, "
        f"{fitted['n_dropped_fits_']} of {n_fits} fits not made"
    )


def _checkpoint(search: Any, results: Mapping[str, Any]) -> str:
    fitted = vars(search)
    if search.checkpoint is None:
        return ""
    if "n_checkpoint_calls_" in fitted:
        n_calls = fitted["n_checkpoint_calls_"]
        is_of_calls = search.resource == "calls"
        return f"{count(n_calls, 'call')} of partial_fit" if is_of_calls else str(n_calls)
    if "n_checkpoint_fits_" not in fitted:  # after Ctrl-C before any was read
        return ""
    n_fits = len(results["params"]) * _n_splits(results)
    return f"{fitted['n_checkpoint_fits_']} of {n_fits} fits"


def _time_budget(search: Any, results: Mapping[str, Any]) -> str:
    """Return whether the time budget ended the search: fits that it prevented have no time."""
    if search.time_budget is None:
        return ""
    budget = format_duration(search.time_budget)
    if "search_time_" in vars(search):
        is_over = search.search_time_ >= search.time_budget
        return f"{budget}, {'used up' if is_over else 'not used up'}"
    n_folds = results.get("n_folds")
    if n_folds is not None and n_folds.max() < _n_splits(results):
        return f"{budget}, which ended the race after {count(int(n_folds.max()), 'split')}"
    n_missing = int(np.isnan(results["mean_fit_time"]).sum())
    if not n_missing:
        return f"{budget}, enough for all fits"
    missing = f"{count(n_missing, 'candidate')} not fitted on all splits"
    return f"{budget}, which ended the search: {missing}"


def _missing_refit(search: Any) -> str:
    """Return that Ctrl-C came before the refit, where it did."""
    is_done = {"best_estimator_", "refit_time_", "search_time_"} & vars(search).keys()
    return "" if is_done or not search.refit else "none: the search was interrupted"


def _metrics(results: Mapping[str, Any]) -> list[str]:
    prefix = "mean_test_"
    return [key.removeprefix(prefix) for key in results if key.startswith(prefix)]


def _n_splits(results: Mapping[str, Any]) -> int:
    metric = _metrics(results)[0]
    return sum(f"split{n}_test_{metric}" in results for n in range(len(results)))


def _argmax(scores: Sequence[float]) -> int:
    return 0 if np.isnan(scores).all() else int(np.nanargmax(scores))
