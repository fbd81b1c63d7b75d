"""Docstring templates that the searches with scikit-learn's names share."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["documented"]

_TEMPLATES = {
    "dispatch_parameters": """\
scoring : str, callable, list, tuple or dict, default=None
    Metric of the fitted candidates; by default the estimator's own ``score``.
n_jobs : int, default=None
    Maximum number of fits at once. None and -1 mean the whole fleet, 1 the calling process.
refit : bool, str or callable, default=True
    Whether, or by which metric, the best candidate is fitted again on all rows.
cv : int, cross-validation generator or iterable, default=None
    The splits; None means 5 folds.
verbose : int, default=0
    1 shows the progress in a bar, or in lines at intervals; from 2 on each fit is printed.
    Output of fits on the workers is printed too.
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
    Seconds after which no further fit starts. Candidates are then fitted one after the other;
    those with a split that was not fitted score NaN.""",
    "search_attributes": """\
best_estimator_ : estimator
    The best candidate, fitted on all rows. Only with ``refit``.
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
    with ``n_jobs=1``.""",
    "search_errors": """\
skfleet.exceptions.FleetError
    If a fit kills its workers again and again, or the fleet is gone.
ValueError
    If the checkpoint is of another search, with what changed.
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
verbose : int, default=0
    1 shows the progress in a bar, or in lines at intervals; from 2 on each fit is printed.
    Output of fits on the workers is printed too.
share_fits : bool or "approximate", default=True
    Whether one fit yields the models of several candidates, if the scores are those of separate
    fits, or agree within the solver's tolerance: see :class:`GridSearchCV`.
checkpoint : str or path-like, default=None
    Location of the finished fits: see :class:`GridSearchCV`. Needs a ``random_state``.""",
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
    with ``n_jobs=1``.""",
}


def documented(cls: Any) -> Any:
    """Fill the templates into the docstring of a search."""
    doc = inspect.cleandoc(cls.__doc__)  # as Python does from 3.13 on
    for name, text in _TEMPLATES.items():
        doc = doc.replace(f"{{{name}}}", text)
    cls.__doc__ = doc
    return cls
