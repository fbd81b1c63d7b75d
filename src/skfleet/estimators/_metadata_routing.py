"""Metadata routing of meta-estimators with one inner estimator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sklearn import get_config
from sklearn.model_selection import check_cv
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from skfleet._pipeline_steps import last_step


def make_router(owner: Any, methods: dict[str, str]) -> MetadataRouter:
    """Return the metadata router of an estimator around `estimator`.

    `methods` maps the methods of the owner to the methods that they call. The owner itself
    requests what its signatures name, less what is ``UNUSED``.
    """
    mappings: dict[str, MethodMapping] = {}
    for caller, callee in methods.items():
        mappings.setdefault(_role(callee), MethodMapping()).add(caller=caller, callee=callee)
    router = MetadataRouter(owner=owner).add_self_request(owner)
    inner = {"estimator": owner.estimator, "learner": last_step(owner.estimator)}
    for role, mapping in mappings.items():
        router.add(method_mapping=mapping, **{role: inner[role]})
    return router


def _role(method: str) -> str:
    """Return the name of the router's object with a method: the last step of a pipeline learns."""
    return "learner" if method == "partial_fit" else "estimator"


def route_params(owner: Any, caller: str, callee: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the `params` of the inner estimator's method: all, unless routing is enabled."""
    if not params or not get_config()["enable_metadata_routing"]:
        return params
    return dict(process_routing(owner, caller, **params)[_role(callee)][callee])


class SplitterRouting:
    """Mixin with the metadata routing of an estimator that cross-validates with its `cv`."""

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the metadata routing of the splitter.

        Returns
        -------
        routing : sklearn.utils.metadata_routing.MetadataRouter
            What `fit` takes itself, and what it hands on.
        """
        mapping = MethodMapping().add(caller="fit", callee="split")
        router = MetadataRouter(owner=self).add_self_request(self)
        return router.add(splitter=check_splits(self.cv), method_mapping=mapping)


def check_splits(cv: Any) -> Any:
    """Return the splitter of `cv` or raise, as scikit-learn does, but leave an iterator unread.

    In its place is a splitter of no splits, with the same requests.
    """
    return check_cv(() if isinstance(cv, Iterator) else cv)


def route_splitter_params(owner: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return the `params` of the splitter; raise for any unless routing is enabled."""
    if not params:
        return {}
    if not get_config()["enable_metadata_routing"]:
        raise ValueError(
            f"fit must get X, y and sample_weight only. Got {', '.join(sorted(params))} besides. "
            "Call sklearn.set_config(enable_metadata_routing=True) to hand that to the splitter."
        )
    return dict(process_routing(owner, "fit", **params)["splitter"]["split"])


def drop_none(params: dict[str, Any], **named: Any) -> dict[str, Any]:
    """Return `params` and those of the named values that are not None."""
    return params | {name: value for name, value in named.items() if value is not None}
