"""Types of Dask's collections and of their keys, for annotations."""

from __future__ import annotations

from typing import TypeAlias

import dask.array as da
import dask.dataframe as dd
from dask.typing import Key

DaskArray: TypeAlias = da.Array
DaskFrame: TypeAlias = dd.DataFrame | dd.Series
DaskRows: TypeAlias = DaskArray | DaskFrame
# The key of a partition, or the keys of the chunks along its columns.
PartitionKey: TypeAlias = Key | list[Key]
