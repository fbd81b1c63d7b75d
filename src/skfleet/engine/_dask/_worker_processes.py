"""Child processes of workers, each tied to the result of the task that started it.

The work of a process ends when its task's result is released or its worker ends, with the client
that holds the future at the latest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit
from uuid import uuid4

from dask.system import CPU_COUNT
from dask.typing import Key
from distributed import Worker, WorkerPlugin, get_worker, secede
from distributed.utils import sync

from skfleet.blocks import Block, BlockFile, BlockRef
from skfleet.engine._child_process import ChildProcess
from skfleet.engine._dask._disk_blocks import local_block
from skfleet.engine._object_thread import ObjectThread
from skfleet.engine._remote_object import ObjectLostError, RemoteObject

# Idle processes of a worker, at most; and the seconds without work after which they end.
MAX_IDLE, IDLE_SECONDS = 2, 30.0
# Exit status of a worker with a thread that hangs.
HUNG_STATUS = 3
# Seconds in which an object must close, for its process to be used again.
CLEAR_SECONDS = 5.0
_lock = threading.Lock()


class WorkerProcesses(WorkerPlugin):
    """The child processes of one worker, and such threads, by the keys of tasks that started them.

    A process whose task is released waits a while for another task: its libraries are loaded.
    """

    name = "skfleet-processes"

    def setup(self, worker: Worker) -> None:
        self.directory = os.path.join(worker.local_directory, "skfleet-processes")
        self._has_nanny = worker.nanny is not None
        self._processes: dict[Key, RemoteObject] = {}
        self._idle: list[ChildProcess] = []
        self._timer: threading.Timer | None = None
        self._releases: list[threading.Thread] = []
        self._lock = threading.Lock()

    def preload(self, factory: Callable[..., object], n_threads: int) -> None:
        """Start a process that loads a factory's module, unless an idle one has."""
        process = self._take_idle(n_threads)
        if process is None:
            process = self._new(n_threads)
            process.load(factory)
        self._put_idle(process)

    def start(
        self,
        key: Key,
        factory: Callable[..., object],
        args: Sequence[object],
        n_threads: int,
        in_worker: bool,
    ) -> None:
        """Let a process hold an object for a task's result; that of an earlier run is killed.

        With `in_worker` it is a thread of the worker's own process.
        """
        self._kill(key)
        if in_worker:
            place: RemoteObject = ObjectThread(n_threads, self._new_directory(), self._end_worker)
            place.create(factory, *args)
        else:
            place = self._start_process(factory, args, n_threads)
        self._processes[key] = place

    def _start_process(
        self, factory: Callable[..., object], args: Sequence[object], n_threads: int
    ) -> ChildProcess:
        while (process := self._take_idle(n_threads)) is not None:
            try:
                process.create(factory, *args)
                return process
            except ObjectLostError:  # it has died since
                process.kill()
        process = self._new(n_threads)
        process.create(factory, *args)
        return process

    def _end_worker(self) -> None:
        """End the worker, which has a thread that hangs, if another one will replace it."""
        if self._has_nanny:
            os._exit(HUNG_STATUS)

    def find(self, key: Key) -> RemoteObject:
        """Return the process of a task's result, or raise an ObjectLostError."""
        try:
            return self._processes[key]
        except KeyError:
            raise ObjectLostError("its worker died, or has released it") from None

    def transition(self, key: Key, start: str, finish: str, **kwargs: object) -> None:
        """End the work of a process whose result the worker releases."""
        if finish in ("released", "forgotten", "error") and key in self._processes:
            # not in the event loop, which the wait for the end would block
            thread = threading.Thread(target=self._release, args=(key,), daemon=True)
            self._releases = [other for other in self._releases if other.is_alive()]
            self._releases.append(thread)
            thread.start()

    def teardown(self, worker: Worker) -> None:
        for thread in self._releases:  # which remove files, as Dask is about to
            thread.join(CLEAR_SECONDS)
        for key in list(self._processes):
            self._kill(key)
        self._kill_idle()

    def _new(self, n_threads: int) -> ChildProcess:
        return ChildProcess(n_threads, self._new_directory())

    def _new_directory(self) -> str:
        return os.path.join(self.directory, uuid4().hex)

    def _kill(self, key: Key) -> None:
        process = self._processes.pop(key, None)
        if process is not None:
            process.kill()

    def _release(self, key: Key) -> None:
        process = self._processes.pop(key, None)
        if process is not None:
            if process.clear(CLEAR_SECONDS) and isinstance(process, ChildProcess):
                self._put_idle(process)
            else:
                process.kill()

    def _take_idle(self, n_threads: int) -> ChildProcess | None:
        with self._lock:
            for process in self._idle:
                if process.n_threads == n_threads:
                    self._idle.remove(process)
                    return process
        return None

    def _put_idle(self, process: ChildProcess) -> None:
        with self._lock:
            self._idle.append(process)
            surplus = self._idle[:-MAX_IDLE]
            del self._idle[:-MAX_IDLE]
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(IDLE_SECONDS, self._kill_idle)
            self._timer.daemon = True
            self._timer.start()
        for process in surplus:
            process.kill()

    def _kill_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
        for process in idle:
            process.kill()


class ProcessHandle(NamedTuple):
    """A process on a worker: the result of `start_process`."""

    key: Key
    address: str
    host: str


class CallResult(NamedTuple):
    """The value of a call, its error, or the reason for which the process is lost."""

    value: Any = None
    error: BaseException | None = None
    lost: str = ""
    is_elsewhere: bool = False  # the call ran on another worker than that of the process


def preload_process(factory: Callable[..., object], n_threads: int) -> None:
    """Start a process on the worker that runs this task, for a task that comes later."""
    _processes_of(get_worker()).preload(factory, min(n_threads, CPU_COUNT))


def start_process(
    factory: Callable[..., object], args: Sequence[object], n_threads: int, in_worker: bool
) -> ProcessHandle:
    """Start a process on the worker that runs this task, for as long as the result lives."""
    worker = get_worker()
    key = worker.get_current_task()
    _processes_of(worker).start(key, factory, args, min(n_threads, CPU_COUNT), in_worker)
    return ProcessHandle(key, worker.address, urlsplit(worker.address).hostname or "127.0.0.1")


def call_process(
    handle: ProcessHandle, method: str, args: Sequence[object], timeout: float
) -> CallResult:
    """Call a method of a process of the worker that runs this task; others may run meanwhile."""
    worker = get_worker()
    if worker.address != handle.address:
        return CallResult(lost="its worker died", is_elsewhere=True)
    secede()
    try:
        process = _processes_of(worker).find(handle.key)
        args = [_link_blocks(arg, process.directory) for arg in args]
        return CallResult(process.call(method, *args, timeout=timeout))
    except ObjectLostError as error:
        return CallResult(lost=str(error))
    except Exception as error:
        return CallResult(error=error)


def _link_blocks(arg: object, directory: str) -> object:
    """Return an argument with its stored blocks in files of the process, where there are files.

    The worker may remove its own files at any time.
    """
    if isinstance(arg, BlockRef):
        block = local_block(arg)
        if isinstance(block, Block):
            return block
        path = os.path.join(directory, f"{uuid4().hex}.joblib")
        try:
            os.link(block.path, path)
        except OSError:  # a file system without links, or of another worker
            return Block(*block.load())
        return BlockFile(path, block.n_bytes)
    if isinstance(arg, list):
        return [_link_blocks(part, directory) for part in arg]
    if type(arg) is tuple:
        return tuple(_link_blocks(part, directory) for part in arg)
    return arg


def _processes_of(worker: Worker) -> WorkerProcesses:
    """Return a worker's plugin, installed on first use."""
    with _lock:
        if WorkerProcesses.name not in worker.plugins:
            plugin = WorkerProcesses()
            sync(worker.loop, worker.plugin_add, plugin=plugin, name=WorkerProcesses.name)
        return cast(WorkerProcesses, worker.plugins[WorkerProcesses.name])
