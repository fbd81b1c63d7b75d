"""Private names of other libraries: where they stand, and what is lost where one goes."""

import ast
import asyncio
import importlib
import inspect
import pkgutil
from pathlib import Path

import dask.dataframe as dd
import joblib
import pandas as pd
import pytest
from dask.dataframe.dask_expr.io import BlockwiseIO
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from distributed import Client, Scheduler, SpecCluster

import skfleet
from skfleet import _dask_private, _distributed_private, _joblib_private, _sklearn_private
from source_trees import tree_of

PACKAGE = Path(skfleet.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# Of named tuples and the standard library; and of ours, which are set on objects of others.
PUBLIC = {"_asdict", "_exit", "_fields", "_getframe", "_replace"}
OWN = {"_frame_rows", "_known_lengths", "_known_moments"}
SETS = _sklearn_private.SETS
OVERRIDES = {
    "dask": _dask_private.OVERRIDES,
    "distributed": _distributed_private.OVERRIDES,
    "sklearn": _sklearn_private.OVERRIDES,
}
# What Python, scikit-learn and Dask set in each class themselves; Dask at the first instance.
GIVEN = {"_abc_impl", "_instances", "_sklearn_auto_wrap_output_keys"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def defined_names(trees):
    """Return the names that the package itself gives to functions, classes, values and fields."""
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = getattr(node.value, "id", None)
            names |= {node.attr} if owner in ("self", "cls") else set()
    return names


def private_imports(tree):
    """Return the private modules and names of other libraries that a file imports, in full."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    others = {name for name in names if name.partition(".")[0] != "skfleet"}
    return {name for name in others if any(map(is_private, name.split(".")))}


def private_attributes(tree, own):
    """Return the private attributes that a file reads or sets, but for those of our own."""
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name for name in attributes if is_private(name)} - own


def overridden(cls):
    """Yield private names that a class of ours overrides, with the library of each."""
    for name in filter(is_private, vars(cls)):
        for base in cls.__mro__[1:]:
            library = base.__module__.partition(".")[0]
            if library != "skfleet" and name in vars(base):
                yield library, name


def classes():
    """Yield the classes of the package."""
    for info in pkgutil.walk_packages(skfleet.__path__, "skfleet."):
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # of an optional library
            continue
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == info.name:
                yield cls


@pytest.fixture(scope="module")
def own():
    return defined_names([tree_of(file) for file in FILES]) | PUBLIC | OWN


def test_private_names_of_others_stand_in_one_file_each(own):
    found = {}
    for file in FILES:
        tree, library = tree_of(file), file.stem.removesuffix("_private").strip("_")
        if not file.stem.endswith("_private"):
            names = private_imports(tree) | private_attributes(tree, own) - set(SETS)
        else:
            names = {name for name in private_imports(tree) if name.partition(".")[0] != library}
        found |= {str(file.relative_to(PACKAGE)): names} if names else {}
    assert found == {}


def test_the_search_for_private_names_finds_them():
    tree = ast.parse(
        "import a._b\nfrom a._b import c\nfrom a import _d, e\nfrom skfleet._x import y\n"
        "from a import __version__\nx._f\nself._g\nx.__dict__\n"
    )
    own = defined_names([ast.parse("def f(self):\n    self._g = 1\n")])
    assert private_imports(tree) == {"a._b", "a._b.c", "a._d"}
    assert private_attributes(tree, own) == {"_f"}


def test_overridden_names_are_those_of_the_lists():
    found = {}
    for library, name in (pair for cls in classes() for pair in overridden(cls)):
        if library in OVERRIDES and name not in GIVEN:
            found.setdefault(library, set()).add(name)
    by_replacement = {"_read_table"}  # in a class that is made when it is needed
    assert found == {k: set(v) - by_replacement for k, v in OVERRIDES.items()}


def test_each_required_name_of_dask_says_what_it_is_for():
    assert _dask_private.REQUIRED.keys() == set(_dask_private.__all__)


def test_readers_of_dask_tell_their_files(tmp_path):
    frame = pd.DataFrame({"a": range(10), "b": range(10)})
    for i in range(2):
        frame.to_parquet(tmp_path / f"{i}.parquet", index=False)
    (reader,) = dd.read_parquet(tmp_path).optimize(fuse=False).expr.find_operations(BlockwiseIO)
    assert list(_dask_private.partitions_of(reader)) == [0, 1]
    assert _dask_private.filesystem_of(reader).exists(str(tmp_path))
    assert _dask_private.read_task(reader, "name", 1).key == "name"
    table = _dask_private.arrow_table(ArrowDatasetEngine, frame, preserve_index=False, schema=None)
    assert table.column_names == ["a", "b"]


def test_clients_of_distributed_are_found_in_its_order():
    with (
        Client(processes=False, n_workers=1, dashboard_address=":0") as first,
        Client(first.scheduler.address) as second,
    ):
        found = list(_distributed_private.default_clients())
        assert found.index(second) < found.index(first)
        with first.as_current():
            assert next(_distributed_private.default_clients()) is first


def test_clusters_wait_for_coroutines_when_they_close():
    done = []

    async def close_a_cluster():
        scheduler = {"cls": Scheduler, "options": {"dashboard": False, "port": 0}}
        async with SpecCluster({}, scheduler, asynchronous=True) as cluster:

            async def later():
                await asyncio.sleep(0.1)
                done.append(True)

            _distributed_private.run_until_closed(cluster, later())
        return list(done)

    assert asyncio.run(close_a_cluster()) == [True]


def test_joblib_tells_how_far_its_calls_are():
    parallel = joblib.Parallel(n_jobs=2, backend="threading")
    parallel(joblib.delayed(abs)(i) for i in range(4))
    assert _joblib_private.has_all_calls(parallel)
    _joblib_private.raise_error_of_calls(parallel)  # there is none
    assert hasattr(parallel, "_raise_error_fast"), "errors of generators of calls would be lost"
