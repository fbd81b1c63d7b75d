"""The documentation site: a page for each public name, the lengths of pages, links between them."""

import ast
import importlib
import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))
from check_pages import CODE_ROOMS, ROOMS, code_names, public_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
PAGES = [page for page in PAGES if "_build" not in page.parts and "auto_examples" not in page.parts]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def listed_names(pages):
    """Return the full names in the tables of pages."""
    names = []
    for page in pages:
        for module, table in re.findall(
            r"currentmodule:: (\S+)\n(.*?)```", page.read_text(), flags=re.DOTALL
        ):
            names += [
                f"{module}.{name}" for name in re.findall(r"^   ([\w.]+)$", table, flags=re.M)
            ]
    return names


REFERENCE = list((DOCS / "reference").glob("*.md"))
CODE_PAGES = {room: DOCS / "contribute" / f"{page}.md" for room, page in CODE_ROOMS.items()}


def test_each_public_name_has_a_page():
    assert dict(public_names()).keys() - listed_names(REFERENCE) == set()


def test_each_name_of_the_code_has_a_page():
    listed = listed_names(CODE_PAGES.values())
    elsewhere = dict(public_names()).keys()
    assert dict(code_names()).keys() - elsewhere - set(listed) == set()
    assert sorted(set(listed)) == sorted(listed)


def sessions(text):
    """Return the lines of code in the sessions of a text, but for imports."""
    lines = re.findall(r"^ *(?:>>>|\.\.\.) (.*)$", text, flags=re.M)
    return "\n".join(line for line in lines if not re.match(r"(from|import) ", line))


@pytest.mark.parametrize("room", [*ROOMS, *CODE_ROOMS])
def test_each_name_has_an_example(room):
    module = importlib.import_module(room)
    page = sessions(CODE_PAGES[room].read_text()) if room in CODE_PAGES else ""
    for name in module.__all__:
        member = getattr(module, name)
        if callable(member):
            is_used = re.search(rf"\b{name}\b", page)
            assert is_used or ">>>" in (member.__doc__ or ""), f"{name} has no example"


def test_listed_names_exist():
    for name in listed_names([*REFERENCE, *CODE_PAGES.values()]):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("page", sorted((DOCS / "guide").glob("*.md")), ids=lambda page: page.stem)
def test_pages_of_the_guide_are_short(page):
    assert len(page.read_text().split()) <= 1200


def sentences(page):
    """Yield the sentences of a page, without code, tables and lines of directives."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"^(?:\||:::| {4}).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\{[\w:]+\}`[^`]*`|`[^`]*`", "x", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|^#.*$", text, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.!?])\s+", paragraph.strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_sentences_are_short(page):
    assert [s for s in sentences(page) if len(s.split()) > 35] == []


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def anchors(page):
    """Return the anchors of headings, as MyST makes them, and those that are given by hand."""
    text = page.read_text()
    titles = re.findall(
        r"^#{1,6} (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.M
    )
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles]
    return {*slugs, *re.findall(r"^\(([\w-]+)\)=$", text, flags=re.M)}


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_between_pages_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        path, _, anchor = unquote(target).partition("#")
        if re.match(r"https?://|mailto:", target):
            continue
        where = (page.parent / path).resolve() if path else page
        if "auto_examples" in where.parts:  # made by the build from the gallery
            script = ROOT / "examples" / "gallery" / f"{where.stem}.py"
            assert script.exists() or where.stem == "index", target
            continue
        assert where.exists(), target
        if anchor and where.suffix == ".md":
            assert anchor in anchors(where), target


SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("plot_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_examples_have_a_title_and_a_picture(script):
    tree = ast.parse(script.read_text())
    title, underline, *_ = ast.get_docstring(tree).splitlines()
    assert set(underline) == {"="}
    assert len(underline) == len(title)
    assert "matplotlib" in script.read_text() or ".plot(" in script.read_text()


def test_the_gallery_is_large_enough():
    assert len(SCRIPTS) >= 16


@pytest.mark.parametrize("page", sorted(DOCS.glob("**/*.md")), ids=lambda page: page.name)
def test_pictures_of_pages_exist(page):
    for path in re.findall(r"```\{plot\} (\S+)", page.read_text()):
        assert (DOCS / path).exists()
