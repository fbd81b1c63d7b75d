"""Store of partially trained models, part of the checkpoint of an adaptive search."""

from __future__ import annotations

import os
from dataclasses import replace
from uuid import uuid4

from skfleet._checkpoint_store import CheckpointStore
from skfleet.model_selection._adaptive._training_tasks import TrainedModel


class ModelStore:
    """The models of a search in its checkpoint, which workers write and read.

    A file is named by its candidate and the number of calls, or other resources, that the model has
    had.
    """

    def __init__(self, location: str | os.PathLike[str], search: str) -> None:
        self.search, self.run = search, uuid4().hex
        self._checkpoint = CheckpointStore(location)
        self._models = CheckpointStore(location, f"models-{search}")

    @property
    def location(self) -> str:
        return self._checkpoint.location

    def is_seen(self) -> bool:
        """Return whether this process sees the directory of the checkpoint."""
        return bool(self._checkpoint.names("search.json"))

    def find(self, candidate: str, levels: range, *, goes_on: bool = True) -> TrainedModel | None:
        """Return the model of a candidate from which a task need not start, or need not run at all.

        That is the first with a number of calls in the range; else the first after it, of this run;
        else the latest before it, where training `goes_on` from a model. One after it is further
        than the task's instruction: if it is of this run, the scores of the instruction have been
        recorded, and the task runs again for a lost worker.
        """
        stored = sorted(self._stored_calls(candidate))
        earlier = [n for n in reversed(stored) if n < levels.start] if goes_on else []
        for n in [*(n for n in stored if n >= levels.start), *earlier]:
            trained = self.exact(candidate, n)
            if trained is not None and (n < levels.stop or trained.run == self.run):
                return trained
        return None

    def exact(self, candidate: str, n_calls: int) -> TrainedModel | None:
        """Return the model after exactly `n_calls` calls, or None."""
        trained: TrainedModel | None = self._models.load(f"{candidate}-{n_calls}.model")
        return trained

    def put(self, candidate: str, trained: TrainedModel) -> None:
        """Write a model."""
        name = f"{candidate}-{trained.n_calls}.model"
        self._models.dump(name, replace(trained, run=self.run))

    def prune(self, needed: set[tuple[str, int]], candidate: str) -> None:
        """Delete the models of a candidate that are not among the needed (candidate, n_calls)."""
        for n in self._stored_calls(candidate):
            if (candidate, n) not in needed:
                self._models.remove(f"{candidate}-{n}.model")

    def _stored_calls(self, candidate: str) -> list[int]:
        """Return the numbers of calls of the stored models of a candidate."""
        names = self._models.names(f"{candidate}-*.model")
        return [int(name.rpartition("-")[2].removesuffix(".model")) for name in names]
