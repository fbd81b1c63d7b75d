"""Files, row groups and types at random, on workers with little memory beside their imports."""

import os
from functools import partial

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from bench_larger import Memory
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sklearn import compose, impute, linear_model, naive_bayes, preprocessing
from sklearn.pipeline import make_pipeline
from worker_memory import import_all

from random_examples import n_examples
from skfleet import Fleet, estimators

pytestmark = pytest.mark.slow


def gaps(rng, values):
    return values.mask(rng.random(len(values)) < 0.1)


# Columns of each type.
COLUMNS = {
    "double": lambda rng, n: gaps(rng, pd.Series(rng.normal(size=n))),
    "single": lambda rng, n: pd.Series(rng.normal(size=n), dtype="float32"),
    "integer": lambda rng, n: pd.Series(rng.integers(0, 9, n)),
    "nullable": lambda rng, n: gaps(rng, pd.Series(rng.integers(0, 9, n), dtype="Int32")),
    "flag": lambda rng, n: pd.Series(rng.random(n) < 0.3),
    "text": lambda rng, n: pd.Series(np.char.add("city ", rng.integers(0, 150, n).astype(str))),
    "category": lambda rng, n: pd.Series(rng.choice(["a", "b", "c"], n), dtype="category"),
}
ENCODED = ("text", "category")
LIMITS = st.integers(150, 400).map(lambda megabytes: megabytes * 10**6)


@st.composite
def layouts(draw):
    """Draw the rows of each file and of a row group, and the number of columns of each type."""
    n_rows = draw(st.lists(st.integers(1_000, 500_000), min_size=1, max_size=3))
    row_group = draw(st.sampled_from([5_000, 60_000, 500_000]))
    counts = {kind: draw(st.integers(0, 1 if kind in ENCODED else 6)) for kind in COLUMNS}
    return n_rows, row_group, counts | {"integer": counts["integer"] + 1}


def write(folder, layout, seed):
    """Write the files, and return their rows."""
    n_rows, row_group, counts = layout
    rng, parts = np.random.default_rng(seed), []
    for i, n in enumerate(n_rows):
        columns = {
            f"{k}{j}": COLUMNS[k](rng, n) for k, count in counts.items() for j in range(count)
        }
        part = pd.DataFrame(columns)
        part["y"] = part["integer0"] + rng.normal(size=n)
        part["label"] = (part["y"] > 4).astype(int)
        part.to_parquet(folder / f"{i}.parquet", index=False, row_group_size=row_group)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def regression(steps, preparation, scaler, encoder, model, columns):
    """Return a pipeline of one library's classes for columns of numbers, and of text."""
    numbers = [c for c in columns if not c.startswith(ENCODED)]
    texts = [c for c in columns if c.startswith(ENCODED)]
    parts = [("numbers", make_pipeline(preparation(), scaler()), numbers)]
    parts += [("texts", encoder(handle_unknown="ignore"), texts)] if texts else []
    return make_pipeline(steps(parts), model(alpha=1.0))


OURS = [estimators.ColumnTransformer, estimators.SimpleImputer, estimators.StandardScaler]
OURS += [estimators.OneHotEncoder, estimators.Ridge]
THEIRS = [compose.ColumnTransformer, impute.SimpleImputer, preprocessing.StandardScaler]
# which by default iterates to four digits where rows are sparse
THEIRS += [preprocessing.OneHotEncoder, partial(linear_model.Ridge, tol=1e-10)]


# a failing example takes too long to be made smaller
@settings(max_examples=n_examples(6, 40), deadline=None, phases=[Phase.reuse, Phase.generate])
@given(layout=layouts(), spare=LIMITS, seed=st.integers(0, 2**32 - 1))
def test_answers_are_right_and_no_worker_dies(tmp_path_factory, idle_bytes, layout, spare, seed):
    folder = tmp_path_factory.mktemp("layout")
    rows = write(folder, layout, seed)
    columns, limit = [c for c in rows if c not in ("y", "label")], idle_bytes + spare
    numbers = [c for c in columns if not c.startswith(ENCODED)]
    options = {"threads_per_worker": 1, "memory_limit": limit, "dashboard_address": None}
    with Fleet(n_workers=1, **options) as client:
        client.run(import_all)
        before, memory = client.run(os.getpid), Memory()
        frame = dd.read_parquet(folder)
        model = regression(*OURS, columns).fit(frame[columns], frame["y"])
        bayes = make_pipeline(estimators.SimpleImputer(), estimators.GaussianNB())
        bayes.fit(frame[numbers], frame["label"])
        memory.is_over.set()
        assert client.run(os.getpid) == before
    assert memory.peak < 0.95 * limit
    sample = rows[:1000]
    expected = regression(*THEIRS, columns).fit(rows[columns], rows["y"]).predict(sample[columns])
    np.testing.assert_allclose(model.predict(sample[columns]), expected, rtol=1e-4, atol=1e-4)
    other = make_pipeline(impute.SimpleImputer(), naive_bayes.GaussianNB())
    other.fit(rows[numbers], rows["label"])
    np.testing.assert_allclose(bayes[-1].theta_, other[-1].theta_, rtol=1e-4, atol=1e-4)
