"""Steps of a pipeline that prepare columns by algebra: transformers, and ColumnTransformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from skfleet._doc_link import is_own
from skfleet.blocks import is_frame, with_objects
from skfleet.model_selection._closed_form._column_algebra import (
    BaseSums,
    LinearColumns,
    decompose,
    impute,
    join_columns,
    numeric_columns,
    scale_by_largest,
    scale_to_range,
    standardize,
)
from skfleet.model_selection._closed_form._encoding import encode
from skfleet.model_selection._closed_form._polynomials import Factors, expand, products_of_path

# How transformers prepare the columns of a training set.
_FUNCTIONS: dict[type, Callable[[Any, LinearColumns], LinearColumns]] = {
    MaxAbsScaler: scale_by_largest,
    MinMaxScaler: scale_to_range,
    PCA: decompose,
    PolynomialFeatures: expand,
    SimpleImputer: impute,
    StandardScaler: standardize,
}


_BY_NAME = {kind.__name__: kind for kind in (*_FUNCTIONS, ColumnTransformer, OneHotEncoder)}


def class_of(step: Any) -> type:
    """Return scikit-learn's class of a transformer; that of the same name for this library's."""
    kind = type(step)
    return _BY_NAME.get(kind.__name__, kind) if is_own(step) else kind


def no_algebra(steps: Sequence[Any]) -> str | None:
    """Return which step is no algebra, or None; ColumnTransformer and OneHotEncoder come first."""
    steps = _without_passthrough(steps)
    if not steps:
        return None
    first, *following = steps
    if _encodes(steps) and class_of(first) is SimpleImputer:
        first, *following = following
    for step in following:
        if class_of(step) not in _FUNCTIONS:
            return _unknown(step)
    if class_of(first) in (*_FUNCTIONS, OneHotEncoder):
        return None
    if class_of(first) is not ColumnTransformer:
        return _unknown(first)
    for _, _, columns in first.transformers:
        if callable(columns) and type(columns) is not make_column_selector:
            return "columns must be chosen by name, position or a make_column_selector"
    parts = [transformer for _, transformer, _ in first.transformers] + [first.remainder]
    for path in [_path_of(part) for part in parts if not _is_text(part, "drop")]:
        if any(class_of(step) is ColumnTransformer for step in path):
            return "a ColumnTransformer must have no ColumnTransformers"
        if (reason := no_algebra(path)) is not None:
            return reason
    return None


def _unknown(step: Any) -> str:
    kinds = sorted({kind.__name__ for kind in (*_FUNCTIONS, OneHotEncoder)})
    return (
        f"first steps must be a {', '.join(kinds)}, or a ColumnTransformer or OneHotEncoder before "
        f"all others. Got {type(step).__name__} instead"
    )


class ColumnPath(NamedTuple):
    """Steps that prepare some columns, and the positions of these."""

    steps: list[Any]
    positions: list[int]


class InputColumns(NamedTuple):
    """Positions of the columns that are read as numbers and as categories, and products of them."""

    numeric: tuple[int, ...]
    categorical: tuple[int, ...]
    products: tuple[Factors, ...]
    needs_pivot: bool  # near the means of numbers


def input_columns(pipelines: Sequence[Sequence[Any]], head: Any) -> InputColumns:
    """Return the columns that pipelines read, each as a list of its first steps."""
    numeric: set[int] = set()
    categorical: set[int] = set()
    products: set[Factors] = set()
    kinds: set[type] = set()
    for steps in pipelines:
        chains: list[tuple[list[Any], list[int]]] = []
        following = _steps_after_columns(steps)
        for path, positions in column_paths(steps, head):
            kinds.update(map(class_of, [*path, *following]))
            if _encodes(path):
                _check_joint_gaps(path[0], head, positions)
                categorical.update(positions)
                continue
            numeric.update(positions)
            chains.append((path, positions))
        if any(class_of(step) is PolynomialFeatures for step in following):
            # they multiply columns of several paths
            paths = [path for path, _ in chains]
            combining = [step for path in paths for step in path if class_of(step) is PCA]
            chain = [*combining, *max(paths, key=_degree, default=[]), *following]
            chains = [(chain, sorted({j for _, positions in chains for j in positions}))]
        for chain, positions in chains:
            products.update(products_of_path(list(map(class_of, chain)), chain, positions))
    needs_pivot = bool(kinds & {PolynomialFeatures, SimpleImputer})
    by_size = sorted(products, key=lambda factors: (len(factors), factors))
    return InputColumns(
        tuple(sorted(numeric)), tuple(sorted(categorical)), tuple(by_size), needs_pivot
    )


def _check_joint_gaps(step: Any, head: Any, positions: Sequence[int]) -> None:
    """Raise for an imputer of scikit-learn's that would read NA in an array of several columns."""
    if type(step) is not SimpleImputer or not is_frame(head):
        return
    columns = head.iloc[:, positions]
    if not with_objects(columns).dtypes.equals(columns.dtypes):
        raise NotImplementedError("nullable numbers must be imputed apart from other columns")


def _steps_after_columns(steps: Sequence[Any]) -> list[Any]:
    """Return the steps after a ColumnTransformer."""
    steps = _without_passthrough(steps)
    return steps[1:] if steps and class_of(steps[0]) is ColumnTransformer else []


def _degree(path: Sequence[Any]) -> int:
    degrees = [np.max(step.degree) for step in path if class_of(step) is PolynomialFeatures]
    return int(np.prod(degrees))


def prepare_columns(
    steps: Sequence[Any], paths: Sequence[ColumnPath], sums: BaseSums
) -> LinearColumns:
    """Return the columns of a training set after all steps, the first of which are the `paths`."""
    steps = _without_passthrough(steps)
    if not steps or class_of(steps[0]) is not ColumnTransformer:
        ((path, positions),) = paths
        return _apply(path, sums, positions)
    first, *following = steps
    weights = first.transformer_weights or {}
    parts = []
    for (path, positions), name in zip(paths, _names(first), strict=True):
        part = _apply(path, sums, positions)
        n = len(part.offset)
        factor = np.full(n, float(weights.get(name, 1.0)))
        if n:
            parts.append(part.scaled(factor, np.zeros(n)))
    if not parts:
        raise NotImplementedError("a column must be left")
    columns = join_columns(parts, first.sparse_threshold)
    return _apply_functions(following, columns)


def _apply(path: Sequence[Any], sums: BaseSums, positions: Sequence[int]) -> LinearColumns:
    """Return some columns of the rows after the steps of a path."""
    if _encodes(path):
        n = [class_of(step) for step in path].index(OneHotEncoder)
        encoded = encode(path[n], sums, positions, path[0] if n else None)
        return _apply_functions(path[n + 1 :], encoded)
    return _apply_functions(path, numeric_columns(sums, positions))


def _encodes(path: Sequence[Any]) -> bool:
    """Return whether a path begins with a OneHotEncoder, or with an imputer of categories."""
    kinds = [class_of(step) for step in path[:2]]
    return kinds[:1] == [OneHotEncoder] or kinds == [SimpleImputer, OneHotEncoder]


def _apply_functions(steps: Sequence[Any], columns: LinearColumns) -> LinearColumns:
    for step in steps:
        columns = _FUNCTIONS[class_of(step)](step, columns)
    return columns


def column_paths(steps: Sequence[Any], head: Any) -> list[ColumnPath]:
    """Return the first steps, each with the positions of its columns."""
    steps = _without_passthrough(steps)
    if not steps or class_of(steps[0]) is not ColumnTransformer:
        return [ColumnPath(steps, list(range(head.shape[1])))]
    transformers = {name: part for name, part, _ in steps[0].transformers}
    transformers["remainder"] = steps[0].remainder
    positions = _positions(steps[0], head)
    names = _names(steps[0])
    return [ColumnPath(_path_of(transformers[name]), positions[name]) for name in names]


def _names(transformer: Any) -> list[str]:
    """Return the names of the parts that are not dropped, the remainder's last."""
    parts = [(name, part) for name, part, _ in transformer.transformers]
    parts.append(("remainder", transformer.remainder))
    return [name for name, part in parts if not _is_text(part, "drop")]


def _positions(transformer: Any, head: Any) -> dict[str, list[int]]:
    """Return the positions of the columns of each part of a ColumnTransformer.

    One that passes all columns on shows them.
    """
    plain = ColumnTransformer(
        [(name, "passthrough", columns) for name, _, columns in transformer.transformers],
        remainder="passthrough",
        sparse_threshold=0,
    ).set_output(transform="default")
    plain.fit(head)
    numbers: Any = np.arange(head.shape[1])[None]
    if is_frame(head):
        numbers = pd.DataFrame(numbers, columns=head.columns)
    row = np.asarray(plain.transform(numbers))[0]
    return {name: row[part].tolist() for name, part in plain.output_indices_.items()}


def _path_of(part: Any) -> list[Any]:
    """Return the steps of a part of a ColumnTransformer."""
    steps = [step for _, step in part.steps] if type(part) is Pipeline else [part]
    return _without_passthrough(steps)


def _without_passthrough(steps: Sequence[Any]) -> list[Any]:
    return [step for step in steps if step is not None and not _is_text(step, "passthrough")]


def _is_text(value: Any, text: str) -> bool:
    return isinstance(value, str) and value == text
