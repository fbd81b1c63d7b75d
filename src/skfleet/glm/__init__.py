"""Generalised linear models: a loss, a penalty, and solvers that see only an objective."""

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
    "Penalty",
    "Scaling",
    "Solution",
    "lbfgs",
    "newton",
]
