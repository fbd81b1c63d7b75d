"""Linear regression by stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from skfleet._typing import RandomState, Rows, Values, Weights
from skfleet.engine import engine_for
from skfleet.estimators._early_stopping import check_validation_arguments
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators._method_dispatch import run_on_device
from skfleet.estimators.linear_model._linear_estimators import LinearRegressor
from skfleet.estimators.linear_model._sgd_base import BaseSGD
from skfleet.estimators.linear_model._sgd_outputs import OutputCoding
from skfleet.glm import REGRESSION_LOSSES


@document
class SGDRegressor(BaseSGD, LinearRegressor):
    r"""Linear regression learned by stochastic gradient descent, on rows of any container.

    Minimises :math:`\frac{1}{n} \sum_i w_i \ell(y_i, x_i^T \beta + b) + \alpha R(\beta)` with
    :math:`R = \rho \|\beta\|_1 + \frac{1 - \rho}{2} \|\beta\|^2`, as
    :class:`sklearn.linear_model.SGDRegressor` does (Bottou, 2012, Stochastic gradient descent
    tricks). Rows of this process take its steps of single rows, and blocks on Dask or a GPU a batch
    of rows in a step. Scale columns before. `partial_fit` makes it one for :class:`Incremental` and
    for adaptive searches, on any device.

    Parameters
    ----------
    loss : str, default="squared_error"
        "squared_error"; "huber", linear beyond a distance of `epsilon`; "epsilon_insensitive",
        linear beyond `epsilon` and zero within; "squared_epsilon_insensitive", its square.
    {sgd_penalty}
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
        Set rows aside, or take the `X_val` of ``fit``, and stop by the score on these, R².
    validation_fraction : float, default=0.1
        The fraction of rows set aside, if `early_stopping` without `X_val`. They are drawn by their
        numbers: other ones than scikit-learn's.
    n_iter_no_change : int, default=5
        Number of epochs without improvement to stop after.
    {sgd_options}

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients. A sparse matrix after ``sparsify``.
    intercept_ : ndarray of shape (1,)
        Intercept.
    n_iter_ : int
        Epochs.
    {sgd_attributes}

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
    {sgd_rows}

    {sgd_steps}

    With ``batch_size=1`` and ``shuffle=False`` the answer is scikit-learn's to rounding, but for
    these: averages with an L1 penalty (there, what the penalty takes off counts as though it had
    never been there), rows of zeros with "pa1" (there, they are not counted), and the last digits
    of the objective that `tol` is compared with. Other differences: a shuffle draws other orders.

    One pass over the rows an epoch. `X_val` is loaded once, and stays in memory. After a fit with
    it ``restore_best_epoch`` returns to the weights with the best score; other fits keep the last
    ones only. One model goes from
    {sgd_blocks}

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
        *,
        X_val: Rows | None = None,
        y_val: Values | None = None,
        sample_weight_val: Weights | None = None,
    ) -> SGDRegressor:
        """Fit the model.

        Parameters
        ----------
        {X_train}
        {y}
        coef_init : array-like of shape (n_features,), default=None
            Coefficients to start from.
        intercept_init : array-like of shape (1,), default=None
            Intercept to start from.
        {step_weight}
        {validation_rows}

        {returns_fitted}
        """
        self._check_parameters()
        check_validation_arguments(self.early_stopping, X, X_val, y_val, sample_weight_val)
        rows = self._validate_rows(X, y, sample_weight, y_numeric=True)
        validation = self._validate_validation_rows(X_val, y_val, sample_weight_val, y_numeric=True)
        engine = engine_for(rows)
        weights = self._start((1, rows.n_features), coef_init, intercept_init)
        with engine.persist(rows) as rows:
            self._train(engine, rows, weights, OutputCoding(), validation)
        return self

    @run_on_device
    def partial_fit(self, X: Rows, y: Values, sample_weight: Weights | None = None) -> SGDRegressor:
        """Perform one epoch of stochastic gradient descent.

        Parameters
        ----------
        {X_train}
        {y}
        {step_weight}

        {returns_learned}
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
