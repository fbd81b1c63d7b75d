"""What is known of epochs, and said of them, whoever learns in them."""

import pytest
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss

from skfleet.estimators import SGDClassifier


@pytest.mark.parametrize("early_stopping", [False, True])
def test_history_has_a_row_per_epoch(early_stopping):
    X, y = make_classification(2000, 8, random_state=0)
    how = {"max_iter": 4, "tol": None, "random_state": 0, "early_stopping": early_stopping}
    how |= {"warm_start": True, "batch_size": 8}
    model = SGDClassifier(loss="log_loss", **how).fit(X, y).fit(X, y)
    history = model.history_
    assert list(history.columns) == ["epoch", "n_samples_seen", "loss", "score", "seconds"]
    assert list(history.epoch) == [1, 2, 3, 4]
    n_rows = history.n_samples_seen[0]
    assert n_rows < len(X) if early_stopping else n_rows == len(X)
    assert list(history.n_samples_seen) == [n_rows * epoch for epoch in (1, 2, 3, 4)]
    assert history.score.isna().all() != early_stopping
    assert history.seconds.is_monotonic_increasing
    assert abs(history.loss.iloc[-1] - log_loss(y, model.predict_proba(X))) < 0.1
