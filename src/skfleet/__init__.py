"""Your scikit-learn code, on a fleet of CPU and GPU workers."""

__version__ = "0.1.0.dev0"
