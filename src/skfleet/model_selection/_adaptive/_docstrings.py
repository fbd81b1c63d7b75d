"""What the docstrings of all adaptive searches have in common, said once."""

from __future__ import annotations

from typing import Any

__all__ = ["documented"]

_ESTIMATOR = """\
estimator : estimator with ``partial_fit``, or a pipeline that ends in one
        What to train. Each candidate is a clone. The steps of a pipeline before the last are
        fitted once on the training rows, for all candidates in which they are the same (on the
        first block of rows, where a worker cannot hold all).
    parameters : dict or list of dict
        Parameter names, and for each a list of values or a distribution with ``rvs``."""

_PARAMETERS = """\
scoring : str, callable, list, tuple or dict, default=None
        How a candidate is scored; None is the estimator's own ``score``. Of several metrics,
        `refit` must name the one that decides.
    test_size : float or int, default=None
        The share, or the number, of rows to score on, which nobody learns; the same for all
        candidates. None is 0.15. Rows of classifiers are divided by class, if they are in this
        process.
    batch_size : int, default=None
        How many rows a call of ``partial_fit`` learns at most. By default a block of a Dask
        collection; 10,000 of rows in this process.
    sampler : {{"random", "sobol", "halton"}} or CandidateSource, default="random"
        How candidates are drawn: at random, or evenly (lists, and distributions with ``ppf``). An
        object with ``ask`` and ``tell`` is asked for each candidate when it begins.
    points_to_evaluate : sequence of dict, default=None
        Parameters that are known to be good: these are the first candidates. What a point leaves
        out is drawn.
    n_jobs : int, default=None
        Most candidates in training at once. None and -1 mean the whole fleet, 1 the calling
        process.
    refit : bool, str or callable, default=True
        Whether the best model is kept. Of several metrics, the name of the one that decides who
        goes on and who is best. A callable gets `cv_results_` and returns the place of the best;
        then the best model of every candidate stays on the workers until the end.
    refit_on_test : bool, default=False
        Whether the best model goes on to learn the rows it was scored on, as often as the others.
    error_score : 'raise' or numeric, default=np.nan
        What a candidate that fails has as its score in `cv_results_`. It is out of the race in any
        case; "raise" ends the search.
    retries : int, default=0
        How often a candidate that fails is tried again from where it stood.
    resources : dict or callable, default=None
        What a worker must offer to train a candidate, as ``{{"GPU": 1}}``, or a callable that gives
        it for the parameters of a candidate. With ``{{"CPU": n}}`` the libraries use n threads. By
        default a candidate that computes on a GPU (:func:`skfleet.engine.resources`) asks for one.
    time_budget : float, default=None
        Seconds after which the search ends with what it has.
    checkpoint : str or path-like, default=None
        Where models and scores are recorded: a directory that all workers see, or any location
        that fsspec knows. The same search with the same checkpoint makes only the calls that are
        missing. Needs a `random_state` that is a number.
    random_state : int, RandomState instance or None, default=None
        Draws candidates, test rows and the order of rows. The estimator has its own.
    verbose : int, default=0
        Above 0, the screen shows the calls made, the candidates alive in each rung, and the best
        score: with a bar in a terminal, where rich is installed, and in a notebook, else with lines
        at intervals. From 2 on each score is printed. The logger ``skfleet.model_selection`` tells
        the same."""

_ATTRIBUTES = """\
cv_results_ : dict of str -> ndarray of shape (n_candidates,)
        A row per candidate when its score was best, with scikit-learn's keys (one split), and
        ``candidate``, ``bracket``, ``rung``, ``budget`` (calls of ``partial_fit`` until then) and
        ``partial_fit_calls`` (calls in all). Times are totals in seconds.
    history_ : pandas.DataFrame
        A row per score: ``candidate``, ``bracket``, ``rung``, ``partial_fit_calls``,
        ``n_samples_seen``, ``test_score`` (or one column per metric), ``fit_time``,
        ``score_time`` and ``elapsed`` seconds since the search began.
    metadata_ : dict
        What was executed, in the form of `metadata`, and equal to that where all was.
    n_checkpoint_calls_ : int
        Calls of ``partial_fit`` whose scores came from the checkpoint.
    search_time_ : float
        Seconds that the search took.
    best_estimator_ : estimator
        The best model as it was when its score was best. Only with ``refit``.
    best_score_ : float
        Its score. Not with a callable ``refit``.
    best_params_ : dict
        Its parameters.
    best_index_ : int
        Its place in `cv_results_`.
    n_iter_ : int
        Calls of ``partial_fit`` that it has had.
    scorer_ : callable or dict of str -> callable
        The scorers in use.
    n_splits_ : int
        Number of splits, which is 1.
    multimetric_ : bool
        Whether there are several scores.
    classes_ : ndarray of shape (n_classes,)
        Labels, of a classifier. Only with ``refit``.
    n_features_in_ : int
        Number of columns. Only with ``refit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X has names that are strings.

    Raises
    ------
    TypeError
        When the estimator has no ``partial_fit``.
    ValueError
        When a parameter cannot be, or no candidate could be scored.
    skfleet.exceptions.FleetError
        When no worker is left, or every candidate ended its workers: of a lack of memory, say.
    KeyboardInterrupt
        After Ctrl-C, with what was found so far in the attributes."""

_NOTES = """\
The rows are sent to the fleet once, and every worker holds them at most once; where one cannot
    hold them all, each holds some and the models travel. Every epoch, rows are learned in another
    order, the same for all candidates. Models stay on the workers: only the best comes home.

    A candidate that fails or has NaN for a score is out, and a warning tells of it. One that kills
    its workers is tried once more by itself, and then is out too. What is lost with a worker is
    trained again from the start, or with a checkpoint from what is recorded."""


def documented(cls: Any) -> Any:
    """Put what searches have in common into the docstring of one."""
    cls.__doc__ = cls.__doc__.format(
        estimator=_ESTIMATOR,
        parameters=_PARAMETERS.format(),
        attributes=_ATTRIBUTES,
        notes=_NOTES,
    )
    return cls
