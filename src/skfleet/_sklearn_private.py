"""Private names of scikit-learn that have no public equivalent; tests fail when they change.

Where one is gone, the function that uses it raises an ImportError: fits are then not shared, and
iterations after the best are dropped by another fit. Those of scorers and of the number of cores
have a plain way round.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any

from skfleet._private_names import PrivateNames, is_missing

private_names = PrivateNames("sklearn")

# What classes of ours override, and what they set, with what is lost without it.
OVERRIDES = {
    "_hstack": "sparse outputs of a ColumnTransformer side by side in little time",
    "_run_search": "a search whose candidates depend on scores, batch by batch",
}
SETS = {"_remainder": "the columns that a ColumnTransformer fitted on blocks passes through"}

_SCORERS = "sklearn.metrics._scorer"

# Keyword arguments of each fit of a search or of cross_validate.
_FIT_KEYWORDS = {
    "train", "test", "parameters", "scorer", "fit_params", "score_params", "error_score",
}  # fmt: skip


def is_fit(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call is a fit and score of scikit-learn's model selection."""
    function = getattr(function, "function", function)  # the wrapper of sklearn.utils.parallel
    return (
        getattr(function, "__name__", "") == "_fit_and_score"
        and getattr(function, "__module__", "") == "sklearn.model_selection._validation"
        and len(args) == 3  # estimator, X, y
        and kwargs.keys() >= _FIT_KEYWORDS
    )


def score_function(scorer: Any) -> Any:
    """Return the function of a scorer that was made of one; None for other scorers."""
    return getattr(scorer, "_score_func", None)


def scorers_of(scorer: Any) -> dict[str | None, Any]:
    """Return the scorers of a search's scorer by name; None is the name of a single one.

    The estimator's own score method is represented by "score".
    """
    loss = "scores without fits, by an estimator's own score"
    if isinstance(scorer, private_names.optional(_SCORERS, "_PassthroughScorer", loss)):
        return {None: "score"}
    return dict(getattr(scorer, "_scorers", {None: scorer}))


def replace_scorer(scorer: Any, call: Callable[..., Any]) -> Any:
    """Return a scorer that calls a function, whose errors scikit-learn treats as the scorer's."""
    several = private_names.optional(_SCORERS, "_MultimetricScorer", "several scores on a GPU")
    if is_missing(several):
        return scorer
    if not isinstance(scorer, several):
        return call

    class ReplacedMultimetricScorer(several):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

    return ReplacedMultimetricScorer(scorers=scorer._scorers, raise_exc=scorer._raise_exc)


def fit_result(
    options: Mapping[str, Any],
    scores: Mapping[str | None, float],
    train_scores: Mapping[str | None, float],
    n_test_samples: int,
    seconds: float,
    error: str | None = None,
) -> dict[str, Any]:
    """Return the result of a fit with these options, from scores that are known without it."""
    result: dict[str, Any] = {"fit_error": error}
    all_scores = {"test_scores": scores}
    if options.get("return_train_score"):
        all_scores["train_scores"] = train_scores
    for name, values in all_scores.items():
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
    """Return the ``cv_results_`` of a search for the results of its fits."""
    from sklearn.model_selection import _validation

    if callable(search.scoring):
        _validation._insert_error_scores(fits, search.error_score)
    return search._format_results(candidates, n_splits, fits, more_results)


def fit_call(*args: Any, **options: Any) -> Any:
    """Return the call of a fit and score, for the ``Parallel`` of scikit-learn."""
    from sklearn.model_selection._validation import _fit_and_score
    from sklearn.utils.parallel import delayed

    return delayed(_fit_and_score)(*args, parameters=None, return_times=True, **options)


def scorers_in_use(search: Any) -> tuple[Any, Any]:
    """Return the ``scorer_`` of a search, and the name of the metric that selects the best."""
    scorer, metric = search._get_scorers()
    return getattr(scorer, "_scorers", scorer), metric


def accepts_sample_weight(scorer: Any) -> bool:
    """Return whether a scorer takes weights, without metadata routing."""
    accepts = getattr(scorer, "_accept_sample_weight", None)
    return "sample_weight" in signature(scorer).parameters if accepts is None else accepts()


def select_best_index(search: Any, metric: Any, results: Mapping[str, Any]) -> Any:
    """Return the index of the best candidate in the results of a search."""
    return search._select_best_index(search.refit, metric, results)


def take_rows(X: Any, rows: Any) -> Any:
    """Return rows of any container, as scikit-learn does for a split."""
    from sklearn.utils import _safe_indexing

    return _safe_indexing(X, rows)


def take_columns(X: Any, columns: Any) -> Any:
    """Return columns of any container: a name or a position, a list, slice or mask of these."""
    from sklearn.utils import _safe_indexing

    return _safe_indexing(X, columns, axis=1)


def search_state(search: Any) -> dict[str, Any]:
    """Return the state of a search without fitted attributes, and with the number of splits as cv.

    Splits may be long lists of rows, or a generator that cannot be pickled.
    """
    state: dict[str, Any] = search.__getstate__()
    params = {k: v for k, v in state.items() if not k.endswith("_") and k != "_checked_cv_orig"}
    if "cv" in params:
        params["cv"] = state.get("n_splits_", params["cv"])
    return params


def param_columns(params: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ``param_`` columns of candidates, with the dtypes of scikit-learn's."""
    from sklearn.model_selection._search import _yield_masked_array_for_each_param

    return dict(_yield_masked_array_for_each_param(params))


def truncate_hist_boosting(model: Any, size: int) -> Any:
    """Drop all but the first iterations of a fitted histogram gradient boosting, in place."""
    model._predictors = model._predictors[:size]
    for name in ("train_score_", "validation_score_"):  # with a score before the first iteration
        setattr(model, name, getattr(model, name)[: size + 1])
    return model


def prune_tree(tree: Any) -> Any:
    """Prune a fully grown tree to its ``ccp_alpha``, in place."""
    tree._prune_tree()
    return tree


def rows_to_impute(imputer: Any, X: Any) -> tuple[Any, Any]:
    """Return rows as the ``fit`` of a SimpleImputer takes them, and which values are missing."""
    from sklearn.utils._mask import _get_mask

    X = imputer._validate_input(X, in_fit=True)
    return X, _get_mask(X, imputer.missing_values)


def is_close(a: Any, b: Any) -> bool:
    """Return whether two matrices, both dense or sparse, are equal to rounding."""
    from sklearn.utils.validation import _allclose_dense_sparse

    return bool(_allclose_dense_sparse(a, b))


def uses_tree(neighbors: Any) -> bool:
    """Return whether a fitted neighbors estimator searches in a tree."""
    return neighbors._tree is not None


def discretize(vectors: Any, random_state: Any) -> Any:
    """Return the labels of the partition nearest to the rows of eigenvectors (Yu and Shi, 2003)."""
    from sklearn.cluster._spectral import discretize

    return discretize(vectors, random_state=random_state)


def svm_from_kernel_fit(template: Any, fitted: Any, rows: Any) -> Any:
    """Return a support vector machine for rows, from a fit on their precomputed kernel.

    The template was fitted on a few of the rows; it is changed and returned.
    """
    row_attributes = ("_gamma", "n_features_in_", "feature_names_in_")
    state = {name: value for name, value in vars(fitted).items() if name not in row_attributes}
    vars(template).update(state)
    template.support_vectors_, template.shape_fit_ = rows[fitted.support_], rows.shape
    return template


def estimator_state(estimator: Any) -> dict[str, Any]:
    """Return the attributes and parameters of an estimator, without its callbacks."""
    state = {k: v for k, v in getattr(estimator, "__dict__", {}).items() if k != "_skl_callbacks"}
    return {**state, **estimator.get_params(deep=False)}


# -- callbacks ---------------------------------------------------------------------------------


def has_callbacks(context: Any) -> bool:
    """Return whether a callback context has callbacks."""
    return bool(context is not None and getattr(context, "_callbacks", True))  # it may have some


def has_callbacks_set_on(estimator: Any) -> bool:
    """Return whether an estimator has callbacks of its own."""
    return bool(getattr(estimator, "_skl_callbacks", ()))


def begin_fit_callbacks(estimator: Any, max_tasks: int) -> Any:
    """Set up the callbacks of an estimator, and return the context of its fit."""
    return estimator._init_callback_context(max_subtasks=max_tasks)


def has_callbacks_set(header: bytes) -> bool:
    """Return whether any object in a pickle had callbacks set on it."""
    return b"_skl_callbacks" in header


def clone_without_callbacks(estimator: Any) -> Any:
    """Return an unfitted clone whose methods call no callbacks."""
    from sklearn.base import clone

    unfitted = clone(estimator)
    vars(unfitted).pop("_skl_callbacks", None)
    return unfitted


@contextmanager
def calling_callbacks(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Iterator[None]:
    """Call the callbacks of an estimator, if its class takes any, at both ends of a fit."""
    if not hasattr(estimator, "_init_callback_context"):
        yield
        return
    from sklearn.callback._callback_support import callback_management_context

    rows = {"estimator": estimator, "X": X, "y": y, "metadata": {"sample_weight": sample_weight}}
    with callback_management_context(estimator):
        context = estimator._init_callback_context()
        context.call_on_fit_task_begin(**rows)
        yield
        context.call_on_fit_task_end(**rows, reconstruction_attributes={})


def callback_state(callback: Any) -> dict[str, Any] | None:
    """Return the state of a callback without its log; None if the state is not a dict."""
    state = callback.__getstate__()
    if not isinstance(state, dict):
        return None
    return {**state, "_log": []} if "_log" in state else state


def is_context(obj: Any) -> bool:
    """Return whether an object is a callback context: a node in the tree of tasks."""
    kind = type(obj)
    return kind.__name__ == "CallbackContext" and kind.__module__.startswith("sklearn.callback.")


def context_without_children(context: Any) -> dict[str, Any]:
    """Return the state of a context without its children, which would be all fits of a search."""
    return {**vars(context), "_children_map": {}}


def listeners_of(callback: Any) -> Iterator[Any]:
    """Yield the listener handles to which a callback sends its messages."""
    transport = sys.modules.get("sklearn.callback._transport")
    if transport is None:
        return
    for value in vars(callback).values():
        for handle in value.values() if isinstance(value, dict) else (value,):
            if isinstance(handle, transport.ListenerHandle):
                yield handle


def message_consumers() -> dict[str, Callable[[Any], None]]:
    """Return the consumers of messages in this process, by address."""
    from sklearn.callback import _transport

    return _transport._message_consumers


@cache
def count_cores() -> None:
    """Fill scikit-learn's cache of the number of cores, once in a process.

    It asks joblib, whose answer inside of a task would be limited, and would stay in the cache.
    """
    loss = "the cores that scikit-learn uses after a task has counted them"
    module, name = "sklearn.utils._openmp_helpers", "_openmp_effective_n_threads"
    count = private_names.optional(module, name, loss)
    if not is_missing(count):
        count()


def validate_shuffle_split(
    n_rows: int, test_size: Any, train_size: Any, default_test_size: float
) -> tuple[int, int]:
    """Return the numbers of training and test rows of a random split, or raise."""
    from sklearn.model_selection import _split

    return _split._validate_shuffle_split(n_rows, test_size, train_size, default_test_size)


def output_container(transformer: Any) -> str:
    """Return the container of ``transform`` by ``set_output`` or the configuration."""
    from sklearn.utils import _set_output

    if not _set_output._auto_wrap_is_configured(transformer):
        return "default"
    return str(_set_output._get_output_config("transform", transformer)["dense"])


def validate_params(estimator: Any) -> None:
    """Raise for parameters that scikit-learn's own ``fit`` refuses."""
    if hasattr(estimator, "_parameter_constraints"):  # one without parameters has none
        estimator._validate_params()


def invalid_parameter(message: str) -> Exception:
    """Return scikit-learn's error for an invalid parameter, a ValueError and a TypeError."""
    from sklearn.utils._param_validation import InvalidParameterError

    return InvalidParameterError(message)


def scale_from_variance(mean: Any, variance: Any, n_rows: Any) -> Any:
    """Return the ``scale_`` of a StandardScaler: 1 for columns that are constant."""
    from sklearn.preprocessing import _data

    is_constant = is_constant_column(variance, mean, n_rows)
    return _data._handle_zeros_in_scale(variance**0.5, copy=False, constant_mask=is_constant)


def is_constant_column(variance: Any, mean: Any, n_rows: int) -> Any:
    """Return whether columns are constant but for rounding, as scikit-learn decides it."""
    from sklearn.preprocessing import _data

    return _data._is_constant_feature(variance, mean, n_rows)


def set_power_scaler(transformer: Any, scaler: Any) -> None:
    """Set the scaler of the powers of a PowerTransformer: one with the attributes of another."""
    from sklearn.preprocessing import StandardScaler

    transformer._scaler = StandardScaler(copy=False).set_output(transform="default")
    vars(transformer._scaler).update(vars(scaler))


def validate_transformers(composition: Any) -> None:
    """Raise for parts of a ColumnTransformer or a FeatureUnion that are no transformers."""
    composition._validate_transformers()
    if hasattr(composition, "_validate_transformer_weights"):
        composition._validate_transformer_weights()


# -- encoders ----------------------------------------------------------------------------------


def encoded_widths(encoder: Any) -> list[int]:
    """Return the number of columns that a fitted encoder makes of each column."""
    widths = getattr(encoder, "_n_features_outs", None)
    return [1] * encoder.n_features_in_ if widths is None else list(widths)


def block_categories(
    encoder: Any, X: Any, handle_unknown: str, *, with_counts: bool
) -> tuple[list[Any], list[Any] | None]:
    """Return the categories of each column of rows by an encoder, and their counts if needed."""
    fitted = encoder._fit(
        X,
        handle_unknown=handle_unknown,
        ensure_all_finite="allow-nan",
        return_counts=with_counts,
    )
    return encoder.categories_, fitted.get("category_counts")


def fit_on_categories(
    encoder: Any, base: type, categories: list[Any], counts: list[Any] | None, n_rows: int
) -> None:
    """Run the ``fit`` of a class of encoders on rows of which these statistics are known."""

    def fit(
        X: Any, *, return_and_ignore_missing_for_infrequent: bool = False, **_: Any
    ) -> dict[str, Any]:
        encoder._check_infrequent_enabled()
        encoder.categories_ = categories
        missing = {}
        if return_and_ignore_missing_for_infrequent:
            missing = {i: len(c) - 1 for i, c in enumerate(categories) if c[-1] != c[-1]}
        if encoder._infrequent_enabled:
            encoder._fit_infrequent_category_mapping(n_rows, counts, missing)
        return {"missing_indices": missing}

    encoder._fit = fit
    try:
        base.fit(encoder, None)
    finally:
        del encoder._fit


def check_encoder_columns(encoder: Any, X: Any) -> list[Any]:
    """Return the columns of rows as the arrays that an encoder compares, or raise."""
    columns: list[Any] = encoder._check_X(X, ensure_all_finite="allow-nan")[0]
    return columns


def map_infrequent(encoder: Any, codes: Any, is_known: Any, ignored: Any) -> None:
    """Map the codes of infrequent categories to a common one, in place."""
    encoder._map_infrequent_categories(codes, is_known, ignored)


def transform_with_categories(
    encoder: Any, base: type, X: Any, categories: list[Any], options: Any
) -> None:
    """Raise, or warn, as an encoder of these categories does for rows."""
    encoder = copy.copy(encoder)
    encoder.categories_, encoder._infrequent_enabled = categories, False
    base._transform(encoder, X, **options)


def encode_targets(
    encoder: Any, X: Any, result: Any, rows_of_splits: Sequence[Any], encodings: Sequence[Any]
) -> None:
    """Fill the result with the encodings of a TargetEncoder for the rows of each split."""
    codes, is_known = encoder._transform(X, handle_unknown="ignore", ensure_all_finite="allow-nan")
    for rows, (values, mean) in zip(rows_of_splits, encodings, strict=True):
        encoder._transform_X_ordinal(result, codes, ~is_known, rows, values, mean)


# -- forests -----------------------------------------------------------------------------------


def bootstrap_indices(seed: Any, n_rows: int, n_drawn: int | None, weights: Any) -> Any:
    """Return the numbers of the rows that a tree of a forest draws, by its random state."""
    from sklearn.ensemble import _forest

    return _forest._generate_sample_indices(seed, n_rows, n_drawn, weights)


def set_bootstrap(forest: Any, n_rows: int, weights: Any) -> int | None:
    """Set what a forest's bootstrap samples depend on; return their size, None without."""
    from sklearn.ensemble import _bootstrap

    forest._n_samples, forest._sample_weight, forest._n_samples_bootstrap = n_rows, weights, None
    if forest.bootstrap:
        forest._n_samples_bootstrap = _bootstrap._get_n_samples_bootstrap(
            n_rows, forest.max_samples, weights
        )
    return forest._n_samples_bootstrap


def expand_class_weight(forest: Any, y: Any, sample_weight: Any) -> Any:
    """Return the weights of rows by the class weights of an unfitted forest; None without.

    The labels `y` are of shape (n_samples, n_outputs).
    """
    forest.n_outputs_ = y.shape[1]
    return forest._validate_y_class_weight(y, sample_weight)[1]


private_names.decorate_functions(globals())
