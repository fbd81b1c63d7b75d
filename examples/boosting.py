"""Boosting on a fleet: rows in Parquet files, string labels, categories, and a worker that dies.

XGBoost trains on two workers, while one of them is killed; the model is the one of an undisturbed
fit. Run it with ``python examples/boosting.py``; it takes about half a minute on two cores.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client

from skfleet import Fleet
from skfleet.estimators import XGBClassifier
from skfleet.model_selection import train_test_split

N_FILES, N_ROWS, N_ROUNDS = 8, 60_000, 150


def write_files(folder: Path) -> None:
    """Write files of journeys, with a few gaps."""
    for number in range(N_FILES):
        rng = np.random.default_rng(number)
        hour = rng.integers(24, size=N_ROWS)
        distance = rng.lognormal(6, 1, N_ROWS).round()
        carrier = rng.choice(["AA", "DL", "UA", "WN"], N_ROWS)
        score = (hour - 6) / 8 + (carrier == "UA") - np.log(distance) / 7 + rng.normal(size=N_ROWS)
        frame = pd.DataFrame({"hour": hour, "distance": distance, "carrier": carrier})
        frame.loc[rng.random(N_ROWS) < 0.02, "distance"] = np.nan
        frame["status"] = np.where(score > 1, "late", "on time")
        frame.to_parquet(folder / f"{number}.parquet")


def kill_a_worker(client: Client, seconds: float) -> threading.Timer:
    """Start a timer that kills a worker process, and everything in it."""
    process = min(client.run(os.getpid).values())
    timer = threading.Timer(seconds, os.kill, (process, signal.SIGKILL))
    timer.start()
    return timer


def main() -> None:
    """Train twice, the second time with a worker that dies."""
    fleet = Fleet(n_workers=2, threads_per_worker=1)
    with tempfile.TemporaryDirectory() as folder, fleet as client:
        write_files(Path(folder))
        frame = dd.read_parquet(folder)
        frame = frame[frame["hour"] > 3].assign(carrier=frame["carrier"].astype("category"))
        X, y = frame.drop(columns="status"), frame["status"]
        X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
        model = XGBClassifier(
            n_estimators=N_ROUNDS,
            learning_rate=0.1,
            enable_categorical=True,
            early_stopping_rounds=10,
            checkpoint_interval=20,
        )
        start = time.perf_counter()
        model.fit(X_train, y_train, X_val=X_test, y_val=y_test, verbose=50)
        seconds = time.perf_counter() - start
        print(f"trained in {seconds:.1f} s, best round {model.best_iteration}")
        print(f"accuracy {model.score(X_test, y_test):.4f}, classes {list(model.classes_)}")
        undisturbed = model.predict_proba(X_test).compute()

        kill_a_worker(client, seconds / 2)
        start = time.perf_counter()
        model.fit(X_train, y_train, X_val=X_test, y_val=y_test, verbose=False)
        print(f"with a killed worker in {time.perf_counter() - start:.1f} s")
        is_equal = np.array_equal(model.predict_proba(X_test).compute(), undisturbed)
        print(f"the same model to the last bit: {is_equal}")
        plain = model.to_sklearn()
        print(f"it leaves the fleet as a {type(plain).__module__.split('.')[0]} model")


if __name__ == "__main__":
    main()
