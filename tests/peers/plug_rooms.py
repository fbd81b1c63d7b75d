"""A pytest plugin that runs scikit-learn's tests with our classes and functions in their place.

In the test modules alone: scikit-learn itself stays as it is. SKFLEET_TEST_NAMES lists what is
replaced: rooms of ours, names that stay scikit-learn's after a minus, and `name=other` where one of
ours takes the place of another name. SKFLEET_TEST_THREADS
starts two worker processes of so many threads, 0 a fleet on threads of the process. The file
SKFLEET_TEST_OUTCOMES gets a line for each test: its file, name and outcome, and the error.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import pytest
from sklearn.utils import all_estimators

# Everything of scikit-learn is loaded before its public names are replaced for a while.
all_estimators()
for name in ("sklearn.utils.estimator_checks", "sklearn.utils._testing"):
    importlib.import_module(name)

chosen = os.environ["SKFLEET_TEST_NAMES"].split()
OURS = {}
for room in (name for name in chosen if not (name.startswith("-") or "=" in name)):
    module = importlib.import_module(f"skfleet.{room}")
    OURS |= {name: getattr(module, name) for name in module.__all__}
for name in (name[1:] for name in chosen if name.startswith("-")):
    del OURS[name]
for theirs, _, name in (name.partition("=") for name in chosen if "=" in name):
    OURS[theirs] = OURS[name]

PUBLIC = [
    module
    for path, module in sys.modules.items()
    if path.partition(".")[0] == "sklearn"
    and not any(part.startswith("_") or part == "tests" for part in path.split("."))
]
# (module, name, theirs) of all public places of what has the name of one of ours.
PLACES = [
    (module, name, vars(module)[name])
    for module in PUBLIC
    for name in OURS.keys() & vars(module).keys()
    if str(getattr(vars(module)[name], "__module__", "")).startswith("sklearn.")
]
REPLACED = {id(theirs): OURS[name] for _, name, theirs in PLACES}


class Room:
    """A public module of scikit-learn with ours in it, as a test module sees it."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        value = getattr(self._module, name)
        return Room(value) if value in PUBLIC else REPLACED.get(id(value), value)


REPLACED |= {id(module): Room(module) for module in PUBLIC}


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # While test modules are imported, so that their parameters and subclasses are of ours too.
    for module, name, _ in PLACES:
        setattr(module, name, OURS[name])
    try:
        return (yield)
    finally:
        for module, name, theirs in PLACES:
            setattr(module, name, theirs)


def pytest_collection_modifyitems(items):
    # What test modules have from private modules.
    for module in {item.module for item in items}:
        for name, value in list(vars(module).items()):
            setattr(module, name, REPLACED.get(id(value), value))
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        params.update({name: REPLACED.get(id(value), value) for name, value in params.items()})


@pytest.fixture(scope="session", autouse=True)
def fleet():
    threads = os.environ.get("SKFLEET_TEST_THREADS")
    if threads is None:
        yield
        return
    from distributed import Client

    options = {"n_workers": 2, "threads_per_worker": int(threads)}
    if threads == "0":
        options = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    with Client(**options, dashboard_address=":0") as client:
        yield client


def pytest_runtest_logreport(report):
    if report.when != "call" and report.outcome != "failed":
        return
    outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
    crash = getattr(report.longrepr, "reprcrash", None)
    error = (crash.message if crash else str(report.longrepr)) if outcome == "failed" else ""
    name = report.nodeid.partition("::")[2]
    row = Path(report.location[0]).stem, name, outcome, error[:400]
    with open(os.environ["SKFLEET_TEST_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(f"{json.dumps(row)}\n")
