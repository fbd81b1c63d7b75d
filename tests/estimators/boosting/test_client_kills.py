"""The client of a fit is killed: its ranks end, and the same script goes on from the snapshot."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from client_to_kill import PAUSE_ROUND
from fits import LIBRARIES, SNAPSHOT_ROUNDS, bytes_of, fit
from kills import Pause

SCRIPT = Path(__file__).with_name("client_to_kill.py")


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_killed_client(process_client, on_ranks, rows, tmp_path, library):
    expected = fit(library, rows)
    np.savez(tmp_path / "rows.npz", **{name: rows[name] for name in ("X", "y", "noise")})
    arguments = [sys.executable, SCRIPT, process_client.scheduler.address, library, tmp_path]
    pause = Pause(PAUSE_ROUND, tmp_path, 0)
    client = subprocess.Popen(arguments)
    try:
        while len(pause.pids()) < 2:
            assert client.poll() is None
            time.sleep(0.05)
        # one waits in Python, the other one in the library for the first
        ranks = [psutil.Process(pid) for pid in pause.pids().values()]
    finally:
        client.kill()
        client.wait()
    assert psutil.wait_procs(ranks, timeout=60)[1] == []
    # the workers are those of before
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    n_rounds = PAUSE_ROUND - PAUSE_ROUND % SNAPSHOT_ROUNDS
    assert f"checkpoint: training goes on from round {n_rounds}" in done.stderr
    assert (tmp_path / "model").read_bytes() == bytes_of(expected)
