"""Metadata routing as in scikit-learn's meta-estimators, for those around one estimator."""

from __future__ import annotations

from typing import Any

from sklearn import get_config
from sklearn.model_selection import check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing


def router(owner: Any, methods: dict[str, str]) -> MetadataRouter:
    """Return the router of an estimator around `estimator`.

    `methods` maps the owner's methods to the ones that they call. What the owner takes itself is
    what its own signatures name and ``UNUSED`` does not take out.
    """
    mapping = MethodMapping()
    for caller, callee in methods.items():
        mapping.add(caller=caller, callee=callee)
    made = MetadataRouter(owner=owner).add_self_request(owner)
    return made.add(estimator=owner.estimator, method_mapping=mapping)


def routed(owner: Any, caller: str, callee: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return what of `params` the inner estimator's method gets: all, unless routing is enabled."""
    if not params or not get_config()["enable_metadata_routing"]:
        return params
    return dict(process_routing(owner, caller, **params)["estimator"][callee])


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
