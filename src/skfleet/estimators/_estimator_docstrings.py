"""Texts that the docstrings of several estimators share, by the name that stands for each."""

from __future__ import annotations

import inspect

from skfleet._docstrings import T, compose_docstring

_TEXTS = {
    "X_type": (
        "{array-like, sparse matrix, dataframe, Dask array or Dask DataFrame} "
        "of shape (n_samples, n_features)"
    ),
    "returns_self": """Returns
-------
self : estimator
    Fitted estimator.""",
    "returns_fitted": """Returns
-------
self : {name}
    Fitted estimator.""",
    "returns_learned": """Returns
-------
self : {name}
    Partially fitted estimator.""",
    "X_returns": """Parameters
----------
{X}

Returns
-------""",
    "neighbor_rows": """\
On Dask rows, and on arrays of other libraries, the search is exact brute force, with one pass over
the training rows for each batch of queries: ``algorithm="kd_tree"`` and ``"ball_tree"`` ask for the
same answer, and `leaf_size` and `n_jobs` are ignored. ``fit`` is one pass. Training rows
that fit stay in the workers' memory while the estimator, or a lazy answer, lives; others are loaded
in each pass. Queries in this process are answered at once, in batches that go to each worker once:
of at most 8 MB with their neighbours, or 256 MB where training rows are loaded. Dask queries are
answered lazily, in their container, by one task a worker for each block, or in one pass for as many
blocks as 256 MB hold (16 of unknown lengths) where the training rows are loaded. A task returns k
distances, numbers and targets per query.

Of rows at the same distance the first ones are the nearest, by their number in all rows;
scikit-learn's brute force has no rule for these. Euclidean distances are computed from a matrix
product for all pairs, and from differences in float64 for the nearest ones, so that a row is at
distance 0 from its copies. On a device distances must be Euclidean. On Dask rows ``metric`` must
not be ``"precomputed"``, and ``"seuclidean"`` and ``"mahalanobis"`` need their `metric_params`. A
model that was fitted on Dask rows cannot be pickled.

On rows in this process everything is scikit-learn's; Dask queries are then answered lazily, by
tasks that have the whole model.""",
    "forest_rows": """\
On Dask rows these are scikit-learn's own trees, tree for tree: the rows of a tree are drawn by
their global numbers with scikit-learn's seeds, so that one `random_state` gives one forest,
whatever the partition and the number of workers, and scikit-learn fits each tree, on a worker.
Trees are dealt to groups, one for each worker or more. The rows that a group draws are cut from all
blocks, in float32, and joined on a worker, where they, and what trees in training hold of them,
take at most a quarter of its memory. Trees whose rows do not fit that are refused: `max_samples`
makes them fewer. Without `bootstrap` each tree has all rows. ``fit`` makes two passes, a survey of
the rows and one that cuts them, and one more for each further group per worker that memory asks
for. With `sample_weight`, or `class_weight` other than
``"balanced_subsample"``, weights of 8 bytes per row come to this process, and with the latter the
labels.

On Dask rows `n_jobs` is ignored in ``fit``, `verbose` shows the passes and the trees on a bar
(:func:`skfleet.config_context`), `oob_score` must be False, and ``decision_path`` is not lazy.
``predict``, ``predict_proba``, ``predict_log_proba`` and ``apply`` are lazy. The fitted attributes
are scikit-learn's in any case. Rows on a device are copied to the host, block by block.""",
    "method_params": """**params : dict
    Handed on to the estimator's method, the same for all blocks.""",
    "X_params_returns": """Parameters
----------
{X}
{method_params}

Returns
-------""",
    "fit_rows": """Parameters
----------
{X_train}
{y_ignored}

{returns_fitted}""",
    "fit_targets": """Parameters
----------
{X_train}
{y_targets}
{fit_weight}

{returns_fitted}""",
    "fit_members": """\
sample_weight : array-like, Dask array or Dask Series of shape (n_samples,), default=None
    Sample weights, if the estimator takes them.
**params : dict
    Passed to ``fit`` of the members. Values with one entry per sample, and Dask
    collections, are partitioned with the rows. With metadata routing enabled, these and
    `sample_weight` are what ``fit`` requests.

{returns_fitted}""",
    "boosting_parameters": """checkpoint : str or path-like, default=None
    Directory of any location that fsspec knows for snapshots of a fit on workers; the same fit
    goes on from the last one.
checkpoint_interval : int or "auto", default="auto"
    Rounds between two snapshots: by default as many as take 30 seconds, at least 10.
timeout : float, default=300
    Seconds that a rank may take without progress.
max_retries : int, default=3
    Losses of workers without a new snapshot between them that a fit survives.""",
    "boosting_errors": """Raises
------
ValueError
    If a parameter or an argument is invalid, or cannot be trained with on Dask rows.
TypeError
    If the library does not know a parameter, on Dask rows.
skfleet.exceptions.FleetError
    If workers are lost again and again.""",
    "boosting_passes": """\
Each block of Dask rows is loaded once, and binned by the process of a rank beside a worker; see
the page on boosting for what a death costs, and what differs from a single process.""",
    "xgb_model": """xgb_model : str, Booster or estimator, default=None
    Model that training goes on from.""",
    "feature_weights": """\
feature_weights : array-like of shape (n_features,), default=None
    Probabilities with which features are drawn. XGBoost wants them in the constructor.""",
    "lightgbm_rows": """X : {X_type}
    Training rows; NaN is a missing value, columns of categories are categorical.
y : array-like, Dask array or Dask Series of shape (n_samples,)
    Targets.
sample_weight, init_score : array-like, Dask array or Dask Series, default=None
    Weight, and score to start from, of each row.""",
    "lightgbm_evals": """eval_set : list of (X, y), default=None
    Rows in any container whose metrics are computed after every round.
eval_names : list of str, default=None
    Names of the evaluation sets.
eval_sample_weight, eval_init_score : list, default=None
    Weights, and scores to start from, for each evaluation set.""",
    "lightgbm_options": """eval_metric : str, callable or list of these, default=None
    Metrics, beside that of the objective.
feature_name, categorical_feature : list, default=None
    Names of the columns, and those of categories; by default those of a frame.
callbacks : list of callable, default=None
    LightGBM's callbacks. Those before a round run on every rank.
init_model : str, path-like, Booster or estimator, default=None
    Model that training goes on from.
eval_X, eval_y : rows in any container, or tuples of these, default=None
    Evaluation sets, in the place of `eval_set`.
X_val, y_val : rows in any container, default=None
    A single evaluation set, in the place of `eval_set`.""",
    "diabetes": """>>> import dask.array as da
>>> from sklearn.datasets import load_diabetes
>>> from skfleet.estimators import {name}
>>> X, y = load_diabetes(return_X_y=True)
>>> X, y = da.from_array(X, chunks=(100, 10)), da.from_array(y, chunks=100)""",
    "step_weight": """\
sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
    Sample weights: factors of their steps.""",
    "validation_rows": """\
X_val, y_val : as X and y, default=None
    Validation rows for ``early_stopping=True``, in the place of a drawn fraction. They may be in
    this process where X is a Dask collection.
sample_weight_val : as sample_weight, default=None
    Weights of the validation rows.""",
    "fit_weight": """\
sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
    Sample weights.""",
    "sample_weight": """\
sample_weight : array-like, Dask array or Dask Series of shape (n_samples,), default=None
    Sample weights.""",
    "weight_returns_score": """{sample_weight}

Returns
-------
score : float""",
    "y_targets": """\
y : array-like or Dask collection of shape (n_samples,) or (n_samples, n_targets)
    Target values.""",
    "y": """y : array-like, Dask array or Dask Series of shape (n_samples,)
    Target values.""",
    "y_ignored": """y : None
    Not used, present for API consistency by convention.""",
    "X": """X : {X_type}
    Samples.""",
    "X_test": """X : {X_type}
    Test samples.""",
    "X_train": """X : {X_type}
    Training data.""",
    "n_jobs": """n_jobs : int, default=None
    Ignored, present for compatibility with scikit-learn: all workers are used.""",
    "random_state_ignored": """random_state : int, RandomState instance or None, default=None
    Ignored, present for compatibility with scikit-learn: nothing is drawn at random.""",
    "positive": """positive : bool, default=False
    Constrain coefficients to be at least 0.""",
    "copy_X": """copy_X : bool, default=True
    Ignored, present for compatibility with scikit-learn: X is never modified.""",
    "fit_intercept": """fit_intercept : bool, default=True
    Fit the intercept b, without a penalty; otherwise it is 0.""",
    "device": """device : {"auto", "cpu", "cuda"}, default="auto"
    Device to fit on; "auto" takes that of :func:`skfleet.config_context`.""",
    "features_in": """n_features_in_ : int
    Number of features seen during ``fit``.
feature_names_in_ : ndarray of shape (`n_features_in_`,)
    Names of features seen during ``fit``, where X has names that are all strings.""",
    "features_in_and_errors": """{features_in}

Raises
------
ValueError
    If a parameter or X is invalid.""",
    "features_in_and_gram_errors": """{features_in}

Raises
------
ValueError
    If a parameter or X is invalid, or there are more than 20,000 columns (5,000
    sparse ones).""",
    "randomized_svd": """n_oversamples : int, default=10
    For ``"randomized"`` and ``"arpack"``: number of extra random vectors.
power_iteration_normalizer : {"auto", "QR", "LU", "none"}, default="auto"
    Accepted as in scikit-learn. Vectors are made orthonormal after each pass in any case, for
    which all of them ask.
random_state : int, RandomState instance or None, default=None
    Draws the first vectors of ``"randomized"`` and ``"arpack"``: an int gives the same answer
    for every cut of the rows and any number of workers.""",
    "ridge_options": """solver : str, default="auto"
    Any of scikit-learn's ("svd", "cholesky", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"), as a
    request for the same optimum. `solver_` says what ran.
{positive}
{random_state_ignored}
{device}""",
    "elastic_net_gram": """{fit_intercept}
precompute : bool or array of shape (n_features, n_features), default=False
    Ignored, present for compatibility with scikit-learn: the Gram matrix is always computed. An
    array that is not that of dense rows is refused, or warned of where their means are not 0.""",
    "sgd_rows": """\
Rows of this process (NumPy, SciPy, pandas) are learned by scikit-learn's compiled loop, a row in a
step: ``fit`` and ``partial_fit`` are scikit-learn's, and so is the answer, also where an
:class:`Incremental` or a search calls them in a task. With `early_stopping`, whose rows and scores
are ours, epochs of that loop are made one by one. What has to go from one such epoch, or call of
``partial_fit``, to the next is not to be had from scikit-learn: an L1 penalty with `early_stopping`
takes batches, and once `average` has begun ``partial_fit`` takes batches too (after a ``fit`` it
goes on from the means). So do blocks on Dask or a GPU. For many classes and many rows of this
process, batches are faster: set `batch_size` to 256.""",
    "sgd_steps": r"""All rows of a batch meet the weights before it. They are moved by the *sum* of
the rows' steps,
:math:`\beta \leftarrow \prod_i (1 - \eta_i \alpha_2) \beta - \sum_i \eta_i w_i \ell'(y_i, p_i)
x_i` with the L2 part :math:`\alpha_2` of the penalty and predictions :math:`p_i`, each row at
the learning rate of its own number t, so that an epoch goes as far as scikit-learn's does with
a step a row. For losses of bounded slope that are flat on one side, and with "optimal" rates,
that is Pegasos with batches (Shalev-Shwartz et al., 2011). Steps of other losses
could add up to more than the way to go, and diverge where columns correlate. So the slope of
the batch's loss along the sum is measured at both ends, and of the sum as much taken as steps
one after the other would come to, were each to change the slope alike: ``(1 - (1 - c / n)**n) /
c`` of it for n rows and a slope that changes by its fraction c, and at least ``1 / n``, the mean.
Up to a size that the curvature sets, batches go as far as their rows, from there on as far as
one step (Ma, Bassily and Belkin, 2018, The power of interpolation). L1 penalties are
cumulative, so that weights become zero (Tsuruoka, Tsujii and Ananiadou, 2009), and
intercepts of sparse rows learn a hundredth as fast as those of dense ones, as in scikit-learn.""",
    "sgd_blocks": """\
block to block, wherever they are: the result depends on the chunks, but not on which worker
holds them, and a fleet adds memory, not speed; blocks are prefetched.
The weights move to a block's device and back once a block, and nothing else does in between.
In batches they are float64, and products as precise as the rows.""",
    "sgd_attributes": """t_ : float
    1 more than the number of rows learned, a row counted once an epoch.
history_ : pandas.DataFrame
    A row per epoch of a ``fit`` by batches, or with `early_stopping`: ``epoch``,
    ``n_samples_seen``, ``loss`` (its mean over rows, without the penalty; NaN where scikit-learn's
    loop learns, which does not tell it), ``score`` on the validation rows, NaN without these, and
    ``seconds`` since the fit began.
{features_in}""",
    "sgd_options": """warm_start : bool, default=False
    Let ``fit`` start from the solution of the last one.
average : bool or int, default=False
    Answer with the mean of the weights after every row, from row `average` on.
batch_size : int or "auto", default="auto"
    Rows in a step. "auto" is one for rows of this process, whose steps are scikit-learn's own
    (see Notes); of blocks on Dask or a GPU a 256th of a block's rows, but at least 8 and at most
    256.
{device}""",
    "sgd_penalty": """penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
    The penalty R.
alpha : float, default=0.0001
    Strength of the penalty; ``learning_rate="optimal"`` depends on it too.
l1_ratio : float, default=0.15
    Fraction of the L1 penalty in ``penalty="elasticnet"``, from 0 to 1.
fit_intercept : bool, default=True
    Fit the intercept b; otherwise it stays what it is at the start, 0.
max_iter : int, default=1000
    The most epochs of ``fit``.
tol : float or None, default=1e-3
    Stop after `n_iter_no_change` epochs in a row in which the objective did not fall by `tol`
    (or the validation score rise by it, with `early_stopping`); None for never.
shuffle : bool, default=True
    Shuffle the blocks, and the rows in each, in every epoch.
verbose : int, default=0
    Above 0, print how every epoch went.
epsilon : float, default=0.1
    Where "huber" becomes linear, and how far off costs nothing in the epsilon-insensitive ones.""",
    "elastic_net_cv_fit": """Parameters
----------
{X_train}
{y}
sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
    Sample weights, in training and in the errors of a fold.
**params : dict
    For the splitter, where metadata routing is enabled.

{returns_self}""",
    "elastic_net_cv_errors": """{features_in_and_gram_errors}

Warns
-----
sklearn.exceptions.ConvergenceWarning
    When `max_iter` sweeps did not reach `tol`.""",
    "elastic_net_cv_ignored": """{n_jobs}
{positive}
{random_state_ignored}
selection : {"cyclic", "random"}, default="cyclic"
    Ignored, present for compatibility with scikit-learn.
{device}""",
    "elastic_net_cv_path": """eps : float, default=1e-3
    The smallest alpha of a path over the largest one.
alphas : int or array of shape (n_alphas,), default=100
    Number of alphas along the regularisation path, or the alphas themselves.
{fit_intercept}
precompute : bool, "auto" or array of shape (n_features, n_features), default="auto"
    Ignored, present for compatibility with scikit-learn: the Gram matrix is always computed.
max_iter : int, default=1000
    The most sweeps over the coefficients.
tol : float, default=1e-4
    When to stop, as for :class:`ElasticNet`.""",
    "elastic_net_options": """warm_start : bool, default=False
    Start from the solution of the last ``fit``.
{positive}
{random_state_ignored}
selection : {"cyclic", "random"}, default="cyclic"
    Ignored, present for compatibility with scikit-learn.
{device}""",
    "elastic_net_attributes": """coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
    Coefficients.
sparse_coef_ : sparse array of shape (1, n_features) or (n_targets, n_features)
    The same, sparse.
intercept_ : float or ndarray of shape (n_targets,)
    Intercept.
n_iter_ : int or list of int
    Sweeps over the coefficients, by target where there are several.
dual_gap_ : float or ndarray of shape (n_targets,)
    How far the objective may be above its minimum; NaN where there are no sums of products.
{features_in_and_errors}

Warns
-----
sklearn.exceptions.ConvergenceWarning
    When `max_iter` sweeps did not reach `tol`.""",
    "glm_example": """>>> import dask.array as da
>>> import numpy as np
>>> from skfleet.estimators import {name}
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(500, 3))""",
    "glm_parameters": """Parameters
----------
{glm_penalty}
{glm_solver}

Attributes
----------
{glm_attributes}""",
    "glm_passes": """\
One pass over the rows finds means and deviations and, of many rows, draws a sample. Newton's
method, started from the sample's solution, then takes one pass to begin with and one per
iteration (typically 2), in which each worker sums a Hessian of n_features x n_features float64
numbers; L-BFGS takes about one pass per iteration (tens), and sums a gradient. Rows that fit
stay in the workers' memory; others are loaded in each pass.""",
    "glm_penalty": """alpha : float, default=1.0
    Strength of the L2 penalty, at least 0.
{fit_intercept}""",
    "glm_solver": """solver : str, default="auto"
    "auto" takes Newton's method for up to 600 coefficients (100 if sparse, 1,200 where rows are
    loaded in each pass) and L-BFGS for more. scikit-learn's "lbfgs" and "newton-cholesky"
    choose the method. The default is another than scikit-learn's.
max_iter : int, default=100
    The most iterations.
tol : float, default=1e-4
    Stop when no entry of the gradient exceeds `tol` times the largest one of the model that
    only knows the mean, with columns at unit deviation: neither the scale of a column nor that
    of y plays a part, other than in scikit-learn.
warm_start : bool, default=False
    Start from the solution of the last ``fit``.
verbose : int, default=0
    Above 0, show the passes over the rows on a bar (:func:`skfleet.config_context`), and print
    which solver ran, its iterations and whether it converged.
{device}""",
    "glm_attributes": """coef_ : ndarray of shape (n_features,)
    Coefficients.
intercept_ : float
    Intercept.
n_iter_ : int
    Iterations of the solver.
solver_ : {"newton", "lbfgs"}
    The solver that ran.
{features_in}

Raises
------
ValueError
    If a parameter, X or y is invalid.

Warns
-----
sklearn.exceptions.ConvergenceWarning
    When `max_iter` iterations did not reach `tol`.""",
}


def document(cls: T) -> T:
    """Fill the shared texts into the docstrings of a class and of the methods that it defines."""
    compose = compose_docstring(_TEXTS | {"name": cls.__name__})
    for member in vars(cls).values():
        # A method that exists under a condition is an object around the one that help() shows.
        for method in (member, getattr(member, "__wrapped__", None)):
            if inspect.isfunction(method) or hasattr(method, "__wrapped__"):
                compose(method)
    return compose(cls)
