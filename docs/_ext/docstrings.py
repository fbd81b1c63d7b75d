"""Docstrings of scikit-learn's classes: what only its own site resolves becomes a link to it."""

import re
from functools import partial

SITE = "https://scikit-learn.org/stable"
_TITLED = re.compile(r":(?:ref|term|doc):`([^`<]+?)\s*<([^>`]*)>`")
_TERM = re.compile(r":term:`([^`<]+)`")
_LABEL = re.compile(r":(?:ref|doc):`([^`<]+)`")
_DIRECTIVES = re.compile(
    r"(?m)^( *)\.\. (?:versionadded|versionchanged|minigallery|plot)::.*"
    r"(?:\n\1 +.*|\n(?= *\n\1 {2,}))*"
)
# Docstrings for readers of the code are plain text, but those of these names.
_ROOM = re.compile(r"skfleet\.(?:blocks|engine|glm|inference|quantiles)\.")
_PUBLIC = ("skfleet.engine.counting", "skfleet.engine.Counts", "skfleet.blocks.RowSet")
_CONTINUED = re.compile(r"\\\n\s+")


def with_links(app, what, name, obj, options, lines, *, escapes=False):
    """Replace roles and directives of scikit-learn's site; join types that take two lines."""
    text = _CONTINUED.sub("", "\n".join(lines))
    if escapes and _ROOM.match(name) and not name.startswith(_PUBLIC):
        text = re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", text)
    text = _TERM.sub(rf"`\1 <{SITE}/glossary.html#term-\1>`__", text)
    text = _TITLED.sub(_titled, text)
    text = _LABEL.sub(rf"`\1 <{SITE}/user_guide.html>`__", text)
    lines[:] = _DIRECTIVES.sub("", text).split("\n")


def _titled(match):
    title, label = match.groups()
    page = f"glossary.html#term-{label}" if ":term:" in match[0] else "user_guide.html"
    return f"`{title} <{SITE}/{page}>`__"


def is_bare_field(app, what, name, obj, skip, options):
    """Skip the fields of named tuples, which the docstring of the class describes."""
    is_bare = (getattr(obj, "__doc__", None) or "").startswith("Alias for field number")
    return True if is_bare else None


def setup(app):
    """Register the filter before numpydoc's, and after it for what that adds."""
    app.connect("autodoc-skip-member", is_bare_field)
    app.connect("autodoc-process-docstring", partial(with_links, escapes=True), priority=400)
    app.connect("autodoc-process-docstring", with_links, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
