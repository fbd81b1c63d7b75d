"""Transport of joblib's calls to workers and of their results back."""

from skfleet._joblib._batch_task import (
    BatchResult,
    CallItem,
    DeviceArgument,
    ProcessArgument,
    task_name,
)
from skfleet._joblib._call_bar import open_call_bar
from skfleet._joblib._callbacks import pack, register_search
from skfleet._joblib._parallel_call import CallBatch, ParallelCall, explain_unpicklable
from skfleet._joblib._shared_arguments import SharedArguments
from skfleet._joblib._worker_slots import WorkerSlots

__all__ = [
    "BatchResult",
    "CallBatch",
    "CallItem",
    "DeviceArgument",
    "ParallelCall",
    "ProcessArgument",
    "SharedArguments",
    "WorkerSlots",
    "explain_unpicklable",
    "open_call_bar",
    "pack",
    "register_search",
    "task_name",
]
