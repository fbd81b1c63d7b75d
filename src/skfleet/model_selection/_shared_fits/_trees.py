"""Decision trees over the cost of complexity: the whole tree has all pruned ones in it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from skfleet._sklearn_private import prune_tree
from skfleet.model_selection._shared_fits._checks import penalty_problem, seed_problem
from skfleet.model_selection._shared_fits._registry import SharedFit, register_shared_fit

__all__ = ["Prunings"]


class Prunings(SharedFit):
    """Trees pruned by minimal cost-complexity (Breiman et al., 1984, chapter 3).

    A tree is grown without a look at ``ccp_alpha``, and pruned after.
    """

    parameters = ("ccp_alpha",)
    known = frozenset(
        [
            "ccp_alpha",
            "class_weight",
            "criterion",
            "max_depth",
            "max_features",
            "max_leaf_nodes",
            "min_impurity_decrease",
            "min_samples_leaf",
            "min_samples_split",
            "min_weight_fraction_leaf",
            "monotonic_cst",
            "random_state",
            "splitter",
        ]
    )

    def refuses(self, params: Mapping[str, Any]) -> str | None:
        """Tell why: a tree that would be another one each time."""
        alpha = params["ccp_alpha"]
        is_none = isinstance(alpha, (int, float)) and alpha == 0
        problem = None if is_none else penalty_problem("ccp_alpha", alpha)
        return problem or seed_problem(params["random_state"])

    def fit(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        X: Any,
        y: Any,
        **fit_params: Any,
    ) -> list[Any]:
        """Grow the tree, and prune it for each candidate."""
        whole = estimator.set_params(ccp_alpha=0.0).fit(X, y, **fit_params)
        return [prune_tree(copy.copy(whole).set_params(**one)) for one in candidates]


for _name in ("DecisionTree", "ExtraTree"):
    for _kind in ("Classifier", "Regressor"):
        register_shared_fit(f"sklearn.tree.{_name}{_kind}", Prunings())
