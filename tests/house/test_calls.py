"""Who calls whom in a search, seen by a profiler: where it goes up, only protocols are called."""

import sys
import tomllib
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline

import skfleet
from skfleet import Fleet
from skfleet.estimators import (
    ColumnTransformer,
    LogisticRegression,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)
from skfleet.model_selection import GridSearchCV

PACKAGE = Path(skfleet.__file__).parent
ROOT = Path(__file__).parents[2]

# Calls from a lower room into a higher one, which must not know it: methods that somebody else's
# interface asks for. (caller, called): why
UPWARD = {
    ("__init__", "joblib_backend"): "joblib builds the backend by its name",
    ("model_selection", "joblib_backend"): "joblib's backend in use is asked for its slots",
    ("estimators", "joblib_backend"): "scikit-learn's own transformers call joblib.Parallel",
    ("_captured_output", "joblib_backend"): "a callback",
    ("_cluster", "fleet"): "the client of a Fleet is a subclass of distributed's",
    ("engine", "_joblib"): "pickle: a table of reducers",
    ("engine", "inference"): "pickle: __reduce__",
    ("blocks", "inference"): "pickle: __reduce__, for the name of a task",
    ("blocks", "estimators"): "pickle: __reduce__, for the name of a task",
    ("engine", "estimators"): "generators of passes are resumed",
    ("engine", "metrics"): "generators of passes are resumed",
    ("_validation", "blocks"): "attributes of rows",
    ("estimators", "model_selection"): "rows of a search have a length",
}  # fmt: skip

# Files of the package that one search goes through, and pairs of rooms of which one calls the other
MAX_FILES = 147
MAX_ROOM_CHANGES = 45


def floors():
    """Read from the contract of imports on which floor each room is, from the top."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = [layer.replace("(", "").replace(")", "").split(" | ") for layer in layers]
    return {room: n for n, names in enumerate([*rooms, ["__init__"]]) for room in names}


def room_of(path):
    """Name the room of a file: the folder, or file, at the top of the package."""
    return Path(path).relative_to(PACKAGE).parts[0].removesuffix(".py")


class Profile:
    """Files of the package that are called in this thread, and which rooms call which."""

    def __init__(self):
        self.files, self.calls = set(), {}

    def __call__(self, frame, event, arg):
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(str(PACKAGE)):
            return
        self.files.add(path)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(str(PACKAGE)):
            caller = caller.f_back
        if caller is not None:
            rooms = room_of(caller.f_code.co_filename), room_of(path)
            names = f"{caller.f_code.co_qualname} calls {frame.f_code.co_qualname}"
            self.calls.setdefault(rooms, names)


@pytest.fixture(scope="module")
def profile():
    rng, n = np.random.default_rng(0), 400
    frame = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    labels = (frame["a"] + rng.normal(size=n) > 0).astype(int)
    frame["c"] = rng.choice(list("xyz"), n)
    X, y = (dd.from_pandas(values, npartitions=2) for values in (frame, labels))
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    columns = [("numbers", numbers, ["a", "b"]), ("text", OneHotEncoder(), ["c"])]
    pipeline = make_pipeline(ColumnTransformer(columns), LogisticRegression())
    grid, own = {"logisticregression__C": [0.1, 1.0]}, Profile()
    with Fleet(n_workers=2, processes=False):
        GridSearchCV(pipeline, grid, cv=2).fit(X, y)  # imports what it needs
        previous = sys.getprofile()
        sys.setprofile(own)
        try:
            GridSearchCV(pipeline, grid, cv=2).fit(X, y)
        finally:
            sys.setprofile(previous)
    return own


def test_calls_go_downwards_but_for_protocols(profile):
    floor = floors()
    unknown = {
        rooms: names
        for rooms, names in profile.calls.items()
        if floor[rooms[1]] < floor[rooms[0]] and rooms not in UPWARD
    }
    assert not unknown


def test_a_search_goes_through_few_files_and_rooms(profile):
    floor = floors()
    rooms = {
        (caller, called)
        for caller, called in profile.calls
        if caller != called and floor[called] < floor["_validation"]
    }
    assert len(profile.files) <= MAX_FILES
    assert len(rooms) <= MAX_ROOM_CHANGES
