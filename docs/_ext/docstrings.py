"""Docstrings that come from scikit-learn: their links to its guide and glossary lead there."""

import re

SITE = "https://scikit-learn.org/stable"
# Roles whose targets are on scikit-learn's pages alone: ``:ref:`text <label>``` and ``:term:`name```.
_TITLED = re.compile(r":(?:ref|term|doc):`([^`<]+?)\s*<([^>`]*)>`")
_TERM = re.compile(r":term:`([^`<]+)`")
_LABEL = re.compile(r":(?:ref|doc):`([^`<]+)`")


def with_links(app, what, name, obj, options, lines):
    """Replace roles that Sphinx could only resolve on scikit-learn's own site."""
    text = "\n".join(lines)
    text = _TERM.sub(rf"`\1 <{SITE}/glossary.html#term-\1>`__", text)
    text = _TITLED.sub(_titled, text)
    text = _LABEL.sub(rf"`\1 <{SITE}/user_guide.html>`__", text)
    lines[:] = _without_versions(text).split("\n")


def _titled(match):
    title, label = match.groups()
    page = "glossary.html#term-" + label if ":term:" in match[0] else "user_guide.html"
    return f"`{title} <{SITE}/{page}>`__"


def _without_versions(text):
    """Leave out the directives on scikit-learn's versions, and pictures of its gallery."""
    return re.sub(
        r"(?m)^( *)\.\. (?:versionadded|versionchanged|minigallery|plot)::.*(?:\n\1 +.*|\n(?= *\n\1 {2,}))*",
        "",
        text,
    )


def setup(app):
    """Register the filter, before numpydoc's."""
    app.connect("autodoc-process-docstring", with_links, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
