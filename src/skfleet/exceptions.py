"""The errors of scikit-fleet that a caller may want to catch by name."""

__all__ = [
    "FleetError",
    "FleetVersionError",
    "MissingMainGuardError",
    "NoWorkersError",
    "PlacementError",
]


class FleetError(RuntimeError):
    """Base of the errors that come from the fleet, not from the data or the model."""


class PlacementError(FleetError):
    """No worker offers what a task asks for, so that it would wait for ever."""


class NoWorkersError(FleetError, TimeoutError):
    """No worker has come in the time that `wait_for_workers_timeout` says."""


class FleetVersionError(FleetError):
    """A worker lacks scikit-fleet, or runs other versions than the caller."""


class MissingMainGuardError(FleetError, SystemExit):
    """A script starts worker processes outside ``if __name__ == "__main__":``.

    The error is a :class:`SystemExit` as well, because the traceback would only show lines of
    scikit-fleet: an uncaught one ends the script with its message as the only line on the screen.

    Parameters
    ----------
    message : str
        What to say.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message  # what the interpreter prints; RuntimeError's __init__ leaves it empty
