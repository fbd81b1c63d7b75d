"""Lazy answers for the rows of a Dask DataFrame, which Dask pairs with these by position."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar

import pandas as pd
from dask.dataframe.dask_expr import new_collection
from dask.dataframe.dask_expr.io import FusedIO
from dask.task_spec import List, Task, TaskRef
from dask.typing import Key

from skfleet._dask_private import Blockwise, Expr
from skfleet._typing import Table
from skfleet.blocks._dask_categorize import with_multi_reader_categorize
from skfleet.blocks._dask_optimize import is_reordered
from skfleet.blocks._dask_partitions import PartitionsOf

if TYPE_CHECKING:
    from skfleet.blocks._dask_types import DaskFrame

FrameT = TypeVar("FrameT", pd.DataFrame, pd.Series)


def paired_with(answer: DaskFrame, X: DaskFrame) -> DaskFrame:
    """Return an answer for every row of a DataFrame as one that Dask knows to be of its rows.

    Else ``X.assign(answer=answer)`` joins the two by their index: that is a shuffle, and where
    labels repeat, as in most Parquet files, rows get the answers of others. A frame whose rows are
    in an order of a shuffle is no root of its answers, which are made of a shuffle of their own.
    """
    if X.npartitions != answer.npartitions or is_reordered(X):
        return answer
    # a single column, since Dask reads no rows without any from several files by Arrow
    root = Root(with_multi_reader_categorize(X[list(X.columns[:1])]).expr)
    return new_collection(PairedAnswer(Rootless(answer.expr), root))


class Rootless(PartitionsOf):
    """Expression of partitions without a dimension, so that Dask asks for no root of theirs."""

    ndim = 0


class Root(PartitionsOf):
    """Expression of a frame between it and its answer.

    What Dask does to the parent of a source that it reads in fewer partitions, it does to this.
    """


class BoundedPartitions(PartitionsOf):
    """Expression of partitions with bounds that are known."""

    _parameters = ["frame", "bounds"]

    def _divisions(self) -> tuple[object, ...]:
        return self.bounds


class PairedAnswer(Blockwise):
    """Expression of an answer, with the frame whose rows it is of, which is not loaded for it.

    Where Dask reads several partitions of the frame as one, their answers are one partition too,
    with the index that the frame then has: for it, a column is read.
    """

    _parameters = ["answer", "root"]

    @property
    def _meta(self) -> Table:
        return self.answer._meta

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _divisions(self) -> tuple[object, ...]:
        return self.root.divisions

    def _lower(self) -> Expr:
        answer, n_partitions = self.answer.frame, self.root.npartitions
        if answer.npartitions == n_partitions:
            return BoundedPartitions(answer, self.root.divisions)
        sources = (node for node in self.root.walk() if isinstance(node, FusedIO))
        source = next(node for node in sources if node.npartitions == n_partitions)
        return JoinedAnswers(self.root, answer, [len(x) for x in source._fusion_buckets])


class JoinedAnswers(Blockwise):
    """Expression of answers, so many of which are of a partition of the root."""

    _parameters = ["root", "answers", "sizes"]

    @property
    def _meta(self) -> Table:
        return self.answers._meta

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _divisions(self) -> tuple[object, ...]:
        return self.root.divisions

    def _task(self, name: Key, index: int) -> Task:
        low, high = list(pairwise(accumulate(self.sizes, initial=0)))[index]
        answers = [TaskRef((self.answers._name, i)) for i in range(low, high)]
        return Task(name, _joined, TaskRef((self.root._name, index)), List(*answers))


def _joined(rows: pd.DataFrame, answers: list[FrameT]) -> FrameT:
    return pd.concat(answers).set_axis(rows.index)
