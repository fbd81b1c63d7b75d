"""scikit-learn's searches by successive halving, with their fits on the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log
from os import PathLike
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

from skfleet._typing import Estimator, RandomState, Scoring, Splitter
from skfleet.model_selection._fleet_search import FleetSearchMixin
from skfleet.model_selection._init_params import init_params
from skfleet.model_selection._records._evaluations import LaterIteration
from skfleet.model_selection._search_docstrings import search_docstring


class HalvingFleetSearchMixin(FleetSearchMixin):
    """Mixin for scikit-learn's searches by successive halving."""

    factor: float
    resource: str
    aggressive_elimination: bool
    min_resources_: int
    max_resources_: int
    n_candidates_: list[int]

    def _later_iterations(
        self, n_candidates: int, more_results: Mapping[str, Any]
    ) -> list[LaterIteration]:
        # the iterations of scikit-learn's `BaseSuccessiveHalving._run_search`
        n_required = 1 + floor(log(self.n_candidates_[0], self.factor))
        n_possible = 1 + floor(log(self.max_resources_ // self.min_resources_, self.factor))
        n_skipped = n_required - n_possible if self.aggressive_elimination else 0
        n_iterations = n_required if self.aggressive_elimination else min(n_required, n_possible)
        iteration, now = more_results["iter"][0], more_results["n_resources"][0]
        later = []
        for i in range(iteration + 1, n_iterations):
            n_candidates = ceil(n_candidates / self.factor)
            n_resources = int(self.factor ** max(0, i - n_skipped) * self.min_resources_)
            growth = min(n_resources, self.max_resources_) / now
            row_growth = growth if self.resource == "n_samples" else 1.0
            later.append(LaterIteration(n_candidates, growth, row_growth))
        return later


@search_docstring
class HalvingGridSearchCV(HalvingFleetSearchMixin, model_selection.HalvingGridSearchCV):
    r"""Search over a grid by successive halving, with its fits on a fleet.

    This is :class:`sklearn.model_selection.HalvingGridSearchCV`: all candidates are fitted with few
    resources, the best :math:`1 / \mathrm{factor}` of them go on with `factor` times as many, and
    so on (Jamieson and Talwalkar, *Non-stochastic best arm identification and hyperparameter
    optimization*, AISTATS 2016, section 2). Its results are scikit-learn's; only where the fits run
    is changed.

    Parameters
    ----------
    {estimator}
    {param_grid}
    {resource_parameters}
    min_resources : {'exhaust', 'smallest'} or int, default='exhaust'
        What candidates begin with; 'exhaust' lets the last iteration use as much as there is.
    {halving_parameters}
    random_state : int, RandomState instance or None, default=None
        Seed of the draws of rows.
    {fleet_parameters}

    Attributes
    ----------
    {halving_attributes}

    Raises
    ------
    {fleet_error}

    See Also
    --------
    HalvingRandomSearchCV : Draws candidates instead of trying them all.

    Notes
    -----
    {halving_notes}

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
        early_stopping: float | str | None = None,
    ) -> None:
        super().__init__(**init_params(locals()))


@search_docstring
class HalvingRandomSearchCV(HalvingFleetSearchMixin, model_selection.HalvingRandomSearchCV):
    r"""Search over candidates drawn at random, by successive halving, with its fits on a fleet.

    This is :class:`sklearn.model_selection.HalvingRandomSearchCV`: candidates drawn from the given
    distributions are fitted with few resources, the best :math:`1 / \mathrm{factor}` of them go on
    with `factor` times as many, and so on (Jamieson and Talwalkar, *Non-stochastic best arm
    identification and hyperparameter optimization*, AISTATS 2016, section 2). Its results are
    scikit-learn's; only where the fits run is changed.

    Parameters
    ----------
    {estimator}
    {param_distributions}
    n_candidates : 'exhaust' or int, default='exhaust'
        Number of candidates to begin with; 'exhaust' is as many as the last iteration can use all
        resources for.
    {resource_parameters}
    min_resources : {'exhaust', 'smallest'} or int, default='smallest'
        What candidates begin with.
    {halving_parameters}
    random_state : int, RandomState instance or None, default=None
        Seed of the draws of candidates and rows.
    {fleet_parameters}

    Attributes
    ----------
    {halving_attributes}

    Raises
    ------
    {fleet_error}

    See Also
    --------
    HalvingGridSearchCV : Tries every combination of the given values.

    Notes
    -----
    {halving_notes}

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
        early_stopping: float | str | None = None,
    ) -> None:
        super().__init__(**init_params(locals()))
