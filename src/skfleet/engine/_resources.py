"""Which workers may run a task: what a device asks of them, and whether any of them offers it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from skfleet.exceptions import PlacementError

__all__ = [
    "ANY_WORKER",
    "ResourceRequest",
    "WorkerResources",
    "check_device",
    "check_satisfiable",
    "count_slots",
    "resources_for_call",
    "resources_for_device",
]

# The address of each worker, with the resources that it offers: {"tcp://...": {"GPU": 1.0}}.
WorkerResources = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class ResourceRequest:
    """A request for resources, which a worker must offer to be given a task.

    Parameters
    ----------
    resources : tuple of (str, float), default=()
        Names and amounts. Nothing asked means that every worker will do.
    """

    resources: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, resources: Mapping[str, float] | None) -> ResourceRequest:
        """Make a placement from a mapping of names to amounts, or from None."""
        return cls(tuple(sorted((name, float(n)) for name, n in (resources or {}).items())))

    def as_dict(self) -> dict[str, float]:
        """Give the resources as a new dict, the form in which a scheduler takes them."""
        return dict(self.resources)

    def __str__(self) -> str:
        return _describe(self.as_dict()) or "anywhere"


ANY_WORKER = ResourceRequest()


def resources_for_device(device: str, workers: WorkerResources) -> ResourceRequest:
    """Choose the placement of a task that is to run on a device.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}
        "auto" follows the data and so asks for nothing. "cuda" asks for a worker labelled ``GPU``.
        "cpu" asks for one labelled ``CPU``, or for nothing where no worker carries either label.
    workers : mapping of str to mapping
        The resources that each worker offers.

    Returns
    -------
    Placement
        A placement that at least one of the workers satisfies.

    Raises
    ------
    PlacementError
        When no worker can be told to be one of that device.
    """
    check_device(device)
    if device == "auto":
        return ANY_WORKER
    if device == "cuda":
        resources = ResourceRequest((("GPU", 1.0),))
    else:
        # Resources cannot say "not on a GPU": once any worker is labelled, only a label will do.
        labelled = any(offer.get("CPU") or offer.get("GPU") for offer in workers.values())
        if not labelled:
            return ANY_WORKER
        resources = ResourceRequest((("CPU", 1.0),))
    check_satisfiable(resources, workers)
    return resources


def check_device(device: object) -> None:
    """Raise ValueError unless this is the name of a device."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"device must be one of 'auto', 'cpu' or 'cuda'. Got {device!r} instead. "
            "Use 'cuda' for an NVIDIA GPU."
        )


def check_satisfiable(resources: ResourceRequest, workers: WorkerResources) -> None:
    """Raise unless one worker alone offers everything that a placement asks for.

    A scheduler keeps a task that no worker can satisfy, and waits for ever.

    Parameters
    ----------
    placement : Placement
        What is asked.
    workers : mapping of str to mapping
        The resources that each worker offers.

    Raises
    ------
    PlacementError
        When no worker offers it, or no worker is there at all.
    """
    asked = resources.as_dict()
    if not asked:
        return
    for offer in workers.values():
        if all(offer.get(name, 0) >= amount for name, amount in asked.items()):
            return
    offers = sorted({_describe(offer) or "no resources" for offer in workers.values()})
    label = ", ".join(f'"{name}": {amount:g}' for name, amount in asked.items())
    raise PlacementError(
        f"placement must be offered by at least one worker. Got {resources} instead, while the "
        f"{len(workers)} worker(s) offer {' or '.join(offers) or 'nothing'}. Label workers with "
        f'Fleet(resources=[{{"CPU": 1}}, {{{label}}}]) or dask worker --resources '
        f'"{_describe(asked).replace(", ", " ")}".'
    )


def _describe(resources: Mapping[str, float]) -> str:
    """Write resources as the command line of a worker takes them."""
    return ", ".join(f"{name}={amount:g}" for name, amount in sorted(resources.items()))


def resources_for_call(
    requested_device: str | None,
    device: str | None,
    resources: Mapping[str, float],
    workers: WorkerResources,
) -> dict[str, float]:
    """Return the resources that a joblib call requests, or a fit whose model computes on a device.

    A device or resources that the user requested hold for all calls. Otherwise the device of the
    model decides; fits that need no GPU leave GPU workers free where there are CPU workers.

    Raises
    ------
    PlacementError
        When no worker offers them.
    """
    if requested_device is not None or resources:
        request = {
            **resources_for_device(requested_device or "auto", workers).as_dict(),
            **resources,
        }
    elif device == "cuda":
        request = resources_for_device("cuda", workers).as_dict()
    else:
        labels = {label for offer in workers.values() for label, amount in offer.items() if amount}
        request = resources_for_device("cpu", workers).as_dict() if {"CPU", "GPU"} <= labels else {}
    check_satisfiable(ResourceRequest.of(request), workers)
    return request


def count_slots(n_threads: int, offer: Mapping[str, float], request: Mapping[str, float]) -> int:
    """Count the tasks with this request for resources that a worker can run at once."""
    n_tasks = [math.floor(offer.get(name, 0) / n) for name, n in request.items() if n > 0]
    return min([n_threads, *n_tasks])
