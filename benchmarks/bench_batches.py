"""Seconds of CPU of a model-based search one by one, with what its fits share and without.

Each pair of `least_cpu_pairs.py`, rows and a pipeline, is searched by a `BayesSearchCV` with 20
candidates and ten splits, in this process, with one thread. Without sharing there are no shared
fits, and no room for the fitted first steps of earlier batches. Both are run three times in turn,
and the least seconds count. `python benchmarks/bench_batches.py --data FOLDER [--json FILE]` takes
about five minutes.
"""

import argparse
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from least_cpu_pairs import PAIRS, Range, Rounded, data_of
from racing_quality import data_sets
from results_file import heading, write
from threadpoolctl import threadpool_limits

from skfleet import Fleet
from skfleet.model_selection import BayesSearchCV
from skfleet.model_selection._dispatch._memory import MemoryPlan

N_CANDIDATES, N_REPEATS = 20, 3
NOTE = "seconds of CPU of BayesSearchCV(n_iter=20, batch_size=1), ten splits; the least of three"


def seconds_of(name, folder, *, shares):
    """Return the seconds of CPU of a search."""
    pair, data = PAIRS[name], data_of(name, folder)
    space = {key: Rounded(v) if isinstance(v, Range) else v for key, v in pair.space.items()}
    room = nullcontext() if shares else patch.object(MemoryPlan, "spare_bytes", return_value=0)
    search = BayesSearchCV(
        pair.pipeline(),
        space,
        n_iter=N_CANDIDATES,
        batch_size=1,
        scoring=pair.scoring,
        cv=data.splits,
        random_state=0,
        refit=False,
        share_fits=shares,
    )
    with room:
        begin = time.process_time()
        search.fit(data.X, data.y)
        return time.process_time() - begin


def main():
    """Print the seconds of all pairs, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    content, pairs = heading("bench_batches.py --data FOLDER --json FILE", NOTE, ["optuna"]), {}
    with threadpool_limits(1), Fleet(n_workers=1, threads_per_worker=1, processes=False):
        for name in (name for name, pair in PAIRS.items() if pair.data in data_sets(options.data)):
            runs = [
                [seconds_of(name, options.data, shares=shares) for shares in (False, True)]
                for _ in range(N_REPEATS)
            ]
            separate, sharing = (round(min(column), 2) for column in zip(*runs, strict=True))
            pairs[name] = {"separate": separate, "sharing": sharing}
            print(
                f"{name}: {separate} s, sharing {sharing} s, {sharing / separate:.2f}", flush=True
            )
    if options.json is not None:
        write(options.json, content | {"pairs": pairs})


if __name__ == "__main__":
    main()
