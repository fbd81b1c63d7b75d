"""skorch's nets in the wrappers and in adaptive searches, where it is installed."""

import pickle

import dask.array as da
import numpy as np
import pytest
from sklearn.datasets import make_classification

from skfleet.engine import device_of
from skfleet.estimators import Incremental
from skfleet.model_selection import HyperbandSearchCV

skorch = pytest.importorskip("skorch")
torch = pytest.importorskip("torch")

X, y = make_classification(2000, 10, n_informative=6, random_state=0)
X, y = X.astype(np.float32), y.astype(np.int64)
rows, labels = da.from_array(X, chunks=(250, 10)), da.from_array(y, chunks=250)


@pytest.fixture
def net():
    from torch_net import Net

    settings = {"max_epochs": 1, "train_split": None, "verbose": 0, "lr": 0.1}
    torch.manual_seed(0)
    return skorch.NeuralNetClassifier(Net, criterion=torch.nn.CrossEntropyLoss, **settings)


def test_incremental(net, cluster_client):
    with cluster_client.as_current():
        model = Incremental(net, epochs=5, random_state=0).fit(rows, labels)
        assert model.score(rows, labels) > 0.8
        answer = model.predict_proba(rows)
    found = answer.compute(scheduler="sync")
    assert (answer.shape, answer.dtype) == (found.shape, found.dtype) == ((2000, 2), np.float32)
    np.testing.assert_allclose(found, model.estimator_.predict_proba(X), rtol=1e-5)


def test_hyperband(net, cluster_client):
    grid = {"lr": [0.001, 0.03, 0.3], "module__width": [4, 16]}
    with cluster_client.as_current():
        search = HyperbandSearchCV(net, grid, max_iter=9, random_state=0).fit(rows, labels)
    assert search.best_score_ > 0.8
    assert (
        search.best_estimator_.module_.layers[0].out_features
        == (search.best_params_["module__width"])
    )


def test_nets_on_a_gpu(net):
    assert device_of(net) == "cpu"
    assert device_of(net, {"device": "cuda"}) == "cuda"
    net.fit(X, y)
    net.device = "cuda"  # what a net that was trained there says of itself
    if torch.cuda.is_available():
        pytest.skip("it is opened on the GPU")
    with pytest.warns(skorch.exceptions.DeviceWarning):
        opened = pickle.loads(pickle.dumps(net))
    assert str(opened.device) == "cpu"
    assert opened.predict(X).shape == (2000,)
