"""Metadata of compositions on Dask rows, which is ``sample_weight`` alone."""

from __future__ import annotations

from typing import Any

from sklearn import get_config
from sklearn.utils.metadata_routing import process_routing
from sklearn.utils.validation import has_fit_parameter

from skfleet.estimators.pipeline._task_models import is_estimator


def weighted_parts(composition: Any, params: dict[str, Any], routed_only: bool) -> set[str]:
    """Return the names of the parts that take ``sample_weight`` of the parameters of ``fit``.

    Without metadata routing these are all parts, unless `routed_only` is true.
    """
    if not params:
        return set()
    is_routing = get_config()["enable_metadata_routing"]
    if routed_only and not is_routing:
        _refuse_unrouted(params, "fit")
    if is_routing:  # raises for what no part requests
        routed = process_routing(composition, "fit", **params)
    if params.keys() != {"sample_weight"}:
        raise ValueError(
            "fit must get sample_weight alone for Dask rows. Got "
            f"{', '.join(sorted(params))} instead. Compute X, or set the rest before."
        )
    parts = composition.get_params(deep=False)
    parts = {
        entry[0]: entry[1] for entry in parts.get("transformers", parts.get("transformer_list"))
    }
    if is_routing:
        methods = ("fit", "fit_transform")
        names = {n for n in routed if any("sample_weight" in routed[n].get(m, ()) for m in methods)}
    else:
        names = {name for name, part in parts.items() if is_estimator(part)}
    for name in names:
        if not has_fit_parameter(parts.get(name), "sample_weight"):
            raise TypeError(
                f"sample_weight must be for transformers that take it. Got {name!r} instead, whose "
                "fit has no such parameter, or is a composition. Leave the weights out."
            )
    return names


def refuse_metadata(composition: Any, params: dict[str, Any]) -> None:
    """Raise for metadata of ``transform``, which is not cut like Dask rows."""
    if not params:
        return
    if not get_config()["enable_metadata_routing"]:
        _refuse_unrouted(params, "transform")
    process_routing(composition, "transform", **params)  # raises for what no part requests
    raise ValueError(
        f"transform must get no metadata for Dask rows. Got {', '.join(sorted(params))} instead. "
        "Compute X, or leave it out."
    )


def _refuse_unrouted(params: dict[str, Any], method: str) -> None:
    raise ValueError(
        f"{sorted(params)} must not be passed to {method} unless metadata routing is enabled. Call "
        "sklearn.set_config(enable_metadata_routing=True), and let transformers request them."
    )
