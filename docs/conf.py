"""Sphinx settings."""

from skfleet import __version__

project = "scikit-fleet"
author = "The scikit-fleet developers"
copyright = "2026, The scikit-fleet developers"
release = __version__
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "alabaster"
