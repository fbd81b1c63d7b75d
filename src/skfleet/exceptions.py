"""Exceptions of scikit-fleet."""

__all__ = [
    "FleetError",
    "FleetVersionError",
    "MissingMainGuardError",
    "NoWorkersError",
    "PlacementError",
]


class FleetError(RuntimeError):
    """Base class of errors of the cluster, as opposed to errors of the data or the model."""


class PlacementError(FleetError):
    """No worker has the resources that a task requests, so that it would wait for ever."""


class NoWorkersError(FleetError, TimeoutError):
    """No worker has connected within `wait_for_workers_timeout`."""


class FleetVersionError(FleetError):
    """A worker lacks scikit-fleet, or has other versions than the caller."""


class MissingMainGuardError(FleetError, SystemExit):
    """A script starts worker processes outside ``if __name__ == "__main__":``.

    The error is a :class:`SystemExit` as well, because the traceback would only show lines of
    scikit-fleet: an uncaught one ends the script with its message as the only line on the screen.

    Parameters
    ----------
    message : str
        Text of the error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message  # what the interpreter prints; RuntimeError's __init__ leaves it empty
