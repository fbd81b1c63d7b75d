"""Store of partially trained models, part of the checkpoint of an adaptive search."""

from __future__ import annotations

import os

from skfleet._checkpoint_store import CheckpointStore
from skfleet.model_selection._adaptive._training_tasks import TrainedModel


class ModelStore:
    """The models of a search in its checkpoint, which workers write and read.

    A file is named by its candidate and the number of calls, or other resources, that the model has
    had.
    """

    def __init__(self, location: str | os.PathLike[str], search: str) -> None:
        self.search = search
        self._checkpoint = CheckpointStore(location)
        self._models = CheckpointStore(location, f"models-{search}")

    @property
    def location(self) -> str:
        return self._checkpoint.location

    def is_seen(self) -> bool:
        """Return whether this process sees the directory of the checkpoint."""
        return bool(self._checkpoint.names("search.json"))

    def find(self, candidate: str, levels: range) -> TrainedModel | None:
        """Return the first model with a number of calls in the range; else the latest before it."""
        n_calls = levels.start
        stored = [n for n in self._stored_calls(candidate) if n < levels.stop]
        for n in sorted(stored, key=lambda n: (n < n_calls, abs(n - n_calls))):
            trained = self.exact(candidate, n)
            if trained is not None:
                return trained
        return None

    def exact(self, candidate: str, n_calls: int) -> TrainedModel | None:
        """Return the model after exactly `n_calls` calls, or None."""
        trained: TrainedModel | None = self._models.load(f"{candidate}-{n_calls}.model")
        return trained

    def put(self, candidate: str, trained: TrainedModel) -> None:
        """Write a model."""
        self._models.dump(f"{candidate}-{trained.n_calls}.model", trained)

    def prune(self, needed: set[tuple[str, int]], candidate: str) -> None:
        """Delete the models of a candidate that are not among the needed (candidate, n_calls)."""
        for n in self._stored_calls(candidate):
            if (candidate, n) not in needed:
                self._models.remove(f"{candidate}-{n}.model")

    def _stored_calls(self, candidate: str) -> list[int]:
        """Return the numbers of calls of the stored models of a candidate."""
        names = self._models.names(f"{candidate}-*.model")
        return [int(name.rpartition("-")[2].removesuffix(".model")) for name in names]
