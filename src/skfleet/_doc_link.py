"""Link to the documentation in the HTML representation of an estimator."""

from __future__ import annotations

from typing import Any

DOCUMENTATION = "https://scikit-fleet.readthedocs.io/en/latest"

# Page by module prefix; the first match counts.
_PAGES = {
    "skfleet.estimators.boosting": "boosting",
    "skfleet.estimators.cluster": "clustering",
    "skfleet.estimators.decomposition": "decomposition",
    "skfleet.estimators.ensemble": "forests",
    "skfleet.estimators.linear_model": "linear_models",
    "skfleet.estimators.meta": "wrappers",
    "skfleet.estimators.mixture": "mixtures",
    "skfleet.estimators.neighbors": "neighbors",
    "skfleet.estimators": "preparation",
    "skfleet.model_selection._adaptive": "adaptive",
    "skfleet.model_selection": "searches",
}


class DocumentationLink:
    """Mixin with the documentation link; scikit-learn defines the names for third parties."""

    _doc_link_module = "skfleet"
    _doc_link_template = DOCUMENTATION + "/{page}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        """Return the fields of the template."""
        module = type(self).__module__
        return {"page": next(page for name, page in _PAGES.items() if module.startswith(name))}


def is_own(estimator: Any) -> bool:
    """Return whether the class of an estimator is one of this package, which takes Dask rows.

    A class that a user derives from one is none: its methods may take rows of this process alone.
    """
    return type(estimator).__module__.partition(".")[0] == DocumentationLink._doc_link_module
