"""Learning curves and validation curves with their fits on a fleet, also of rows on Dask."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import model_selection as reference

from skfleet._typing import Rows, Values
from skfleet.model_selection._fits_on_fleet import document, fits_on_fleet


@document
def learning_curve(
    estimator: Any,
    X: Rows,
    y: Values,
    *,
    groups: Any = None,
    train_sizes: Any = np.linspace(0.1, 1.0, 5),  # noqa: B008
    cv: Any = None,
    scoring: Any = None,
    exploit_incremental_learning: bool = False,
    n_jobs: int | None = None,
    pre_dispatch: int | str = "all",
    verbose: int = 0,
    shuffle: bool = False,
    random_state: Any = None,
    error_score: Any = np.nan,
    return_times: bool = False,
    params: dict[str, Any] | None = None,
) -> tuple[np.ndarray, ...]:
    """Score an estimator on every split with growing numbers of training rows.

    The scores are those of :func:`sklearn.model_selection.learning_curve`.

    Parameters
    ----------
    {rows}
    {groups}
    train_sizes : array-like of shape (n_ticks,), default=np.linspace(0.1, 1.0, 5)
        Numbers of training rows, or fractions of the largest one.
    {cv}
    {scoring}
    exploit_incremental_learning : bool, default=False
        Whether to train with ``partial_fit``; not for Dask rows on the fleet.
    {n_jobs}
    pre_dispatch : int or str, default='all'
        Maximum number of batches of fits on the fleet at once.
    {verbose}
    shuffle : bool, default=False
        Whether to draw the training rows of each size.
    random_state : int, RandomState instance or None, default=None
        Seed of that draw.
    {error_score}
    return_times : bool, default=False
        Whether to return the times too.
    {params}

    Returns
    -------
    train_sizes_abs : ndarray of shape (n_unique_ticks,)
        Numbers of training rows.
    train_scores : ndarray of shape (n_ticks, n_splits)
        Scores of the training rows.
    test_scores : ndarray of shape (n_ticks, n_splits)
        Scores of the test rows.
    fit_times : ndarray of shape (n_ticks, n_splits)
        Seconds of the fits. Only with ``return_times``.
    score_times : ndarray of shape (n_ticks, n_splits)
        Seconds of the scores. Only with ``return_times``.

    {errors}

    Notes
    -----
    {fleet} {lazy_fits}

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import Ridge
    >>> from skfleet.model_selection import learning_curve
    >>> X = da.random.default_rng(0).normal(size=(1_000, 3), chunks=(250, 3))
    >>> sizes, _, scores = learning_curve(Ridge(), X, X.sum(axis=1), train_sizes=[10, 800])
    >>> sizes, scores.shape
    (array([ 10, 800]), (2, 5))
    """
    calls: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
    inputs: tuple[Any, ...] = estimator, X, y, groups, params
    with fits_on_fleet(learning_curve, *inputs, **calls, scoring=scoring) as rows:
        if exploit_incremental_learning and rows.collection is not None:
            raise ValueError(
                "exploit_incremental_learning must be False for Dask rows that stay on the fleet. "
                "Got True instead. Leave it out, or compute X."
            )
        result: tuple[np.ndarray, ...] = reference.learning_curve(
            estimator,
            rows.X,
            rows.y,
            groups=rows.groups,
            train_sizes=train_sizes,
            cv=cv,
            scoring=scoring,
            exploit_incremental_learning=exploit_incremental_learning,
            pre_dispatch=pre_dispatch,
            shuffle=shuffle,
            random_state=random_state,
            error_score=error_score,
            return_times=return_times,
            params=rows.params,
            **calls,
        )
    return result


@document
def validation_curve(
    estimator: Any,
    X: Rows,
    y: Values,
    *,
    param_name: str,
    param_range: Any,
    groups: Any = None,
    cv: Any = None,
    scoring: Any = None,
    n_jobs: int | None = None,
    pre_dispatch: int | str = "all",
    verbose: int = 0,
    error_score: Any = np.nan,
    params: dict[str, Any] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Score an estimator on every split with several values of a parameter.

    The scores are those of :func:`sklearn.model_selection.validation_curve`.

    Parameters
    ----------
    {rows}
    param_name : str
        Name of the parameter.
    param_range : array-like of shape (n_values,)
        Its values.
    {groups}
    {cv}
    {scoring}
    {n_jobs}
    pre_dispatch : int or str, default='all'
        Maximum number of batches of fits on the fleet at once.
    {verbose}
    {error_score}
    {params}

    Returns
    -------
    train_scores : ndarray of shape (n_values, n_splits)
        Scores of the training rows.
    test_scores : ndarray of shape (n_values, n_splits)
        Scores of the test rows.

    {errors}

    Notes
    -----
    {fleet} {lazy_fits} A :class:`GridSearchCV` with ``return_train_score`` scores the same
    candidates, and shares fits where that gives the same scores.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import Ridge
    >>> from skfleet.model_selection import validation_curve
    >>> X = da.random.default_rng(0).normal(size=(1_000, 3), chunks=(250, 3))
    >>> options = {"param_name": "alpha", "param_range": [0.1, 1000.0]}
    >>> _, scores = validation_curve(Ridge(), X, X.sum(axis=1), **options)
    >>> scores.shape
    (2, 5)
    """
    calls: dict[str, Any] = {"n_jobs": n_jobs, "verbose": verbose}
    inputs: tuple[Any, ...] = estimator, X, y, groups, params
    with fits_on_fleet(validation_curve, *inputs, **calls, scoring=scoring) as rows:
        result: tuple[np.ndarray, np.ndarray] = reference.validation_curve(
            estimator,
            rows.X,
            rows.y,
            param_name=param_name,
            param_range=param_range,
            groups=rows.groups,
            cv=cv,
            scoring=scoring,
            pre_dispatch=pre_dispatch,
            error_score=error_score,
            params=rows.params,
            **calls,
        )
    return result
