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
    """Mixin of all estimators of this package, with the link to their page of the documentation.

    scikit-learn defines the names for third parties.
    """

    _doc_link_module = "skfleet"
    _doc_link_template = DOCUMENTATION + "/{page}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        """Return the fields of the template."""
        module = type(self).__module__
        return {"page": next(page for name, page in _PAGES.items() if module.startswith(name))}


def is_own(estimator: Any) -> bool:
    """Return whether an estimator is of this package, or of a class derived from one of its."""
    return isinstance(estimator, DocumentationLink)
