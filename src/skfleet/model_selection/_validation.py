"""Cross-validation with its fits on a fleet, also of rows on Dask."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import model_selection as reference
from sklearn.base import is_classifier
from sklearn.model_selection import check_cv

from skfleet._typing import Rows, Values
from skfleet.blocks import compute_together, is_lazy
from skfleet.engine import in_own_partitions
from skfleet.inference import call_models
from skfleet.model_selection._dispatch._split_views import collection_of
from skfleet.model_selection._fits_on_fleet import document, fits_on_fleet
from skfleet.model_selection._lazy_answers import answer_lazily
from skfleet.model_selection._splits._classes import class_columns
from skfleet.model_selection._splits._recorded import RecordedSplits, SplitsInOrder


@document
def cross_validate(
    estimator: Any,
    X: Rows,
    y: Values | None = None,
    *,
    groups: Any = None,
    scoring: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: int | str = "2*n_jobs",
    return_train_score: bool = False,
    return_estimator: bool = False,
    return_indices: bool = False,
    error_score: Any = np.nan,
) -> dict[str, Any]:
    """Fit and score an estimator on every split, with its fits on the fleet.

    The results are those of :func:`sklearn.model_selection.cross_validate`.

    Parameters
    ----------
    {rows}
    {groups}
    scoring : str, callable, list, tuple or dict, default=None
        Metrics; by default the estimator's own ``score``.
    {cv}
    {n_jobs}
    {verbose}
    {params}
    {pre_dispatch}
    return_train_score : bool, default=False
        Whether to score on the training rows too.
    return_estimator : bool, default=False
        Whether to return the fitted estimators.
    return_indices : bool, default=False
        Whether to return the numbers of the rows of each split.
    {error_score}

    Returns
    -------
    scores : dict of str -> ndarray of shape (n_splits,)
        Scores of the test rows, ``test_score`` or one for each metric, and those of the training
        rows; ``fit_time`` and ``score_time`` in seconds; ``estimator`` and ``indices``.

    {errors}

    Notes
    -----
    {fleet} {lazy_fits}

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import Ridge
    >>> from skfleet.model_selection import cross_validate
    >>> X = da.random.default_rng(0).normal(size=(1_000, 3), chunks=(250, 3))
    >>> cross_validate(Ridge(), X, X.sum(axis=1), cv=3)["test_score"].round(3)
    array([1., 1., 1.])
    """
    calls: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
    inputs: tuple[Any, ...] = estimator, X, y, groups, params
    with fits_on_fleet(cross_validate, *inputs, **calls, scoring=scoring) as rows:
        result: dict[str, Any] = reference.cross_validate(
            estimator,
            rows.X,
            rows.y,
            groups=rows.groups,
            scoring=scoring,
            cv=cv,
            params=rows.params,
            pre_dispatch=pre_dispatch,
            return_train_score=return_train_score,
            return_estimator=return_estimator,
            return_indices=return_indices,
            error_score=error_score,
            **calls,
        )
    if is_lazy(X):
        for model in result.get("estimator", ()):
            answer_lazily(model)
    return result


@document
def cross_val_score(
    estimator: Any,
    X: Rows,
    y: Values | None = None,
    *,
    groups: Any = None,
    scoring: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: int | str = "2*n_jobs",
    error_score: Any = np.nan,
) -> np.ndarray:
    """Score an estimator on every split, with its fits on the fleet.

    The scores are those of :func:`sklearn.model_selection.cross_val_score`.

    Parameters
    ----------
    {rows}
    {groups}
    {scoring}
    {cv}
    {n_jobs}
    {verbose}
    {params}
    {pre_dispatch}
    {error_score}

    Returns
    -------
    scores : ndarray of shape (n_splits,)
        Scores of the test rows.

    {errors}

    Notes
    -----
    {fleet} {lazy_fits}

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> from skfleet.model_selection import cross_val_score
    >>> X, y = load_iris(return_X_y=True)
    >>> cross_val_score(DecisionTreeClassifier(random_state=0), X, y, cv=3).round(2)
    array([0.98, 0.94, 0.98])
    """
    calls: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
    inputs: tuple[Any, ...] = estimator, X, y, groups, params
    with fits_on_fleet(cross_val_score, *inputs, **calls, scoring=scoring) as rows:
        scores: np.ndarray = reference.cross_val_score(
            estimator,
            rows.X,
            rows.y,
            groups=rows.groups,
            scoring=scoring,
            cv=cv,
            params=rows.params,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            **calls,
        )
    return scores


@document
def cross_val_predict(
    estimator: Any,
    X: Rows,
    y: Values | None = None,
    *,
    groups: Any = None,
    cv: Any = None,
    n_jobs: int | None = None,
    verbose: int = 0,
    params: dict[str, Any] | None = None,
    pre_dispatch: int | str = "2*n_jobs",
    method: str = "predict",
) -> Any:
    """Predict each row by the model of the split that it is a test row of.

    The predictions are those of :func:`sklearn.model_selection.cross_val_predict`.

    Parameters
    ----------
    {rows}
    {groups}
    {cv} Each row must be a test row once.
    {n_jobs}
    {verbose}
    {params}
    {pre_dispatch}
    method : str, default='predict'
        Method of the fitted estimators: ``predict``, ``predict_proba``, ``decision_function`` or
        another one that has a result for each row.

    Returns
    -------
    predictions : ndarray, Dask collection or list of these, of shape (n_samples,) or \
            (n_samples, n_columns)
        In the container of X and in the order of its rows, lazy for Dask collections. Of a frame on
        Dask it is a Series or a frame with its index, whose columns are named by the classes.

    {errors}

    Warns
    -----
    RuntimeWarning
        Where a model has not seen all classes: its probability of the others is 0.

    Notes
    -----
    {fleet} {lazy_fits} Predictions of Dask rows take another pass, when they are computed, of one
    task for each partition. Where Dask would read several small files as one partition, rows are
    counted once more.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import Ridge
    >>> from skfleet.model_selection import cross_val_predict
    >>> X = da.random.default_rng(0).normal(size=(1_000, 3), chunks=(250, 3))
    >>> cross_val_predict(Ridge(), X, X.sum(axis=1)).shape
    (1000,)
    """
    calls: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
    with fits_on_fleet(cross_val_predict, estimator, X, y, groups, params, **calls) as rows:
        inputs = estimator, rows.X, rows.y
        options = {"groups": rows.groups, "params": rows.params, "pre_dispatch": pre_dispatch}
        if not is_lazy(X):
            return reference.cross_val_predict(*inputs, cv=cv, method=method, **options, **calls)
        splits = RecordedSplits(check_cv(cv, rows.y, classifier=is_classifier(estimator)))
        models = reference.cross_validate(
            *inputs,
            cv=splits,
            scoring=_no_score,
            return_estimator=True,
            error_score="raise",
            **options,
            **calls,
        )["estimator"]
    columns = class_columns(models, method, rows.y, X)
    source, lengths = in_own_partitions(X, rows.collection)
    numbers = np.split(splits.test_split_of_rows(), np.cumsum(lengths)[:-1])
    return call_models(models, method, source, numbers, columns, rows_of=X)


def _no_score(estimator: Any, X: Any, y: Any = None) -> float:
    """Return a score that takes no pass, and is not shown."""
    return np.nan


@document
def permutation_test_score(
    estimator: Any,
    X: Rows,
    y: Values,
    *,
    groups: Any = None,
    cv: Any = None,
    n_permutations: int = 100,
    n_jobs: int | None = None,
    random_state: Any = 0,
    verbose: int = 0,
    scoring: Any = None,
    params: dict[str, Any] | None = None,
) -> tuple[float, np.ndarray, float]:
    """Test a cross-validated score against those of permuted targets.

    The scores are those of :func:`sklearn.model_selection.permutation_test_score` (Ojala and
    Garriga, 2010, Permutation tests for studying classifier performance, section 3).

    Parameters
    ----------
    {rows}
    {groups}
    {cv}
    n_permutations : int, default=100
        Number of permutations of y.
    {n_jobs}
    random_state : int, RandomState instance or None, default=0
        Seed of the permutations.
    {verbose}
    {scoring}
    {params}

    Returns
    -------
    score : float
        Mean score of the splits, with the targets as they are.
    permutation_scores : ndarray of shape (n_permutations,)
        Mean scores with permuted targets.
    pvalue : float
        Probability of such a score, or a better one, by chance: at least
        ``1 / (n_permutations + 1)``.

    {errors}

    Notes
    -----
    {fleet} A task makes the fits of one permutation. Fits on Dask rows are made one after the
    other, each with its passes on the whole fleet; their targets are computed in the calling
    process, and permuted there.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import Ridge
    >>> from skfleet.model_selection import permutation_test_score
    >>> X = da.random.default_rng(0).normal(size=(200, 3), chunks=(100, 3))
    >>> _, _, pvalue = permutation_test_score(Ridge(), X, X.sum(axis=1), n_permutations=9)
    >>> float(pvalue)
    0.1
    """
    calls: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
    inputs: tuple[Any, ...] = estimator, X, y, groups, params
    with fits_on_fleet(permutation_test_score, *inputs, **calls, scoring=scoring) as rows:
        (targets,) = compute_together(collection_of(rows.y))
        if rows.collection is not None:
            cv = SplitsInOrder(check_cv(cv, targets, classifier=is_classifier(estimator)))
            calls["n_jobs"] = 1  # here, where a search inside has the fleet for its own fits
        result: tuple[float, np.ndarray, float] = reference.permutation_test_score(
            estimator,
            rows.X,
            targets,
            groups=rows.groups,
            cv=cv,
            n_permutations=n_permutations,
            random_state=random_state,
            scoring=scoring,
            params=rows.params,
            **calls,
        )
    return result
