"""Fits that are scheduled a second time, for their batch is slow, are made once in this process."""

import collections
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from clusters import local_client
from random_examples import n_examples
from skfleet.model_selection import GridSearchCV
from skfleet.model_selection._dispatch._claims import BatchClaims, FitClaims

X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
_lock, _n_fits = threading.Lock(), collections.Counter()


class Sleeper(ClassifierMixin, BaseEstimator):
    """Takes its seconds to fit, and counts its fits."""

    def __init__(self, number=0, seconds=(0.0,)):
        self.number, self.seconds = number, seconds

    def fit(self, X, y):
        with _lock:
            _n_fits[self.number] += 1
        time.sleep(self.seconds[self.number])
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.zeros(len(X), dtype=int)


@pytest.fixture(scope="module")
def client():
    with local_client(4, threads_per_worker=1, processes=False, set_as_default=False) as client:
        yield client


def search_counting(client, model, name, seconds, capsys=None):
    _n_fits.clear()
    with client.as_current():
        grid = {name: [*range(len(seconds))]}
        search = GridSearchCV(model, grid, cv=2, refit=False, verbose=3 if capsys else 0)
        search.fit(X, y)
    assert _n_fits == dict.fromkeys(range(len(seconds)), 2)
    return search


@pytest.mark.parametrize("has_steps", [False, True])
def test_each_fit_is_made_and_printed_once(client, capsys, has_steps):
    seconds = (0.01, 0.3, 0.3, 0.01)  # the second begins before the batch has been slow
    model, name = Sleeper(seconds=seconds), "number"
    if has_steps:
        model, name = make_pipeline(StandardScaler(), model), "sleeper__number"
    search_counting(client, model, name, seconds, capsys)
    lines = [line for line in capsys.readouterr().out.splitlines() if " END " in line]
    assert len(lines) == 8


@pytest.mark.slow
@given(st.lists(st.sampled_from([0.0, 0.03, 0.15, 0.3]), min_size=2, max_size=5))
@settings(max_examples=n_examples(5, 25), deadline=None)
def test_fits_of_any_durations_are_made_once(client, seconds):
    search_counting(client, Sleeper(seconds=tuple(seconds)), "number", seconds)


def test_claims():
    claims = FitClaims()
    first = BatchClaims(claims.token, 0, ["a", "b"])
    second = BatchClaims(claims.token, 1, ["b"])
    assert first.claim(1)
    assert not second.claim(0)
    assert first.claim(1)  # run again, where the result was lost
    token = claims.token
    del claims
    assert BatchClaims(token, 1, ["b"]).claim(0)  # in another process


class Interrupted(Sleeper):
    def fit(self, X, y):
        raise KeyboardInterrupt


def test_interruption_before_any_candidate_is_scored_says_so(client):
    search = GridSearchCV(Interrupted(), {"number": [0, 1]}, cv=2)
    with (
        client.as_current(),
        pytest.raises(KeyboardInterrupt, match="no candidate had been scored"),
    ):
        search.fit(X, y)
    assert not hasattr(search, "cv_results_")
