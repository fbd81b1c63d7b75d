"""Mixture models."""

from skfleet.estimators.mixture._gaussian_mixture import GaussianMixture

__all__ = ["GaussianMixture"]
