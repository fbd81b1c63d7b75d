"""Check the built pages: ``python check_pages.py HTML``; prints what is wrong, and fails then."""

import importlib
import inspect
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOMS = (
    "skfleet",
    "skfleet.datasets",
    "skfleet.estimators",
    "skfleet.exceptions",
    "skfleet.metrics",
    "skfleet.model_selection",
)
# Rooms for readers of the code, each with its page under "Contribute".
CODE_ROOMS = {
    "skfleet.blocks": "blocks",
    "skfleet.engine": "engine",
    "skfleet.estimators.pipeline": "estimators_pipeline",
    "skfleet.glm": "glm",
    "skfleet.inference": "inference",
    "skfleet.quantiles": "quantiles",
}
# Public names of other modules, and of rooms for the code.
OTHERS = (
    "skfleet.engine.counting",
    "skfleet.fleet.default_client",
    "skfleet.joblib_backend.FleetBackend",
)
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}


class Page(HTMLParser):
    """What a page loads, where its links lead, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Note addresses and anchors."""
        values = dict(attrs)
        if "id" in values:
            self.ids.add(values["id"])
        if tag in LOADED and values.get(LOADED[tag]):
            self.loads.append(values[LOADED[tag]])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(values["href"])
        elif tag == "a" and values.get("href"):
            self.links.append(values["href"])


def problems(folder):
    """Yield what is wrong with the pages in a folder."""
    paths = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]
    pages = {path.resolve(): Page(path.read_text()) for path in paths}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for address in page.loads:
            if urlsplit(address).netloc:
                yield f"{name} loads {address}"
            elif not address.startswith("data:") and not _file(path, address).exists():
                yield f"{name} loads {address}, which is missing"
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = _file(path, address) if parts.path else path
            if not target.exists():
                yield f"{name} links to {address}, which is missing"
            elif parts.fragment and target in pages:
                anchor = unquote(parts.fragment)
                if anchor not in pages[target].ids:
                    yield f"{name} links to {address}, which has no such anchor"
    for name, methods in [*public_names(), *code_names()]:
        folders = [folder / part / "generated" for part in ("reference", "contribute")]
        paths = [(one / f"{name}.html").resolve() for one in folders]
        path = next((one for one in paths if one in pages), None)
        if path is None:
            yield f"{name} has no page"
            continue
        anchors = pages[path].ids
        for method in methods:
            if not any(anchor.endswith(f".{method}") for anchor in anchors):
                yield f"the page of {name} lacks {method}"
    for path in sorted((folder / "auto_examples").glob("plot_*.html")):
        if not any("sphx_glr_plot" in address for address in pages[path.resolve()].loads):
            yield f"{path.name} has no picture"


def _file(page, address):
    return (page.parent / unquote(urlsplit(address).path)).resolve()


def public_names():
    """Yield the full name of each public class and function, and the names of its methods."""
    yield from _names(ROOMS)
    yield from dict.fromkeys(OTHERS, ()).items()


def code_names():
    """Yield those of the rooms for readers of the code, but for what is public elsewhere."""
    public = {id(_member(name)) for name, _ in _names(ROOMS)}
    yield from (pair for pair in _names(CODE_ROOMS) if id(_member(pair[0])) not in public)


def _member(name):
    room, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(room), attribute)


def _names(rooms):
    for room in rooms:
        for name in importlib.import_module(room).__all__:
            member = getattr(importlib.import_module(room), name)
            is_class = inspect.isclass(member) and member is not Any
            if is_class or inspect.isfunction(member):
                yield f"{room}.{name}", list(_methods(member))


def _methods(obj):
    if not inspect.isclass(obj) or issubclass(obj, BaseException):
        return
    for name, member in inspect.getmembers(obj):
        if not name.startswith("_") and inspect.isfunction(member) and inspect.getdoc(member):
            yield name


if __name__ == "__main__":
    wrong = list(problems(Path(sys.argv[1])))
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))
