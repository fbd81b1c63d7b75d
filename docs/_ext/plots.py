"""Matplotlib's ``plot`` directive in Markdown pages, which hands it to reStructuredText."""

import re

_FENCE = re.compile(r"(?m)^```\{plot\} (?P<path>\S+)\n(?P<options>(?:(?::| +\S).*\n)*)```$")


def in_restructured_text(app, name, source):
    """Replace each fence: MyST's stand-in for docutils' state machine takes no new lines."""
    source[0] = _FENCE.sub(_directive, source[0])


def _directive(match):
    lines = [f".. plot:: {match['path']}"]
    lines += [f"   {option}" for option in match["options"].splitlines()]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def setup(app):
    """Register the replacement."""
    app.connect("source-read", in_restructured_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
