"""The memory of worker processes, as tests of its limits measure it."""

import psutil
from distributed.diagnostics.plugin import WorkerPlugin


def import_all():
    """Import what a worker may need, and return the memory of the process."""
    import skfleet.estimators
    import skfleet.model_selection

    list(map(skfleet.estimators.__getattribute__, skfleet.estimators.__all__))
    return psutil.Process().memory_info().rss


class PeakMemory(WorkerPlugin):
    """Records the largest memory of a worker process."""

    name = "peak-memory"

    def setup(self, worker):
        """Read the memory ten times a second."""
        self.worker, self.peak = worker, 0
        self.timer = worker.loop.call_later(0, self.read)

    def read(self):
        """Read the memory, and again after a while."""
        self.peak = max(self.peak, self.worker.monitor.proc.memory_info().rss)
        self.timer = self.worker.loop.call_later(0.1, self.read)
