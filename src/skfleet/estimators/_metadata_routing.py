"""Metadata routing as in scikit-learn's meta-estimators, for those around one estimator."""

from __future__ import annotations

from typing import Any

from sklearn import get_config
from sklearn.model_selection import check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from skfleet._partial_fit import learner_of


def router(owner: Any, methods: dict[str, str]) -> MetadataRouter:
    """Return the router of an estimator around `estimator`.

    `methods` maps the owner's methods to the ones that they call. What the owner takes itself is
    what its own signatures name and ``UNUSED`` does not take out.
    """
    mappings: dict[str, MethodMapping] = {}
    for caller, callee in methods.items():
        mappings.setdefault(_role(callee), MethodMapping()).add(caller=caller, callee=callee)
    made = MetadataRouter(owner=owner).add_self_request(owner)
    inner = {"estimator": owner.estimator, "learner": learner_of(owner.estimator)}
    for role, mapping in mappings.items():
        made.add(method_mapping=mapping, **{role: inner[role]})
    return made


def _role(method: str) -> str:
    """Return what has a method: of a pipeline what learns is its last step."""
    return "learner" if method == "partial_fit" else "estimator"


def routed(owner: Any, caller: str, callee: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return what of `params` the inner estimator's method gets: all, unless routing is enabled."""
    if not params or not get_config()["enable_metadata_routing"]:
        return params
    return dict(process_routing(owner, caller, **params)[_role(callee)][callee])


def splitter_router(owner: Any) -> MetadataRouter:
    """Return the router of an estimator that cross-validates with its `cv`."""
    mapping = MethodMapping().add(caller="fit", callee="split")
    made = MetadataRouter(owner=owner).add_self_request(owner)
    return made.add(splitter=check_cv(owner.cv), method_mapping=mapping)


def routed_to_splitter(owner: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return what of `params` the splitter gets; raise for any unless routing is enabled."""
    if not params:
        return {}
    if not get_config()["enable_metadata_routing"]:
        raise ValueError(
            f"fit must get X, y and sample_weight only. Got {', '.join(sorted(params))} besides. "
            "Call sklearn.set_config(enable_metadata_routing=True) to hand that to the splitter."
        )
    return dict(process_routing(owner, "fit", **params)["splitter"]["split"])


def given(params: dict[str, Any], **named: Any) -> dict[str, Any]:
    """Add those of the named values that were given to the rest."""
    return params | {name: value for name, value in named.items() if value is not None}
