"""Deaths and pauses of ranks in certain rounds, in callbacks of either library."""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import xgboost


class Death(NamedTuple):
    """A rank's process dies, or its worker's, in a round; the round None is the end of training.

    The rank None is the first one that gets as far.
    """

    number: int | None
    rank: int | None
    victim: str  # "rank" or "worker"


class Deaths:
    """Deaths that happen once each; files in a directory say when, and where training went on."""

    def __init__(self, deaths, directory):
        self.deaths, self.directory, self._has_begun = deaths, Path(directory), False

    def __call__(self, number, rank):
        if not self._has_begun and number is not None:
            self._has_begun = True
            (self.directory / f"begin-{number}-{uuid4().hex}").touch()
        for death in self.deaths:
            if number == death.number and death.rank in (rank, None) and self._is_first(death):
                os.kill(os.getpid() if death.victim == "rank" else os.getppid(), signal.SIGKILL)
                while True:
                    signal.pause()  # until the parent's death has ended this process

    def _is_first(self, death):
        try:
            self._path_of(death).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _path_of(self, death):
        return self.directory / f"death-{death.number}-{death.rank}"

    def next_begins(self):
        """Return the first round that was trained after each death."""
        begins = sorted(
            (path.stat().st_mtime_ns, int(path.name.split("-")[1]))
            for path in self.directory.glob("begin-*")
        )
        moments = [self._path_of(death).stat().st_mtime_ns for death in self.deaths]
        return [next(number for begin, number in begins if begin > moment) for moment in moments]


class Pause:
    """Each rank makes a file with its process's number in a round, once; rank 0 waits then."""

    def __init__(self, number, directory, seconds):
        self.number, self.directory, self.seconds = number, str(directory), seconds

    def __call__(self, number, rank):
        if number != self.number or rank in self.pids():
            return
        Path(self.directory, f"pause-{rank}-{os.getpid()}").touch()
        if rank == 0:
            time.sleep(self.seconds)

    def pids(self):
        """Return the process of each rank that has got there."""
        names = [path.name.split("-") for path in Path(self.directory).glob("pause-*")]
        return {int(rank): int(pid) for _, rank, pid in names}


class XGBoostCallback(xgboost.callback.TrainingCallback):
    """Call a function with the number of each round and the rank, at the end of the round."""

    def __init__(self, function):
        self.function = function

    def after_iteration(self, model, epoch, evals_log):
        self.function(epoch, xgboost.collective.get_rank())
        return False

    def after_training(self, model):
        self.function(None, xgboost.collective.get_rank())
        return model


class LightGBMCallback:
    """Call a function with the number of each round and the rank, before the round.

    LightGBM does not tell a callback its rank: rank 0 is the one that has the evaluation set.
    """

    before_iteration = True

    def __init__(self, function):
        self.function = function

    def __call__(self, env):
        self.function(env.iteration, 0 if env.model.valid_sets else 1)


def draw_deaths(seed, n, n_rounds, n_ranks):
    """Return n deaths in different rounds, every other one of a whole worker."""
    rng = np.random.default_rng(seed)
    numbers = sorted(rng.choice(n_rounds, n, replace=False).tolist())
    victims = ["rank", "worker"]
    return [Death(m, int(rng.integers(n_ranks)), victims[i % 2]) for i, m in enumerate(numbers)]
