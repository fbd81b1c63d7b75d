"""Shared fits of decision trees: the cost-complexity pruning path of one full tree."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from skfleet._sklearn_private import prune_tree
from skfleet.model_selection._paths._checks import invalid_penalty, invalid_seed, name_set
from skfleet.model_selection._paths._registry import ParamSets, SharedFit, register_shared_fit


class CostComplexityPath(SharedFit):
    """Trees pruned by minimal cost-complexity (Breiman et al., 1984, chapter 3).

    ``ccp_alpha`` has no effect on the growth of a tree, which is pruned afterwards.
    """

    parameters = ("ccp_alpha",)
    known = name_set(
        "ccp_alpha class_weight criterion max_depth max_features max_leaf_nodes "
        "min_impurity_decrease min_samples_leaf min_samples_split min_weight_fraction_leaf "
        "monotonic_cst random_state splitter"
    )

    def unsupported_reason(self, params: Mapping[str, Any]) -> str | None:
        """Reject trees whose growth is not repeatable."""
        alpha = params["ccp_alpha"]
        is_none = isinstance(alpha, (int, float)) and alpha == 0
        problem = None if is_none else invalid_penalty("ccp_alpha", alpha)
        return problem or invalid_seed(params["random_state"])

    def fit(
        self, estimator: Any, candidates: ParamSets, X: Any, y: Any, **fit_params: Any
    ) -> list[Any]:
        """Grow the full tree, and prune a copy for each candidate."""
        full = estimator.set_params(ccp_alpha=0.0).fit(X, y, **fit_params)
        return [prune_tree(copy.copy(full).set_params(**values)) for values in candidates]


for _name in ("DecisionTree", "ExtraTree"):
    for _kind in ("Classifier", "Regressor"):
        register_shared_fit(f"sklearn.tree.{_name}{_kind}", CostComplexityPath())
