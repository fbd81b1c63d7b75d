"""An adaptive search that begins again with its checkpoint makes only the missing calls."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import uniform
from sklearn.base import BaseEstimator, ClassifierMixin

from skfleet.model_selection import ASHASearchCV, HyperbandSearchCV, SuccessiveHalvingSearchCV
from skfleet.model_selection._adaptive._loop import AdaptiveLoop
from skfleet.model_selection._adaptive._model_store import ModelStore


class Writer(ClassifierMixin, BaseEstimator):
    """Writes down every call of partial_fit; its score depends on its calls alone."""

    stop_at = None

    def __init__(self, quality=0.5, log=None):
        self.quality = quality
        self.log = log

    def partial_fit(self, X, y, classes=None):
        self.n_calls_ = getattr(self, "n_calls_", 0) + 1
        self.classes_ = np.unique(y) if classes is None else classes
        with Path(self.log).open("a") as log:
            log.write(f"{self.quality} {self.n_calls_}\n")
        if self.stop_at is not None and len(Path(self.log).read_text().split("\n")) > self.stop_at:
            raise KeyboardInterrupt
        return self

    def score(self, X, y):
        return self.quality * (1 - 0.5**self.n_calls_)


X, Y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
QUALITIES = [round(0.01 * i, 2) for i in range(1, 100)]


def calls(log):
    """All calls of partial_fit that were made, and those made more than once."""
    made = Path(log).read_text().split("\n")[:-1] if Path(log).exists() else []
    return made, len(made) - len(set(made))


def search(kind, tmp_path, log, **params):
    how = {"random_state": 0, "checkpoint": tmp_path / "search"} | params
    if kind is HyperbandSearchCV:
        how["max_iter"] = 9
    else:
        how |= {"n_initial_parameters": 9, "max_iter": 9}
    return kind(Writer(log=str(log)), {"quality": QUALITIES}, **how)


@pytest.mark.parametrize("kind", [HyperbandSearchCV, SuccessiveHalvingSearchCV, ASHASearchCV])
@pytest.mark.parametrize("stop_at", [1, 4, 13, 20])
def test_interrupted_search_is_resumed(kind, stop_at, tmp_path, monkeypatch):
    """Ctrl-C within a call: what was recorded is not made again, and the answer is the same."""
    log, plain_log = tmp_path / "log", tmp_path / "plain"
    plain = search(kind, tmp_path, plain_log, checkpoint=None, n_jobs=1).fit(X, Y)
    broken = search(kind, tmp_path, log, n_jobs=1)
    monkeypatch.setattr(Writer, "stop_at", stop_at)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(X, Y)
    assert len(calls(log)[0]) == stop_at
    if stop_at > 1:  # the best so far is there
        assert broken.best_estimator_.quality == broken.best_params_["quality"]
        assert broken.metadata_["partial_fit_calls"] <= stop_at - 1
    monkeypatch.setattr(Writer, "stop_at", None)
    again = search(kind, tmp_path, log, n_jobs=1).fit(X, Y)
    assert again.best_params_ == plain.best_params_
    assert again.best_score_ == plain.best_score_
    # only the order that was interrupted is made again, from where it began
    n_longest = 9
    assert calls(log)[1] <= n_longest
    assert calls(log)[1] >= 1


@pytest.mark.parametrize("kind", [HyperbandSearchCV, ASHASearchCV])
@pytest.mark.parametrize("stop_at", [4, 13, 20])
def test_model_chooses_the_same_candidates_again(kind, stop_at, tmp_path, monkeypatch):
    log, plain_log = tmp_path / "log", tmp_path / "plain"
    parameters = {"quality": uniform(0, 1)}
    how = {"n_jobs": 1, "sampler": "tpe", "parameters": parameters}
    plain = search(kind, tmp_path, plain_log, checkpoint=None).set_params(**how).fit(X, Y)
    monkeypatch.setattr(Writer, "stop_at", stop_at)
    with pytest.raises(KeyboardInterrupt):
        search(kind, tmp_path, log).set_params(**how).fit(X, Y)
    monkeypatch.setattr(Writer, "stop_at", None)
    again = search(kind, tmp_path, log).set_params(**how).fit(X, Y)
    assert again.cv_results_["params"] == plain.cv_results_["params"]
    np.testing.assert_array_equal(again.history_["test_score"], plain.history_["test_score"])
    assert calls(log)[1] <= 9  # those of the instruction that was interrupted


@pytest.mark.parametrize("kind", [HyperbandSearchCV, ASHASearchCV])
def test_model_is_asked_and_told_in_the_recorded_order(kind, tmp_path, on_cluster, monkeypatch):
    """With several slots, what was recorded is replayed as it was, and what ran is made again."""
    log, how = tmp_path / "log", {"sampler": "tpe", "parameters": {"quality": uniform(0, 1)}}

    def seconds(loop):  # the time is over after the twelfth score
        return float(len(loop.listener.history.rows) >= 12)

    first = search(kind, tmp_path, log).set_params(**how, time_budget=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(AdaptiveLoop, "seconds", property(seconds))
        first.fit(X, Y)
    again = search(kind, tmp_path, log).set_params(**how).fit(X, Y)
    results, n_first = again.cv_results_, len(first.history_)
    for number, params in zip(
        first.cv_results_["candidate"], first.cv_results_["params"], strict=True
    ):
        if number in first.history_["candidate"].to_numpy():
            assert results["params"][list(results["candidate"]).index(number)] == params
    columns = ["candidate", "partial_fit_calls", "test_score"]
    recorded = again.history_[columns].iloc[:n_first]
    assert recorded.to_numpy().tolist() == first.history_[columns].to_numpy().tolist()
    assert again.n_checkpoint_calls_ == first.metadata_["partial_fit_calls"]


@pytest.mark.parametrize("kind", [HyperbandSearchCV, SuccessiveHalvingSearchCV, ASHASearchCV])
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
def test_search_that_ran_out_of_time_goes_on(kind, seconds, tmp_path):
    log, plain_log = tmp_path / "log", tmp_path / "plain"
    plain = search(kind, tmp_path, plain_log, checkpoint=None, n_jobs=1).fit(X, Y)
    while True:
        one = search(kind, tmp_path, log, n_jobs=1, time_budget=seconds + 1e-6)
        try:
            one.fit(X, Y)
        except ValueError:  # not a single candidate was scored
            seconds += 0.02
            continue
        if one.metadata_["partial_fit_calls"] == plain.metadata_["partial_fit_calls"]:
            break
        seconds += 0.02
    assert one.best_params_ == plain.best_params_
    for key in ("mean_test_score", "budget", "params"):
        assert list(one.cv_results_[key]) == list(plain.cv_results_[key])
    made, n_twice = calls(log)
    assert n_twice == 0
    assert sorted(made) == [
        line.replace(str(plain_log), str(log)) for line in sorted(calls(plain_log)[0])
    ]
    assert one.best_estimator_.n_calls_ == one.cv_results_["budget"][one.best_index_]
    # once more: there is nothing left to do
    done = search(kind, tmp_path, log, n_jobs=1).fit(X, Y)
    assert len(calls(log)[0]) == len(made)
    assert done.best_estimator_.n_calls_ == one.best_estimator_.n_calls_


def test_searches_on_a_fleet_record_and_resume(tmp_path, cluster_client):
    log = tmp_path / "log"
    with cluster_client.as_current():
        first = search(HyperbandSearchCV, tmp_path, log).fit(X, Y)
        n_made = len(calls(log)[0])
        assert n_made == first.metadata["partial_fit_calls"]
        second = search(HyperbandSearchCV, tmp_path, log).fit(X, Y)
    assert len(calls(log)[0]) == n_made
    assert second.best_params_ == first.best_params_
    # of the models only the best is left, and those that a search with more calls may train on
    paths = (tmp_path / "search").glob("models-*/*.model")
    models = {tuple(map(int, path.stem.split("-")[::2])) for path in paths}
    columns = ("candidate", "partial_fit_calls")
    last = set(zip(*(first.cv_results_[column].tolist() for column in columns), strict=True))
    number = first.cv_results_["candidate"][first.best_index_]
    assert models == {(n, n_calls) for n, n_calls in last if n_calls == 9} | {
        (number, first.n_iter_)
    }


def test_damaged_model_is_trained_again(tmp_path):
    log = tmp_path / "log"
    first = search(SuccessiveHalvingSearchCV, tmp_path, log, n_jobs=1).fit(X, Y)
    for path in (tmp_path / "search").glob("models-*/*.model"):
        path.write_bytes(path.read_bytes()[:-20])
    again = search(SuccessiveHalvingSearchCV, tmp_path, log, n_jobs=1).fit(X, Y)
    assert again.best_estimator_.n_calls_ == first.best_estimator_.n_calls_ == 9
    assert calls(log)[1] == 9  # the best, from its beginning


def test_model_in_memory_is_not_taken_for_an_older_one_on_disk(tmp_path, monkeypatch):
    """The newest file of a candidate is damaged while the search goes on."""
    log, plain_log = tmp_path / "log", tmp_path / "plain"
    plain = search(SuccessiveHalvingSearchCV, tmp_path, plain_log, checkpoint=None, n_jobs=1)
    plain.fit(X, Y)
    put = ModelStore.put
    monkeypatch.setattr(
        ModelStore, "prune", lambda self, needed, candidate: None
    )  # older ones stay

    def put_damaged(self, candidate, trained):
        put(self, candidate, trained)
        if trained.n_calls == 3:
            path = next((tmp_path / "search").glob(f"models-*/{candidate}-3.model"))
            path.write_bytes(path.read_bytes()[:-5])

    monkeypatch.setattr(ModelStore, "put", put_damaged)
    found = search(SuccessiveHalvingSearchCV, tmp_path, log, n_jobs=1).fit(X, Y)
    assert found.best_score_ == plain.best_score_
    assert found.best_estimator_.n_calls_ == 9
    assert calls(log)[1] == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"parameters": {"quality": QUALITIES[1:]}}, "parameters"),
        ({"random_state": 1}, "random_state"),
        ({"test_size": 0.3}, "test_size"),
        ({"scoring": "accuracy"}, "scoring"),
    ],
)
def test_checkpoint_of_another_search_is_refused(change, what, tmp_path):
    log = tmp_path / "log"
    search(SuccessiveHalvingSearchCV, tmp_path, log, n_jobs=1).fit(X, Y)
    n_made = len(calls(log)[0])
    other = search(SuccessiveHalvingSearchCV, tmp_path, log, n_jobs=1).set_params(**change)
    with pytest.raises(ValueError, match=f"another {what}"):
        other.fit(X, Y)
    with pytest.raises(ValueError, match="another X"):
        search(SuccessiveHalvingSearchCV, tmp_path, log, n_jobs=1).fit(X + 1, Y)
    assert len(calls(log)[0]) == n_made


def test_checkpoint_in_the_cloud(cluster_client, tmp_path):
    """Any location that fsspec knows; memory:// stands for one, within this process."""
    log = tmp_path / "log"
    where = f"memory://adaptive-{time.time_ns()}"
    with cluster_client.as_current():
        for _ in range(2):
            search(SuccessiveHalvingSearchCV, tmp_path, log, checkpoint=where).fit(X, Y)
    assert len(calls(log)[0]) == 21


@pytest.mark.parametrize("kind", [HyperbandSearchCV, SuccessiveHalvingSearchCV, ASHASearchCV])
def test_how_much_came_from_the_checkpoint_is_told(kind, tmp_path, monkeypatch, capsys, caplog):
    """In the output, the log and an attribute; the bar counts what remains."""
    log = tmp_path / "log"
    monkeypatch.setattr(Writer, "stop_at", 13)
    with pytest.raises(KeyboardInterrupt):
        search(kind, tmp_path, log, n_jobs=1, verbose=1).fit(X, Y)
    monkeypatch.setattr(Writer, "stop_at", None)
    assert "checkpoint" not in capsys.readouterr().out
    n_calls = {}  # that were recorded
    for path in (tmp_path / "search").glob("*.fits"):
        for line in path.read_bytes().splitlines():
            number, n, _ = json.loads(line.split(b" ", 1)[1])["fit"].split("-")
            n_calls[number] = max(int(n), n_calls.get(number, 0))
    n_known, n_before = sum(n_calls.values()), len(calls(log)[0])
    with caplog.at_level("INFO", "skfleet.model_selection"):
        again = search(kind, tmp_path, log, n_jobs=1, verbose=1).fit(X, Y)
    n_all = again.metadata_["partial_fit_calls"]
    assert again.n_checkpoint_calls_ == n_known > 0
    told = f"checkpoint: {n_known} of {again.metadata['partial_fit_calls']} calls of partial_fit"
    out = capsys.readouterr().out
    assert told in out
    assert any(told in message for message in caplog.messages)
    n_left = len(calls(log)[0]) - n_before
    assert n_all - n_known <= n_left <= n_all - n_known + 9  # what was interrupted once more
    last = caplog.messages[-1]
    n_expected = max(n_all, again.metadata["partial_fit_calls"])  # a schedule may order more
    assert last.startswith(f"{n_all - n_known} of {n_expected - n_known} ")
    assert f"{n_all - n_known} of {n_expected - n_known} calls of partial_fit" in out
    done = search(kind, tmp_path, log, n_jobs=1, verbose=1).fit(X, Y)
    assert done.n_checkpoint_calls_ == n_all
    assert f"checkpoint: {n_all} of " in capsys.readouterr().out
