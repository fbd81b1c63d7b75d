"""XGBoost on a GPU: the booster really trains there, on CuPy's rows as they are."""

import dask.array as da
import numpy as np
import pytest

from clusters import local_client
from skfleet.estimators.boosting import XGBClassifier, _xgboost_rank

xgboost = pytest.importorskip("xgboost")
pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    cupy = pytest.importorskip("cupy")
    if "stand_ins" in cupy.__file__:
        pytest.skip("XGBoost needs a GPU")
    return cupy


@pytest.mark.parametrize("on_device", [True, False])
def test_ranks_train_on_the_gpu(cupy, on_ranks, rows, monkeypatch, on_device):
    handed_over = []

    class Blocks(_xgboost_rank.BlockIterator):
        def next(self, input_data):
            def note(data, **values):
                handed_over.append(hasattr(data, "__cuda_array_interface__"))
                input_data(data=data, **values)

            return super().next(note)

    monkeypatch.setattr(_xgboost_rank, "BlockIterator", Blocks)
    X, labels = rows["X"], np.unique(rows["labels"], return_inverse=True)[1]
    options = {"n_estimators": 12, "device": "cuda"}
    plain = xgboost.XGBClassifier(**options).fit(X, labels)
    Xd, yd = da.from_array(X, chunks=(250, 6)), da.from_array(labels, chunks=250)
    if on_device:
        Xd, yd = Xd.map_blocks(cupy.asarray), yd.map_blocks(cupy.asarray)
    gpu = {"GPU": 1}
    with local_client(1, threads_per_worker=1, processes=False, resources=gpu):
        ours = XGBClassifier(**options).fit(Xd, yd)
    assert '"device":"cuda' in ours.get_booster().save_config().replace(" ", "")
    assert handed_over
    assert all(flag == on_device for flag in handed_over)
    assert np.abs(ours.predict_proba(X) - plain.predict_proba(X)).max() < 1e-5
