"""Searches of every class, with every kind of parameter, that are resumed in another process."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from search_classes import ADAPTIVE, OF_SCIKIT_LEARN

SCRIPT = Path(__file__).with_name("searches_to_resume.py")


def start(folder, searches, kinds, *more, seed=0):
    """Start the script, under a seed of hashes of its own."""
    arguments = [str(folder), searches, kinds, *map(str, more)]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        text=True,
    )


def lines_of(process, timeout=500):
    """Give what the script says of each search."""
    out = process.communicate(timeout=timeout)[0]
    assert process.returncode == 0
    return {tuple(line["case"]): line for line in map(json.loads, out.splitlines())}


def assert_nothing_is_made_again(folder, searches, kinds):
    first = lines_of(start(folder, searches, kinds, seed=1))
    second = lines_of(start(folder, searches, kinds, seed=2))
    assert first.keys() == second.keys()
    for case, line in second.items():
        assert first[case]["n_known"] == 0, case
        assert line["n_known"] == line["n_recorded"] > 0, case
        # of scikit-learn's searches the last fit is not recorded
        assert line["n_made"] == (case[0] in OF_SCIKIT_LEARN), case
        assert line["found"] == first[case]["found"], case


@pytest.mark.slow
def test_distributions_are_the_same_in_another_process(tmp_path):
    assert_nothing_is_made_again(
        tmp_path, "RandomizedSearchCV,HyperbandSearchCV", "distribution,lambda"
    )


@pytest.mark.slow
@pytest.mark.parametrize("search", OF_SCIKIT_LEARN + ADAPTIVE)
def test_every_kind_of_parameter_is_the_same_in_another_process(tmp_path, search):
    assert_nothing_is_made_again(tmp_path, search, "all")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("search", OF_SCIKIT_LEARN + ADAPTIVE)
def test_a_client_that_is_killed_again_and_again_loses_only_what_was_under_way(tmp_path, search):
    """At random moments, in the middle of searches with all kinds of parameters."""
    rng = random.Random(search)
    known = {}
    for seed in range(5):
        process = start(tmp_path, search, "all", 0, 0.01, seed=seed)
        n_before = n_calls(tmp_path)
        more = rng.randrange(10, 150)
        while n_calls(tmp_path) < n_before + more and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        out = process.communicate()[0]
        known |= {tuple(line["case"]): line for line in map(json.loads, out.splitlines())}
    lines = lines_of(start(tmp_path, search, "all", 0, 0.01, seed=5))
    resumed = [line for line in lines.values() if line["n_known"]]
    assert resumed
    for case, line in lines.items():
        assert line["n_known"] == line["n_recorded"], case
        if case in known:  # it had been searched to the end before
            assert line["n_made"] == (search in OF_SCIKIT_LEARN), case
            assert line["found"] == known[case]["found"], case
        if search != "ASHASearchCV":  # which decides by what comes first
            assert line["found"] == line["plain"], case


def n_calls(folder):
    """Count the calls that were made so far."""
    return sum(len(path.read_bytes().split(b"\n")) - 1 for path in folder.glob("*.log"))


@pytest.mark.slow
@pytest.mark.parametrize("search", ["RandomizedSearchCV", "HyperbandSearchCV"])
def test_on_a_fleet_of_processes(tmp_path, search):
    process = start(tmp_path, search, "distribution", 2, 0.2, seed=1)
    more = random.Random(search).randrange(4, 12)
    while n_calls(tmp_path) < more and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    time.sleep(3)  # its workers follow it
    (line,) = lines_of(start(tmp_path, search, "distribution", 2, 0.2, seed=2)).values()
    assert line["n_known"] == line["n_recorded"]
    assert line["found"] == line["plain"]


LAZY = """
import sys
import dask.dataframe as dd
from distributed import Client
from scipy.stats import loguniform
from skfleet.estimators import Ridge
from skfleet.model_selection import RandomizedSearchCV

with Client(processes=False, n_workers=1, dashboard_address=":0"):
    rows = dd.read_parquet(sys.argv[1])
    rows = rows[rows.a > 0.1].map_partitions(lambda part: part.assign(b=part.b * 2))
    search = RandomizedSearchCV(
        Ridge(), {"alpha": loguniform(1e-3, 1e3)}, n_iter=4, cv=3, random_state=0,
        checkpoint=sys.argv[2],
    )
    print(search.fit(rows[["a", "b"]], rows["c"]).n_checkpoint_fits_)
"""


@pytest.mark.slow
def test_rows_that_stay_on_dask_are_the_same_in_another_process(tmp_path):
    """Counted rows have a name that is another in every process, and so have readers of Parquet."""
    rows = np.random.default_rng(0).random((200, 3))
    pd.DataFrame(rows, columns=list("abc")).to_parquet(tmp_path / "rows.parquet")
    script = tmp_path / "script.py"
    script.write_text(LAZY)
    arguments = [str(tmp_path / "rows.parquet"), str(tmp_path / "checkpoint")]
    for seed, n_known in (("1", "0"), ("2", "12")):
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        )
        assert done.stdout.strip() == n_known
        script.write_text("\n\n" + LAZY)  # where a lambda stands says nothing of it
