"""The prepared rows of one split, brought to this process for fits that workers make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from skfleet._fall_back import fall_back
from skfleet.blocks import compute_together, n_rows_of, take_rows
from skfleet.engine import (
    NarrowRows,
    check_fits_in_memory,
    engine_for,
    gather_rows,
    joined_blocks,
)
from skfleet.model_selection._dispatch._requests import SearchJob
from skfleet.model_selection._dispatch._split_views import as_indexable, collection_of


class GatheredRows(NamedTuple):
    """Rows of a split in this process, with their targets, and options of scikit-learn's function.

    The parts are the numbers of the rows to train on, to test on, and to validate on, and the
    options parameters per row. `fits_twice` is true where workers can hold another split too.
    `first_steps` are those that prepared the rows.
    """

    X: NarrowRows
    y: Any
    parts: tuple[Any, ...]
    options: dict[str, Any]
    fits_twice: bool
    first_steps: Any

    @classmethod
    def of(
        cls, job: SearchJob, fold: int, prepare: Callable[[Any], Any], name: str
    ) -> GatheredRows | None:
        """Return the rows of a split that first steps prepare, those to train on first.

        None where they cannot be prepared; raise, with the name of the estimator that needs them,
        where they do not fit.
        """
        parts = job.parts(fold)
        if len(parts) > 2 and np.array_equal(parts[1], parts[2]):
            parts = parts[:2]  # rows to test on are those to validate on
        blocks = X = None
        with fall_back("rows that cannot be prepared are not gathered"):
            prepared = prepare(parts)
            blocks = joined_blocks(*prepared.parts)
        if blocks is None:
            return None
        check_fits_in_memory(blocks, name)
        with fall_back("rows that cannot be prepared are not gathered"):
            X = gather_rows(blocks, name)
        if X is None:
            return None
        (job.y,) = compute_together(job.y)
        numbers, n_rows = np.concatenate(parts), len(as_indexable(job.X))

        def rows_of(values: Any) -> Any:
            (values,) = compute_together(collection_of(values))
            is_per_row = hasattr(values, "shape") and n_rows_of(values) == n_rows
            return take_rows(values, numbers) if is_per_row else values

        params = {
            name: {key: rows_of(value) for key, value in job.options[name].items()}
            for name in ("fit_params", "score_params")
            if job.options.get(name)
        }
        ends = np.cumsum([len(part) for part in parts])
        gathered = [np.arange(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
        if len(job.folds[fold]) > len(parts):
            gathered.append(gathered[1].copy())
        y = None if job.y is None else take_rows(job.y, numbers)
        fits_twice = 3 * X.nbytes <= engine_for(blocks).memory_limit  # and the parts of one
        return cls(X, y, tuple(gathered), params, fits_twice, prepared.steps)
