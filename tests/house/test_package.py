"""The rules of the house that no import contract can see, read from the source text."""

import ast
import contextlib
import doctest
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from source_trees import tree_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "skfleet"
INSTALL = ROOT / "docs" / "get_started" / "install.md"
FILES = sorted(PACKAGE.rglob("*.py"))

# Nobody pays for these with an import of skfleet; they are looked for when a caller uses them.
OPTIONAL = {
    "IPython", "bokeh", "cudf", "cuml", "cupy", "dask_cuda", "lightgbm", "matplotlib", "numba",
    "optuna", "rich", "xgboost",
}  # fmt: skip


# Whether pickle takes an object is known by trying; a damaged file is warned of.
CATCHES_ALL = {
    PACKAGE / name
    for name in (
        "_checkpoint_store.py",
        "_exception_pickle.py",
        "engine/_child_process.py",
        "engine/_dask/_serialize.py",
        "model_selection/_dispatch/_memory_of_steps.py",
    )
}


def module_of(path):
    """Name the module that a file of the package is."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dask_modules():
    """Read from the import contract which modules may know Dask."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = (c for c in contracts if "dask" in c.get("forbidden_modules", ()))
    patterns = {line.split(" -> ")[0] for line in contract["ignore_imports"]}
    return {name for name in map(module_of, FILES) if any(fnmatch(name, p) for p in patterns)}


def imports(tree):
    """Yield (module, name or None) for each import in a syntax tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def import_time_imports(tree):
    """Yield the imports that run when the module is imported: those outside of functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imports(node)
        else:
            yield from import_time_imports(node)


def optional_at_import(tree):
    """Find the optional libraries that importing a module would import."""
    return {module.split(".")[0] for module, _ in import_time_imports(tree)} & OPTIONAL


def computing_calls(tree):
    """Find the lines that compute a Dask collection by a method; an engine persists blocks."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("compute", "persist")
        and not ast.unparse(node.func.value).startswith("engine")
    }


def container_checks(tree):
    """Find the lines that ask isinstance of a container of rows."""
    containers = {
        "ndarray",
        "DataFrame",
        "Series",
        "csr_array",
        "csr_matrix",
        "spmatrix",
        "sparray",
    }
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and containers
        & {getattr(part, "attr", getattr(part, "id", None)) for part in ast.walk(node.args[1])}
    }


def silent_handlers(tree):
    """Find the handlers of any error that do not read it, and do not raise."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and node.name is None
        and getattr(node.type, "id", None) == "Exception"
        and not any(isinstance(part, ast.Raise) for part in ast.walk(node))
    }


@pytest.fixture(scope="module")
def trees():
    return {file: tree_of(file) for file in FILES}


def offences(trees, rule, but=()):
    """Return what a rule finds, by file, in the files that it is for."""
    found = {module_of(file): rule(tree) for file, tree in trees.items() if file not in but}
    return {name: lines for name, lines in found.items() if lines}


def test_files_stay_short():
    lengths = {module_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert {name: n for name, n in lengths.items() if n > 500} == {}, "part them along a seam"


def test_every_file_says_what_it_knows(trees):
    assert offences(trees, lambda tree: tree.body and not ast.get_docstring(tree)) == {}


def test_files_are_named_after_a_question():
    names = {"utils", "util", "helpers", "common", "misc", "core"}
    assert [file for file in FILES if file.stem.strip("_") in names] == []


def test_optional_libraries_are_not_imported_with_a_module(trees):
    found = offences(trees, optional_at_import)
    for file in PACKAGE.glob("estimators/boosting/*.py"):
        # subclasses of a library's own, loaded on first access
        own = {file.stem.strip("_").split("_")[0]} & {"lightgbm", "xgboost"}
        if found.get(module_of(file)) == own:
            del found[module_of(file)]
    assert found == {}


def test_only_files_that_know_dask_compute(trees):
    known = dask_modules()
    but = [file for file in FILES if module_of(file) in known]
    assert offences(trees, computing_calls, but) == {}


def test_containers_are_told_apart_in_few_places(trees):
    rooms = ("blocks", "_array.py", "_linalg.py", "_sparse.py")
    but = [file for file in FILES if file.relative_to(PACKAGE).parts[0] in rooms]
    assert offences(trees, container_checks, but) == {}


def test_a_wrong_line_is_not_taken_for_a_refusal(trees):
    assert offences(trees, silent_handlers, CATCHES_ALL) == {}, "use fall_back(reason)"


def test_rooms_and_their_tests_are_found_by_one_table():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    told = set(re.findall(r"`tests/((?:\w+/)+)`", text))
    folders = {file.parent for file in (ROOT / "tests").rglob("test_*.py")}
    # a room of its own has a line of its own
    assert {f"{f.relative_to(ROOT / 'tests')}/" for f in folders} - {"./"} <= told
    assert all((ROOT / "tests" / name).is_dir() for name in told)
    elsewhere = {"_joblib": "joblib_backend", "quantiles": "estimators/preparation"}
    rooms = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert {f"{elsewhere.get(room, room.strip('_'))}/" for room in rooms} <= told | {"estimators/"}


def test_files_import_one_another_in_no_circle(trees):
    """Imports in functions count too."""
    files = {module_of(file): file for file in FILES}
    graph = {name: set() for name in files}
    for file, tree in trees.items():
        for module, name in imports(tree):
            imported = f"{module}.{name}" if f"{module}.{name}" in files else module
            if imported in files and files[imported].name != "__init__.py":
                graph[module_of(file)].add(imported)
    TopologicalSorter(graph).prepare()  # a CycleError names the files of a circle


def test_rules_catch_what_they_are_for():
    broken = ast.parse(
        "import cupy.linalg\n"
        "class A:\n    from xgboost import XGBClassifier\n"
        "def f(x):\n    import numba\n    x.persist()\n    engine.persist(x)\n"
        "    return x.sum().compute()\n"
        "isinstance(x, (int, np.ndarray))\n"
        "try:\n    f(x)\nexcept ValueError:\n    pass\nexcept Exception:\n    pass\n"
        "try:\n    f(x)\nexcept Exception as error:\n    f(error)\n"
        "try:\n    f(x)\nexcept Exception:\n    raise\n"
    )
    assert optional_at_import(broken) == {"cupy", "xgboost"}
    assert computing_calls(broken) == {6, 8}
    assert container_checks(broken) == {9}
    assert silent_handlers(broken) == {14}


def test_dask_files_of_the_contract_are_read():
    known = {"blocks._dask_collections", "engine._dask._engine", "fleet._fleet"}
    assert {f"skfleet.{name}" for name in known} <= dask_modules()


def test_one_backend_class():
    tree = ast.parse((PACKAGE / "joblib_backend.py").read_text())
    backends = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any("Backend" in ast.unparse(base) for base in node.bases)
    ]
    assert backends == ["FleetBackend"]


def loaded_after(code):
    """List the top-level packages that a fresh interpreter has loaded after code has run."""
    report = "import sys; print(*{name.split('.')[0] for name in sys.modules})"
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_every_extra_is_offered_and_used():
    """An extra brings what some line of the source looks for, and the docs tell of it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = settings["project"]["optional-dependencies"]
    offered = re.findall(r"`([\w-]+)`", "".join(re.findall(r"(?m)^\|[^|]*\|", INSTALL.read_text())))
    assert set(offered) == set(extras)
    source = "\n".join(file.read_text() for file in FILES)
    for extra in set(extras) - {"bench", "deploy", "docs", "test", "test-tools"}:
        for requirement in extras[extra]:
            module = re.match(r"[\w-]+", requirement).group().replace("-", "_")
            module = re.sub(r"_(cu(da)?\d+x?|cpu)$", "", module)
            assert re.search(rf"import {module}|from {module}|[\"']{module}[\"']", source), module


def test_xgboost_brings_no_library_for_gpus_on_linux():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extra = settings["project"]["optional-dependencies"]["xgboost"]
    for system, package in (("linux", "xgboost-cpu"), ("darwin", "xgboost"), ("win32", "xgboost")):
        environment = {"sys_platform": system}
        needed = [r.name for r in map(Requirement, extra) if r.marker.evaluate(environment)]
        assert needed == [package]


def test_import_loads_no_optional_library():
    loaded = loaded_after("import skfleet")
    assert "skfleet" in loaded
    assert not loaded & (OPTIONAL - {"rich"})  # which scikit-learn loads where it is there
    assert not loaded & {"dask", "distributed"}  # they come with the first use of a fleet


def test_rooms_load_no_optional_library():
    loaded = loaded_after("import skfleet.estimators, skfleet.model_selection, skfleet.metrics")
    assert "sklearn" in loaded
    assert not loaded & (OPTIONAL - {"rich"})  # which scikit-learn loads where it is there
    assert not loaded & {"dask", "distributed"}  # rows in memory need none


def test_fleet_is_imported_when_asked_for():
    assert "distributed" in loaded_after("import skfleet; skfleet.Fleet")


def test_names_of_the_package():
    import skfleet

    assert {"Fleet", "config_context", "estimators", "metrics", "model_selection"} <= set(
        dir(skfleet)
    )
    for name in skfleet.__all__:
        assert getattr(skfleet, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Flet'"):
        skfleet.Flet  # noqa: B018


def started_clusters(tree):
    """Find the calls that start a cluster of Dask's, with what they say of the dashboard's port."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "Client",
            "LocalCluster",
        ):
            told = {keyword.arg: keyword.value for keyword in node.keywords}
            if not node.args and "scheduler_file" not in told:
                yield node.lineno, getattr(told.get("dashboard_address"), "value", None)


def trees_of(path):
    """Parse a file, and each of the examples in it; those of templates cannot be."""
    text = path.read_text()
    examples = [example.source for example in doctest.DocTestParser().get_examples(text)]
    for code in [text] * (path.suffix == ".py") + examples:
        with contextlib.suppress(SyntaxError):
            yield ast.parse(code)


def test_nothing_asks_for_a_fixed_port():
    # None is not enough: distributed then takes port 8787, and warns where it is somebody else's.
    folders = ("src", "tests", "docs", "examples", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.[pm][yd]")]
    calls = [
        (path, *call)
        for path in [*files, ROOT / "README.md"]
        for tree in trees_of(path)
        for call in started_clusters(tree)
    ]
    assert len(calls) > 20
    assert [call for call in calls if not str(call[2]).endswith(":0")] == []
