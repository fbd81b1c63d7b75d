"""The memory of binned rows, by which a rank holds them in memory or on the disk."""

import gc
import subprocess
import sys
import tempfile

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xgboost

from skfleet import config_context
from skfleet.blocks import BlockRef
from skfleet.estimators.boosting import XGBClassifier
from skfleet.estimators.boosting._row_survey import survey_block
from skfleet.estimators.boosting._xgboost_base import PROCESS_BYTES

N_FEATURES, BLOCK_ROWS = 24, 50_000
# Arguments: rows, the share of values.
TRAIN = f"""
import sys
import numpy as np
import psutil
import xgboost

n_rows, density = int(sys.argv[1]), float(sys.argv[2])

class Blocks(xgboost.DataIter):
    def reset(self):
        self.i = 0

    def next(self, input_data):
        if self.i * {BLOCK_ROWS} == n_rows:
            return False
        rng = np.random.default_rng(self.i)
        X = rng.normal(size=({BLOCK_ROWS}, {N_FEATURES})).astype(np.float32)
        if density < 1:
            X[rng.random(X.shape) > density] = np.nan
        input_data(data=X, label=(X[:, 0] > 0).astype(int))
        self.i += 1
        return True

matrix = xgboost.QuantileDMatrix(Blocks(), nthread=1)
booster = xgboost.Booster({{"objective": "binary:logistic", "nthread": 1}}, [matrix])
booster.update(matrix, 0)
print(psutil.Process().memory_info().rss)
"""


@pytest.mark.slow
@pytest.mark.parametrize("density", [1.0, 0.95, 0.1])
def test_the_estimate_is_what_xgboost_takes(density):
    def measured(n_rows):
        command = [sys.executable, "-c", TRAIN, str(n_rows), str(density)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def estimated(n_rows):
        return XGBClassifier()._binned_bytes(n_rows, N_FEATURES, 1, density) - PROCESS_BYTES

    # without what a process has anyway
    growth = measured(800_000) - measured(200_000)
    expected = estimated(800_000) - estimated(200_000)
    assert 0.6 < growth / expected < 1.4


@pytest.mark.parametrize(
    ("X", "n_values"),
    [
        (np.array([[1.0, np.nan], [0.0, np.inf]]), 3),
        (np.array([[1, 2], [3, 4]]), 4),
        (sp.csr_array(np.array([[0.0, 2.0], [0.0, np.nan]])), 2),
        (pd.DataFrame({"a": [1.0, None], "b": pd.Categorical(["u", None])}), 2),
    ],
    ids=["gaps", "integers", "sparse", "frame"],
)
def test_values_that_are_there_are_counted(X, n_values):
    assert survey_block(BlockRef(X), has_labels=False).n_values == n_values


def test_rows_with_gaps_take_more():
    full = XGBClassifier()._binned_bytes(1_000_000, N_FEATURES, 1, 1.0)
    gaps = XGBClassifier()._binned_bytes(1_000_000, N_FEATURES, 1, 0.99)
    marked = XGBClassifier(missing=-1)._binned_bytes(1_000_000, N_FEATURES, 1, 1.0)
    assert gaps > 1.25 * full
    assert marked == pytest.approx(gaps, rel=0.02)


def test_binned_rows_on_the_disk_go_with_the_fit(monkeypatch, tmp_path):
    """In this process, where no folder of a worker goes with them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("_fit_on_one_worker", "_fits_in_memory"):
        monkeypatch.setattr(XGBClassifier, name, lambda *args: False)
    X = np.random.default_rng(0).normal(size=(2000, 5))
    y = (X[:, 0] > 0).astype(int)
    pages, update = set(), xgboost.Booster.update

    def recorded(self, *args, **kwargs):
        pages.update(tmp_path.glob("skfleet-*/page*"))
        return update(self, *args, **kwargs)

    monkeypatch.setattr(xgboost.Booster, "update", recorded)
    with config_context(engine="local"):
        rows = da.from_array(X, chunks=(500, 5))
        model = XGBClassifier(n_estimators=3).fit(rows, da.from_array(y))
    assert pages
    assert model.score(X, y) > 0.9
    gc.collect()
    assert not list(tmp_path.glob("skfleet-*"))
