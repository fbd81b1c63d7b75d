"""scikit-learn's searches by successive halving, with their fits on the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

from skfleet._typing import Estimator, RandomState, Scoring, Splitter
from skfleet.model_selection._fleet_search import FleetSearchMixin

__all__ = ["HalvingGridSearchCV", "HalvingRandomSearchCV"]


class HalvingGridSearchCV(FleetSearchMixin, model_selection.HalvingGridSearchCV):
    r"""Search over a grid by successive halving, with its fits on a fleet.

    This is :class:`sklearn.model_selection.HalvingGridSearchCV`: all candidates are fitted with few
    resources, the best :math:`1 / \mathrm{factor}` of them go on with `factor` times as many, and
    so on (Jamieson and Talwalkar, *Non-stochastic best arm identification and hyperparameter
    optimization*, AISTATS 2016, section 2). Its results are scikit-learn's; only where the fits run
    is changed.

    Parameters
    ----------
    estimator : estimator object
        Estimator to fit. Each candidate is a clone.
    param_grid : dict or list of dict
        Parameter names, with the values to try for each.
    factor : int or float, default=3
        Candidates are divided, and resources multiplied, by this in each iteration.
    resource : str, default='n_samples'
        What candidates get more of: rows, or an integer parameter of the estimator.
    max_resources : int or 'auto', default='auto'
        The most that a candidate gets; 'auto' is the number of rows.
    min_resources : {'exhaust', 'smallest'} or int, default='exhaust'
        What candidates begin with; 'exhaust' lets the last iteration use as much as there is.
    aggressive_elimination : bool, default=False
        Whether to repeat the first iteration until few enough candidates are left.
    cv : int, cross-validation generator or iterable, default=5
        The splits.
    scoring : str or callable, default=None
        Metric of the fitted candidates; by default the estimator's own ``score``.
    refit : bool or callable, default=True
        Whether the best candidate is fitted again on all rows.
    error_score : 'raise' or numeric, default=np.nan
        The score of a candidate whose fit fails.
    return_train_score : bool, default=True
        Whether to score on the training rows too.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws of rows.
    n_jobs : int or None, default=None
        Maximum number of fits at once. None and -1 mean the whole fleet, 1 the calling process.
    verbose : int, default=0
        1 shows the progress in a bar, or in lines at intervals; from 2 on each fit is printed.
        Output of fits on the workers is printed too.
    share_fits : bool or "approximate", default=True
        Whether one fit yields the models of several candidates, if the scores are those of separate
        fits, or agree within the solver's tolerance: see :class:`GridSearchCV`.
    checkpoint : str or path-like, default=None
        Location of the finished fits: see :class:`GridSearchCV`. Needs a ``random_state``.

    Attributes
    ----------
    cv_results_ : dict of str -> ndarray
        Parameters, scores, ranks and times of all candidates in all iterations.
    n_resources_ : list of int
        Resources of a candidate in each iteration.
    n_candidates_ : list of int
        Number of candidates in each iteration.
    n_remaining_candidates_ : int
        Number of candidates left at the end.
    max_resources_ : int
        The most that a candidate may get.
    min_resources_ : int
        What candidates began with.
    n_iterations_ : int
        Number of iterations made.
    n_possible_iterations_ : int
        Number that the resources would allow.
    n_required_iterations_ : int
        Number that it takes to be left with fewer than `factor` candidates.
    best_estimator_ : estimator
        The best candidate, fitted on all rows. Only with ``refit``.
    best_score_ : float
        Mean score of the best candidate in the last iteration.
    best_params_ : dict
        Parameters of the best candidate.
    best_index_ : int
        Index of the best candidate in ``cv_results_``.
    scorer_ : callable
        Scorer in use.
    n_splits_ : int
        Number of splits.
    refit_time_ : float
        Seconds of the refit. Only with ``refit``.
    multimetric_ : bool
        Whether there are several metrics; here there is one.
    classes_ : ndarray of shape (n_classes,)
        Class labels, of a classifier. Only with ``refit``.
    n_features_in_ : int
        Number of features. Only with ``refit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features, if X has names that are all strings.
    shared_fits_ : tuple of SharedFitUse
        Shared fits: for each kind the estimator, the parameters, the number of fits and of those
        that were saved, or the reason why it was not used. Empty with ``n_jobs=1``.
    n_checkpoint_fits_ : int
        Number of fits whose results came from the checkpoint.
    timeline_ : tuple of FitTime
        Worker, begin and end of each fit, but for the refit and those from the checkpoint. Empty
        with ``n_jobs=1``.

    Raises
    ------
    skfleet.exceptions.FleetError
        If a fit kills its workers again and again, or the fleet is gone.

    See Also
    --------
    HalvingRandomSearchCV : Draws candidates instead of trying them all.

    Notes
    -----
    Where fits run, which data move, and what fits share is as for :class:`GridSearchCV`. An
    iteration begins when all fits of the previous one have ended. scikit-learn calls these searches
    experimental; importing them from here enables them there.

    Examples
    --------
    >>> from distributed import Client
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> from skfleet.model_selection import HalvingGridSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0"):
    ...     search = HalvingGridSearchCV(
    ...         SVC(), {"C": [0.001, 0.1, 1, 10]}, random_state=0
    ...     ).fit(X, y)
    >>> search.n_candidates_, search.n_resources_
    ([4, 2], [50, 150])
    """

    def __init__(
        self,
        estimator: Estimator,
        param_grid: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: int | str = "auto",
        min_resources: int | str = "exhaust",
        aggressive_elimination: bool = False,
        cv: Splitter | None = 5,
        scoring: Scoring = None,
        refit: bool | str | Callable[..., Any] = True,
        error_score: float | str = np.nan,
        return_train_score: bool = True,
        random_state: RandomState = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        share_fits: bool | str = True,
        checkpoint: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            estimator,
            param_grid,
            factor=factor,
            resource=resource,
            max_resources=max_resources,
            min_resources=min_resources,
            aggressive_elimination=aggressive_elimination,
            cv=cv,
            scoring=scoring,
            refit=refit,
            error_score=error_score,
            return_train_score=return_train_score,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.share_fits = share_fits
        self.checkpoint = checkpoint


class HalvingRandomSearchCV(FleetSearchMixin, model_selection.HalvingRandomSearchCV):
    r"""Search over candidates drawn at random, by successive halving, with its fits on a fleet.

    This is :class:`sklearn.model_selection.HalvingRandomSearchCV`: candidates drawn from the given
    distributions are fitted with few resources, the best :math:`1 / \mathrm{factor}` of them go on
    with `factor` times as many, and so on (Jamieson and Talwalkar, *Non-stochastic best arm
    identification and hyperparameter optimization*, AISTATS 2016, section 2). Its results are
    scikit-learn's; only where the fits run is changed.

    Parameters
    ----------
    estimator : estimator object
        Estimator to fit. Each candidate is a clone.
    param_distributions : dict or list of dict
        Parameter names, with a list of values or a distribution with ``rvs`` for each.
    n_candidates : 'exhaust' or int, default='exhaust'
        Number of candidates to begin with; 'exhaust' is as many as the last iteration can use all
        resources for.
    factor : int or float, default=3
        Candidates are divided, and resources multiplied, by this in each iteration.
    resource : str, default='n_samples'
        What candidates get more of: rows, or an integer parameter of the estimator.
    max_resources : int or 'auto', default='auto'
        The most that a candidate gets; 'auto' is the number of rows.
    min_resources : {'exhaust', 'smallest'} or int, default='smallest'
        What candidates begin with.
    aggressive_elimination : bool, default=False
        Whether to repeat the first iteration until few enough candidates are left.
    cv : int, cross-validation generator or iterable, default=5
        The splits.
    scoring : str or callable, default=None
        Metric of the fitted candidates; by default the estimator's own ``score``.
    refit : bool or callable, default=True
        Whether the best candidate is fitted again on all rows.
    error_score : 'raise' or numeric, default=np.nan
        The score of a candidate whose fit fails.
    return_train_score : bool, default=True
        Whether to score on the training rows too.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws of candidates and rows.
    n_jobs : int or None, default=None
        Maximum number of fits at once. None and -1 mean the whole fleet, 1 the calling process.
    verbose : int, default=0
        1 shows the progress in a bar, or in lines at intervals; from 2 on each fit is printed.
        Output of fits on the workers is printed too.
    share_fits : bool or "approximate", default=True
        Whether one fit yields the models of several candidates, if the scores are those of separate
        fits, or agree within the solver's tolerance: see :class:`GridSearchCV`.
    checkpoint : str or path-like, default=None
        Location of the finished fits: see :class:`GridSearchCV`. Needs a ``random_state``.

    Attributes
    ----------
    cv_results_ : dict of str -> ndarray
        Parameters, scores, ranks and times of all candidates in all iterations.
    n_resources_ : list of int
        Resources of a candidate in each iteration.
    n_candidates_ : list of int
        Number of candidates in each iteration.
    n_remaining_candidates_ : int
        Number of candidates left at the end.
    max_resources_ : int
        The most that a candidate may get.
    min_resources_ : int
        What candidates began with.
    n_iterations_ : int
        Number of iterations made.
    n_possible_iterations_ : int
        Number that the resources would allow.
    n_required_iterations_ : int
        Number that it takes to be left with fewer than `factor` candidates.
    best_estimator_ : estimator
        The best candidate, fitted on all rows. Only with ``refit``.
    best_score_ : float
        Mean score of the best candidate in the last iteration.
    best_params_ : dict
        Parameters of the best candidate.
    best_index_ : int
        Index of the best candidate in ``cv_results_``.
    scorer_ : callable
        Scorer in use.
    n_splits_ : int
        Number of splits.
    refit_time_ : float
        Seconds of the refit. Only with ``refit``.
    multimetric_ : bool
        Whether there are several metrics; here there is one.
    classes_ : ndarray of shape (n_classes,)
        Class labels, of a classifier. Only with ``refit``.
    n_features_in_ : int
        Number of features. Only with ``refit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features, if X has names that are all strings.
    shared_fits_ : tuple of SharedFitUse
        Shared fits: for each kind the estimator, the parameters, the number of fits and of those
        that were saved, or the reason why it was not used. Empty with ``n_jobs=1``.
    n_checkpoint_fits_ : int
        Number of fits whose results came from the checkpoint.
    timeline_ : tuple of FitTime
        Worker, begin and end of each fit, but for the refit and those from the checkpoint. Empty
        with ``n_jobs=1``.

    Raises
    ------
    skfleet.exceptions.FleetError
        If a fit kills its workers again and again, or the fleet is gone.

    See Also
    --------
    HalvingGridSearchCV : Tries every combination of the given values.

    Notes
    -----
    Where fits run, which data move, and what fits share is as for :class:`GridSearchCV`. An
    iteration begins when all fits of the previous one have ended. scikit-learn calls these searches
    experimental; importing them from here enables them there.

    Examples
    --------
    >>> from distributed import Client
    >>> from scipy.stats import loguniform
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> from skfleet.model_selection import HalvingRandomSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> with Client(processes=False, n_workers=1, dashboard_address=":0"):
    ...     search = HalvingRandomSearchCV(
    ...         SVC(), {"C": loguniform(0.01, 100)}, random_state=0
    ...     ).fit(X, y)
    >>> search.n_candidates_, search.n_resources_
    ([5, 2], [30, 90])
    """

    def __init__(
        self,
        estimator: Estimator,
        param_distributions: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        n_candidates: int | str = "exhaust",
        factor: float = 3,
        resource: str = "n_samples",
        max_resources: int | str = "auto",
        min_resources: int | str = "smallest",
        aggressive_elimination: bool = False,
        cv: Splitter | None = 5,
        scoring: Scoring = None,
        refit: bool | str | Callable[..., Any] = True,
        error_score: float | str = np.nan,
        return_train_score: bool = True,
        random_state: RandomState = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        share_fits: bool | str = True,
        checkpoint: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            estimator,
            param_distributions,
            n_candidates=n_candidates,
            factor=factor,
            resource=resource,
            max_resources=max_resources,
            min_resources=min_resources,
            aggressive_elimination=aggressive_elimination,
            cv=cv,
            scoring=scoring,
            refit=refit,
            error_score=error_score,
            return_train_score=return_train_score,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.share_fits = share_fits
        self.checkpoint = checkpoint
