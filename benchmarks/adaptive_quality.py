"""How many calls of ``partial_fit`` an adaptive search needs to be as good as random search.

Random search trains n candidates for R calls each. Hyperband and ASHA draw from the same space, of
four parameters of a network. For each seed all of them share the rows to score on. What is counted
is the number of calls until the best score so far is the median of random search's final scores.

`python benchmarks/adaptive_quality.py [digits|adult] [FOLDER]` prints the table; FOLDER has the
files adult-train.csv and adult-test.csv of the UCI repository. Without a fleet, in one process: a
call counts the same wherever it is made.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
from scipy.stats import loguniform
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skfleet.model_selection import ASHASearchCV, HyperbandSearchCV, IncrementalSearchCV

SPACE = {
    "hidden_layer_sizes": [(8,), (16,), (32,), (64,), (16, 16), (32, 32)],
    "alpha": loguniform(1e-6, 1e-1),
    "learning_rate_init": loguniform(1e-4, 1e-1),
    "batch_size": [32, 64, 128, 256],
}
R = 81
SEEDS = range(10)
_COLUMNS = """
age workclass fnlwgt education education-num marital-status occupation relationship race sex
capital-gain capital-loss hours-per-week native-country income
"""
COLUMNS = _COLUMNS.split()


def digits() -> tuple[Any, Any, int]:
    """Return the digits, of which a call learns all."""
    X, y = load_digits(return_X_y=True)
    return X / 16, y, len(X)


def adult(folder: str) -> tuple[Any, Any, int]:
    """Return the census rows as numbers, of which a call learns 2,000."""
    read = partial(pd.read_csv, header=None, names=COLUMNS, skipinitialspace=True)
    frame = read(Path(folder) / "adult-train.csv")
    y = frame.pop("income").str.startswith(">50K").astype(int).to_numpy()
    text = frame.select_dtypes(exclude="number").columns
    numbers = frame.columns.difference(text)
    encode = make_column_transformer(
        (StandardScaler(), numbers),
        (OneHotEncoder(sparse_output=False, handle_unknown="ignore"), text),
    )
    X = encode.fit_transform(frame).astype(np.float32)
    return X, y, 2000


def curve(search: Any) -> np.ndarray:
    """Return, for every number of calls made, the best score so far."""
    table = search.history_
    before = table.groupby("candidate")["partial_fit_calls"].shift(fill_value=0)
    spent = (table["partial_fit_calls"] - before).cumsum().to_numpy()
    best = table["test_score"].cummax().to_numpy()
    whole = np.full(spent[-1] + 1, -np.inf)
    for n, score in zip(spent, best, strict=True):
        whole[n:] = score
    return whole


def one_seed(seed: int, X: Any, y: Any, batch: int, n_random: int) -> dict[str, np.ndarray]:
    """Run the searches of a seed, one call after the other."""
    model = MLPClassifier(random_state=seed)
    common = {"random_state": seed, "batch_size": batch, "n_jobs": 1}
    searches = {
        "random": IncrementalSearchCV(
            model, SPACE, n_initial_parameters=n_random, max_iter=R, fits_per_score=R, **common
        ),
        "Hyperband": HyperbandSearchCV(model, SPACE, max_iter=R, **common),
        "ASHA": ASHASearchCV(model, SPACE, n_initial_parameters=150, max_iter=R, **common),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: curve(search.fit(X, y)) for name, search in searches.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="digits", choices=["digits", "adult"])
    parser.add_argument("folder", nargs="?", default=".")
    options = parser.parse_args()
    X, y, batch = digits() if options.data == "digits" else adult(options.folder)
    # As many calls as Hyperband makes: that is what random search gets.
    n_calls = HyperbandSearchCV(MLPClassifier(), SPACE, max_iter=R).metadata["partial_fit_calls"]
    n_random = round(n_calls / R)
    curves = joblib.Parallel(n_jobs=2)(
        joblib.delayed(one_seed)(seed, X, y, batch, n_random) for seed in SEEDS
    )
    goal = np.median([found["random"][-1] for found in curves])
    print(f"{options.data}: random search, {n_random} x {R} calls, median score {goal:.4f}")
    print("search      median calls   of random's   median score   seeds that get there")
    for name in ("random", "Hyperband", "ASHA"):
        reached = [
            int(np.argmax(found[name] >= goal)) if found[name][-1] >= goal else np.inf
            for found in curves
        ]
        final = np.median([found[name][-1] for found in curves])
        print(
            f"{name:10s} {np.median(reached):10.0f} {np.median(reached) / (n_random * R):14.2f}"
            f" {final:14.4f} {np.isfinite(reached).sum():15d} of {len(curves)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
