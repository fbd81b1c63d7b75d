"""Names: one meaning each, the field's nouns, and private to the room that gives them.

``exceptions.toml`` lists what does not hold yet. Each list must be exact, so that it only shrinks.
"""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from source_trees import tree_of

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
# Words of one meaning each (docs/contribute/architecture.md says which), and the files and folders
# that may have them in their names.
HOMES = {
    "split": (
        "_sklearn_private.py",
        "_typing.py",
        "blocks/_dask_take.py",
        "blocks/_folds.py",
        "estimators/_metadata_routing.py",
        "estimators/linear_model/_elastic_net_cv.py",
        "estimators/linear_model/_ridge_cv.py",
        "estimators/linear_model/_ridge_cv_scores.py",
        "estimators/linear_model/_sgd_base.py",
        "estimators/pipeline/_splits.py",
        "estimators/preprocessing/_target_encoder.py",
        "glm/_cv_normal_equations.py",
        "model_selection/",
    ),
    "prepar": (
        "estimators/_passes.py",
        "estimators/compose/_composition.py",
        "estimators/pipeline/",
        "model_selection/_closed_form/_preparation.py",
        "model_selection/_closed_form/_prepared_rows.py",
        "model_selection/_dispatch/_gathered_rows.py",
        "model_selection/_dispatch/_routes/_on_blocks.py",
        "model_selection/_dispatch/_split_views.py",
    ),
}
# Names that end with "share" and say what is done. A part of a whole is a fraction.
SHARING = {"create_or_share", "may_share"}

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


def names_with(stem, file, tree):
    """List the names of a file, and those given in it, with a word that begins with a stem."""
    names = [*Path(file).with_suffix("").parts, *bound_names(tree)]
    return sorted(n for n in names if any(word.startswith(stem) for word in words_of(n)))


def share_names(tree):
    """List the given names that call something a share."""
    last_words = ((name, words_of(name.rstrip("_"))[-1]) for name in bound_names(tree))
    return sorted({name for name, word in last_words if word in ("share", "shares")} - SHARING)


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


def counted(rule):
    """Count in each file what a rule lists."""
    counts = {file: len(rule(tree_of(path))) for file, path in SOURCES.items()}
    return {file: n for file, n in counts.items() if n}


def test_names_are_nouns():
    assert counted(banned_names) == EXCEPTIONS["names"]


def test_split_and_prepare_have_one_meaning_each():
    for stem, homes in HOMES.items():
        files = [file for file, path in SOURCES.items() if names_with(stem, file, tree_of(path))]
        assert [file for file in files if not file.startswith(homes)] == []
        assert [home for home in homes if not any(file.startswith(home) for file in files)] == []


def test_a_part_of_a_whole_is_no_share():
    assert counted(share_names) == {}


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


def test_words_of_one_meaning_are_caught():
    tree = ast.parse(
        "class SplitRows:\n"
        "    def prepare(self, MEMORY_SHARE, share_fits, split):\n"
        "        self.preparations, shared, may_share, splash = split\n"
        "        row_shares = share_ = prepaid = 1\n"
    )
    assert names_with("split", "_splits/_rows.py", tree) == ["SplitRows", "_splits", "split"]
    assert names_with("prepar", "_splits/_rows.py", tree) == ["preparations", "prepare"]
    assert share_names(tree) == ["MEMORY_SHARE", "row_shares", "share_"]
