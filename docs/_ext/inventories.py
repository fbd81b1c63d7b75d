"""Inventories of the sites of other projects, written from their installed packages.

A build has no network but the package index. Names that are not installed get no link.
"""

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import SimpleNamespace

from sphinx.util.inventory import InventoryFile

# package -> (site, address of a name, modules whose public names have a page)
SITES = {
    "sklearn": ("https://scikit-learn.org/stable", "modules/generated/{name}.html", None),
    "dask": (
        "https://docs.dask.org/en/stable",
        "generated/{name}.html",
        ("dask.array", "dask.dataframe", "dask.bag", "dask.config", "dask"),
    ),
    "distributed": ("https://distributed.dask.org/en/stable", "api.html", ("distributed",)),
    "joblib": ("https://joblib.readthedocs.io/en/stable", "generated/{name}.html", ("joblib",)),
    "numpy": (
        "https://numpy.org/doc/stable",
        "reference/generated/{name}.html",
        ("numpy", "numpy.random"),
    ),
    "pandas": ("https://pandas.pydata.org/docs", "reference/api/{name}.html", ("pandas",)),
    "scipy": (
        "https://docs.scipy.org/doc/scipy",
        "reference/generated/{name}.html",
        ("scipy.sparse", "scipy.stats"),
    ),
}


def write(folder):
    """Write an inventory for each package that is installed; return Sphinx's mapping of them."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for package, (site, address, modules) in SITES.items():
        try:
            root = importlib.import_module(package)
        except ImportError:
            continue
        names = dict(_names(root, modules or _public_modules(root)))
        path = folder / f"{package}.inv"
        InventoryFile.dump(str(path), *_environment(package, root, names, address))
        mapping[package] = (site + "/", str(path))
    return mapping


def _public_modules(root):
    """Return the names of the public modules of a package, one level down."""
    found = pkgutil.iter_modules(root.__path__, root.__name__ + ".")
    names = [module.name for module in found]
    return [root.__name__, *(n for n in names if not n.rpartition(".")[2].startswith("_"))]


def _names(root, modules):
    """Yield the public names of modules, and the kinds of their objects."""
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception:  # a module whose own dependencies are missing has no links
            continue
        public = getattr(module, "__all__", None) or dir(module)
        for attribute in public:
            if attribute.startswith("_"):
                continue
            try:
                member = getattr(module, attribute)
            except (AttributeError, ImportError):
                continue
            if inspect.isclass(member):
                yield f"{name}.{attribute}", "class"
            elif callable(member):
                yield f"{name}.{attribute}", "function"


def _environment(package, root, names, address):
    """Return what `InventoryFile.dump` takes, for the names of a package."""
    config = SimpleNamespace(project=package, version=getattr(root, "__version__", ""))
    objects = [
        (name, name, kind, address.format(name=name).removesuffix(".html"), name, 1)
        for name, kind in names.items()
    ]
    domain = SimpleNamespace(name="py", get_objects=lambda: objects)
    domains = SimpleNamespace(sorted=lambda: [domain])
    environment = SimpleNamespace(config=config, domains=domains)
    builder = SimpleNamespace(get_target_uri=lambda page: page + ".html")
    return environment, builder
