"""Worker resources that tasks request, for a device or by name, and whether workers offer them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skfleet.exceptions import PlacementError

# The address of each worker, with the resources that it offers: {"tcp://...": {"GPU": 1.0}}.
WorkerResources = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that a worker must offer to be given a task. With none, any worker will do."""

    resources: tuple[tuple[str, float], ...] = ()  # names and amounts

    @classmethod
    def of(cls, resources: Mapping[str, float] | None) -> ResourceRequest:
        """Build a request from a mapping of names to amounts, or from None."""
        return cls(tuple(sorted((name, float(n)) for name, n in (resources or {}).items())))

    def as_dict(self) -> dict[str, float]:
        """Return the resources as a new dict, the form in which a scheduler takes them."""
        return dict(self.resources)

    def __str__(self) -> str:
        return _describe(self.as_dict()) or "anywhere"


ANY_WORKER = ResourceRequest()


def satisfies(offer: Mapping[str, float], request: ResourceRequest) -> bool:
    """Return whether a worker's offer has every resource of a request."""
    return all(offer.get(name, 0) >= amount for name, amount in request.resources)


def resources_for_device(device: str, workers: WorkerResources) -> ResourceRequest:
    """Return the resources to request for a task on a device, or raise PlacementError.

    "auto" follows the data and so requests nothing. "cuda" requests a worker labelled ``GPU``.
    "cpu" requests one labelled ``CPU``, or nothing where no worker has either label.
    """
    check_device(device)
    # Resources cannot say "not on a GPU": once any worker is labelled, only a label will do.
    is_labelled = any(offer.get("CPU") or offer.get("GPU") for offer in workers.values())
    if device == "auto" or (device == "cpu" and not is_labelled):
        return ANY_WORKER
    request = ResourceRequest((("GPU" if device == "cuda" else "CPU", 1.0),))
    check_satisfiable(request, workers)
    return request


def check_device(device: object) -> None:
    """Raise ValueError unless this is the name of a device."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"device must be one of 'auto', 'cpu' or 'cuda'. Got {device!r} instead. "
            "Use 'cuda' for an NVIDIA GPU."
        )


def check_satisfiable(resources: ResourceRequest, workers: WorkerResources) -> None:
    """Raise PlacementError unless one worker alone offers all resources of a request.

    A scheduler keeps a task that no worker can satisfy, and waits for ever.
    """
    if not resources.resources or any(satisfies(offer, resources) for offer in workers.values()):
        return
    offers = sorted({_describe(offer) or "no resources" for offer in workers.values()})
    label = ", ".join(f'"{name}": {amount:g}' for name, amount in resources.resources)
    options = _describe(resources.as_dict()).replace(", ", " ")
    raise PlacementError(
        f"placement must be offered by at least one worker. Got {resources} instead, while the "
        f"{len(workers)} worker(s) offer {' or '.join(offers) or 'nothing'}. Label workers with "
        f'Fleet(resources=[{{"CPU": 1}}, {{{label}}}]) or dask worker --resources "{options}".'
    )


def _describe(resources: Mapping[str, float]) -> str:
    """Format resources as the command line of a worker takes them."""
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
    """
    if requested_device is not None or resources:
        device = requested_device or "auto"
    elif device != "cuda":
        labels = {label for offer in workers.values() for label, amount in offer.items() if amount}
        device = "cpu" if {"CPU", "GPU"} <= labels else "auto"
    request = {**resources_for_device(device, workers).as_dict(), **resources}
    check_satisfiable(ResourceRequest.of(request), workers)
    return request


def offers_gpu(offers: Iterable[Mapping[str, float]]) -> bool:
    """Return whether any of the workers with these resources is labelled as one with a GPU."""
    return any(offer.get("GPU") for offer in offers)


def count_slots(n_threads: int, offer: Mapping[str, float], request: Mapping[str, float]) -> int:
    """Count the tasks with this request for resources that a worker can run at once."""
    n_tasks = [math.floor(offer.get(name, 0) / n) for name, n in request.items() if n > 0]
    return min([n_threads, *n_tasks])
