"""Linear regression by stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from skfleet._typing import RandomState, Rows, Values, Weights
from skfleet.engine import engine_for
from skfleet.estimators._device_dispatch import run_on_device
from skfleet.estimators.linear_model._base import LinearRegressor
from skfleet.estimators.linear_model._sgd_base import BaseSGD, OutputCoding
from skfleet.glm import REGRESSION_LOSSES


class SGDRegressor(BaseSGD, LinearRegressor):
    r"""Linear regression learned by stochastic gradient descent, on rows of any container.

    Minimises :math:`\frac{1}{n} \sum_i w_i \ell(y_i, x_i^T \beta + b) + \alpha R(\beta)` with
    :math:`R = \rho \|\beta\|_1 + \frac{1 - \rho}{2} \|\beta\|^2`, as
    :class:`sklearn.linear_model.SGDRegressor` does (Bottou, 2012, Stochastic gradient descent
    tricks), but a batch of rows in a step. Scale columns before. `partial_fit` makes it one for
    :class:`Incremental` and for adaptive searches, on any device.

    Parameters
    ----------
    loss : str, default="squared_error"
        "squared_error"; "huber", linear beyond a distance of `epsilon`; "epsilon_insensitive",
        linear beyond `epsilon` and zero within; "squared_epsilon_insensitive", its square.
    penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
        The penalty R.
    alpha : float, default=0.0001
        Strength of the penalty; ``learning_rate="optimal"`` depends on it too.
    l1_ratio : float, default=0.15
        Share of the L1 penalty in ``penalty="elasticnet"``, from 0 to 1.
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
        Where "huber" becomes linear, and how far off costs nothing in the epsilon-insensitive ones.
    random_state : int, RandomState instance or None, default=None
        Seed of the order of blocks and rows and of the validation split.
    learning_rate : str, default="invscaling"
        The length :math:`\eta` of the step for row number t: "constant" ``eta0``; "optimal"
        ``1 / (alpha * (t + t0))``, with Bottou's t0; "invscaling" ``eta0 / t**power_t``;
        "adaptive" ``eta0``, divided by 5 whenever it is time to stop, until it is below 1e-6; "pa1"
        and "pa2", with ``loss="epsilon_insensitive"``, the row's loss over its squared length, at
        most `eta0`, or with ``1 / (2 * eta0)`` added to that (Crammer et al., 2006).
    eta0 : float, default=0.01
        The first learning rate, which "optimal" does not need.
    power_t : float, default=0.25
        Exponent of "invscaling", at least 0.
    early_stopping : bool, default=False
        Set rows aside, and stop by the score on these, R².
    validation_fraction : float, default=0.1
        The share of rows set aside, if `early_stopping`. They are drawn by their numbers: other
        ones than scikit-learn's.
    n_iter_no_change : int, default=5
        Number of epochs without improvement to stop after.
    warm_start : bool, default=False
        Let ``fit`` start from the solution of the last one.
    average : bool or int, default=False
        Answer with the mean of the weights after every row, from row `average` on.
    batch_size : int or "auto", default="auto"
        Rows in a step. "auto" is a 256th of a block's rows, but at least 8 and at most 256.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device to fit on; "auto" takes that of :func:`skfleet.config_context`.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients. A sparse matrix after ``sparsify``.
    intercept_ : ndarray of shape (1,)
        Intercept.
    n_iter_ : int
        Epochs.
    t_ : float
        1 more than the number of rows learned, a row counted once an epoch.
    history_ : pandas.DataFrame
        A row per epoch of ``fit``: ``epoch``, ``n_samples_seen``, ``loss`` (its mean over rows,
        without the penalty), ``score`` on the validation rows, NaN without these, and ``seconds``
        since the fit began.
    n_features_in_ : int
        Number of features seen during ``fit``.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of features seen during ``fit``, where X has names that are all strings.

    Raises
    ------
    ValueError
        If a parameter or X is invalid, or coefficients grow beyond all bounds.

    Warns
    -----
    sklearn.exceptions.ConvergenceWarning
        When the loss still fell by `tol` after `max_iter` epochs.

    See Also
    --------
    Ridge : Finds the optimum of squared errors with an L2 penalty, in one pass.
    Incremental : Trains it on blocks, and goes on after a failure.

    Notes
    -----
    All rows of a batch meet the weights before it. They are moved by the *sum* of the rows' steps,
    :math:`\beta \leftarrow \prod_i (1 - \eta_i \alpha_2) \beta - \sum_i \eta_i w_i \ell'(y_i, p_i)
    x_i` with the L2 part :math:`\alpha_2` of the penalty and predictions :math:`p_i`, each row at
    the learning rate of its own number t, so that an epoch goes as far as scikit-learn's does with
    a step a row. For losses of bounded slope that are flat on one side, and with "optimal" rates,
    that is Pegasos with batches (Shalev-Shwartz et al., 2011). Steps of other losses
    could add up to more than the way to go, and diverge where columns correlate. So the slope of
    the batch's loss along the sum is measured at both ends, and of the sum as much taken as steps
    one after the other would come to, were each to change the slope alike: ``(1 - (1 - c / n)**n) /
    c`` of it for n rows and a slope that changes by its share c, and at least ``1 / n``, the mean.
    Up to a size that the curvature sets, batches go as far as their rows, from there on as far as
    one step (Ma, Bassily and Belkin, 2018, The power of interpolation). L1 penalties are
    cumulative, so that weights become zero (Tsuruoka, Tsujii and Ananiadou, 2009), and
    intercepts of sparse rows learn a hundredth as fast as those of dense ones, as in scikit-learn.

    With ``batch_size=1`` and ``shuffle=False`` the answer is scikit-learn's to rounding, but for
    these: averages with an L1 penalty (there, what the penalty takes off counts as though it had
    never been there), rows of zeros with "pa1" (there, they are not counted), and the last digits
    of the objective that `tol` is compared with. Other differences: a shuffle draws other orders.

    One pass over the rows an epoch. One model goes from
    block to block, wherever they are: the result depends on the chunks, but not on which worker
    holds them, and a fleet adds memory, not speed; blocks are prefetched.
    The weights move to a block's device and back once a block, and nothing else does in between.
    They are float64; products are as precise as the rows.

    Examples
    --------
    >>> import dask.array as da
    >>> from skfleet.estimators import SGDRegressor
    >>> X = da.random.default_rng(0).normal(size=(10_000, 3), chunks=(2_000, 3))
    >>> model = SGDRegressor(random_state=0).fit(X, X @ [1.0, -2.0, 0.0] + 3)
    >>> model.coef_.round(2) + 0.0, model.intercept_.round(2)
    (array([ 1., -2.,  0.]), array([3.]))
    """

    _losses = REGRESSION_LOSSES
    _passive_aggressive_loss = "epsilon_insensitive"

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float | None = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int = 0,
        epsilon: float = 0.1,
        random_state: RandomState = None,
        learning_rate: str = "invscaling",
        eta0: float = 0.01,
        power_t: float = 0.25,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        warm_start: bool = False,
        average: bool | int = False,
        batch_size: int | str = "auto",
        device: str = "auto",
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.epsilon = epsilon
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.average = average
        self.batch_size = batch_size
        self.device = device

    @run_on_device
    def fit(
        self,
        X: Rows,
        y: Values,
        coef_init: Values | None = None,
        intercept_init: Values | None = None,
        sample_weight: Weights | None = None,
    ) -> SGDRegressor:
        """Fit the model.

        Parameters
        ----------
        X : {array-like, sparse matrix, Dask array or DataFrame} of shape (n_samples, n_features)
            Training data.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Target values.
        coef_init : array-like of shape (n_features,), default=None
            Coefficients to start from.
        intercept_init : array-like of shape (1,), default=None
            Intercept to start from.
        sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
            Sample weights: factors of their steps.

        Returns
        -------
        self : SGDRegressor
            Fitted estimator.
        """
        self._check_parameters()
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True)
        engine = engine_for(rows)
        weights = self._start((1, rows.n_features), coef_init, intercept_init)
        with engine.persist(rows) as rows:
            self._train(engine, rows, weights, OutputCoding())
        return self

    @run_on_device
    def partial_fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> SGDRegressor:
        """Perform one epoch of stochastic gradient descent.

        Parameters
        ----------
        X : {array-like, sparse matrix, Dask array or DataFrame} of shape (n_samples, n_features)
            Training data.
        y : array-like, Dask array or Dask Series of shape (n_samples,)
            Target values.
        sample_weight : float, array-like or Dask collection of shape (n_samples,), default=None
            Sample weights: factors of their steps.

        Returns
        -------
        self : SGDRegressor
            Partially fitted estimator.
        """
        self._check_parameters(for_partial_fit=True)
        reset = not hasattr(self, "coef_")
        rows = self._validate_rows(X, y, sample_weight, reset=reset, y_numeric=True)
        weights = self._fitted_weights((1, rows.n_features))
        self._train_once(engine_for(rows), rows, weights, OutputCoding())
        return self

    def _set_weights(self, *learned: Any) -> None:
        """Set the fitted attributes of the single output."""
        super()._set_weights(*learned)
        self.coef_ = self.coef_[0]

    def densify(self) -> SGDRegressor:
        """Convert `coef_` back to a dense array.

        Returns
        -------
        self : SGDRegressor
            With dense `coef_`.
        """
        super().densify()
        self.coef_ = self.coef_.ravel()
        return self
