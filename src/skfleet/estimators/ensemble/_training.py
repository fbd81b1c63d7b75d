"""Training of trees on workers: rows are cut from blocks, joined, and trees fitted on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils import compute_sample_weight

from skfleet._linalg import is_sparse, vstack, with_int32_indices
from skfleet.blocks import BlockRef, RowBlocks, RowSet, as_numeric, open_block, take_rows
from skfleet.engine import (
    Engine,
    Task,
    begin_pass,
    current_fit_progress,
    limit_threadpools,
    log_pass,
)
from skfleet.estimators.ensemble._groups import (
    OWN_ROWS_FRACTION,
    Bootstrap,
    check_memory,
    group_trees,
    max_rows_of_group,
    n_workers_of,
    threads_of_worker,
)
from skfleet.estimators.ensemble._survey import ForestSurvey, as_outputs, as_tree_rows

# Parameters that are a number of rows or a fraction of all, and their least number.
_LEAST_COUNTS = {"min_samples_leaf": 1, "min_samples_split": 2}


class TreeRows(NamedTuple):
    """Rows of a group of trees in float32, their codes or targets, and their numbers in all rows.

    The numbers are None where the rows are all rows. Of bootstrap samples artificial rows of zeros
    come last, which have no weight: a tree must know labels of other rows than its own, and one for
    counts wants any.
    """

    n_rows: int  # without the artificial ones

    X: Any
    y: np.ndarray
    numbers: np.ndarray | None = None


class TreeTask(NamedTuple):
    """A kind of tree, and the labels of each output of a classifier."""

    bootstrap: Bootstrap
    labels: Sequence[np.ndarray]
    is_balanced: bool  # by the classes of the rows that a tree draws

    def fit(self, tree: Any, rows: TreeRows, weights: np.ndarray | None) -> Any:
        """Return the tree fitted as scikit-learn fits it on all rows.

        Rows that a tree does not draw have no weight, which is as good as their absence.
        """
        X, y, weight = rows.X, rows.y, weights
        if self.bootstrap.n_drawn is not None:
            positions = self.bootstrap.draw(tree, weights)
            if rows.numbers is not None:
                positions = np.searchsorted(rows.numbers, positions)
            own = np.flatnonzero(np.bincount(positions, minlength=len(y)))
            # A tree of few of the rows is fitted on these alone, not on all with weights of 0.
            if len(own) <= OWN_ROWS_FRACTION * len(y):
                positions = np.searchsorted(own, positions)
                own = np.append(own, np.arange(rows.n_rows, len(y)))
                X, y = with_int32_indices(take_rows(X, own)), y[own]
            weight = np.bincount(positions, minlength=len(y)).astype(np.float64)
            if self.is_balanced:
                weight *= compute_sample_weight("balanced", y, indices=positions)
        # Fractions are of all rows, of which a worker has a part.
        params = tree.get_params(deep=False)
        n_rows = self.bootstrap.n_rows
        counts = {k: _as_count(params[k], n_rows, least) for k, least in _LEAST_COUNTS.items()}
        tree.set_params(**counts).fit(X, y, sample_weight=weight)
        return tree.set_params(**{k: params[k] for k in _LEAST_COUNTS})


def _as_count(value: Any, n_rows: int, least: int) -> int:
    """Return the number that a fraction of all rows stands for."""
    return int(value) if isinstance(value, Integral) else max(least, math.ceil(value * n_rows))


def train(
    engine: Engine,
    rows: RowBlocks,
    summary: ForestSurvey,
    trees: Sequence[Any],
    task: TreeTask,
    weights: np.ndarray | None,
) -> list[Any]:
    """Return fitted trees, in the order of the unfitted ones.

    One pass over the rows serves as many groups of trees as there are workers.
    """
    row_bytes = summary.n_bytes / summary.n_rows + 8 * summary.n_outputs
    max_rows = max_rows_of_group(engine.memory_limit, row_bytes, threads_of_worker(engine))
    check_memory(task.bootstrap, max_rows)
    n_workers = n_workers_of(engine)
    groups = list(group_trees(trees, task.bootstrap, max_rows, n_workers))
    weights_task = None if weights is None else engine.scatter_small(weights)
    fitted: list[Any] = []
    for low in range(0, len(groups), n_workers):
        wave = groups[low : low + n_workers]
        sets = [task.bootstrap.row_set(group, weights, max_rows) for group in wave]
        fitted += _train_groups(engine, rows, wave, sets, task, weights_task)
    return fitted


def _train_groups(
    engine: Engine,
    rows: RowBlocks,
    groups: Sequence[Sequence[Any]],
    sets: Sequence[RowSet],
    task: TreeTask,
    weights: Any,
) -> list[Any]:
    """Return fitted trees, in one pass over the rows; workers drop these at the end.

    There is a task for each tree, or for those of a group where calls run one by one.
    """
    tasks: list[Task] = []
    joins = _join_rows(engine, rows, sets, task)
    for group, group_rows in zip(groups, joins, strict=True):
        tasks += engine.map(
            partial(_fit_trees, task),
            [list(group)] if engine.is_local else [[tree] for tree in group],
            group_rows,
            weights,
            name="fit-trees",
            is_threaded=engine.is_local,
        )
    if not engine.is_local and (progress := current_fit_progress()) is not None:
        progress.begin_stage("training", len(tasks), "trees")
        progress.watch(engine, tasks)
    return [tree for part in engine.gather(tasks) for tree in part]


def _fit_trees(
    task: TreeTask, trees: Sequence[Any], rows: TreeRows, weights: Any, n_threads: int = 1
) -> list[Any]:
    fit = partial(task.fit, rows=rows, weights=weights)
    with limit_threadpools(1), ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(fit, trees))


def _join_rows(
    engine: Engine, rows: RowBlocks, sets: Sequence[RowSet], task: TreeTask
) -> list[Task]:
    """Submit tasks whose results are the `TreeRows` of each set, in one pass over the rows."""
    blocks = engine.group_by_worker(rows.blocks)
    numbers = (block.number for block in rows.blocks)
    lengths = dict(zip(numbers, rows.lengths or (), strict=True))
    cut = partial(_cut_blocks, labels=task.labels, lengths=lengths, dtype=rows.dtype)
    begin_pass(len(rows.blocks), rows)
    parts = engine.map(cut, blocks, engine.scatter_small(list(sets)), name="cut-rows")
    log_pass("cut-rows", len(rows.blocks), len(parts))
    joined = []
    for i in range(len(sets)):
        pieces = [engine.submit(_part, part, i, name="part-of-rows") for part in parts]
        joined.append(engine.submit(_join, pieces, task, name="join-rows"))
    return joined


def _part(parts: Sequence[Any], i: int) -> Any:
    return parts[i]


def _cut_blocks(
    block_refs: Sequence[BlockRef],
    sets: Sequence[RowSet],
    labels: Sequence[np.ndarray],
    lengths: dict[int, int],
    dtype: Any,
) -> list[list[tuple[int, TreeRows]]]:
    """Return the rows of each set, by the numbers of the blocks that they are in."""
    parts: list[list[tuple[int, TreeRows]]] = [[] for _ in sets]
    for ref in block_refs:
        low = ref.row_offset or 0
        cuts = [row_set.cut(low, low + lengths[ref.number]) for row_set in sets]
        if not any(cut.n_taken for cut in cuts):
            continue
        block = as_numeric(open_block(ref), dtype)
        X, y = as_tree_rows(block.X), _encode(as_outputs(block.y), labels)
        for part, row_set, cut in zip(parts, sets, cuts, strict=True):
            if cut.n_taken:
                has_all = len(row_set) == row_set.n_rows
                numbers = None if has_all else low + cut.numbers()
                part.append((ref.number, TreeRows(cut.n_taken, cut.take(X), cut.take(y), numbers)))
    return parts


def _encode(y: np.ndarray, labels: Sequence[np.ndarray]) -> np.ndarray:
    """Return the codes of labels, or targets, as numbers that scikit-learn's trees take."""
    if labels:
        columns = [np.searchsorted(known, y[:, k]) for k, known in enumerate(labels)]
        y = np.stack(columns, axis=1)
    return np.ascontiguousarray(y, dtype=np.float64)


def _join(pieces: Sequence[Sequence[tuple[int, TreeRows]]], task: TreeTask) -> TreeRows:
    parts = dict(item for part in pieces for item in part)
    # In the order of all rows, to which the numbers refer that trees draw.
    lengths, X, y, numbers = zip(*(parts[number] for number in sorted(parts)), strict=True)
    if task.bootstrap.n_drawn is not None:
        targets = _artificial_targets(task.labels, y[0].shape[1])
        y = *y, targets
        X = *X, np.zeros((len(targets), X[0].shape[1]), dtype=np.float32)
    X = vstack(X)
    if is_sparse(X):
        # What scikit-learn's trees take: sparse columns with indices in order.
        X = with_int32_indices(sparse.csc_array(X))
        X.sort_indices()
    joined = None if numbers[0] is None else np.concatenate(numbers)
    return TreeRows(sum(lengths), X, np.concatenate(y), joined)


def _artificial_targets(labels: Sequence[np.ndarray], n_outputs: int) -> np.ndarray:
    """Return rows with the codes of all labels of each output, or one with targets of 1."""
    if not labels:
        return np.ones((1, n_outputs))
    sizes = np.array([len(known) for known in labels])
    return (np.arange(sizes.max())[:, None] % sizes).astype(np.float64)
