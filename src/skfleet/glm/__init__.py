"""Generalised linear models: a loss, a penalty, and solvers that see only an objective."""

from skfleet.glm._coordinate_descent import PathPoint, Quadratic, elastic_net_path
from skfleet.glm._least_squares import equivalent_rows, solve_positive, solve_ridge
from skfleet.glm._losses import BinaryLogistic, Loss, Multinomial
from skfleet.glm._objective import Labels, Objective, Scaling
from skfleet.glm._penalties import L2, Penalty
from skfleet.glm._solvers import Solution, lbfgs, newton

__all__ = [
    "L2",
    "BinaryLogistic",
    "Labels",
    "Loss",
    "Multinomial",
    "Objective",
    "PathPoint",
    "Penalty",
    "Quadratic",
    "Scaling",
    "Solution",
    "elastic_net_path",
    "equivalent_rows",
    "lbfgs",
    "newton",
    "solve_positive",
    "solve_ridge",
]
