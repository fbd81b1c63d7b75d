"""Your scikit-learn code, on a fleet of CPU and GPU workers."""

from skfleet._config import config_context, get_config

__version__ = "0.1.0.dev0"

__all__ = ["__version__", "config_context", "get_config"]
