"""Ranks and workers die while a library trains: the model is that of an undisturbed fit."""

import os
import threading
import time
from functools import cache

import numpy as np
import pytest
from fits import LIBRARIES, N_ROUNDS, SNAPSHOT_ROUNDS, bytes_of, fit, n_rounds_of
from kills import Death, Deaths, Pause, draw_deaths

from clusters import local_client
from skfleet.exceptions import FleetError

# Deaths of each library in `make test-all`, and more in `make test-kills`.
N_DEATHS, DEATHS_OF_A_FIT = int(os.environ.get("SKFLEET_KILLS", "20")), 10
# `make test` has one fit, with one.
SERIES = [("xgboost", 0, 1)] + [
    pytest.param(library, seed, DEATHS_OF_A_FIT, marks=pytest.mark.slow)
    for library in LIBRARIES
    for seed in range(-(-N_DEATHS // DEATHS_OF_A_FIT))
]

pytestmark = pytest.mark.usefixtures("on_ranks")


@pytest.fixture(scope="module")
def undisturbed(process_client, small_rows_on_ranks, rows):
    """A function that returns the model of a library that saw no death."""

    @cache
    def undisturbed_fit(library):
        with small_rows_on_ranks():
            return fit(library, rows)

    return undisturbed_fit


@pytest.mark.slow
@pytest.mark.parametrize(("library", "seed", "n_deaths"), SERIES)
def test_deaths_in_a_fit(processes, undisturbed, rows, tmp_path, library, seed, n_deaths):
    expected = undisturbed(library)
    drawn = draw_deaths(seed, n_deaths, N_ROUNDS, 2)
    if library == "xgboost":  # LightGBM calls nothing at the end
        drawn.append(Death(None, seed % 2, "rank"))
    deaths = Deaths(drawn, tmp_path)
    # several deaths may be drawn for one segment
    model = fit(library, rows, deaths, max_retries=n_deaths)
    assert bytes_of(model) == bytes_of(expected)
    assert model.evals_result_ == expected.evals_result_
    numbers = [N_ROUNDS - 1 if death.number is None else death.number for death in drawn]
    for number, begin in zip(numbers, deaths.next_begins(), strict=True):
        assert number - begin < SNAPSHOT_ROUNDS  # at most a segment is trained again


@pytest.mark.slow
def test_repeated_deaths_end_with_an_error(processes, rows, tmp_path):
    deaths = Deaths([Death(2, 0, "rank"), Death(3, 1, "rank")], tmp_path)
    with pytest.raises(FleetError, match="2 losses after round 0"):
        fit("xgboost", rows, deaths, max_retries=1)


@pytest.mark.slow
def test_a_death_after_training_has_stopped(processes, undisturbed, rows, tmp_path):
    expected = undisturbed("xgboost")
    deaths = Deaths([Death(None, 0, "rank")], tmp_path)
    model = fit("xgboost", rows, deaths, early_stopping_rounds=7)
    assert list(tmp_path.glob("death-*"))
    n_rounds = n_rounds_of(model)
    assert n_rounds == model.best_iteration + 8 < N_ROUNDS
    assert n_rounds % SNAPSHOT_ROUNDS  # it has stopped within a segment
    errors = expected.evals_result_["validation_0"]["mae"]
    assert model.best_iteration == np.argmin(errors[:n_rounds])
    assert model.evals_result_["validation_0"]["mae"] == errors[:n_rounds]
    first = (0, model.best_iteration + 1)
    assert np.array_equal(
        model.predict(rows["X"]), expected.predict(rows["X"], iteration_range=first)
    )


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_workers_gone_for_good(rows, tmp_path, monkeypatch, caplog, library):
    monkeypatch.setattr("skfleet.estimators.boosting._rank_training.RECOVERY_SECONDS", 2)
    pause = Pause(12, tmp_path, 10)
    with local_client(3, threads_per_worker=1) as client:
        expected = fit(library, rows)

        def close_workers():
            while 0 not in pause.pids():
                time.sleep(0.05)
            client.cluster.scale(1)

        thread = threading.Thread(target=close_workers)
        thread.start()
        remaining = fit(library, rows, pause)
        thread.join()
        assert len(client.nthreads()) == 1
    assert "training goes on" in caplog.text
    assert bytes_of(remaining) == bytes_of(expected)
    assert remaining.evals_result_ == expected.evals_result_
