"""Where the rows of an adaptive search are held, and what a call learns of them."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

from skfleet.engine import fleet_engine
from skfleet.model_selection import SuccessiveHalvingSearchCV
from skfleet.model_selection._adaptive import _data
from skfleet.model_selection._adaptive._data import BatchOrder

pytestmark = pytest.mark.usefixtures("on_cluster")


class Seer(ClassifierMixin, BaseEstimator):
    """Remembers the rows that it learned."""

    def __init__(self, quality=0.5):
        self.quality = quality

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        self.seen_ = [*getattr(self, "seen_", []), np.asarray(X)[:, 0].copy()]
        self.classes_ = classes
        assert (np.asarray(X)[:, 0] % 2 == y).all()
        assert sample_weight is None or (sample_weight == np.asarray(X)[:, 0] + 1).all()
        return self

    def predict(self, X):
        """Predict right, for a share of the rows that grows with the quality."""
        x = np.asarray(X)[:, 0]
        return np.where((x % 10) < 10 * self.quality, x % 2, 1 - x % 2)


def search(**params):
    how = {"n_initial_parameters": 3, "n_initial_iter": 2, "max_iter": 12, "random_state": 0}
    return SuccessiveHalvingSearchCV(Seer(), {"quality": [0.1, 0.3, 0.6]}, **how | params)


N = 120
X, Y = np.arange(N, dtype=float)[:, None] * [1.0, 0.0], np.arange(N) % 2


@given(
    st.integers(0, 100), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 100)
)
def test_every_epoch_has_all_batches_once(seed, n_batches, epoch):
    order = BatchOrder(seed, tuple(n_batches))
    n = len(order)
    batches = [order[epoch * n + i] for i in range(n)]
    assert {batch.epoch for batch in batches} == {epoch}
    expected = {(b, part / k) for b, k in enumerate(n_batches) for part in range(k)}
    assert {(batch.block, batch.low) for batch in batches} == expected
    assert order.blocks_of(range(epoch * n, (epoch + 1) * n)) == list(range(len(n_batches)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("room", [0.4, 1e-12], ids=["everywhere", "spread"])
def test_all_rows_are_learned_wherever_they_are(monkeypatch, cluster_client, room, lazy):
    """Also where no worker holds all of them, nor all of those to score on, at once."""
    monkeypatch.setattr(_data, "MAX_DATA_FRACTION", room)
    monkeypatch.setattr(_data, "MAX_TEST_FRACTION", room)
    memory_limit = fleet_engine(cluster_client).memory_limit
    monkeypatch.setattr(_data, "MAX_BLOCK_FRACTION", 13 * 16 / memory_limit)
    rows = (X, Y, X[:, 0] + 1)
    if lazy:
        cuts = ((50, 0, 30, 40), 2)
        rows = (da.from_array(X, cuts), da.from_array(Y, 60), da.from_array(X[:, 0] + 1, 45))
    found = search(scoring="accuracy", batch_size=13, n_initial_iter=12, max_iter=36).fit(
        rows[0], rows[1], sample_weight=rows[2]
    )
    assert found.best_params_ == {"quality": 0.6}
    assert found.best_score_ > 0.4
    assert found.n_iter_ == 36
    seen = np.concatenate(found.best_estimator_.seen_)
    first = set()
    for row in seen:  # an epoch ends where a row comes again
        if row in first:
            break
        first.add(row)
    n_test = N - len(first)
    assert 6 <= n_test <= 34  # 15 % are 18
    assert set(seen) == first
    again = search(scoring="accuracy", batch_size=13, n_initial_iter=12, max_iter=36).fit(
        *rows[:2], sample_weight=rows[2]
    )
    np.testing.assert_array_equal(np.concatenate(again.best_estimator_.seen_), seen)


def test_scores_in_parts_are_the_scores_of_all(monkeypatch):
    X, y = load_digits(return_X_y=True)
    rows = da.from_array(X, (300, 64)), da.from_array(y, 300)
    space = {"alpha": [1e-4, 1e-3, 1e-2]}
    how = {"n_initial_parameters": "grid", "random_state": 0, "refit": "accuracy"}
    how["scoring"] = ["accuracy", "f1_macro"]
    whole = SuccessiveHalvingSearchCV(SGDClassifier(random_state=0), space, **how).fit(*rows)
    monkeypatch.setattr(_data, "MAX_TEST_FRACTION", 1e-12)
    parts = SuccessiveHalvingSearchCV(SGDClassifier(random_state=0), space, **how).fit(*rows)
    for name in ("accuracy", "f1_macro"):
        np.testing.assert_allclose(
            parts.cv_results_[f"mean_test_{name}"], whole.cv_results_[f"mean_test_{name}"]
        )
    own = how | {"scoring": lambda model, X, y: 1.0, "refit": True}
    with pytest.raises(TypeError, match="scoring must be the name"):
        SuccessiveHalvingSearchCV(SGDClassifier(), space, **own).fit(*rows)


def test_draws_of_test_rows_do_not_depend_on_the_cut():
    """Rows on Dask are set aside by their global numbers."""
    learned = []
    for cuts in (((120,), 2), ((50, 30, 40), 2)):
        found = search(scoring="accuracy").fit(da.from_array(X, cuts), da.from_array(Y, cuts[0]))
        learned.append(set(np.concatenate(found.best_estimator_.seen_)))
    assert learned[0] == learned[1]


def test_blocks_without_rows_and_too_few_rows():
    rows = da.from_array(X, ((0, 120), 2)), da.from_array(Y, ((0, 120),))
    assert search(scoring="accuracy").fit(*rows).best_params_ == {"quality": 0.6}
    with pytest.raises(ValueError, match="X must have rows to learn"):
        search(scoring="accuracy").fit(rows[0][:1], rows[1][:1])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("room", [0.4, 1e-12], ids=["held", "streamed"])
@pytest.mark.parametrize("lengths", ["known", "unknown"])
def test_rows_to_score_on_are_never_none_and_of_each_label(room, lengths, monkeypatch):
    monkeypatch.setattr(_data, "MAX_DATA_FRACTION", room)
    for seed in range(6):
        how = {"scoring": "accuracy", "random_state": seed, "max_iter": 3, "n_initial_iter": 3}
        rows = da.from_array(X[:10], (4, 2)), da.from_array(Y[:10], 4)
        if lengths == "unknown":
            rows = tuple(one[da.ones(10, chunks=4, dtype=bool)] for one in rows)
        found = search(**how, test_size=0.2).fit(*rows)
        learned = np.unique(np.concatenate(found.best_estimator_.seen_))
        assert len(learned) == 8
        assert (learned % 2).sum() == 4


def test_number_of_test_rows_on_dask():
    rows = da.from_array(X, (40, 2)), da.from_array(Y, 40)
    found = search(scoring="accuracy", test_size=60).fit(*rows)
    learned = np.unique(np.concatenate(found.best_estimator_.seen_))
    assert len(learned) == N - 60
    assert (learned % 2).sum() == 30


def test_rows_that_are_on_the_workers_already(cluster_client):
    """Persisted, also where the columns of a block are in two parts, with other values per row."""
    X = np.arange(N, dtype=float)[:, None] * [1.0, 0.0, 0.0, 0.0]
    rows = da.from_array(X, (40, 2)).persist(), da.from_array(Y, 40).persist()
    weight = da.from_array(X[:, 0] + 1, 40).persist()
    found = search(scoring="accuracy").fit(*rows, sample_weight=weight)
    assert found.best_params_ == {"quality": 0.6}
    tags = da.from_array(X[:, 0] + 5, 40).persist()
    tagged = SuccessiveHalvingSearchCV(Tagged(), {"quality": [0.1, 0.6]}, n_initial_parameters=2)
    assert tagged.set_params(scoring="accuracy").fit(*rows, tags=tags).n_iter_ == 1


class Tagged(Seer):
    """Is told a tag of every row."""

    def partial_fit(self, X, y, classes=None, tags=None):
        np.testing.assert_array_equal(tags, np.asarray(X)[:, 0] + 5)
        return super().partial_fit(X, y, classes)
