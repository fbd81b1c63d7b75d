"""Where the documentation of an estimator is, for the link in its HTML representation."""

from __future__ import annotations

DOCUMENTATION = "https://scikit-fleet.readthedocs.io/en/latest"

# The page of what a module defines: the first that the module's name begins with.
_PAGES = {
    "skfleet.estimators.cluster": "clustering",
    "skfleet.estimators.decomposition": "decomposition",
    "skfleet.estimators.linear_model": "linear_models",
    "skfleet.estimators": "wrappers",
    "skfleet.model_selection._adaptive": "adaptive",
    "skfleet.model_selection": "searches",
}


class DocumentationLink:
    """Makes scikit-learn's representation link to the page on an estimator of this library.

    scikit-learn has these names for other libraries to set.
    """

    _doc_link_module = "skfleet"
    _doc_link_template = DOCUMENTATION + "/{page}.html"

    def _doc_link_url_param_generator(self) -> dict[str, str]:
        """Return what the template leaves open."""
        module = type(self).__module__
        return {"page": next(page for name, page in _PAGES.items() if module.startswith(name))}
