"""Settings of Sphinx for the site; see ``make docs``."""

import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import inventories  # noqa: E402

from skfleet import __version__  # noqa: E402

project = "scikit-fleet"
author = "The scikit-fleet developers"
copyright = "2026, The scikit-fleet developers"
release = version = __version__

extensions = [
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.extlinks",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "dask_ml_names",
    "docstrings",
    "mathml",
    "plots",
]
exclude_patterns = ["_build", "_ext", "_pictures", "auto_examples/*.ipynb"]
templates_path = ["_templates"]
smartquotes = False  # `default="auto"` is code
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# -- reference -------------------------------------------------------------------------------------

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc's sections have the types
numpydoc_show_class_members = False  # the template of a class lists them
extlinks = {
    "arxiv": ("https://arxiv.org/abs/%s", "arXiv:%s"),
    "doi": ("https://doi.org/%s", "doi:%s"),
}
intersphinx_mapping = inventories.write(HERE / "_build" / "inventories")

# -- pictures and examples -------------------------------------------------------------------------

plot_basedir = str(HERE)
plot_html_show_formats = plot_html_show_source_link = False
plot_formats = [("svg", 100)]
plot_rcparams = {"figure.figsize": (7.0, 3.6), "svg.fonttype": "path", "savefig.bbox": "tight"}
plot_apply_rcparams = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "auto_examples",
    "filename_pattern": r"/plot_",
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 1,
    "reference_url": {"skfleet": None},
    "doc_module": ("skfleet",),
    "backreferences_dir": "reference/backreferences",
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
}

# -- pages -----------------------------------------------------------------------------------------

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "scikit-fleet"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "header_links_before_dropdown": 5,
    "navbar_align": "left",
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "back_to_top_button": False,
}
html_sidebars = {"index": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Examples and pictures end in a figure, and never wait for a window.
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
