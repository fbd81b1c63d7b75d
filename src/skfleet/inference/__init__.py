"""Predictions and transforms of fitted models for rows of any container."""

from skfleet.inference._map import constant_per_row, map_rows, name_columns
from skfleet.inference._output import OutputSpec, class_names
from skfleet.inference._predict import (
    call_method,
    call_transform,
    first_rows,
    in_container,
    join_delayed,
    map_model,
    map_partitions,
    rows_with_index,
)
from skfleet.inference._several_models import ClassColumns, call_models

__all__ = [
    "ClassColumns",
    "OutputSpec",
    "call_method",
    "call_models",
    "call_transform",
    "class_names",
    "constant_per_row",
    "first_rows",
    "in_container",
    "join_delayed",
    "map_model",
    "map_partitions",
    "map_rows",
    "name_columns",
    "rows_with_index",
]
