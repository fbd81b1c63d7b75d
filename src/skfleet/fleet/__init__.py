"""Clusters of CPU and GPU workers."""

from skfleet.fleet._fleet import Fleet, default_client

__all__ = ["Fleet", "default_client"]
