"""Fits of small rows on Dask in one task, on a worker that has all of them (`SmallFitMixin`)."""

from __future__ import annotations

import copy
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from itertools import islice
from numbers import Real
from typing import Any, ClassVar, TypeVar

import numpy as np
import sklearn
from sklearn.utils import check_random_state

from skfleet._captured_output import OutputEvent, capture_output, output_replayer, process_token
from skfleet._config import config_context, get_config
from skfleet._fall_back import fall_back
from skfleet._sklearn_private import has_callbacks_set_on
from skfleet._typing import Rows
from skfleet.blocks import (
    Block,
    BlockRef,
    RowBlocks,
    as_collection,
    block_bytes,
    concat_rows,
    estimated_nbytes,
    is_lazy,
    is_on_device,
    nbytes_if_known,
    open_block,
    row_blocks,
    size_of,
    with_united_categories,
)
from skfleet.engine._counters import count_library_passes, counting, counting_disabled
from skfleet.engine._fit_progress import FitProgressMixin, begin_pass
from skfleet.engine._gpu._estimator_device import device_of
from skfleet.engine._probe import estimate_nbytes
from skfleet.engine._protocol import Call, Engine
from skfleet.engine._reduce import identity
from skfleet.engine._select import engine_for
from skfleet.engine._small_rows import SmallRows, fit_placement, is_fit_placed
from skfleet.engine._task_context import set_learned

logger = logging.getLogger("skfleet")

T = TypeVar("T")

# A worker collects these rows in about the time of two passes over blocks: Ridge takes .055 s in
# one task, and .032 s in a pass of two workers.
SMALL_BYTES = 32 * 2**20
# The rows, with all that a fit makes of them, take one of these parts of a worker's memory.
MEMORY_PARTS = 32
# Blocks of unknown sizes, which a task loads one after the other until they are too large.
MAX_UNKNOWN_BLOCKS = 32
# A shuffle shares more, which may be all rows.
MAX_SHARED_TASKS = 8
# Arguments of a value per row.
PER_ROW = ("y", "sample_weight")


class SmallFitMixin(FitProgressMixin):
    """Mixin of estimators whose fits on few Dask rows are those on rows of one process.

    They run in one task, on a worker that has all rows; without a cluster, in this process.
    """

    fit: ClassVar[Callable[..., Any]]
    # Bytes of rows up to which a task may take them. 0 for fits that take none of the rows, or keep
    # other attributes than those on rows in this process.
    _single_task_bytes: float = math.inf
    # Whether a fit that fails is made again on blocks, where it leaves what it can go on from.
    _is_resumable = False

    def __init_subclass__(cls, **kwargs: object) -> None:
        fit = vars(cls).get("fit")
        # A user's subclass may have its own, for Dask rows.
        if inspect.isfunction(fit) and fit.__module__.startswith("skfleet."):
            cls.fit = with_placement(fit)
        super().__init_subclass__(**kwargs)  # one bar for all that a fit does

    def _begin_task(self, engine: Engine) -> float:
        """Prepare for a fit in one task; return the bytes of rows that it may take there."""
        return math.inf

    def _set_row_attributes(self, X: Rows) -> None:
        """Set attributes of a value per row, lazily, after a fit in one task."""


def with_placement(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fit that runs in one task where its Dask rows are few."""
    signature = inspect.signature(fit)

    @wraps(fit)
    def fit_in_place(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        X, small = args[0] if args else kwargs.get("X"), None
        is_own = fit_in_place in (type(self).fit, getattr(type(self).fit, "__wrapped__", None))
        if is_lazy(X) and is_own and not is_fit_placed():
            small = _SmallFit.of(self, signature, args, kwargs)
        if small is None:
            return fit(self, *args, **kwargs)
        # The fit runs here until it wants its rows, and checks what it can without them.
        with (
            output_replayer(lambda: 1) as replay,
            capture_output(process_token()) as notes,
            fit_placement(is_decided=False),
        ):
            try:
                return fit(self, *args, **kwargs)
            except SmallRows:
                notes.clear()  # the fit in the task warns of the same
            finally:
                replay(notes)
        with fit_placement(is_decided=True):
            return self if small.run() else fit(self, *args, **kwargs)

    return fit_in_place


class _SmallFit:
    """A fit on Dask rows that may be small: its estimator, rows, and other arguments."""

    def __init__(
        self,
        estimator: Any,
        X: Any,
        per_row: dict[str, Any],
        options: dict[str, Any],
        limit: float,
    ) -> None:
        self.estimator, self.X, self.per_row, self.options = estimator, X, per_row, options
        self.limit = limit

    @classmethod
    def of(
        cls, estimator: Any, signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any]
    ) -> _SmallFit | None:
        """Return a fit whose rows may be small by what is known without a task, else None."""
        most = small_bytes(estimator._single_task_bytes)
        if device_of(estimator) == "cuda" or has_callbacks_set_on(estimator):
            return None
        try:
            arguments = _arguments(signature.bind(estimator, *args, **kwargs))
            X = as_collection(arguments.pop("X"))
        except TypeError:  # which the fit raises
            return None
        if not _can_be_small(X, most):
            return None
        per_row: dict[str, Any] = {k: arguments.pop(k) for k in PER_ROW if k in arguments}
        if isinstance(per_row.get("sample_weight"), Real):
            arguments["sample_weight"] = per_row.pop("sample_weight")
        # What a fit goes on from stays here.
        if any(map(is_lazy, arguments.values())) or arguments.get("resume"):
            return None
        return cls(estimator, X, per_row, arguments, most)

    def run(self) -> bool:
        """Fit the estimator, if its rows are small; return whether they are."""
        y, weight = self.per_row.get("y"), self.per_row.get("sample_weight")
        rows = row_blocks(self.X, y, weight, dtype=None)
        engine = engine_for(rows, self.estimator)
        estimator = self._sent_estimator(engine)
        limit = min(self.limit, estimator._begin_task(engine))
        load = _loader(estimator, engine)
        if load is None:
            return False
        name = type(self.estimator).__name__
        fit = partial(_fit, load, tuple(self.per_row), self.options)
        learned = None
        reason = "a fit that can be resumed is made again on blocks"
        with fall_back(reason) if estimator._is_resumable else nullcontext():
            learned = run_in_one_task(engine, fit, [rows], limit=limit, name=f"fit-{name}")
        if learned is None:
            return False
        logger.info("%s was fitted in one task, which had all rows", name)
        self._take(*learned)
        return True

    def _sent_estimator(self, engine: Engine) -> Any:
        """Return the estimator that a task fits, without what an earlier fit has learned."""
        estimator = copy.copy(self.estimator)
        if not getattr(estimator, "warm_start", False):
            for name in [*vars(estimator)]:
                if name.endswith("_") and not name.startswith("_"):
                    delattr(estimator, name)
        # Numbers of a worker's own generator would not follow numpy.random.seed.
        if not engine.is_local and getattr(estimator, "random_state", 0) is None:
            estimator.random_state = check_random_state(check_random_state(None).randint(2**31 - 1))
        return estimator

    def _take(self, attributes: Mapping[str, Any], state: Any) -> None:
        """Set on the estimator what the task has learned, and the state of its generator."""
        set_learned(self.estimator, attributes)
        generator = getattr(self.estimator, "random_state", None)
        if isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        self.estimator._set_row_attributes(self.X)


def _loader(estimator: Any, engine: Engine) -> Callable[[], Any] | None:
    """Return a function that returns an estimator in a task; None if it cannot be sent."""
    if engine.is_local:
        return partial(identity, estimator)
    from skfleet.engine._dask._serialize import Pickled

    with fall_back("an estimator that pickle refuses is fitted block by block"):
        return Pickled.dumps(estimator).loads
    return None


def _arguments(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments of a method by name, without `self`."""
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    arguments: dict[str, Any] = {}
    for name, value in [*bound.arguments.items()][1:]:
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        else:
            arguments[name] = value
    return arguments


def _fit(
    load_estimator: Callable[[], Any],
    per_row: Sequence[str],
    options: Mapping[str, Any],
    blocks: Sequence[Block],
) -> tuple[dict[str, Any], Any]:
    """Fit an estimator in a task; return its attributes, and the state of its generator."""
    (block,), estimator = blocks, load_estimator()
    values = {"y": block.y, "sample_weight": block.sample_weight}
    estimator.fit(block.X, **{name: values[name] for name in per_row}, **options)
    generator: Any = getattr(estimator, "random_state", None)
    is_generator = isinstance(generator, np.random.RandomState)
    return dict(vars(estimator)), generator.get_state() if is_generator else None


def run_in_one_task(
    engine: Engine,
    func: Callable[[Sequence[Block]], T],
    parts: Sequence[RowBlocks],
    *,
    limit: float,
    name: str,
    max_unknown_blocks: int = MAX_UNKNOWN_BLOCKS,
) -> T | None:
    """Return func(blocks), called in one task with a block of all rows of each of the parts.

    The result is None where the rows are too many: by `limit`, by the limit that is configured, or
    by the workers' memory. It is also None for more than `max_unknown_blocks` blocks of unknown
    size. What the task prints, and warns of, is printed here.
    """
    limit = _limit_of(engine, limit)
    if not limit or not _may_be_small(engine, parts, limit, max_unknown_blocks):
        return None
    n_blocks = [len(part.blocks) for part in parts]
    configs = get_config().deterministic, sklearn.get_config()
    arguments = process_token(), func, n_blocks, limit, configs
    groups = _groups_of_rows(engine, parts)
    with output_replayer(lambda: 1) as replay:
        if len(groups) == 1:
            task = engine.submit(_call_with_rows, *arguments, *groups, name=name)
        else:
            calls = [Call(_opened, (group,), f"{name}-rows") for group in groups]
            task = engine.submit_all([*calls, Call(_call_with_rows, (*arguments, *calls), name)])[
                -1
            ]
        begin_pass(1, parts[0])
        ((result, n_passes, notes),) = engine.gather([task])
        replay(notes)
    if result is not None:
        count_library_passes(name, max(1, n_passes), parts[0].n_rows)
    return result


def _groups_of_rows(engine: Engine, parts: Sequence[RowBlocks]) -> list[list[BlockRef]]:
    """Return the blocks that each worker has in its memory, numbered; all, where one has them.

    A task of each worker passes them on. Of results that one task takes from other workers, copies
    stay on its own, and Dask may drop the originals: then one worker has all rows, and all later
    work.
    """
    refs = [block for part in parts for block in part.blocks]
    groups: list[list[BlockRef]] = []
    if not any(engine.is_out_of_core(rows) for rows in parts):
        groups = engine.group_by_worker([ref._replace(number=i) for i, ref in enumerate(refs)])
    return groups if len(groups) > 1 else [refs]


def _opened(block_refs: Sequence[BlockRef]) -> list[Block]:
    return [open_block(block_ref) for block_ref in block_refs]


def are_small(X: Rows) -> bool:
    """Return whether Dask rows are as small as those that a fit takes in one task.

    A few blocks of unknown size are loaded for that.
    """
    if not _can_be_small(as_collection(X), small_bytes()):
        return False
    rows = row_blocks(X, dtype=None)
    engine = engine_for(rows)
    limit = _limit_of(engine, small_bytes())
    if not _may_be_small(engine, [rows], limit, MAX_UNKNOWN_BLOCKS):
        return False
    return _nbytes(engine, rows) is not None or estimate_nbytes(engine, rows) <= limit


def is_part_small(X: Rows, part: float) -> bool:
    """Return whether a part of Dask rows is known to be as small as those of a single task."""
    X = as_collection(X)
    n_bytes, limit = nbytes_if_known(X), _limit(small_bytes())
    return n_bytes is not None and part * n_bytes <= limit and _may_run_in_one_task(X, limit)


def _can_be_small(X: Any, most: float) -> bool:
    """Return whether Dask rows may be small, by the config and by what is known without a task."""
    limit = _limit(most)
    if not most or not _may_run_in_one_task(X, limit):
        return False
    n_bytes: float | None = nbytes_if_known(X)
    if n_bytes is None and X.npartitions <= MAX_UNKNOWN_BLOCKS:
        n_bytes = estimated_nbytes(X) or 0
    return n_bytes is not None and n_bytes <= limit


def _may_run_in_one_task(X: Any, limit: float) -> bool:
    """Return whether the config, and the place of the rows, leave it to us where a fit runs."""
    config = get_config()
    settings = (config.keep_blocks, config.disk_cache, config.block_bytes)
    if not limit or any(value != "auto" for value in settings):
        return False
    return config.engine != "local" and not is_on_device(X)


def small_bytes(most: float = math.inf) -> float:
    """Return the bytes up to which rows are small: 32 MiB, or `most` where that is less."""
    return min(SMALL_BYTES, most)


def _limit(default: float) -> float:
    """Return the bytes up to which rows are small, by the config."""
    setting = get_config().single_task_below
    return default if setting == "auto" else float(setting)


def _limit_of(engine: Engine, default: float) -> float:
    """Return the bytes up to which rows are small, by the config and the workers' memory."""
    return min(_limit(default), engine.memory_limit / MEMORY_PARTS)


def _may_be_small(
    engine: Engine, parts: Sequence[RowBlocks], limit: float, max_unknown_blocks: int
) -> bool:
    """Return whether rows are small, or one task may find out whether they are."""
    n_bytes = 0
    for rows in parts:
        known = _nbytes(engine, rows)
        if known is None:
            # They are loaded one by one in the task, beside what they share, as models before them.
            n_shared = max(getattr(block.X, "n_shared_tasks", 0) for block in rows.blocks)
            if len(rows.blocks) > max_unknown_blocks or n_shared > MAX_SHARED_TASKS:
                return False
        n_bytes += known or 0
    return n_bytes <= limit


def _nbytes(engine: Engine, rows: RowBlocks) -> int | None:
    """Return the bytes of rows, None where they are known once blocks are loaded."""
    if not rows.on_dask:
        return sum(map(block_bytes, rows.blocks)) if rows.n_bytes is None else rows.n_bytes
    if engine.is_out_of_core(rows):
        # What they are made of may be more.
        return (
            None if rows.n_bytes is None else max(rows.n_bytes, engine.resident_nbytes(rows) or 0)
        )
    if rows.n_bytes is not None:
        return rows.n_bytes
    n_bytes = engine.resident_nbytes(rows)
    return estimate_nbytes(engine, rows) if n_bytes is None else n_bytes


def _call_with_rows(
    origin: str,
    func: Callable[[Sequence[Block]], T],
    n_blocks: Sequence[int],
    limit: float,
    configs: tuple[bool, dict[str, Any]],
    *groups: Sequence[BlockRef],
) -> tuple[T | None, int, Sequence[OutputEvent]]:
    """Return func(blocks) of joined parts, its passes, and its output; None for too many bytes."""
    block_refs = [block_ref for group in groups for block_ref in group]
    if len(groups) > 1:
        block_refs.sort(key=lambda block_ref: block_ref.number)
    joined = _joined(block_refs, n_blocks, limit)
    if joined is None:
        return None, 0, []
    blocks, sizes = joined
    deterministic, settings = configs
    with (
        capture_output(origin) as notes,
        counting_disabled(),  # of the process, where that is the caller's
        counting() as counts,
        config_context(engine="local", deterministic=deterministic, progress=False),
        sklearn.config_context(**settings),
        fit_placement(is_decided=True, block_sizes=sizes),
    ):
        result = func(blocks)
    return result, counts.passes, notes


def _joined(
    block_refs: Sequence[BlockRef], n_blocks: Sequence[int], limit: float
) -> tuple[list[Block], list[int]] | None:
    """Return each of so many blocks as one, and how many rows the first of these were of.

    None where all have more bytes than the limit.
    """
    n_bytes, joined, remaining = 0, [], iter(block_refs)
    sizes: list[int] = []
    for n in n_blocks:
        opened = []
        for block_ref in islice(remaining, n):
            block = open_block(block_ref)
            n_bytes += size_of(block)
            if n_bytes > limit:
                return None
            opened.append(block)
        sizes = sizes or [block.n_rows for block in opened]
        joined.append(concat_rows(with_united_categories(opened)))
    return joined, sizes
