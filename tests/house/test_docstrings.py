"""Docstrings composed of shared texts."""

from skfleet._docstrings import compose_docstring

TEXTS = {"X": "X : array-like\n    Rows.{note}", "note": "\n\nRead once."}


def test_texts_take_the_indentation_of_their_line():
    @compose_docstring(TEXTS)
    class Estimator:
        r"""Minimise :math:`\mathrm{loss}` of {'C': 1}.

        Notes
        -----
            {X}
        """

    assert Estimator.__doc__ == (
        "Minimise :math:`\\mathrm{loss}` of {'C': 1}.\n\nNotes\n-----\n"
        "    X : array-like\n        Rows.\n\n        Read once."
    )


def test_no_docstring_is_none_to_compose():
    @compose_docstring(TEXTS)
    def function():
        pass

    assert function.__doc__ is None
