"""Which workers may run a call, and how many calls at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from skfleet.engine import ResourceRequest, WorkerResources, check_satisfiable, resources_for_device

__all__ = ["resources_for", "slots_of"]


def resources_for(
    told: str | None, device: str | None, resources: Mapping[str, float], offers: WorkerResources
) -> dict[str, float]:
    """Give the resources that a call asks for, or a fit of a model that computes on a device.

    What the backend was told is for all: a device, resources, or both. Otherwise a fit goes to
    where its model can compute, and leaves GPUs to those that need one where there are other
    workers.

    Raises
    ------
    PlacementError
        When no worker offers them.
    """
    if told is not None or resources:
        asked = {**resources_for_device(told or "auto", offers).as_dict(), **resources}
    elif device == "cuda":
        asked = resources_for_device("cuda", offers).as_dict()
    else:
        labels = {label for offer in offers.values() for label, amount in offer.items() if amount}
        asked = resources_for_device("cpu", offers).as_dict() if {"CPU", "GPU"} <= labels else {}
    check_satisfiable(ResourceRequest.of(asked), offers)
    return asked


def slots_of(n_threads: int, offered: Mapping[str, float], asked: Mapping[str, float]) -> int:
    """Count the tasks that a worker can run at once, given what each of them asks for."""
    shares = [offered.get(name, 0) / amount for name, amount in asked.items() if amount > 0]
    return min([n_threads, *map(math.floor, shares)])
