"""Docstring templates that all adaptive searches share."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["documented"]

_ESTIMATOR = """\
estimator : estimator with ``partial_fit``, or a pipeline that ends in one
        Estimator to train. Each candidate is a clone. The steps of a pipeline before the last are
        fitted once on the training rows, for all candidates in which they are the same (on the
        first block of rows, if a worker cannot hold all rows).
    parameters : dict or list of dict
        Parameter names, with a list of values or a distribution with ``rvs`` for each."""

_PARAMETERS = """\
scoring : str, callable, list, tuple or dict, default=None
        Metric of the candidates; by default the estimator's own ``score``. Of several metrics,
        `refit` must name the one that decides.
    test_size : float or int, default=None
        Fraction or number of rows to score on, held out from training; the same for all
        candidates. None is 0.15. Local rows of a classifier are stratified by class.
    batch_size : int, default=None
        Maximum number of rows per call of ``partial_fit``. By default a block of a Dask
        collection, or 10,000 local rows.
    sampler : {{"random", "sobol", "halton"}} or CandidateSource, default="random"
        Sampler of candidates: random, or quasi-random (lists, and distributions with ``ppf``). An
        object with ``ask`` and ``tell`` is asked for each candidate when it begins.
    points_to_evaluate : sequence of dict, default=None
        Parameters of the first candidates. Parameters that a point does not have are drawn.
    n_jobs : int, default=None
        Maximum number of candidates in training at once. None and -1 mean the whole fleet, 1 the
        calling process.
    refit : bool, str or callable, default=True
        Whether to keep the best model. Of several metrics, the name of the one by which candidates
        are promoted and the best is chosen. A callable gets `cv_results_` and returns the index of
        the best; then the best model of every candidate stays on the workers until the end.
    refit_on_test : bool, default=False
        If True, train the best model on the test rows too, for as many epochs as on the training
        rows.
    error_score : 'raise' or numeric, default=np.nan
        Score in `cv_results_` of a candidate that fails. It is not trained on in any case; "raise"
        ends the search.
    retries : int, default=0
        Number of times that a failed call of a candidate is retried.
    resources : dict or callable, default=None
        Worker resources that training a candidate requires, such as ``{{"GPU": 1}}``, or a callable
        that returns them for the parameters of a candidate. With ``{{"CPU": n}}`` libraries use n
        threads. By default a candidate that computes on a GPU (:func:`skfleet.engine.device_of`)
        requires one.
    time_budget : float, default=None
        Seconds after which the search ends with the results so far.
    checkpoint : str or path-like, default=None
        Location of the recorded models and scores: a directory that all workers see, or any
        location that fsspec knows. The same search with the same checkpoint makes only the calls
        that are missing. Needs a `random_state` that is a number.
    random_state : int, RandomState instance or None, default=None
        Seed of candidates, test rows and the order of rows. The estimator has its own.
    verbose : int, default=0
        Above 0, print the calls made, the candidates alive in each rung, and the best score: in a
        progress bar in a terminal, if rich is installed, and in a notebook, else in lines at
        intervals. From 2 on each score is printed. The logger ``skfleet.model_selection`` gets the
        same."""

_ATTRIBUTES = """\
cv_results_ : dict of str -> ndarray of shape (n_candidates,)
        A row per candidate at its best score, with scikit-learn's keys (one split), and
        ``candidate``, ``bracket``, ``rung``, ``budget`` (calls of ``partial_fit`` until then) and
        ``partial_fit_calls`` (calls in all). Times are totals in seconds.
    history_ : pandas.DataFrame
        A row per score: ``candidate``, ``bracket``, ``rung``, ``partial_fit_calls``,
        ``n_samples_seen``, ``test_score`` (or one column per metric), ``fit_time``,
        ``score_time`` and ``elapsed`` seconds since the search began.
    metadata_ : dict
        Executed models, calls and rungs, in the form of `metadata`; equal to it if nothing was cut
        short.
    n_checkpoint_calls_ : int
        Calls of ``partial_fit`` whose scores came from the checkpoint.
    search_time_ : float
        Seconds that the search took.
    best_estimator_ : estimator
        The best model, as of its best score. Only with ``refit``.
    best_score_ : float
        Score of the best model. Not with a callable ``refit``.
    best_params_ : dict
        Parameters of the best model.
    best_index_ : int
        Index of the best model in `cv_results_`.
    n_iter_ : int
        Calls of ``partial_fit`` that the best model has had.
    scorer_ : callable or dict of str -> callable
        Scorers in use.
    n_splits_ : int
        Number of splits, which is 1.
    multimetric_ : bool
        Whether there are several metrics.
    classes_ : ndarray of shape (n_classes,)
        Class labels, of a classifier. Only with ``refit``.
    n_features_in_ : int
        Number of features. Only with ``refit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features, if X has names that are all strings.

    Raises
    ------
    TypeError
        If the estimator has no ``partial_fit``.
    ValueError
        If a parameter is invalid, or no candidate could be scored.
    skfleet.exceptions.FleetError
        If no worker remains, or every candidate killed its workers, by lack of memory for example.
    KeyboardInterrupt
        After Ctrl-C, with the results so far in the attributes."""

_NOTES = """\
Rows are scattered to the fleet once, and each worker has at most one copy. If a worker cannot
    hold all rows, each holds a part, and models move between workers. Rows are shuffled anew in
    every epoch, in the same order for all candidates. Models stay on the workers; only the best is
    fetched.

    A candidate that fails, or whose score is NaN, is stopped with a warning. A candidate that kills
    its workers is tried once more with nothing else running, and then is stopped too. A model that
    is lost with its worker is trained again from the start, or from the checkpoint."""


def documented(cls: Any) -> Any:
    """Fill the templates into the docstring of a search."""
    templates = {
        "estimator": _ESTIMATOR,
        "parameters": _PARAMETERS.format(),
        "attributes": _ATTRIBUTES,
        "notes": _NOTES,
    }
    # Python removes the indentation of docstrings from 3.13 on, so that of templates must go too.
    texts = {name: inspect.cleandoc(text) for name, text in templates.items()}
    cls.__doc__ = inspect.cleandoc(cls.__doc__).format(**texts)
    return cls
