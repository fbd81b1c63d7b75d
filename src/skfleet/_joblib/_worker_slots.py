"""Slots of the workers that may run joblib's calls: how many calls run at once, and where."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from distributed import Client

from skfleet._cluster import scheduler_workers, wait_for_workers
from skfleet._config import get_config
from skfleet.engine import count_slots, resources_for_call
from skfleet.exceptions import NoWorkersError

# Seconds for which the scheduler's answer is reused: joblib asks three times for a call.
WORKER_INFO_TTL = 0.1


class WorkerSlots:
    """The workers that a backend may use, and the number of calls that each runs at once."""

    def __init__(
        self,
        owner: str,  # the backend's class, for errors
        options: Mapping[str, Any],  # of Client.submit
        device: str,  # of all calls
        has_device_option: bool,  # it holds for fits too, whatever device their models compute on
        timeout: float | None,  # seconds to wait for a first worker; None for the configuration's
    ) -> None:
        self.has_device_option = has_device_option
        self._owner, self._options, self._device = owner, options, device
        self._timeout = timeout
        self._resources: dict[str | None, dict[str, float]] = {}

    def workers(self, client: Client) -> Mapping[str, Any]:
        """Return the scheduler's information on its workers, at most `WORKER_INFO_TTL` old."""
        return scheduler_workers(client, WORKER_INFO_TTL)

    def addresses(self, client: Client, device: str | None = None) -> list[str]:
        """Return the worker of each slot: first one of every worker, then the seconds, and so on.

        Slots are those of calls, or of fits of models that compute on a device.
        """
        workers = self.workers(client)
        timeout = get_config().wait_for_workers_timeout if self._timeout is None else self._timeout
        if not workers and timeout:
            setting = 'joblib.parallel_config("skfleet", '
            try:
                workers = wait_for_workers(client, timeout, setting=setting)
            except NoWorkersError as error:  # begins as the one of joblib's Dask backend
                begin = f"{self._owner} has no worker after {timeout:g} seconds"
                raise NoWorkersError(f"{begin}: {error}") from error
        if not workers:
            return []
        offers = {address: info.get("resources") or {} for address, info in workers.items()}
        requested_device = self._device if device is None or self.has_device_option else None
        request = self._resources[device] = resources_for_call(
            requested_device, device, self._options.get("resources") or {}, offers
        )
        slots = [
            (n, address)
            for address, info in workers.items()
            if self._is_allowed(address, info)
            for n in range(count_slots(info["nthreads"], offers[address], request))
        ]
        if not slots:
            raise ValueError(
                f"workers must name workers of this fleet. Got {self._options['workers']!r} "
                f"instead. Its workers are {sorted(workers)}."
            )
        return [address for _, address in sorted(slots, key=itemgetter(0))]

    def resources(self, device: str | None) -> dict[str, float] | None:
        """Return the resources that calls for a device request, after :meth:`addresses`."""
        return self._resources[device] or None

    def has_workers(self, workers: Mapping[str, Any], device: str | None) -> bool:
        """Return whether any of these workers may run calls for a device, after `addresses`."""
        return any(
            self._is_allowed(address, info)
            and count_slots(1, info.get("resources") or {}, self._resources[device]) > 0
            for address, info in workers.items()
        )

    def _is_allowed(self, address: str, info: Mapping[str, Any]) -> bool:
        """Return whether a worker is among those that the ``workers`` option allows."""
        allowed = self._options.get("workers")
        if allowed is None or self._options.get("allow_other_workers"):
            return True
        allowed = [allowed] if isinstance(allowed, (str, int)) else allowed
        return any(name in (address, info.get("name"), info.get("host")) for name in allowed)
