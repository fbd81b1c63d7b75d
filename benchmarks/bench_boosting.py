"""Boosting on ranks next to the library's own fit in one process: seconds, ratios, memory.

``python benchmarks/bench_boosting.py [NAME...]`` prints medians of interleaved runs. Memory is the
largest resident set of all processes of the fleet and their children, less that before the fit.
``deaths`` kills a worker with its rank, once and twice in a training, and compares the models with
that of an undisturbed one. ``--json FILE`` writes the figures of the cases that are run.
"""

import argparse
import importlib
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import psutil
import results_file

import skfleet
from skfleet import Fleet
from skfleet.estimators import boosting
from skfleet.estimators.boosting import _rank_training

RUNS = 5
LIBRARIES = {"xgboost": "XGBClassifier", "lightgbm": "LGBMClassifier"}


def higgs_like(n_rows=1_000_000, n_columns=28, seed=0):
    """Return rows whose classes overlap, as those of physics do."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns)).astype(np.float32)
    score = X[:, 0] * X[:, 1] + np.abs(X[:, 2]) - 0.5 * X[:, 3] ** 2 + 0.3 * X[:, 4]
    return X, (score + rng.normal(size=n_rows) > 0.3).astype(int)


def classes(library):
    """Return our class and the library's."""
    name = LIBRARIES[library]
    return getattr(boosting, name), getattr(importlib.import_module(library), name)


def seconds_of(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleaved(*functions, runs=RUNS):
    """Return the median seconds of functions that are called in turn."""
    seconds = [[seconds_of(function) for function in functions] for _ in range(runs)]
    return [statistics.median(column) for column in zip(*seconds, strict=True)]


@contextmanager
def peak_of_children():
    """Yield a list that has, at the end, the growth of all child processes' private memory."""
    result, stop = [], threading.Event()

    def size():
        total = 0
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                total += process.memory_full_info().uss
        return total

    before = size()

    def watch():
        peak = 0
        while not stop.wait(0.05):
            peak = max(peak, size() - before)
        result.append(peak)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield result
    finally:
        stop.set()
        thread.join()


def train(library):
    """Time 100 rounds on two workers of one thread, and on one process of two threads."""
    ours, plain = classes(library)
    X, y = higgs_like()
    with Fleet(n_workers=2, threads_per_worker=1):
        Xd, yd = (da.from_array(v, chunks=(62_500, *v.shape[1:])).persist() for v in (X, y))
        on_ranks, alone = interleaved(
            lambda: ours(n_estimators=100).fit(Xd, yd),
            lambda: plain(n_estimators=100, n_jobs=2).fit(X, y),
        )
    print(f"{library} 1,000,000 x 28, 100 rounds: {on_ranks:.2f} s on two workers of a thread, "
          f"{alone:.2f} s in one process of two: {on_ranks / alone:.2f}", flush=True)  # fmt: skip
    return {"on_ranks": on_ranks, "alone": alone}


def segments(library):
    """Time the segments and snapshots of a fit, next to one segment without any snapshot."""
    ours, _ = classes(library)
    X, y = higgs_like(300_000)
    whole = _rank_training.ANSWER_SECONDS

    def fit(answer_seconds, interval):
        _rank_training.ANSWER_SECONDS = answer_seconds
        ours(n_estimators=100, checkpoint_interval=interval).fit(Xd, yd)

    with Fleet(n_workers=2, threads_per_worker=1):
        Xd, yd = (da.from_array(v, chunks=(37_500, *v.shape[1:])).persist() for v in (X, y))
        cut, uncut = interleaved(lambda: fit(whole, "auto"), lambda: fit(1e6, 10**6))
    _rank_training.ANSWER_SECONDS = whole
    print(f"{library} segments: {cut:.2f} s, without: {uncut:.2f} s: {cut / uncut:.3f}", flush=True)
    return {"cut": cut, "uncut": uncut}


def concurrent(library):
    """Time 20 small fits at once, and the same submitted by hand."""
    ours, plain = classes(library)
    X, y = higgs_like(20_000)
    with Fleet(n_workers=2, threads_per_worker=1) as client:
        Xd, yd = (da.from_array(v, chunks=(5_000, *v.shape[1:])).persist() for v in (X, y))

        def at_once():
            with ThreadPoolExecutor(20) as pool:
                models = [ours(n_estimators=50, n_jobs=1, random_state=i) for i in range(20)]
                list(pool.map(lambda model: model.fit(Xd, yd), models))

        def by_hand():
            models = [plain(n_estimators=50, n_jobs=1, random_state=i) for i in range(20)]
            futures = [client.submit(m.fit, X_parts, y_parts) for m in models]
            client.gather(futures)

        X_parts, y_parts = client.scatter(X), client.scatter(y)
        ours_seconds, hand = interleaved(at_once, by_hand)
    print(f"{library} 20 small fits at once: {ours_seconds:.2f} s, by hand {hand:.2f} s: "
          f"{ours_seconds / hand:.2f}", flush=True)  # fmt: skip
    return {"ours": ours_seconds, "by_hand": hand}


ALONE = """
import sys, numpy as np, {library}, threading, psutil, time
sys.path[:0] = {path!r}
from bench_boosting import feed_alone
feed_alone({library!r}, {folder!r})
"""


def target_of(file):
    """Return the file of the targets of a file's rows."""
    return file.with_name(file.name.replace("X", "y"))


def feed_alone(library, folder):
    """Train in this process on blocks of files, by the library's own iterator."""
    files = sorted(Path(folder).glob("X-*.npy"))
    if library == "xgboost":
        import xgboost

        class Blocks(xgboost.DataIter):
            def __init__(self):
                self.position = 0
                super().__init__(release_data=True)

            def next(self, input_data):
                if self.position == len(files):
                    return False
                file = files[self.position]
                input_data(data=np.load(file), label=np.load(target_of(file)))
                self.position += 1
                return True

            def reset(self):
                self.position = 0

        matrix = xgboost.QuantileDMatrix(Blocks(), nthread=2)
        xgboost.train({"objective": "binary:logistic", "nthread": 2}, matrix, 20)
        return
    import lightgbm

    class Rows(lightgbm.Sequence):
        batch_size = 62_500

        def __init__(self, file):
            self.X = np.load(file, mmap_mode="r")

        def __getitem__(self, index):
            return self.X[index].astype(float)

        def __len__(self):
            return len(self.X)

    labels = np.concatenate([np.load(target_of(file)) for file in files])
    rows = lightgbm.Dataset([Rows(file) for file in files], label=labels)
    lightgbm.train({"objective": "binary", "num_threads": 2, "verbose": -1}, rows, 20)


def rows_in_files(folder, n_rows, n_columns, size):
    """Write blocks of rows to files, and return the arrays that load them."""
    for i in range(n_rows // size):
        X, y = higgs_like(size, n_columns, seed=i)
        np.save(Path(folder, f"X-{i:03d}.npy"), X)
        np.save(Path(folder, f"y-{i:03d}.npy"), y)
    load = dask.delayed(np.load, pure=True)

    def rows_of(name, shape, dtype):
        files = sorted(map(str, Path(folder).glob(f"{name}-*.npy")))
        parts = [da.from_delayed(load(f), (size, *shape), dtype=dtype) for f in files]
        return da.concatenate(parts)

    return rows_of("X", (n_columns,), np.float32), rows_of("y", (), int)


def memory(library):
    """Measure the peak above idle of ranks, and of the library's own iterator in one process."""
    import subprocess

    ours, _ = classes(library)
    n_rows, n_columns, size = 4_000_000, 28, 125_000
    with tempfile.TemporaryDirectory() as folder:
        Xd, yd = rows_in_files(folder, n_rows, n_columns, size)
        path = [str(Path(__file__).parent)]
        code = ALONE.format(library=library, path=path, folder=folder)
        with peak_of_children() as alone:
            subprocess.run([sys.executable, "-c", code], check=True)
        with Fleet(n_workers=2, threads_per_worker=1) as client:
            client.run(lambda: __import__(library))
            with peak_of_children() as ranks:
                ours(n_estimators=20).fit(Xd, yd)
    block = size * n_columns * 4
    ratio = (ranks[0] - block) / alone[0]
    print(f"{library} memory: {ranks[0] / 1e6:.0f} MB on two workers, {alone[0] / 1e6:.0f} MB "
          f"in one process: {ratio:.2f}, without a block", flush=True)  # fmt: skip
    return {"on_ranks_bytes": ranks[0] - block, "alone_bytes": alone[0]}


# -- deaths ----------------------------------------------------------------------------------------

N_ROUNDS, SNAPSHOT_ROUNDS, DEATHS = 100, 10, ((), (45,), (45, 75))


class Rounds:
    """Notes each round that a rank begins, and kills its worker before some, once each."""

    def __init__(self, folder, deaths):
        self.folder, self.deaths = Path(folder), deaths

    def __call__(self, number):
        death = self.folder / f"death-{number}"
        if number in self.deaths and not death.exists():
            death.touch()
            os.kill(os.getppid(), signal.SIGKILL)
            while True:
                signal.pause()  # until the worker's death has ended this process
        with (self.folder / "rounds").open("a") as file:
            file.write(f"{os.getpid()} {number}\n")

    def begun(self):
        """Return the number of rounds that were begun, after a check that all deaths were."""
        assert len(list(self.folder.glob("death-*"))) == len(self.deaths)
        lines = (self.folder / "rounds").read_text().splitlines()
        assert len({line.split()[0] for line in lines}) == 1 + len(self.deaths)  # a rank at a time
        return len(lines)


class LightGBMCallback:
    """Calls a function with the number of each round, before the round."""

    before_iteration = True

    def __init__(self, function):
        self.function = function

    def __call__(self, env):
        self.function(env.iteration)


def xgboost_callback(function):
    """Return a callback that calls a function with the number of each round, before the round."""
    import xgboost

    class Callback(xgboost.callback.TrainingCallback):
        def before_iteration(self, model, epoch, evals_log):
            function(epoch)
            return False

    return Callback()


def train_through(library, X, y, function):
    """Return the booster of a training on ranks, as bytes."""
    ours, _ = classes(library)
    options = {"n_estimators": N_ROUNDS, "checkpoint_interval": SNAPSHOT_ROUNDS}
    with skfleet.config_context(single_task_below=0):
        if library == "xgboost":
            model = ours(callbacks=[xgboost_callback(function)], **options).fit(X, y)
            return bytes(model.get_booster().save_raw("ubj"))
        model = ours(verbose=-1, **options).fit(X, y, callbacks=[LightGBMCallback(function)])
        return model.booster_.model_to_string(num_iteration=-1).encode()


def deaths(library, n_rows=300_000, n_columns=28, runs=4):
    """Time trainings through no, one and two deaths of a worker, and count their rounds."""
    figures = [{"deaths": list(d), "seconds": [], "rounds": [], "load": []} for d in DEATHS]
    expected = None
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"}),
        Fleet(n_workers=2, threads_per_worker=1) as client,
    ):
        X, y = rows_in_files(folder, n_rows, n_columns, n_rows // 12)
        for run in range(runs):
            for case in figures:
                client.wait_for_workers(2, timeout=600)
                with tempfile.TemporaryDirectory() as notes:
                    rounds = Rounds(notes, case["deaths"])
                    start = time.perf_counter()
                    model = train_through(library, X, y, rounds)
                    taken = time.perf_counter() - start
                    n_begun = rounds.begun()
                expected = expected or model
                assert model == expected
                if run:  # the first one loads the library
                    case["seconds"].append(round(taken, 3))
                    case["rounds"].append(n_begun)
                    case["load"].append(results_file.load())
    for case in figures:
        seconds, n_begun = (statistics.median(case[key]) for key in ("seconds", "rounds"))
        print(
            f"{library} {n_rows:,} x {n_columns}, {N_ROUNDS} rounds, deaths before rounds "
            f"{case['deaths']}: {seconds:.2f} s, {n_begun:.0f} rounds begun, the same model",
            flush=True,
        )
    return {
        "rows": n_rows,
        "columns": n_columns,
        "rounds": N_ROUNDS,
        "rounds_between_snapshots": SNAPSHOT_ROUNDS,
        "same_model": True,
        "trainings": figures,
    }


CASES = {f.__name__: f for f in (train, segments, concurrent, memory, deaths)}
NOTE = (
    "Two workers of one thread. deaths: the rounds before which the worker of the rank was killed. "
    "seconds, rounds: of all repeats, which are in turn; rounds are those that were begun in all. "
    "Each model was compared with the first one, and is the same to the last bit. load: of the "
    "machine in the minute before the end of a training, with its own."
)


def main():
    """Run the cases, print a line for each, and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="CASE or CASE-LIBRARY, such as deaths-xgboost")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    names = arguments.names or [f"{case}-{library}" for library in LIBRARIES for case in CASES]
    command = " ".join(["python benchmarks/bench_boosting.py", *names, "--json FILE"])
    content = results_file.heading(command, NOTE, LIBRARIES)
    for name in names:
        case, _, library = name.partition("-")
        content[name] = CASES[case](library or "xgboost")
        if arguments.json:
            results_file.write(arguments.json, content)


if __name__ == "__main__":
    main()
