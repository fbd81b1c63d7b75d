"""Docstring templates that the searches share."""

from skfleet._docstrings import compose_docstring

_SEARCHES = {
    "estimator": """\
estimator : estimator object
    Estimator to fit. Each candidate is a clone.""",
    "param_grid": """\
param_grid : dict or list of dict
    Parameter names, with the values to try for each.""",
    "param_distributions": """\
param_distributions : dict or list of dict
    Parameter names, with a list of values or a distribution with ``rvs`` for each.""",
    "verbose": """\
verbose : int, default=0
    1 shows the progress in a bar, or in lines at intervals; from 2 on each fit is printed.
    Output of fits on the workers is printed too.""",
    "refit_attributes": """\
classes_ : ndarray of shape (n_classes,)
    Class labels, of a classifier. Only with ``refit``.
n_features_in_ : int
    Number of features. Only with ``refit``.
feature_names_in_ : ndarray of shape (`n_features_in_`,)
    Names of features, if X has names that are all strings.""",
    "fleet_attributes": """\
shared_fits_ : tuple of SharedFitUse
    Shared fits: for each kind the estimator, the parameters, the number of fits and of those
    that were saved, or the reason why it was not used. Empty with ``n_jobs=1``.
n_checkpoint_fits_ : int
    Number of fits whose results came from the checkpoint.
timeline_ : pandas.DataFrame
    A row for each fit, but for the refit and those from the checkpoint: the address of its
    ``worker``, ``begin`` and ``end`` in seconds since the search began, by the worker's clock, the
    row of its ``candidate`` in ``cv_results_`` (-1 for one without, after Ctrl-C), and its
    ``split``. Empty with ``n_jobs=1``.""",
    "fleet_error": """\
skfleet.exceptions.FleetError
    If a fit kills its workers again and again, or the fleet is gone.""",
    "fit_notes": """\
Fits run on the current fleet: the current default client, or the embedded fleet that is
started where there is none. An enclosing ``joblib.parallel_config`` that names a backend wins,
``parallel_config("skfleet", client=...)`` included. Rows travel once to the fleet, and each
candidate makes one pass over them per split, and one more for the refit, which runs in the
calling process.""",
    "halving_notes": """\
Where fits run, which data move, and what fits share is as for :class:`GridSearchCV`. An
iteration begins when all fits of the previous one have ended. scikit-learn calls these searches
experimental; importing them from here enables them there.""",
    "dispatch_parameters": """\
scoring : str, callable, list, tuple or dict, default=None
    Metric of the fitted candidates; by default the estimator's own ``score``.
n_jobs : int, default=None
    Maximum number of fits at once. None and -1 mean the whole fleet, 1 the calling process.
refit : bool, str or callable, default=True
    Whether, or by which metric, the best candidate is fitted again on all rows.
cv : int, cross-validation generator or iterable, default=None
    The splits; None means 5 folds.
{verbose}
pre_dispatch : int or str, default='2*n_jobs'
    Maximum number of batches of fits on the fleet at once.""",
    "search_parameters": """\
error_score : 'raise' or numeric, default=np.nan
    The score of a candidate whose fit fails.
return_train_score : bool, default=False
    Whether to score on the training rows too.
share_fits : bool or "approximate", default=True
    Whether one fit yields the models of several candidates, such as those of a regularisation
    path, if the scores are those of separate fits; with "approximate" also if they agree within
    the solver's tolerance only: see Notes.
checkpoint : str or path-like, default=None
    Location of the finished fits: a directory, or any location that fsspec knows. The same
    search with the same checkpoint makes only the missing fits.
time_budget : float, default=None
    Seconds after which no further fit starts. Candidates are then fitted one after the other,
    those first that are expected to be quick; those with a split that was not fitted score NaN.
racing : {"wilcoxon", "mean"}, default=None
    Rule by which candidates that are worse than the best so far are dropped after some splits,
    to save fits. None fits all candidates on all splits. See the Notes of :class:`GridSearchCV`.
{early_stopping}""",
    "early_stopping": """\
early_stopping : float or "test", default=None
    Validation rows of each fit, on which the boosting or the epochs of the last step stop: a
    fraction between 0 and 1 of the rows that a split trains on, or "test" for those that it is
    scored on, whose scores are then too good. See the Notes of :class:`GridSearchCV`.""",
    "early_stopping_notes": """\
With `early_stopping` each fit of a split holds out validation rows, prepares them by its own first
steps, which have not seen them, and passes them to the last step: as ``X_val`` and ``y_val`` to
scikit-learn's ``HistGradientBoosting*`` and this library's :class:`SGDClassifier`,
:class:`SGDRegressor` and :class:`Incremental`, whose early stopping it turns on, and as
``eval_set`` to XGBoost's and LightGBM's classifiers and regressors, which stop by their own
parameters. Weights of these rows are passed as well. Any other last step is refused, unless its
``fit`` takes ``X_val`` and it has a parameter ``max_iter`` and an attribute ``n_iter_``. A fraction
is drawn by :func:`sklearn.model_selection.train_test_split`, stratified for a classifier, with the
number that the last step of `estimator` has as ``random_state``, or 0; with ``groups``, whole
groups are drawn, by :class:`sklearn.model_selection.GroupShuffleSplit`. It is the same for all
candidates. Train scores are of the rows that remain. With "test", fits stop where their own test
score is about best, so scores are biased upward: compare candidates by them, and estimate the error
on other rows. ``cv_results_`` has the number of iterations up to the best validation score as
``split0_best_iteration`` and so on, and their median, rounded, as ``best_iteration``. All models
are scored with that many iterations, also those of ``HistGradientBoosting*``, which would predict
with the iterations after the best one too. The refit boosts ``best_iteration`` times, or has so
many epochs, on all rows, without early stopping. Nothing of the last step is shared by fits.""",
    "racing_notes": """\
With `racing` fits run split by split: all candidates on the first, then those that are left on the
next. After each split candidates are compared on all splits so far with the *incumbent*, which has
the best mean on them. With "wilcoxon" a candidate is dropped where the one-sided, paired, exact
Wilcoxon signed-rank test says that its scores are lower, with p < 0.1; four splits are the fewest
that can. A difference of zero counts half for either side (``zero_method="zsplit"``), as in
Optuna's ``WilcoxonPruner``. With "mean" it is dropped where its mean is below the worst single
score of the incumbent: the *forgiving* rule of Bergman, Purucker and Hutter, *Don't Waste Your
Time: Early Stopping Cross-Validation* (arXiv:2405.03389, 2024). There the incumbent has all its
splits. Here it has as many as the others, so this rule waits for three of them. A candidate whose
fit failed with a score of NaN is dropped at the first decision, as it cannot be the best. A
decision depends on scores alone, and not on the number of workers: workers go on while one waits
for its last scores, and scores on further splits of a candidate that is then dropped do not count.
``cv_results_`` has the number of splits that count as ``n_folds``. Other splits are NaN, means and
standard deviations are over those that count, and candidates that were dropped rank behind all
others. Several metrics need a `refit` that names the one to compare by. Candidates that are
scored from sums, without fits, are not dropped. Where a `time_budget` ends the race before any
candidate has all splits, candidates count with the splits that were compared, and the best of those
that were not dropped is chosen.""",
    "search_attributes": """\
best_estimator_ : estimator
    The best candidate, fitted on all rows. Only with ``refit``. After a fit on Dask rows it answers
    Dask rows lazily, of any library.
best_score_ : float
    Mean score of the best candidate over the splits.
best_params_ : dict
    Parameters of the best candidate.
best_index_ : int
    Index of the best candidate in ``cv_results_``.
scorer_ : callable or dict of str -> callable
    Scorers in use.
n_splits_ : int
    Number of splits.
refit_time_ : float
    Seconds of the refit. Only with ``refit``.
multimetric_ : bool
    Whether there are several metrics.
n_dropped_candidates_ : int
    Number of candidates that were dropped. Only with ``racing``.
n_dropped_fits_ : int
    Number of fits that were not made, because their candidates were dropped. Only with ``racing``.
{refit_attributes}
{fleet_attributes}""",
    "search_errors": """\
{fleet_error}
ValueError
    If the checkpoint is of another search, with what changed; if the rows of one fit do not fit
    into a worker.
KeyboardInterrupt
    After Ctrl-C. The fleet's work is cancelled. ``cv_results_``, ``best_params_``,
    ``best_score_`` and ``best_index_`` tell of the candidates of which all splits were scored;
    there is no ``best_estimator_``.""",
    "resource_parameters": """\
factor : int or float, default=3
    Candidates are divided, and resources multiplied, by this in each iteration.
resource : str, default='n_samples'
    What candidates get more of: rows, or an integer parameter of the estimator.
max_resources : int or 'auto', default='auto'
    The most that a candidate gets; 'auto' is the number of rows.""",
    "halving_parameters": """\
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
    Whether to score on the training rows too.""",
    "fleet_parameters": """\
n_jobs : int or None, default=None
    Maximum number of fits at once. None and -1 mean the whole fleet, 1 the calling process.
{verbose}
share_fits : bool or "approximate", default=True
    Whether one fit yields the models of several candidates, if the scores are those of separate
    fits, or agree within the solver's tolerance: see :class:`GridSearchCV`.
checkpoint : str or path-like, default=None
    Location of the finished fits: see :class:`GridSearchCV`. Needs a ``random_state``.
{early_stopping}""",
    "halving_attributes": """\
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
{refit_attributes}
{fleet_attributes}""",
}

_ADAPTIVE_SEARCHES = {
    "adaptive_estimator": """\
estimator : estimator with ``partial_fit``, or a pipeline that ends in one
    Estimator to train; with another `resource` than "calls" it needs ``fit`` alone. Each candidate
    is a clone. The steps of a pipeline before the last are fitted once on the training rows, for
    all candidates in which they are the same (on the first block of rows, if a worker cannot hold
    all rows).
parameters : dict or list of dict
    Parameter names, with a list of values or a distribution with ``rvs`` for each.""",
    "adaptive_parameters": """\
resource : {"calls", "n_samples", "folds"} or name of a parameter, default="calls"
    What candidates get more of from rung to rung: calls of ``partial_fit``; training rows, of which
    `max_iter` stands for all; folds of `cv` on which they are fitted and scored; or an integer
    parameter of the estimator, such as ``"n_estimators"`` or ``"clf__max_iter"``. All numbers of
    calls, `max_iter` and the like, are then numbers of these. See Notes.
scoring : str, callable, list, tuple or dict, default=None
    Metric of the candidates; by default the estimator's own ``score``. Of several metrics,
    `refit` must name the one that decides.
cv : int, cross-validation generator or iterable, default=None
    None scores on one holdout. With splits each candidate has a model per split, and its score is
    the mean; the best is trained again on all rows, up to its best score. Rows must be in this
    process. With ``resource="folds"`` None means 5 folds.
test_size : float or int, default=None
    Fraction or number of rows to score on, held out from training; the same for all
    candidates. None is 0.15. Local rows of a classifier are stratified by class. Without effect,
    and refused, with splits.
batch_size : int, default=None
    Maximum number of rows per call of ``partial_fit``. By default a block of a Dask
    collection, or 10,000 local rows. Refused with another `resource`.
sampler : {"random", "sobol", "halton", "tpe", "auto"}, sampler of Optuna or CandidateSource, \
        default="random"
    Sampler of candidates: random, quasi-random, or by a model of the scores so far: Optuna's tree
    of Parzen estimators, or any of its samplers. Then this is BOHB: the model learns from the
    scores after most calls of which there are enough, and a third of the candidates is random.
    "auto" is "tpe" where Optuna is installed, else "random". All but "random" take lists, and
    distributions with ``ppf``. An object with ``ask`` and ``tell`` is asked for each candidate
    when it begins.
points_to_evaluate : sequence of dict, default=None
    Parameters of the first candidates. Parameters that a point does not have are drawn.
past_results : dict or sequence of dict, default=None
    The `cv_results_` of earlier searches over such parameters, from which a model learns.
n_jobs : int, default=None
    Maximum number of candidates in training at once. None and -1 mean the whole fleet, 1 the
    calling process.
refit : bool, str or callable, default=True
    Whether to keep the best model. Of several metrics, the name of the one by which candidates
    are promoted and the best is chosen. A callable gets `cv_results_` and returns the index of
    the best; then the best model of every candidate stays on the workers until the end.
refit_on_test : bool, default=False
    If True, train the best model on the test rows too, for as many epochs as on the training
    rows; with another `resource` than "calls" it is fitted again on all rows.
error_score : 'raise' or numeric, default=np.nan
    Score in `cv_results_` of a candidate that fails. It is not trained on in any case; "raise"
    ends the search.
retries : int, default=0
    Number of times that a failed call of a candidate is retried.
resources : dict or callable, default=None
    Worker resources that training a candidate requires, such as ``{"GPU": 1}``, or a callable
    that returns them for the parameters of a candidate. With ``{"CPU": n}`` libraries use n
    threads. By default a candidate that computes on a GPU (:func:`skfleet.engine.device_of`)
    requires one.
time_budget : float, default=None
    Seconds after which the search ends with the results so far.
checkpoint : str or path-like, default=None
    Location of the recorded models and scores: a directory that all workers see, or any
    location that fsspec knows. The same search with the same checkpoint makes only the calls
    that are missing, also with a larger `max_iter`, `n_initial_parameters` or `time_budget`: see
    Notes. Needs a `random_state` that is a number.
random_state : int, RandomState instance or None, default=None
    Seed of candidates, test rows and the order of rows. The estimator has its own.
verbose : int, default=0
    Above 0, print the calls made, the candidates alive in each rung, and the best score: in a
    progress bar in a terminal, if rich is installed, and in a notebook, else in lines at
    intervals. From 2 on each score is printed. The logger ``skfleet.model_selection`` gets the
    same.""",
    "adaptive_attributes": """\
cv_results_ : dict of str -> ndarray of shape (n_candidates,)
    A row per candidate at its best score, with scikit-learn's keys, and ``candidate``, ``bracket``,
    ``rung``, ``budget`` (calls of ``partial_fit`` until then) and ``partial_fit_calls`` (calls in
    all), which is ``n_resources`` for another `resource`. Times are totals in seconds. Folds
    on which a candidate was not scored are NaN.
history_ : pandas.DataFrame
    A row per score: ``candidate``, ``bracket``, ``rung``, ``partial_fit_calls`` or ``n_resources``,
    ``n_samples_seen`` (by all models of the candidate, once for each call or fit), ``test_score``
    (or one column per metric), ``fit_time``, ``score_time`` and ``elapsed`` seconds since the
    search began.
metadata_ : dict
    Executed models, calls and rungs, in the form of `metadata`; equal to it if nothing was cut
    short.
n_checkpoint_calls_ : int
    Calls of ``partial_fit``, or amount of another resource, whose scores came from the checkpoint.
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
    Calls of ``partial_fit``, or amount of another resource, that the best model has had.
scorer_ : callable or dict of str -> callable
    Scorers in use.
n_splits_ : int
    Number of splits; 1 for a holdout.
multimetric_ : bool
    Whether there are several metrics.
{refit_attributes}

Raises
------
TypeError
    If the estimator has no ``partial_fit``, with ``resource="calls"``.
ValueError
    If a parameter is invalid, the resource is among the parameters, no candidate could be scored,
    or a batch, or with another resource all rows, do not fit into a worker.
skfleet.exceptions.FleetError
    If no worker remains, or every candidate killed its workers, by lack of memory for example.
KeyboardInterrupt
    After Ctrl-C, with the results so far in the attributes.""",
    "adaptive_notes": """\
Rows are scattered to the fleet once, and each worker has at most one copy. If a worker cannot
hold all rows, each holds a part, and models move between workers. Rows are shuffled anew in
every epoch, in the same order for all candidates. Models stay on the workers; only the best is
fetched.

With ``resource="n_samples"`` a candidate is fitted afresh at each level r, on the share
r / `max_iter` of the training rows, rounded up. They are the first rows of an order that is the
same for all candidates: the rows of a smaller share are in the larger ones, and every share of a
classifier is stratified. With the name of a parameter, the parameter is r at level r, and training
goes on from the model of the level before where that is possible: over ``n_estimators`` of XGBoost
and LightGBM from the last round, and over ``n_estimators``, ``max_iter``, ``max_epochs`` or
``epochs`` by ``warm_start`` where the last step has it. A solver that counts the iterations of each
fit makes those that are missing. Forests and scikit-learn's gradient boosting then are those of one
fit, if they have a seed. All other candidates are fitted afresh, and so is what a warm start does
not serve: ``solver="liblinear"`` and bagging with ``oob_score``. A solver that has not converged
is only warned of at the highest level. With ``resource="folds"`` a candidate at level r was fitted
and scored on the first r folds, and its score is their mean; the default of `max_iter` means all
folds.

With a checkpoint, a search with a larger `max_iter` or more candidates takes the recorded scores,
because the first candidates do not depend on their number. The result is that of a search which was
not divided, if the estimator has a seed and the order of scores decides nothing: with ASHA on one
slot alone. In Hyperband a larger `max_iter` should be `aggressiveness` times as large: each bracket
then begins with its candidates of the smaller search. A candidate that was dropped and goes on
after all is trained from its start, as only the models at the highest level and the best one are
recorded. With ``patience=True``, or a sampler that has a model, only what matches is taken. With
``resource="n_samples"`` a larger `max_iter` is another search, since a level is a share of it.

A candidate that fails, or whose score is NaN, is stopped with a warning. A candidate that kills
its workers is tried once more with nothing else running, and then is stopped too. A model that
is lost with its worker is trained again from the start, or from the checkpoint.""",
    "aggressiveness": r"""aggressiveness : float, default=3
    The :math:`\eta` by which candidates are divided and calls multiplied.""",
    "patience": """\
patience : int or bool, default=False
    Number of calls without an improvement of the score after which a candidate is not trained
    any more; True is a third of the maximum. It keeps its score, and may still be the best.
{tol}""",
    "tol": """\
tol : float, default=1e-3
    Minimum rise of a score that counts as an improvement, with `patience`.""",
    "metadata": """\
metadata : dict
    Planned models, calls and rungs, known before the fit.""",
    "reproducible": """\
Ties go to the candidate that was drawn first, so the same `random_state` (with an estimator
that has one) gives the same result on every number of workers.""",
    "digits": """\
>>> from distributed import Client
>>> from scipy.stats import loguniform
>>> from sklearn.datasets import load_digits
>>> from sklearn.linear_model import SGDClassifier""",
    "fit_digits": """\
>>> with Client(processes=False, n_workers=1, dashboard_address=":0"):
...     search = search.fit(X / 16, y)
>>> search.best_score_ > 0.9
True""",
}

search_docstring = compose_docstring(_SEARCHES)
adaptive_docstring = compose_docstring(_SEARCHES | _ADAPTIVE_SEARCHES)
