"""Poisson, Gamma and Tweedie regression."""

from __future__ import annotations

import numpy as np

from skfleet._validation import check_in_interval, check_option
from skfleet.estimators._estimator_docstrings import document
from skfleet.estimators.linear_model._glm_base import GlmRegressor
from skfleet.glm import Tweedie


@document
class PoissonRegressor(GlmRegressor):
    r"""Regression for counts, with a log link and an L2 penalty.

    Minimises :math:`\frac{1}{\sum_i w_i} \sum_i w_i (e^{\eta_i} - y_i \eta_i) + \frac{\alpha}{2}
    \|\beta\|^2` with :math:`\eta_i = x_i^T \beta + b`, as
    :class:`sklearn.linear_model.PoissonRegressor` does (McCullagh and Nelder, 1989, Generalized
    Linear Models, chapter 6).

    {glm_parameters}

    See Also
    --------
    GammaRegressor : For positive targets.
    TweedieRegressor : For any of the family.

    Notes
    -----
    {glm_passes}

    Examples
    --------
    {glm_example}
    >>> y = rng.poisson(np.exp(X[:, 0]))
    >>> X, y = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    >>> model = PoissonRegressor(alpha=0.01).fit(X, y)
    >>> bool(model.score(X, y) > 0.3)
    True
    """

    def _loss(self) -> Tweedie:
        return Tweedie(1.0)


@document
class GammaRegressor(GlmRegressor):
    r"""Regression for positive targets, with a log link and an L2 penalty.

    Minimises :math:`\frac{1}{\sum_i w_i} \sum_i w_i (y_i e^{-\eta_i} + \eta_i) + \frac{\alpha}{2}
    \|\beta\|^2` with :math:`\eta_i = x_i^T \beta + b`, as
    :class:`sklearn.linear_model.GammaRegressor` does (McCullagh and Nelder, 1989, Generalized
    Linear Models, chapter 8).

    {glm_parameters}

    See Also
    --------
    PoissonRegressor : For counts.
    TweedieRegressor : For any of the family.

    Notes
    -----
    {glm_passes}

    Examples
    --------
    {glm_example}
    >>> y = rng.gamma(2.0, np.exp(X[:, 0]) / 2)
    >>> X, y = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    >>> model = GammaRegressor(alpha=0.01).fit(X, y)
    >>> bool(model.score(X, y) > 0.3)
    True
    """

    def _loss(self) -> Tweedie:
        return Tweedie(2.0)


@document
class TweedieRegressor(GlmRegressor):
    r"""Regression for targets whose variance is a power of their mean, with an L2 penalty.

    Minimises :math:`\frac{1}{2 \sum_i w_i} \sum_i w_i d_p(y_i, \mu_i) + \frac{\alpha}{2}
    \|\beta\|^2` with the deviance d of power p and :math:`\mu_i = e^{x_i^T \beta + b}`, or without
    the exponential, as :class:`sklearn.linear_model.TweedieRegressor` does (Jørgensen, 1987,
    Exponential dispersion models).

    Parameters
    ----------
    power : float, default=0.0
        Power p of the mean that the variance is: 0 for the normal, 1 for the Poisson, 2 for the
        Gamma and 3 for the inverse Gaussian distribution; from 1 to 2 for sums of positive amounts,
        of which there may be none. Not between 0 and 1.
    {glm_penalty}
    link : {"auto", "identity", "log"}, default="auto"
        What of the mean is linear in the columns; "auto" is the identity for powers of 0 and below,
        else the logarithm.
    {glm_solver}

    Attributes
    ----------
    {glm_attributes}

    See Also
    --------
    PoissonRegressor : For counts.
    GammaRegressor : For positive targets.

    Notes
    -----
    {glm_passes}

    Examples
    --------
    {glm_example}
    >>> y = rng.poisson(np.exp(X[:, 0])) * 1.5
    >>> X, y = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    >>> model = TweedieRegressor(power=1.5, alpha=0.01).fit(X, y)
    >>> bool(model.score(X, y) > 0.3)
    True
    """

    def __init__(
        self,
        *,
        power: float = 0.0,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        link: str = "auto",
        solver: str = "auto",
        max_iter: int = 100,
        tol: float = 1e-4,
        warm_start: bool = False,
        verbose: int = 0,
        device: str = "auto",
    ) -> None:
        super().__init__(
            alpha=alpha,
            fit_intercept=fit_intercept,
            solver=solver,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            verbose=verbose,
            device=device,
        )
        self.power = power
        self.link = link

    def _loss(self) -> Tweedie:
        log = self.power > 0 if self.link == "auto" else self.link == "log"
        return Tweedie(float(self.power), log_link=log)

    def _check_parameters(self) -> None:
        """Raise for invalid parameters."""
        super()._check_parameters()
        check_in_interval("power", self.power, -np.inf)
        if 0 < self.power < 1:
            raise ValueError(
                f"power must not be between 0 and 1. Got {self.power!r} instead. No distribution "
                "has it; take 0 or 1."
            )
        check_option("link", self.link, ("auto", "identity", "log"))
