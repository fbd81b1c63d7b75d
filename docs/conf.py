"""Sphinx settings."""

from skfleet import __version__

project = "scikit-fleet"
author = "The scikit-fleet developers"
copyright = "2026, The scikit-fleet developers"
release = __version__
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
myst_fence_as_directive = ["mermaid"]  # a plain fence, which GitHub draws too
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "alabaster"
myst_heading_anchors = 3
