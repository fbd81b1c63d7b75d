"""Expressions of the partitions of other expressions, as they are."""

from __future__ import annotations

from typing import Any

from dask.task_spec import Task, TaskRef

from skfleet._dask_private import Blockwise


def identity(partition: Any) -> Any:
    """Return a partition."""
    return partition


class PartitionsOf(Blockwise):
    """Expression of the partitions of its first operand."""

    _parameters = ["frame"]

    @property
    def _meta(self) -> Any:
        return self.operands[0]._meta

    def _broadcast_dep(self, dep: Any) -> bool:
        return False

    def _task(self, name: Any, index: int) -> Any:
        return Task(name, identity, TaskRef((self.operands[0]._name, index)))
