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
    """Base class of errors of the cluster, as opposed to errors of the data or the model.

    Examples
    --------
    Catch it for all that can be wrong with a fleet. Here the fleet was closed before it was used:

    >>> from skfleet import Fleet
    >>> from skfleet.exceptions import FleetError
    >>> fleet = Fleet(n_workers=1, processes=False)
    >>> fleet.close()
    >>> try:
    ...     with fleet:
    ...         pass
    ... except FleetError as error:
    ...     print(error)
    Fleet must be open to be entered. ...

    An error of the data passes through, with its own class:

    >>> import dask.array as da
    >>> from skfleet.estimators import Ridge
    >>> with Fleet(n_workers=1, processes=False):
    ...     try:
    ...         Ridge().fit(da.ones((10, 2)), da.ones(9))
    ...     except FleetError:
    ...         print("something is wrong with the fleet")
    ...     except ValueError:
    ...         print("something is wrong with the rows")
    something is wrong with the rows
    """


class PlacementError(FleetError):
    """No worker has the resources that a task requests, so that it would wait for ever.

    Examples
    --------
    The calls ask for a worker with the label ``TPU``, which the only worker does not have:

    >>> import joblib
    >>> from skfleet import Fleet
    >>> from skfleet.exceptions import PlacementError
    >>> with Fleet(n_workers=1, processes=False):
    ...     try:
    ...         with joblib.parallel_config("skfleet", resources={"TPU": 1}):
    ...             joblib.Parallel()(joblib.delayed(abs)(i) for i in [-1, -2])
    ...     except PlacementError as error:
    ...         print(error)
    placement must be offered by at least one worker. Got TPU=1 instead, while ...

    With a label on the worker they run:

    >>> with Fleet(n_workers=1, processes=False, resources=[{"CPU": 2, "TPU": 1}]):
    ...     with joblib.parallel_config("skfleet", resources={"TPU": 1}):
    ...         joblib.Parallel()(joblib.delayed(abs)(i) for i in [-1, -2])
    [1, 2]
    """


class NoWorkersError(FleetError, TimeoutError):
    """No worker has connected within `wait_for_workers_timeout`.

    It is a :class:`TimeoutError` as well.

    Examples
    --------
    This scheduler has no workers, and none is on its way:

    >>> import dask.array as da
    >>> import skfleet
    >>> from distributed import Client, LocalCluster
    >>> from skfleet.estimators import Ridge
    >>> from skfleet.exceptions import NoWorkersError
    >>> X, y = da.ones((10, 2)), da.ones(10)
    >>> with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster:
    ...     with Client(cluster), skfleet.config_context(wait_for_workers_timeout=0.1):
    ...         try:
    ...             Ridge().fit(X, y)
    ...         except NoWorkersError as error:
    ...             print(error)
    scheduler inproc://... must have a worker. Got none after 0.1 seconds instead. ...
    """


class WorkerMemoryError(FleetError):
    """Workers were ended for their memory while they ran a task.

    Parameters
    ----------
    cause : str
        The task, and what it took of how much memory.
    advice : str
        What helps.

    Examples
    --------
    The fleet raises it itself. Its text is the cause, followed by the advice. ``cause`` has the
    first part alone, for a log say:

    >>> from skfleet.exceptions import WorkerMemoryError
    >>> try:
    ...     raise WorkerMemoryError(
    ...         "fit must fit into the memory of a worker. Got 3 GiB of 2 GiB instead",
    ...         "Start fewer workers with more memory each.",
    ...     )
    ... except WorkerMemoryError as error:
    ...     print(error)
    ...     print("cause:", error.cause)
    fit must fit into the memory of a worker. Got 3 GiB of 2 GiB instead. Start fewer ...
    cause: fit must fit into the memory of a worker. Got 3 GiB of 2 GiB instead

    A fit that workers cannot hold can be tried again on fewer workers, which then have more memory
    each. Here two workers are enough, so that the first try succeeds:

    >>> import dask.array as da
    >>> from skfleet import Fleet
    >>> from skfleet.estimators import StandardScaler
    >>> X = da.arange(12).reshape(6, 2)
    >>> for n_workers in (2, 1):
    ...     try:
    ...         with Fleet(n_workers=n_workers, processes=False):
    ...             scaler = StandardScaler().fit(X)
    ...         break
    ...     except WorkerMemoryError:
    ...         print("again on fewer workers")
    >>> scaler.mean_
    array([5., 6.])
    """

    def __init__(self, cause: str, advice: str) -> None:
        super().__init__(cause, advice)

    def __str__(self) -> str:
        return ". ".join(self.args)

    @property
    def cause(self) -> str:
        """The task, and what it took of how much memory."""
        return str(self.args[0])


class WorkersPausedError(FleetError):
    """All workers for the tasks that wait are paused for their memory, and nothing frees it.

    No worker has died, and smaller pieces of files would wait too. So this is no
    :class:`WorkerMemoryError`.

    Examples
    --------
    >>> from skfleet.exceptions import FleetError, WorkersPausedError
    >>> try:
    ...     raise WorkersPausedError("workers must have free memory. Start some with more.")
    ... except FleetError as error:
    ...     print(error)
    workers must have free memory. Start some with more.
    """


class FleetVersionError(FleetError):
    """A worker lacks scikit-fleet, or has other versions than the caller.

    The versions are those of scikit-fleet, scikit-learn and Python. Those of each worker in another
    process are compared once, before it gets work.

    Examples
    --------
    Repeating a fit does not help, so a script ends with the message, which names the worker:

    >>> import dask.array as da
    >>> from skfleet import Fleet
    >>> from skfleet.estimators import Ridge
    >>> from skfleet.exceptions import FleetVersionError
    >>> def fit_or_stop(model, X, y):
    ...     try:
    ...         return model.fit(X, y)
    ...     except FleetVersionError as error:
    ...         raise SystemExit(f"Update the workers first. {error}") from None

    Workers on threads have the versions of this process, so that nothing is raised:

    >>> x = da.arange(4.0)
    >>> with Fleet(n_workers=1, processes=False):
    ...     model = fit_or_stop(Ridge(alpha=0), x[:, None], 2 * x)
    >>> model.coef_.round(6)
    array([2.])

    This model stands for one that is fitted on a worker of another version:

    >>> class OnAnOldWorker:
    ...     def fit(self, X, y):
    ...         raise FleetVersionError("scikit-learn must be 1.9.0 on every worker.")
    >>> fit_or_stop(OnAnOldWorker(), x[:, None], x)
    Traceback (most recent call last):
        ...
    SystemExit: Update the workers first. scikit-learn must be 1.9.0 on every worker.
    """


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

    Examples
    --------
    A script that raises it starts the fleet at its top level. This one is right::

        from skfleet import Fleet


        def main():
            with Fleet() as client:
                print(client.nthreads())


        if __name__ == "__main__":
            main()

    Where an application must go on, it can catch the error as any other of a fleet. ``code`` is the
    text that the interpreter would print:

    >>> from skfleet.exceptions import FleetError, MissingMainGuardError
    >>> try:
    ...     raise MissingMainGuardError("Fleet() must be called under the main guard.")
    ... except FleetError as error:
    ...     print(isinstance(error, SystemExit), error.code)
    True Fleet() must be called under the main guard.

    A fleet on threads needs no guard:

    >>> from skfleet import Fleet
    >>> with Fleet(n_workers=2, processes=False) as client:
    ...     len(client.nthreads())
    2
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message  # what the interpreter prints; RuntimeError's __init__ leaves it empty
