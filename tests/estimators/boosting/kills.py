"""Deaths of ranks and of their workers at certain rounds, once each."""

import os
import signal
from pathlib import Path

import xgboost

SNAPSHOT_ROUNDS = 5


class Deaths(xgboost.callback.TrainingCallback):
    """Kill a rank's process, or the worker that it belongs to, after a round: once each."""

    def __init__(self, deaths, directory):
        self.deaths = deaths  # (round, rank, "rank" or "worker"); the round None is the end
        self.directory = str(directory)

    def after_iteration(self, model, epoch, evals_log):
        for number, rank, victim in self.deaths:
            if (epoch, xgboost.collective.get_rank()) == (number, rank):
                die_once(self.directory, f"{number}-{rank}", victim)
        return False

    def after_training(self, model):
        for number, rank, victim in self.deaths:
            if number is None and xgboost.collective.get_rank() == rank:
                die_once(self.directory, f"end-{rank}", victim)
        return model


def die_once(directory, name, victim):
    """Kill this process, or its parent, unless that was done before under the same name."""
    path = Path(directory, name)
    if path.exists():
        return
    path.touch()
    os.kill(os.getpid() if victim == "rank" else os.getppid(), signal.SIGKILL)
    while victim == "worker":
        signal.pause()  # until the parent's death has ended this process


def n_died(directory):
    return len(list(Path(directory).iterdir()))


def draw_deaths(rng, n, n_rounds, n_ranks):
    """Return n deaths at different rounds, every other one of a whole worker."""
    numbers = sorted(rng.choice(n_rounds, n, replace=False).tolist())
    victims = ["rank", "worker"]
    return [(m, int(rng.integers(n_ranks)), victims[i % 2]) for i, m in enumerate(numbers)]
