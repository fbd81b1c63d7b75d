"""Generalised linear models: a loss, a penalty, and solvers that see only an objective."""

from skfleet.glm._coordinate_descent import (
    PathPoint,
    Quadratic,
    coordinate_descent,
    elastic_net_path,
)
from skfleet.glm._dense_solvers import equivalent_rows, solve_positive, solve_ridge
from skfleet.glm._losses import BinaryLogistic, Loss, Multinomial, SquaredError, Tweedie
from skfleet.glm._objective import Evaluation, Labels, Objective, Scaling
from skfleet.glm._penalties import Penalty
from skfleet.glm._proximal_solvers import proximal_gradient, proximal_newton
from skfleet.glm._sgd import Descent, Targets, Weights, descend
from skfleet.glm._sgd_losses import REGRESSION_LOSSES, SGD_LOSSES
from skfleet.glm._smooth_solvers import Null, Solution, WarmNewton, lbfgs, newton

__all__ = [
    "REGRESSION_LOSSES",
    "SGD_LOSSES",
    "BinaryLogistic",
    "Descent",
    "Evaluation",
    "Labels",
    "Loss",
    "Multinomial",
    "Null",
    "Objective",
    "PathPoint",
    "Penalty",
    "Quadratic",
    "Scaling",
    "Solution",
    "SquaredError",
    "Targets",
    "Tweedie",
    "WarmNewton",
    "Weights",
    "coordinate_descent",
    "descend",
    "elastic_net_path",
    "equivalent_rows",
    "lbfgs",
    "newton",
    "proximal_gradient",
    "proximal_newton",
    "solve_positive",
    "solve_ridge",
]
