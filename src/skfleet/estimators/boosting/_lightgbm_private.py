"""Names of LightGBM that are not public: aliases of parameters, and how it calls users' metrics."""

from lightgbm.basic import _choose_param_value as choose_parameter
from lightgbm.basic import _ConfigAliases
from lightgbm.sklearn import _EvalFunctionWrapper as MetricAdapter

__all__ = ["MetricAdapter", "aliases_of", "choose_parameter", "parameter_names"]


def aliases_of(*names: str) -> set[str]:
    """Return all names of parameters."""
    return _ConfigAliases.get(*names)


def parameter_names() -> set[str]:
    """Return the names of all parameters."""
    return {name for names in _ConfigAliases._get_all_param_aliases().values() for name in names}
