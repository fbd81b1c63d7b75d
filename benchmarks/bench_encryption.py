"""A fleet with credentials, whose processes encrypt what they send, next to one without.

Both are open at the same time, with two worker processes each, and do everything in turns: medians
of eleven pairs. For starts they are seconds of CPU, as those of the clock are long beside other
programs. ``python bench_encryption.py [--json FILE]`` takes minutes; ``--only`` measures some
anew.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from statistics import median

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import wait
from results_file import heading, write
from threadpoolctl import threadpool_limits

from skfleet import Fleet, config_context
from skfleet.estimators import LogisticRegression

N_PAIRS, N_BYTES = 11, 160_000_000
N_ROWS, N_COLUMNS, N_BLOCKS = 400_000, 50, 16
WAYS = {"plain": {"security": False}, "encrypted": {}}
NOTE = (
    "seconds, of CPU for starts, medians of 11 pairs in turns, while other programs kept the two "
    "cores busy; `ratio` is the median of the pairs' ratios; an array is 160 MB, the frame 136 MB"
)


def seconds_of(work, *args):
    """Return the seconds of a call."""
    begin = time.perf_counter()
    work(*args)
    return time.perf_counter() - begin


def cpu_seconds_of(work, *args):
    """Return the seconds of CPU of a call, with those of processes that have ended in it."""
    begin = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    work(*args)
    end = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    children = (end[1].ru_utime - begin[1].ru_utime) + (end[1].ru_stime - begin[1].ru_stime)
    return end[0] - begin[0] + children


def start(client):
    """Start a fleet of two workers, as the given one was, and run a first task."""
    is_plain = client.scheduler.address.startswith("tcp")
    with Fleet(n_workers=2, **WAYS["plain" if is_plain else "encrypted"]) as other:
        other.submit(int).result()


def made_by(client, *workers):
    """Return an array of 160 MB on each of these workers."""
    makes = [
        client.submit(np.ones, N_BYTES // 8, workers=[worker], pure=False) for worker in workers
    ]
    wait(makes)
    return makes


def send(client, array):
    """Add up an array on the worker that has it not."""
    (holder,) = client.who_has(array)[array.key]
    (other,) = set(client.nthreads()) - {holder}
    client.submit(np.sum, array, workers=[other], pure=False).result()


def part(number):
    """Return 125,000 rows of 16 values, whose keys are in no order."""
    rng = np.random.default_rng(number)
    values = pd.DataFrame(rng.normal(size=(125_000, 16)), columns=[f"c{i}" for i in range(16)])
    return values.assign(key=rng.integers(0, 1000, len(values)))


def frame():
    """Return a million rows, of 136 MB."""
    return dd.from_map(part, range(8))


def shuffle(client, persisted):
    """Shuffle rows by their keys."""
    wait(persisted.shuffle("key").persist())


def rows(client):
    """Return rows and labels in the memory of the workers."""
    X = da.random.default_rng(0).normal(
        size=(N_ROWS, N_COLUMNS), chunks=(N_ROWS // N_BLOCKS, N_COLUMNS)
    )
    X, y = client.persist([X, (X[:, 0] > 0).astype(int)])
    wait([X, y])
    return X, y


def fit(client, data):
    """Fit on rows that the workers hold: about twenty passes."""
    with config_context(single_task_below=0):
        LogisticRegression(solver="lbfgs", tol=1e-6).fit(*data)


# What is measured, and what it is given: made anew for each measurement, or once for a fleet.
NEW = {
    "start and end of two workers": (start, lambda client: ()),
    "array from worker to worker": (
        send,
        lambda client: made_by(client, next(iter(client.nthreads()))),
    ),
    "two arrays gathered": (
        lambda client, *arrays: client.gather(arrays),
        lambda client: made_by(client, *client.nthreads()),
    ),
}
KEPT = {
    "shuffle of a frame": (shuffle, lambda client: client.persist(frame())),
    "logistic regression on persisted rows": (fit, rows),
}


def measure(clients, names):
    """Return the seconds of all pairs, by what is measured."""
    found = {}
    for name in names:
        work, make = {**KEPT, **NEW}[name]
        data = {}
        if name in KEPT:
            for way, client in clients.items():
                with client.as_current():
                    data[way] = make(client)
                    wait(data[way])
                    work(client, data[way])
        pairs = []
        clock = cpu_seconds_of if work is start else seconds_of
        for number in range(N_PAIRS):
            pair = {}
            for way in list(clients)[:: 1 if number % 2 else -1]:
                client = clients[way]
                with client.as_current():
                    args = (data[way],) if name in KEPT else make(client)
                    pair[way] = clock(work, client, *args)
                    del args
            pairs.append(pair)
        found[name] = summary(pairs)
        print(name, found[name], flush=True)
    return found


def summary(pairs):
    """Return the medians of pairs, and of their ratios."""
    medians = {way: round(median(pair[way] for pair in pairs), 3) for way in WAYS}
    ratios = [pair["encrypted"] / pair["plain"] for pair in pairs]
    return medians | {"ratio": round(median(ratios), 2)}


def main():
    """Print the medians, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--only", nargs="+", default=[*KEPT, *NEW], help="what is measured")
    options = parser.parse_args()
    content = heading("bench_encryption.py --json FILE", NOTE, ["cryptography"])
    fleets = {way: Fleet(n_workers=2, **given) for way, given in WAYS.items()}
    try:
        with threadpool_limits(1):
            clients = {way: fleet.client for way, fleet in fleets.items()}
            found = measure(clients, options.only)
    finally:
        for fleet in fleets.values():
            fleet.close()
    if options.json is not None:
        if options.json.exists():
            found = json.loads(options.json.read_text())["pairs"] | found
        write(options.json, content | {"pairs": found})


if __name__ == "__main__":
    main()
