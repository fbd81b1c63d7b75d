"""The ``memory`` of pipelines whose steps are of classes that this process cannot import."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

from sklearn.pipeline import Pipeline


class NoMemory:
    """Memory that caches nothing, and is shown as the one in the place of which it stands."""

    def __init__(self, memory: Any) -> None:
        self._repr = repr(memory)

    def __repr__(self) -> str:
        return self._repr

    def cache(self, func: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        """Return the function itself."""
        return func


def drop_memory(estimator: Any, parameters: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Drop each memory of a pipeline, in place, that cannot know the steps; return the parameters.

    joblib knows a step by its pickle, which names its class. A class of the caller's script came to
    a worker process by value, and has no name there. The fits of a search share such steps.
    """
    if not hasattr(estimator, "get_params"):
        return parameters
    parts, replaced = estimator.get_params(deep=True), dict(parameters or {})
    memories = {name: v for name, v in {**parts, **replaced}.items() if _is_memory(name)}
    for name, memory in memories.items():
        owner = parts.get(name.removesuffix("memory").removesuffix("__"), estimator)
        is_used = isinstance(owner, Pipeline) and (memory, owner.memory) != (None, None)
        if not is_used or is_importable((owner.steps[:-1], parameters)):
            continue
        owner.memory = None
        if replaced.get(name) is not None:
            replaced[name] = NoMemory(memory)
    return parameters if parameters is None else replaced


def _is_memory(name: str) -> bool:
    return name == "memory" or name.endswith("__memory")


def is_importable(steps: Any) -> bool:
    """Return whether steps can be pickled by the names of their classes and functions."""
    try:
        pickle.dumps(steps)
    except Exception:
        return False
    return True
