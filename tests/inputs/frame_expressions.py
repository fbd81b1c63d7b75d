"""Dask DataFrames as users' scripts make them: sources, and expressions over them.

In every table, y = a - 2b holds in each row and in no mixture of rows, whatever is done to it: a
model of y on a and b says whether the rows, the columns and their pairs came through.
"""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

N_ROWS = 240


def make_table() -> pd.DataFrame:
    """Return numbers, gaps, text, dates and nullable integers, with an index of its own."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "a": rng.normal(size=N_ROWS),
            "b": rng.normal(size=N_ROWS),
            "k": rng.integers(0, 7, N_ROWS),
            "s": rng.choice(["x", "yy", "zzz"], N_ROWS),
            "t": pd.date_range("2026-01-01", periods=N_ROWS, freq="h"),
            "g": rng.normal(size=N_ROWS),
            "i": pd.array(rng.integers(0, 50, N_ROWS), dtype="Int64"),
        }
    )
    table.loc[::17, "g"] = np.nan
    table.loc[::23, "i"] = pd.NA
    table["y"] = table.a - 2 * table.b
    return table


TABLE = make_table()
PARTS = [TABLE.iloc[low : low + 60] for low in range(0, N_ROWS, 60)]
SMALL = pd.DataFrame({"k": range(7), "w": np.arange(7) * 1.5})


def write_files(folder) -> None:
    """Write the table as Parquet and as CSV, four files of each, whose index starts anew."""
    for kind in ("parquet", "csv"):
        (folder / kind).mkdir()
    for i, part in enumerate(PARTS):
        part.reset_index(drop=True).to_parquet(folder / "parquet" / f"{i}.parquet")
        part.to_csv(folder / "csv" / f"{i}.csv", index=False)


def _unsorted(folder):
    order = np.random.default_rng(1).permutation(N_ROWS) // 3  # and each label three times
    return dd.from_pandas(TABLE.set_axis(order), npartitions=4, sort=False)


def _read_csv(folder):
    return dd.read_csv(str(folder / "csv" / "*.csv"), parse_dates=["t"], dtype={"i": "Int64"})


def _read_part(i):
    return PARTS[i]


SOURCES = {
    "from_pandas": lambda folder: dd.from_pandas(TABLE, npartitions=4),
    "read_parquet": lambda folder: dd.read_parquet(str(folder / "parquet")),
    "read_csv": _read_csv,
    "from_map": lambda folder: dd.from_map(_read_part, range(len(PARTS))),
    "from_delayed": lambda folder: dd.from_delayed([dask.delayed(part) for part in PARTS]),
    "arrow": lambda folder: dd.read_parquet(str(folder / "parquet"), filesystem="arrow"),
    "unsorted": _unsorted,
    "persisted": lambda folder: dd.from_pandas(TABLE, npartitions=4).persist(),
}


def _set_column(df):
    df = df.copy()
    df["c"] = df.a * 2
    return df


def _join_groups(df):
    means = df.groupby("k").g.mean().rename(f"mean{len(df.columns)}")
    return df.join(means, on="k")


def _double(part):
    return part.assign(c=part.a * 2)


def _join_by_time(df):
    other = df[["t", "g"]].rename(columns={"g": f"g{len(df.columns)}"})
    return df.set_index("t").join(other.set_index("t")).reset_index()


_SWAP = {"a": "b", "b": "a"}


# Each takes and returns a frame with the columns a, b, k, s, t, g, i and y, so they compose.
EXPRESSIONS = {
    "projection": lambda df: df[["y", "b", "a", "k", "s", "t", "g", "i"]],
    "filter": lambda df: df[df.a > -0.5],
    "assign": lambda df: df.assign(c=df.a + df.b),
    "column set": _set_column,
    "drop": lambda df: df.assign(c=1).drop(columns="c"),
    "merge": lambda df: df.merge(SMALL, on="k"),
    "merge of two": lambda df: df.merge(dd.from_pandas(SMALL, npartitions=3), on="k"),
    "groupby-join": _join_groups,
    "concat": lambda df: dd.concat([df, df[df.b < 0]]),
    "repartition": lambda df: df.repartition(npartitions=2),
    "more partitions": lambda df: df.repartition(npartitions=df.npartitions + 3),
    "shuffle": lambda df: df.shuffle("k"),
    "set_index": lambda df: df.set_index("a", drop=False),
    "duplicated index": lambda df: df.set_index("k", drop=False),
    "map_partitions": lambda df: df.map_partitions(_double),
    "reset_index": lambda df: df.reset_index(drop=True),
    "fillna": lambda df: df.fillna({"g": 0.0}),
    "dropna": lambda df: df.dropna(subset=["g"]),
    "category": lambda df: df.assign(c=df.s.astype("category")),
    "categorize": lambda df: df.assign(c=df.s).categorize(columns=["c"]),
    "rename": lambda df: df.rename(columns=_SWAP).rename(columns=_SWAP),
    "sample": lambda df: df.sample(frac=0.8, random_state=3),
    "query": lambda df: df.query("a > b - 1"),
    "loc": lambda df: df.loc[df.a < 1],
    "partitions": lambda df: df.partitions[: max(1, df.npartitions - 1)],
    "dt": lambda df: df[df.t.dt.hour < 18],
    "str": lambda df: df[df.s.str.len() > 1],
    "isin": lambda df: df[df.s.isin(["x", "yy"])],
    "sort_values": lambda df: df.sort_values("b"),
    "empty partitions": lambda df: df[df.t < pd.Timestamp("2026-01-04")],
    "drop_duplicates": lambda df: df.drop_duplicates(subset=["a"]),
    "join": _join_by_time,
    "nullable": lambda df: df.astype({"b": "Float64"}),
    "arrow types": lambda df: df.astype({"b": "double[pyarrow]"}),
    "string index": lambda df: df.assign(c=df.s).set_index("c"),
}
