"""Formulas as MathML, which browsers draw without a script."""

from latex2mathml.converter import convert
from sphinx.util.math import get_node_equation_number


def visit_inline(self, node):
    self.body.append(convert(node.astext()))
    raise _skipped()


def visit_block(self, node):
    number = get_node_equation_number(self, node) if node["number"] else None
    label = f'<span class="eqno">({number})</span>' if number else ""
    self.body.append(f'<div class="math">{label}{convert(node.astext(), display="block")}</div>')
    raise _skipped()


def _skipped():
    from docutils.nodes import SkipNode

    return SkipNode()


def setup(app):
    """Register the renderer."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
