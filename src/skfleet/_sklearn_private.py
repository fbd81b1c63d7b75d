"""What is not public in scikit-learn and yet cannot be done without; tests tell when it changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

__all__ = [
    "callback_state",
    "consumer_of",
    "context_without_children",
    "count_cores",
    "estimator_state",
    "fit_result",
    "format_results",
    "has_callbacks",
    "has_callbacks_set",
    "install_consumer",
    "is_context",
    "is_fit",
    "listeners_of",
    "output_container",
    "prune_tree",
    "remove_consumer",
    "scorers_in_use",
    "scorers_of",
    "search_state",
    "select_best_index",
    "svm_from_kernel_fit",
    "take_columns",
    "take_rows",
    "truncate_hist_boosting",
    "uses_tree",
]

# What each fit of a search or of cross_validate is called with by name.
_NEEDED = ("train", "test", "parameters", "scorer", "fit_params", "score_params", "error_score")


def is_fit(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a call is one of the fits that scikit-learn's model selection consists of."""
    function = getattr(function, "function", function)  # joblib's arguments come wrapped
    return (
        getattr(function, "__name__", "") == "_fit_and_score"
        and getattr(function, "__module__", "") == "sklearn.model_selection._validation"
        and len(args) == 3  # estimator, X, y
        and all(name in kwargs for name in _NEEDED)
    )


def scorers_of(scorer: Any) -> dict[str | None, Any]:
    """Give the scorers that make up the one of a search by name, None for a single one.

    The estimator's own score is called "score".
    """
    from sklearn.metrics import _scorer

    if isinstance(scorer, _scorer._PassthroughScorer):
        return {None: "score"}
    if isinstance(scorer, _scorer._MultimetricScorer):
        return dict(scorer._scorers)
    return {None: scorer}


def fit_result(
    options: Mapping[str, Any],
    scores: Mapping[str | None, float],
    train_scores: Mapping[str | None, float],
    n_test_samples: int,
    seconds: float,
    error: str | None = None,
) -> dict[str, Any]:
    """Give what a fit with these options would return, for what is known of it without one."""
    result: dict[str, Any] = {"fit_error": error}
    found = {"test_scores": scores}
    if options.get("return_train_score"):
        found["train_scores"] = train_scores
    for name, values in found.items():
        result[name] = values[None] if None in values else dict(values)
    if options.get("return_n_test_samples"):
        result["n_test_samples"] = n_test_samples
    if options.get("return_times"):
        result |= {"fit_time": seconds, "score_time": 0.0}
    return result


def format_results(
    search: Any,
    candidates: Sequence[Mapping[str, Any]],
    n_splits: int,
    fits: Sequence[dict[str, Any]],
    more_results: Mapping[str, Sequence[Any]],
) -> dict[str, Any]:
    """Give the ``cv_results_`` of a search for the results of its fits, as it makes them itself."""
    from sklearn.model_selection import _validation

    if callable(search.scoring):
        _validation._insert_error_scores(fits, search.error_score)
    return search._format_results(candidates, n_splits, fits, more_results)


def scorers_in_use(search: Any) -> tuple[Any, Any]:
    """Give the ``scorer_`` of a search, and the name of the score that decides."""
    scorer, metric = search._get_scorers()
    return getattr(scorer, "_scorers", scorer), metric


def select_best_index(search: Any, metric: Any, results: Mapping[str, Any]) -> Any:
    """Give the place of the best candidate in the results of a search."""
    return search._select_best_index(search.refit, metric, results)


def take_rows(X: Any, rows: Any) -> Any:
    """Take rows of any container, as scikit-learn does when it cuts a fold."""
    from sklearn.utils import _safe_indexing

    return _safe_indexing(X, rows)


def take_columns(X: Any, n: int) -> Any:
    """Take the first columns of any container."""
    from sklearn.utils import _safe_indexing

    return _safe_indexing(X, slice(n), axis=1)


def search_state(search: Any) -> dict[str, Any]:
    """Give the state of a search without what an earlier fit left behind, and without the splits.

    Splits may be long lists of rows, or a generator that cannot be pickled: their number stands for
    them.
    """
    state: dict[str, Any] = search.__getstate__()
    light = {
        name: value
        for name, value in state.items()
        if not name.endswith("_") and name != "_checked_cv_orig"
    }
    if "cv" in light:
        light["cv"] = state.get("n_splits_", light["cv"])
    return light


def param_columns(params: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ``param_`` columns of candidates, of the types that scikit-learn's have.

    What type a column has is said by that function alone.
    """
    from sklearn.model_selection._search import _yield_masked_array_for_each_param

    return dict(_yield_masked_array_for_each_param(params))


def truncate_hist_boosting(model: Any, size: int) -> Any:
    """Leave only the first iterations in a fitted histogram gradient boosting."""
    model._predictors = model._predictors[:size]
    for name in ("train_score_", "validation_score_"):  # which begin before the first one
        setattr(model, name, getattr(model, name)[: size + 1])
    return model


def prune_tree(tree: Any) -> Any:
    """Prune a tree that was grown to the full, to its ``ccp_alpha``."""
    tree._prune_tree()
    return tree


def uses_tree(neighbors: Any) -> bool:
    """Tell whether a fitted estimator looks for neighbours in a tree."""
    return neighbors._tree is not None


def svm_from_kernel_fit(template: Any, fitted: Any, rows: Any) -> Any:
    """Bring a support vector machine that was fitted on a kernel to the rows of it.

    The template was fitted on a few of them.
    """
    of_rows = ("_gamma", "n_features_in_", "feature_names_in_")
    found = {name: value for name, value in vars(fitted).items() if name not in of_rows}
    vars(template).update(found)
    template.support_vectors_, template.shape_fit_ = rows[fitted.support_], rows.shape
    return template


def estimator_state(estimator: Any) -> dict[str, Any]:
    """Give the parameters of an estimator, and what else it holds but callbacks."""
    held = {k: v for k, v in getattr(estimator, "__dict__", {}).items() if k != "_skl_callbacks"}
    return {**held, **estimator.get_params(deep=False)}


# -- callbacks ---------------------------------------------------------------------------------


def has_callbacks(context: Any) -> bool:
    """Tell whether anybody listens in a callback context."""
    return bool(context is not None and context._callbacks)


def has_callbacks_set(header: bytes) -> bool:
    """Tell whether anything in what was pickled had callbacks set on it."""
    return b"_skl_callbacks" in header


def callback_state(callback: Any) -> dict[str, Any] | None:
    """Give the state of a callback without the log it has gathered; None if that is no dict."""
    state = callback.__getstate__()
    if not isinstance(state, dict):
        return None
    return {**state, "_log": []} if "_log" in state else state


def is_context(obj: Any) -> bool:
    """Tell whether an object is the place of a task in the tree of tasks."""
    kind = type(obj)
    return kind.__name__ == "CallbackContext" and kind.__module__.startswith("sklearn.callback.")


def context_without_children(context: Any) -> dict[str, Any]:
    """Give the state of a context without the subtasks: these would be all fits of the search."""
    return {**vars(context), "_children_map": {}}


def listeners_of(callback: Any) -> Iterator[Any]:
    """Give what a callback sends its messages to."""
    transport = sys.modules.get("sklearn.callback._transport")
    if transport is None:
        return
    for value in vars(callback).values():
        for one in value.values() if isinstance(value, dict) else (value,):
            if isinstance(one, transport.ListenerHandle):
                yield one


def consumer_of(address: str) -> Callable[[Any], None] | None:
    """Give what takes the messages to an address, in this process."""
    from sklearn.callback import _transport

    return _transport._message_consumers.get(address)


def install_consumer(address: str, consumer: Callable[[Any], None]) -> None:
    """Take the messages to an address, unless somebody in this process does already."""
    from sklearn.callback import _transport

    _transport._message_consumers.setdefault(address, consumer)


def remove_consumer(address: str) -> None:
    """Take the messages to an address no more."""
    from sklearn.callback import _transport

    _transport._message_consumers.pop(address, None)


@cache
def count_cores() -> None:
    """Let scikit-learn count the cores of the machine, which it does once for a process.

    It asks joblib, and would remember for good what joblib tells during a task.
    """
    from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

    _openmp_effective_n_threads()


def output_container(transformer: Any) -> str:
    """Return what ``set_output`` or the configuration asks ``transform`` to answer in."""
    from sklearn.utils import _set_output

    if not _set_output._auto_wrap_is_configured(transformer):
        return "default"
    return str(_set_output._get_output_config("transform", transformer)["dense"])
