"""Expressions of the partitions of other expressions, as they are."""

from __future__ import annotations

from typing import TypeVar

from dask.task_spec import Task, TaskRef
from dask.typing import Key

from skfleet._dask_private import Blockwise, Expr
from skfleet._typing import Table

T = TypeVar("T")


def identity(partition: T) -> T:
    """Return a partition."""
    return partition


class PartitionsOf(Blockwise):
    """Expression of the partitions of its first operand."""

    _parameters = ["frame"]

    @property
    def _meta(self) -> Table:
        return self.operands[0]._meta

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _task(self, name: Key, index: int) -> Task:
        return Task(name, identity, TaskRef((self.operands[0]._name, index)))
