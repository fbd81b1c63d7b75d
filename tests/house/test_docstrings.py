"""Docstrings composed of shared texts."""

import inspect

import pytest

from skfleet import model_selection
from skfleet._docstrings import compose_docstring
from skfleet.model_selection._lazy_answers import ROW_METHODS

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


@pytest.mark.parametrize("name", ROW_METHODS)
def test_methods_of_searches_say_what_they_return_for_dask_rows(name):
    text = inspect.getdoc(getattr(model_selection.HalvingGridSearchCV, name))
    assert "\n\nFor Dask rows the answer is a lazy Dask collection." in text
    assert ("named by the classes as text" in text) == name.endswith("_proba")
