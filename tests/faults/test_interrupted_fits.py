"""Ctrl-C in a fit over files: one traceback, and a fleet that goes on."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

SCRIPT = """
import os, sys, time
import dask.dataframe as dd
from skfleet import Fleet, config_context
from skfleet.estimators import LogisticRegression, StandardScaler

FOLDER = {folder!r}

def slow(part):
    open(os.path.join(FOLDER, "begun"), "a").close()
    time.sleep(0.5)
    return part

if __name__ == "__main__":
    with Fleet(n_workers=2, threads_per_worker=1), config_context(keep_blocks={keep_blocks}):
        frame = dd.read_parquet(os.path.join(FOLDER, "rows"))
        X = frame[["a", "b"]]
        slow_X = X.map_partitions(slow, meta=X._meta)
        try:
            with config_context(progress=True):
                LogisticRegression().fit(slow_X, frame["y"])
        except KeyboardInterrupt:
            print("rows:", int(StandardScaler().fit(X).n_samples_seen_), flush=True)
            raise
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep_blocks", [True, False])
@pytest.mark.parametrize("is_group", [True, False], ids=["terminal", "process"])
def test_ctrl_c_in_a_fit_leaves_one_traceback_and_a_fleet(keep_blocks, is_group, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "rows").mkdir()
    for i in range(20):
        part = pd.DataFrame(rng.normal(size=(5_000, 2)), columns=["a", "b"])
        part.assign(y=part.a > 0).to_parquet(tmp_path / "rows" / f"{i:02}.parquet")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(folder=str(tmp_path), keep_blocks=keep_blocks))
    process = subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell starts what it runs in the background with this signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 100
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1.0)  # in the middle of the blocks
        (os.killpg if is_group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGINT
    bar, rows = out.splitlines()[-2:]
    assert bar.startswith("LogisticRegression: stopped in ")
    assert rows == "rows: 100000"
    told = [line for line in err.splitlines() if not line.startswith("scikit-fleet: still waiting")]
    assert told[0] == "Traceback (most recent call last):"
    assert told[-1] == "KeyboardInterrupt"
    assert err.count("Traceback") == 1
    # an indented line is a frame of that traceback
    assert all(line.startswith("  ") for line in told[1:-1])
