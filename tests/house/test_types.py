"""What completion, type checkers and reports of errors see of the package."""

import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest
from sklearn.base import BaseEstimator
from sklearn.linear_model import SGDClassifier

import skfleet
from skfleet import estimators, model_selection
from skfleet._doc_link import DOCUMENTATION

ROOT = Path(__file__).parents[2]
CLASSES = [
    getattr(room, name)
    for room in (estimators, model_selection)
    for name in room.__all__
    if inspect.isclass(getattr(room, name))
]
ESTIMATORS = [cls for cls in CLASSES if issubclass(cls, BaseEstimator)]


def example(cls):
    """Make an estimator of a class."""
    needed = {"estimator": SGDClassifier()}
    needed["transformers"] = [("scaler", estimators.StandardScaler(), [0])]
    needed["transformer_list"] = [("scaler", estimators.StandardScaler())]
    for name in ("param_grid", "param_distributions", "parameters"):
        needed[name] = {"alpha": [1.0]}
    parameters = inspect.signature(cls).parameters
    return cls(**{name: value for name, value in needed.items() if name in parameters})


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_public_signatures_name_types(cls):
    """Whatever has a name of its own has a type; what is handed on may be anything."""
    for name, method in inspect.getmembers(cls, callable):
        ours = (getattr(method, "__module__", None) or "").startswith("skfleet.")
        if not ours or (name.startswith("_") and name != "__init__"):
            continue
        signature = inspect.signature(method)
        kinds = {
            p.name: p.annotation for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD
        }
        kinds["return"] = signature.return_annotation
        kinds.pop("self", None)
        untyped = [key for key, kind in kinds.items() if kind in ("Any", inspect.Parameter.empty)]
        assert not untyped, f"{cls.__name__}.{name}: {untyped}"


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_representations_link_to_a_page_on_the_estimator(cls):
    html = example(cls)._repr_html_()
    pages = set(re.findall(re.escape(DOCUMENTATION) + r"/reference/generated/([\w.]+)\.html", html))
    assert f"skfleet.{room_of(cls)}.{cls.__name__}" in pages  # `test_site.py` looks for these pages


def room_of(cls):
    return cls.__module__.split(".")[1]


def test_the_documentation_is_where_the_distribution_says():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["urls"]["Documentation"] == DOCUMENTATION


def test_classes_of_others_link_to_nothing():
    class Mine(estimators.Ridge):
        pass

    assert DOCUMENTATION not in Mine()._repr_html_()


def test_versions_are_shown(capsys):
    skfleet.show_versions()
    shown = capsys.readouterr().out
    for name in ("scikit-fleet", "scikit-learn", "dask", "distributed", "numpy", "cores", "memory"):
        assert re.search(rf"^ *{name}: \S+", shown, flags=re.MULTILINE), name
    assert sys.version.split()[0] in shown
    assert "missing" not in shown.replace("pyarrow: missing", "")


def test_the_package_says_that_it_has_types():
    assert (ROOT / "src" / "skfleet" / "py.typed").exists()


SCRIPT = """
import numpy as np
import skfleet
from skfleet import Fleet, estimators

X, y = np.zeros((4, 2)), np.zeros(4)
with Fleet(n_workers=2, processes=False) as client:
    reveal_type(client)
    model = estimators.Ridge(alpha=1.0).fit(X, y)
    reveal_type(model)
    reveal_type(model.score(X, y))
    reveal_type(estimators.KMeans(2).fit(X))
reveal_type(skfleet.Fleet().dashboard_link)
reveal_type(skfleet.show_versions)
Fleet(n_worker=2)
estimators.Ridge(alhpa=1.0)
estimators.Ridge().fit(3, y)
skfleet.Flet
"""


@pytest.mark.slow
def test_a_type_checker_sees_fleet_and_estimators(tmp_path):
    api = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    empty = tmp_path / "mypy.ini"
    empty.write_text("[mypy]\nignore_missing_imports = True\n")
    out, errors, _ = api.run(
        ["--config-file", str(empty), "--cache-dir", str(tmp_path / "cache"), str(script)]
    )
    assert not errors
    revealed = re.findall(r'Revealed type is "(.*)"', out)
    assert revealed[1:] == [
        "skfleet.estimators.linear_model._ridge.Ridge",
        "float",
        "skfleet.estimators.cluster._kmeans.KMeans",
        "str | None",
        "def ()",
    ]
    assert "Client" in revealed[0]
    wrong = {int(line) for line in re.findall(r"script\.py:(\d+): error", out)}
    lines = SCRIPT.splitlines()
    assert {lines[i - 1] for i in wrong} == set(lines[-4:]), out
