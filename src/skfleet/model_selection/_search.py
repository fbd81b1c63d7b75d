"""scikit-learn's exhaustive and randomized searches, with their fits on a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from sklearn import model_selection

from skfleet._typing import Estimator, RandomState, Scoring, Splitter
from skfleet.model_selection._fleet_search import FleetSearchMixin
from skfleet.model_selection._init_params import init_params
from skfleet.model_selection._search_docstrings import search_docstring


@search_docstring
class GridSearchCV(FleetSearchMixin, model_selection.GridSearchCV):
    r"""Exhaustive search over a grid of parameters, with its fits on a fleet.

    This is :class:`sklearn.model_selection.GridSearchCV`: it chooses the candidate

    .. math:: \hat\theta = \arg\max_{\theta} \frac{1}{K} \sum_{k=1}^{K}
              s(f_{\theta}^{(-k)}, D_k)

    where :math:`f_{\theta}^{(-k)}` was fitted without fold :math:`D_k` and :math:`s` is the score
    (Hastie, Tibshirani and Friedman, *The Elements of Statistical Learning*, 2nd ed., 7.10). Its
    results are scikit-learn's; only where the fits run is changed.

    Parameters
    ----------
    {estimator}
    {param_grid}
    {dispatch_parameters}
    {search_parameters}

    Attributes
    ----------
    cv_results_ : dict of str -> ndarray of shape (n_candidates,)
        Parameters, scores, ranks and times of all candidates.
    {search_attributes}

    Raises
    ------
    {search_errors}

    See Also
    --------
    RandomizedSearchCV : Draws candidates instead of trying them all.

    Notes
    -----
    {fit_notes}

    Fits on the same split are sent in batches. Equal first steps of pipelines are fitted once on a
    split, and applied to its test rows once. In ``cv_results_`` a shared step counts for the
    ``mean_fit_time``, and its transform of the test rows for the ``mean_score_time``, of every
    candidate that has it, as if each had been alone. A candidate given twice is fitted once and
    reported twice; ``1``, ``1.0`` and ``True`` are different values. Fits that share rows of 1 MB
    and more cannot write to them; one that fails so is made again on rows of its own.

    Some fits contain others: an ensemble of 100 trees has that of 50 in it. Where candidates differ
    in such a parameter only, one fit on a split is shared by all of them. The scores are those of
    separate fits, to 7 digits and mostly to the last; where that is not certain (random numbers
    without a seed, early stopping, callbacks, subclasses, parameters of another version of
    scikit-learn) each candidate is fitted by itself. Logistic regression over ``C`` ends at another
    point within its ``tol`` with a warm start, and another candidate may come out best: it is
    shared with ``share_fits="approximate"`` only. In ``mean_fit_time`` a shared fit counts in equal
    parts. The kinds of shared fits are those of :class:`SharedFit`; ``shared_fits_`` lists what was
    shared, and what was not and why.

    {early_stopping_notes}

    {racing_notes}

    Examples
    --------
    >>> from distributed import Client
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> from skfleet.model_selection import GridSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0"):
    ...     search = GridSearchCV(SVC(), {"C": [0.001, 1]}).fit(X, y)
    >>> search.best_params_
    {'C': 1}
    """

    def __init__(
        self,
        estimator: Estimator,
        param_grid: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        scoring: Scoring = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., Any] = True,
        cv: Splitter | None = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        share_fits: bool | str = True,
        checkpoint: str | PathLike[str] | None = None,
        time_budget: float | None = None,
        racing: str | None = None,
        early_stopping: float | str | None = None,
    ) -> None:
        super().__init__(**init_params(locals()))


@search_docstring
class RandomizedSearchCV(FleetSearchMixin, model_selection.RandomizedSearchCV):
    r"""Search over candidates drawn at random, with its fits on a fleet.

    This is :class:`sklearn.model_selection.RandomizedSearchCV`: of ``n_iter`` candidates
    :math:`\theta_i` drawn from the given distributions it chooses

    .. math:: \hat\theta = \arg\max_{\theta_i} \frac{1}{K} \sum_{k=1}^{K}
              s(f_{\theta_i}^{(-k)}, D_k)

    (Bergstra and Bengio, *Random Search for Hyper-Parameter Optimization*, JMLR 13, 2012). Its
    results are scikit-learn's; only where the fits run is changed.

    Parameters
    ----------
    {estimator}
    {param_distributions}
    n_iter : int, default=10
        Number of candidates.
    {dispatch_parameters}
    random_state : int, RandomState instance or None, default=None
        Seed of the draws.
    {search_parameters}

    Attributes
    ----------
    cv_results_ : dict of str -> ndarray of shape (n_iter,)
        Parameters, scores, ranks and times of all candidates.
    {search_attributes}

    Raises
    ------
    {search_errors}

    See Also
    --------
    GridSearchCV : Tries every combination of the given values.

    Notes
    -----
    {fit_notes}

    What fits share, how it is timed, and how candidates are dropped is as for
    :class:`GridSearchCV`.

    Examples
    --------
    >>> from distributed import Client
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> from skfleet.model_selection import RandomizedSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0"):
    ...     search = RandomizedSearchCV(
    ...         SVC(), {"C": loguniform(0.01, 100)}, n_iter=5, random_state=0
    ...     ).fit(X, y)
    >>> sorted(search.best_params_)
    ['C']
    """

    def __init__(
        self,
        estimator: Estimator,
        param_distributions: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        n_iter: int = 10,
        scoring: Scoring = None,
        n_jobs: int | None = None,
        refit: bool | str | Callable[..., Any] = True,
        cv: Splitter | None = None,
        verbose: int = 0,
        pre_dispatch: int | str = "2*n_jobs",
        random_state: RandomState = None,
        error_score: float | str = np.nan,
        return_train_score: bool = False,
        share_fits: bool | str = True,
        checkpoint: str | PathLike[str] | None = None,
        time_budget: float | None = None,
        racing: str | None = None,
        early_stopping: float | str | None = None,
    ) -> None:
        super().__init__(**init_params(locals()))
