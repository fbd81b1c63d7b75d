"""Engines that run tasks, and the passes over rows that are written once for all of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from skfleet.engine._counted_rows import CountedRows, in_own_partitions, with_known_lengths
from skfleet.engine._counters import (
    Counts,
    count_library_passes,
    counting,
    counting_disabled,
    log_pass,
)
from skfleet.engine._disk_cache import are_cached
from skfleet.engine._fit_progress import (
    FitProgressMixin,
    begin_pass,
    current_fit_progress,
    expect_passes,
    fit_progress,
    no_fit_progress,
)
from skfleet.engine._fit_scope import current_fit_scope, fit_scope
from skfleet.engine._fold import FoldPace, TrainingBatch, fold
from skfleet.engine._gather_rows import NarrowRows, gather_rows, joined_blocks
from skfleet.engine._gpu._cpu_models import (
    arrays_to_host,
    attributes_to_host,
    device_responses,
    numpy_responses,
    to_cpu_estimator,
)
from skfleet.engine._gpu._cuml_model import as_portable, call_response_method
from skfleet.engine._gpu._device_cache import (
    DeviceArrayCache,
    DeviceCachedArray,
    ProcessShared,
)
from skfleet.engine._gpu._estimator_device import (
    CandidateDevices,
    accepts_device_arrays,
    device_of,
    takes_device_targets,
)
from skfleet.engine._gpu._remote import (
    call_method_on_gpu_worker,
    fit_cuml_on_gpu_worker,
    fit_on_gpu_worker,
    rows_cached_on_workers,
    run_on_gpu_worker,
)
from skfleet.engine._holdout import Holdout, draw_holdout
from skfleet.engine._local import LocalEngine
from skfleet.engine._local_group import LocalLauncher
from skfleet.engine._passes import NamedCall, Passes, join_reductions, run_passes, share_passes
from skfleet.engine._protocol import Call, Engine, Task, TaskPool, TaskResult
from skfleet.engine._reduce import Reduction, add, identity, map_reduce, with_row_offsets
from skfleet.engine._remote_object import ObjectLostError, report_progress, thread_count
from skfleet.engine._resources import (
    ANY_WORKER,
    ResourceRequest,
    check_device,
    check_satisfiable,
    count_slots,
    resources_for_call,
    resources_for_device,
)
from skfleet.engine._select import (
    check_fits_in_memory,
    device_cache,
    engine_for,
    fleet_engine,
    gpu_engine,
    have_short_passes,
    persisted_collections,
    training_engine,
)
from skfleet.engine._single_task import (
    SmallFitMixin,
    are_small,
    is_part_small,
    run_in_one_task,
    small_bytes,
    with_placement,
)
from skfleet.engine._small_rows import block_sizes_before, is_fit_placed, leave_if_small
from skfleet.engine._task_context import (
    PicklableModel,
    check_picklable,
    check_sent,
    open_scattered,
)
from skfleet.engine._threadpools import CORES_VARIABLE, limit_threadpools

if TYPE_CHECKING:  # what __getattr__ returns, for type checkers
    from skfleet.engine._dask._delayed_reduce import delay_reductions
    from skfleet.engine._dask._process_group import ProcessLauncher, threads_of_machine
    from skfleet.engine._dask._scatter import ScatteredObject, keep_while_alive, scatter_content
    from skfleet.engine._dask._serialize import MMAP_THRESHOLD, LocalReference, Pickled

__all__ = [
    "ANY_WORKER",
    "CORES_VARIABLE",
    "MMAP_THRESHOLD",
    "Call",
    "CandidateDevices",
    "CountedRows",
    "Counts",
    "DeviceArrayCache",
    "DeviceCachedArray",
    "Engine",
    "FitProgressMixin",
    "FoldPace",
    "Holdout",
    "LocalEngine",
    "LocalLauncher",
    "LocalReference",
    "NamedCall",
    "NarrowRows",
    "ObjectLostError",
    "Passes",
    "PicklableModel",
    "Pickled",
    "ProcessLauncher",
    "ProcessShared",
    "Reduction",
    "ResourceRequest",
    "ScatteredObject",
    "SmallFitMixin",
    "Task",
    "TaskPool",
    "TaskResult",
    "TrainingBatch",
    "accepts_device_arrays",
    "add",
    "are_cached",
    "are_small",
    "arrays_to_host",
    "as_portable",
    "attributes_to_host",
    "begin_pass",
    "block_sizes_before",
    "call_method_on_gpu_worker",
    "call_response_method",
    "check_device",
    "check_fits_in_memory",
    "check_picklable",
    "check_satisfiable",
    "check_sent",
    "count_library_passes",
    "count_slots",
    "counting",
    "counting_disabled",
    "current_fit_progress",
    "current_fit_scope",
    "delay_reductions",
    "device_cache",
    "device_of",
    "device_responses",
    "draw_holdout",
    "engine_for",
    "expect_passes",
    "fit_cuml_on_gpu_worker",
    "fit_on_gpu_worker",
    "fit_progress",
    "fit_scope",
    "fleet_engine",
    "fold",
    "gather_rows",
    "gpu_engine",
    "have_short_passes",
    "identity",
    "in_own_partitions",
    "is_fit_placed",
    "is_part_small",
    "join_reductions",
    "joined_blocks",
    "keep_while_alive",
    "leave_if_small",
    "limit_threadpools",
    "log_pass",
    "map_reduce",
    "no_fit_progress",
    "numpy_responses",
    "open_scattered",
    "persisted_collections",
    "report_progress",
    "resources_for_call",
    "resources_for_device",
    "rows_cached_on_workers",
    "run_in_one_task",
    "run_on_gpu_worker",
    "run_passes",
    "scatter_content",
    "share_passes",
    "small_bytes",
    "takes_device_targets",
    "thread_count",
    "threads_of_machine",
    "to_cpu_estimator",
    "training_engine",
    "with_known_lengths",
    "with_placement",
    "with_row_offsets",
]

# These import Dask's cluster, so their names above are imported when first asked for.
_DASK_MODULES = (
    "skfleet.engine._dask._delayed_reduce",
    "skfleet.engine._dask._process_group",
    "skfleet.engine._dask._scatter",
    "skfleet.engine._dask._serialize",
)


if not TYPE_CHECKING:  # to whom every name would be one of the package

    def __getattr__(name: str) -> Any:
        """Import a name of the Dask implementation."""
        for module in _DASK_MODULES if name in __all__ else ():
            namespace = vars(importlib.import_module(module))
            if name in namespace:
                return namespace[name]
        raise AttributeError(f"module 'skfleet.engine' has no attribute {name!r}")
