"""Scores in closed form, from sums over the rows, without fitted models.

Only the route of such fits imports this folder.
"""

from skfleet.model_selection._closed_form import (  # noqa: F401
    _elastic_net,
    _ridge,
    _ridge_classifier,
)
from skfleet.model_selection._closed_form._pipelines import ScoredPipeline

__all__ = ["ScoredPipeline"]
