"""Exceptions of scikit-fleet."""

__all__ = [
    "FleetError",
    "FleetVersionError",
    "MissingMainGuardError",
    "NoWorkersError",
    "PlacementError",
    "WorkerMemoryError",
    "WorkersPausedError",
]


class FleetError(RuntimeError):
    """Base class of errors of the cluster, as opposed to errors of the data or the model."""


class PlacementError(FleetError):
    """No worker has the resources that a task requests, so that it would wait for ever."""


class NoWorkersError(FleetError, TimeoutError):
    """No worker has connected within `wait_for_workers_timeout`."""


class WorkerMemoryError(FleetError):
    """Workers were ended for their memory while they ran a task.

    Parameters
    ----------
    cause : str
        The task, and what it took of how much memory.
    advice : str
        What helps.
    """

    def __init__(self, cause: str, advice: str) -> None:
        super().__init__(cause, advice)

    def __str__(self) -> str:
        return ". ".join(self.args)

    @property
    def cause(self) -> str:
        """The task, and what it took of how much memory."""
        return str(self.args[0])


class WorkersPausedError(WorkerMemoryError):
    """All workers for the tasks that wait are paused for their memory, and nothing frees it.

    Parameters
    ----------
    cause : str
        The workers, and what they have in use of how much memory.
    advice : str
        What helps.
    """


class FleetVersionError(FleetError):
    """A worker lacks scikit-fleet, or has other versions than the caller."""


class MissingMainGuardError(FleetError, SystemExit):
    """A script starts worker processes outside ``if __name__ == "__main__":``.

    The error is a :class:`SystemExit` as well, because the traceback would only show lines of
    scikit-fleet: an uncaught one ends the script with its message and no traceback. Other lines may
    come before the message: each worker process prints what the script prints before the fleet
    starts, and a slow start prints that it is still waiting for worker processes.

    Parameters
    ----------
    message : str
        Text of the error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message  # what the interpreter prints; RuntimeError's __init__ leaves it empty
