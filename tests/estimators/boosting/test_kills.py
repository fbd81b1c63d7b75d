"""Ranks and workers die while XGBoost trains: the model is that of an undisturbed fit."""

import logging
import threading
import time

import dask.array as da
import numpy as np
import pytest
import xgboost
from kills import SNAPSHOT_ROUNDS, Deaths, draw_deaths, n_died

from clusters import local_client
from skfleet.estimators.boosting import XGBRegressor
from skfleet.exceptions import FleetError

OPTIONS = {"n_estimators": 40, "checkpoint_interval": SNAPSHOT_ROUNDS, "eval_metric": "mae"}


def fit(rows, directory, deaths=(), **options):
    X, y = (da.from_array(rows[name], chunks=250) for name in ("X", "y"))
    options = {"callbacks": [Deaths(deaths, directory)], **OPTIONS, **options}
    model = XGBRegressor(**options)
    return model.fit(X, y, eval_set=[(rows["X"][:80], rows["noise"][:80])], verbose=False)


def assert_undisturbed(model, undisturbed, X):
    assert np.array_equal(model.predict(X), undisturbed.predict(X))
    assert model.evals_result_ == undisturbed.evals_result_


def test_ten_deaths_in_a_fit(processes, on_ranks, rows, tmp_path, caplog):
    undisturbed = fit(rows, tmp_path)
    deaths = draw_deaths(np.random.default_rng(0), 10, OPTIONS["n_estimators"], 2)
    with caplog.at_level(logging.WARNING, "skfleet.estimators"):
        model = fit(rows, tmp_path, deaths)
    assert n_died(tmp_path) == 10
    assert_undisturbed(model, undisturbed, rows["X"])
    losses = [record for record in caplog.records if "training goes on" in record.message]
    assert len(losses) >= 10
    # at most a segment is trained again
    for (number, _, _), record in zip(deaths, losses, strict=False):
        assert number - record.args[1] <= SNAPSHOT_ROUNDS


def test_repeated_deaths_end_with_an_error(processes, on_ranks, rows, tmp_path):
    deaths = [(2, 0, "rank"), (3, 1, "rank")]
    with pytest.raises(FleetError, match="2 losses after round 0"):
        fit(rows, tmp_path, deaths, max_retries=1)


def test_a_death_after_training_has_stopped(processes, on_ranks, rows, tmp_path):
    undisturbed = fit(rows, tmp_path, early_stopping_rounds=7)
    model = fit(rows, tmp_path, [(None, 0, "rank")], early_stopping_rounds=7)
    assert n_died(tmp_path) == 1
    n_rounds = [m.get_booster().num_boosted_rounds() for m in (model, undisturbed)]
    assert n_rounds[0] == n_rounds[1] < OPTIONS["n_estimators"]
    assert n_rounds[0] % SNAPSHOT_ROUNDS  # the last rounds are in no snapshot
    assert_undisturbed(model, undisturbed, rows["X"])


class Pause(xgboost.callback.TrainingCallback):
    """Make a file after a round, and wait: once."""

    def __init__(self, path):
        self.path = path

    def after_iteration(self, model, epoch, evals_log):
        if epoch == 12 and not self.path.exists():
            self.path.touch()
            time.sleep(10)
        return False


@pytest.mark.slow
def test_workers_gone_for_good(on_ranks, rows, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("skfleet.estimators.boosting._rank_training.RECOVERY_SECONDS", 2)
    pause = Pause(tmp_path / "paused")
    with local_client(3, threads_per_worker=1) as client:
        undisturbed = fit(rows, tmp_path)

        def close_workers():
            while not pause.path.exists():
                time.sleep(0.05)
            client.cluster.scale(1)

        thread = threading.Thread(target=close_workers)
        thread.start()
        remaining = fit(rows, tmp_path, callbacks=[pause])
        thread.join()
        assert len(client.nthreads()) == 1
    assert "training goes on" in caplog.text
    assert_undisturbed(remaining, undisturbed, rows["X"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_death_at_a_random_round(processes, on_ranks, rows, tmp_path, seed):
    undisturbed = fit(rows, tmp_path)
    deaths = draw_deaths(np.random.default_rng(seed), 1 + seed % 3, OPTIONS["n_estimators"], 2)
    model = fit(rows, tmp_path, deaths)
    assert n_died(tmp_path) == len(deaths)
    assert_undisturbed(model, undisturbed, rows["X"])
