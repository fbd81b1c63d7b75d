"""matplotlib's ``plot`` directive for pages of Markdown: what it inserts is parsed apart."""

from matplotlib.sphinxext.plot_directive import PlotDirective
from myst_parser.mdit_to_docutils.base import MockRSTParser, make_document
from myst_parser.mocking import MockStateMachine


class _Machine:
    """The state machine of a page, which keeps the lines that are inserted."""

    def __init__(self, machine):
        self._machine, self.lines = machine, []

    def insert_input(self, lines, source):
        """Keep lines of reStructuredText."""
        self.lines += lines

    def __getattr__(self, name):
        return getattr(self._machine, name)


class Plot(PlotDirective):
    """The directive, in Markdown as in reStructuredText."""

    def run(self):
        """Return the nodes of the picture."""
        if not isinstance(self.state_machine, MockStateMachine):
            return super().run()
        self.state_machine = machine = _Machine(self.state_machine)
        nodes = super().run()
        page, picture = machine.document, make_document()
        picture["source"], picture.settings = page["source"], page.settings
        picture.reporter = page.reporter
        MockRSTParser().parse("\n".join(machine.lines), picture)
        return [*nodes, *picture.children]


def setup(app):
    """Register the directive in the place of matplotlib's."""
    app.setup_extension("matplotlib.sphinxext.plot_directive")
    app.add_directive("plot", Plot, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
