"""Meta-estimators: parallel prediction, incremental training, blockwise ensembles."""

from skfleet.estimators.meta._blockwise_voting import (
    BlockwiseVotingClassifier,
    BlockwiseVotingRegressor,
)
from skfleet.estimators.meta._incremental import Incremental
from skfleet.estimators.meta._parallel_post_fit import ParallelPostFit

__all__ = [
    "BlockwiseVotingClassifier",
    "BlockwiseVotingRegressor",
    "Incremental",
    "ParallelPostFit",
]
