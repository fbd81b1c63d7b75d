"""Link to the documentation in the HTML representation of an estimator."""

from __future__ import annotations

from typing import Any

DOCUMENTATION = "https://scikit-fleet.readthedocs.io/en/latest"


class DocumentationLink:
    """Mixin with the documentation link; scikit-learn defines the names for third parties."""

    _doc_link_module = "skfleet"
    _doc_link_template = DOCUMENTATION + "/reference/generated/skfleet.{room}.{name}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        """Return the fields of the template: pages are named by where a class is imported from."""
        cls = type(self)
        return {"room": cls.__module__.split(".")[1], "name": cls.__name__}


def is_own(estimator: Any) -> bool:
    """Return whether the class of an estimator is one of this package, which takes Dask rows.

    A class that a user derives from one is none: its methods may take rows of this process alone.
    """
    return type(estimator).__module__.partition(".")[0] == DocumentationLink._doc_link_module
