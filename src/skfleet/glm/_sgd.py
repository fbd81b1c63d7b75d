"""Mini-batch stochastic gradient descent of a linear model on one block."""

from __future__ import annotations

import numpy as np

from skfleet._typing import Matrix
from skfleet.glm import _sgd_kernel
from skfleet.glm._sgd_config import SGDConfig, SGDTargets, SGDWeights
from skfleet.glm._sgd_steps import descend_by_batches


def descend(
    weights: SGDWeights,
    X: Matrix,
    targets: SGDTargets,
    config: SGDConfig,
    order: np.ndarray | None = None,
) -> SGDWeights:
    """Return the weights after descending on the rows of X, batch by batch.

    `order` has the numbers of the rows in the order to take them, by default that of X. Weights are
    on the host before and after; in between nothing leaves the device of X, so that its queue never
    runs dry. A batch is some thirty operations of an array library; a CUDA kernel does all batches
    at once, where it can.
    """
    has_kernel = _sgd_kernel.supports(X, targets, config)
    steps = _sgd_kernel.descend if has_kernel else descend_by_batches
    return steps(weights, X, targets, config, order)
