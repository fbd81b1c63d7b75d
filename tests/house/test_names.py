"""Names: one meaning each, the field's nouns, and private to the room that gives them.

``exceptions.toml`` lists what does not hold yet. Each list must be exact, so that it only shrinks.
"""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "skfleet"
SOURCES = {str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py"))}
ROOMS = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
EXCEPTIONS = tomllib.loads((Path(__file__).parent / "exceptions.toml").read_text())

# Participles, adverbs and pronouns where a noun would say the thing.
BANNED_WORDS = frozenset(
    [
        "aside",
        "asked",
        "beside",
        "came",
        "found",
        "given",
        "held",
        "here",
        "how",
        "kept",
        "lend",
        "lent",
        "made",
        "others",
        "rest",
        "some",
        "stay",
        "stays",
        "there",
        "told",
        "wanted",
    ]
)
# A docstring begins with what a function does or returns, or with the noun that a module is.
BANNED_FIRST_WORDS = frozenset(["Give", "How", "Say", "Tell", "What", "Whether", "Who"])


def bound_names(tree):
    """Yield the names that code gives: of functions, classes, parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words_of(name):
    """Split an identifier at underscores and capitals, in lower case."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower().split("_")


def banned_names(tree):
    """List the given names with a banned word in them."""
    return sorted(name for name in bound_names(tree) if BANNED_WORDS & set(words_of(name)))


def banned_docstrings(tree):
    """List the docstrings that begin with a banned word."""
    documented = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    texts = (ast.get_docstring(n) for n in ast.walk(tree) if isinstance(n, documented))
    return [text for text in texts if text and text.split()[0] in BANNED_FIRST_WORDS]


def private_imports(module, tree):
    """Yield the private names of other rooms that a module (dotted, below skfleet) imports."""
    room = module.split(".")[0]
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("skfleet."):
            continue
        for alias in node.names:
            parts = [*node.module.split(".")[1:], alias.name]
            if parts[0] in ROOMS - {room} and any(part.startswith("_") for part in parts[1:]):
                yield ".".join(parts)


def tree_of(path):
    return ast.parse(path.read_text())


def counted(rule):
    """Count in each file what a rule lists."""
    counts = {file: len(rule(tree_of(path))) for file, path in SOURCES.items()}
    return {file: n for file, n in counts.items() if n}


def test_names_are_nouns():
    assert counted(banned_names) == EXCEPTIONS["names"]


def test_docstrings_begin_with_what_is_done():
    assert counted(banned_docstrings) == EXCEPTIONS["docstrings"]


def test_classes_have_names_of_their_own():
    names = Counter(
        node.name
        for path in SOURCES.values()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    )
    assert sorted(name for name, n in names.items() if n > 1) == EXCEPTIONS["classes"]["twice"]


def test_private_names_stay_in_their_room():
    imports = {}
    for file, path in SOURCES.items():
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in private_imports(module, tree_of(path)):
            imports.setdefault(name, []).append(module)
    assert imports == EXCEPTIONS["private_imports"]


def test_tests_stay_short():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    assert sorted(path for path, n in lengths.items() if n > 500) == EXCEPTIONS["tests"]["long"]


def test_answers_of_the_questions_exist():
    questions = tomllib.loads((Path(__file__).parent / "questions.toml").read_text())
    assert len(questions) == 20
    assert set(questions.values()) <= set(SOURCES)


def test_rules_catch_what_they_are_for():
    tree = ast.parse(
        '"""What a module is."""\n'
        "from skfleet.engine._client import current_client\n"
        "from skfleet.engine import identity, _private\n"
        "from skfleet._array import xp\n"
        "class KeptRows:\n"
        '    """Rows."""\n'
        "    def told(self, asked, n_found):\n"
        '        """Tell nobody."""\n'
        "        self.wanted_ = founder = asked\n"
    )
    assert banned_names(tree) == ["KeptRows", "asked", "n_found", "told", "wanted_"]
    assert len(banned_docstrings(tree)) == 2
    names = ["engine._client.current_client", "engine._private"]
    assert list(private_imports("glm._losses", tree)) == names
    assert list(private_imports("engine._local", tree)) == []
