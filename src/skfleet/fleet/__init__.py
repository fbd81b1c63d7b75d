"""Clusters of CPU and GPU workers."""

from skfleet.fleet._default_client import default_client
from skfleet.fleet._fleet import Fleet

__all__ = ["Fleet", "default_client"]
