"""The reference of settings, environment variables and log names, next to the source."""

import ast
import re
from pathlib import Path

import pytest

from skfleet import get_config
from skfleet._config import _CHOICES, _LEAST_BYTES
from source_trees import tree_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "skfleet"
REFERENCE = ROOT / "docs" / "reference"
FILES = sorted(PACKAGE.rglob("*.py"))
SETTINGS, VARIABLES, LOGS = "configuration.md", "environment.md", "logging.md"
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]*)+")


def table_rows(page):
    """Return the cells of each row in the tables of a page, but for their heads."""
    lines = re.findall(r"^\| (.*) \|$", (REFERENCE / page).read_text(), flags=re.M)
    rows = [re.split(r" \| |^\| ", line) for line in lines]
    heads = {n - 1 for n, row in enumerate(rows) if set("".join(row)) <= set("- ")}
    return [row for n, row in enumerate(rows) if n not in heads and n - 1 not in heads]


def names_in_first_column(page):
    """Return what is code in the first column of the tables of a page."""
    return {name for row in table_rows(page) for name in re.findall(r"`([^`]+)`", row[0])}


def assert_same(documented, in_source, page):
    """Fail with the names that are on one side alone."""
    missing, gone = sorted(in_source - documented), sorted(documented - in_source)
    assert not missing, f"docs/reference/{page} lacks {', '.join(missing)}"
    assert not gone, f"docs/reference/{page} has {', '.join(gone)}, which src/ has not"


def documented_settings():
    """Return the default and the values of each setting, as they are written."""
    rows = {re.sub(r"\[`(\w+)`\].*", r"\1", row[0]): row[1:] for row in table_rows(SETTINGS)}
    return {name: [re.findall(r"`([^`]+)`", cell) for cell in row] for name, row in rows.items()}


def test_every_setting_is_documented():
    assert_same(set(documented_settings()), set(vars(get_config())), SETTINGS)
    text = (REFERENCE / SETTINGS).read_text()
    for name in vars(get_config()):
        assert f"\n## `{name}`\n" in text, f"docs/reference/{SETTINGS} has no section on {name}"


def test_defaults_and_values_are_those_of_the_source():
    for name, ((default,), values) in documented_settings().items():
        assert ast.literal_eval(default) == getattr(get_config(), name), name
        assert {ast.literal_eval(value) for value in values} == set(_CHOICES.get(name, ())), name
    cells = {row[0]: row[2] for row in table_rows(SETTINGS)}
    in_bytes = {name for name, text in cells.items() if "a number of bytes" in text}
    assert {re.findall(r"\w+", name)[0] for name in in_bytes} == set(_LEAST_BYTES)


def string_constants(trees):
    """Return the names of the modules' constants that are text, with their texts."""
    return {
        target.id: node.value.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and isinstance(node.value.value, str)
    }


def variables_that_are_read(tree, constants):
    """Yield the variables that a module looks up in ``os.environ``."""
    for node in ast.walk(tree):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called in ("os.environ.get", "os.getenv"):
            key = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            key = node.slice
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            key = node.left
        else:
            continue
        name = key.value if isinstance(key, ast.Constant) else constants.get(ast.unparse(key))
        if name is not None:  # a loop over variables that are set elsewhere
            yield name


def variables_that_are_set(tree):
    """Yield what looks like a variable in a module that makes an environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and VARIABLE.fullmatch(str(node.value)):
            yield node.value


def test_every_environment_variable_is_documented():
    files = [file for file in FILES if re.search(r"environ|\benv\b", file.read_text())]
    trees = [tree_of(file) for file in files]
    constants = string_constants(trees)
    read = {name for tree in trees for name in variables_that_are_read(tree, constants)}
    assert {"LOKY_MAX_CPU_COUNT", "SKFLEET_DEVICE", "SKFLEET_STRICT_FALL_BACKS"} <= read
    found = {
        name
        for file, tree in zip(files, trees, strict=True)
        if file.name != "__init__.py"  # which lists names of constants
        for name in variables_that_are_set(tree)
    }
    assert_same(names_in_first_column(VARIABLES), read | found, VARIABLES)


def logger_name(node, module):
    """Return the name that a call of ``getLogger`` asks for; None for one of another library."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger")):
        return None
    (name,) = node.args
    text = module if ast.unparse(name) == "__name__" else getattr(name, "value", "")
    return text if str(text).startswith("skfleet") else None


def logged_levels(file):
    """Yield each logger that a module names, with None, and with each level at which it logs."""
    module = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    if "getLogger" not in file.read_text():
        return
    tree, loggers = tree_of(file), {}
    for node in ast.walk(tree):
        if name := logger_name(node, module):
            yield name, None
        if isinstance(node, ast.Assign) and (name := logger_name(node.value, module)):
            loggers[ast.unparse(node.targets[0])] = name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            logger, level = node.func.value, node.func.attr
            name = loggers.get(ast.unparse(logger)) or logger_name(logger, module)
            if name and level in LEVELS:
                yield name, LEVELS[level]


LEVELS = {level.lower(): level for level in ("DEBUG", "INFO", "WARNING", "ERROR")}
LEVELS["exception"] = "ERROR"


def test_every_log_name_is_documented():
    found = {name for file in FILES for name, _ in logged_levels(file)}
    assert_same(names_in_first_column(LOGS), found, LOGS)


def test_levels_of_logs_are_documented():
    documented, names = set(), []
    for row in table_rows(LOGS):
        names = re.findall(r"`([^`]+)`", row[0]) or names  # a row without a name goes on
        documented |= {f"{name} {row[1].strip('`')}" for name in names}
    found = {f"{name} {level}" for file in FILES for name, level in logged_levels(file) if level}
    # what Dask logs there, to which the logger is passed
    passed = {f"skfleet.fleet.{name} WARNING" for name in ("_local_cluster", "_worker_memory")}
    assert_same(documented, found | passed, LOGS)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('import os\nx = os.environ.get("A_B")', "A_B"),
        ('import os\nx = os.environ["A_B"]', "A_B"),
        ('import os\nx = "A_B" in os.environ', "A_B"),
        ('import os\nx = os.getenv("A_B")', "A_B"),
        ('import os\nNAME = "A_B"\nx = os.environ.get(NAME)', "A_B"),
    ],
)
def test_reads_of_the_environment_are_found(line, name):
    tree = ast.parse(line)
    assert set(variables_that_are_read(tree, string_constants([tree]))) == {name}


def test_names_on_one_side_alone_are_told():
    with pytest.raises(AssertionError, match="lacks new"):
        assert_same({"old"}, {"old", "new"}, SETTINGS)
    with pytest.raises(AssertionError, match="has old, which src/ has not"):
        assert_same({"old", "new"}, {"new"}, SETTINGS)
