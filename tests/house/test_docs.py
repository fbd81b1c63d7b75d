"""Docstrings of public names: numpydoc's rules, and an example in each."""

import importlib
import inspect

import pytest
from numpydoc.validate import validate

ROOMS = ["skfleet.datasets", "skfleet.estimators", "skfleet.metrics", "skfleet.model_selection"]

# What a reader can rely on finding. A name that goes away is a change to announce.
PUBLIC = {
    "skfleet.Fleet",
    "skfleet.config_context",
    "skfleet.datasets.make_blobs",
    "skfleet.datasets.make_classification",
    "skfleet.datasets.make_counts",
    "skfleet.datasets.make_low_rank_matrix",
    "skfleet.datasets.make_regression",
    "skfleet.datasets.sample_rows",
    "skfleet.engine.counting",
    "skfleet.estimators.BlockwiseVotingClassifier",
    "skfleet.estimators.BlockwiseVotingRegressor",
    "skfleet.estimators.Incremental",
    "skfleet.estimators.ElasticNet",
    "skfleet.estimators.ElasticNetCV",
    "skfleet.estimators.ExtraTreesClassifier",
    "skfleet.estimators.ExtraTreesRegressor",
    "skfleet.estimators.GammaRegressor",
    "skfleet.estimators.GaussianMixture",
    "skfleet.estimators.Lasso",
    "skfleet.estimators.LassoCV",
    "skfleet.estimators.LinearRegression",
    "skfleet.estimators.PoissonRegressor",
    "skfleet.estimators.RidgeCV",
    "skfleet.estimators.RidgeClassifier",
    "skfleet.estimators.SGDClassifier",
    "skfleet.estimators.SGDRegressor",
    "skfleet.estimators.SpectralClustering",
    "skfleet.estimators.TweedieRegressor",
    "skfleet.estimators.IncrementalPCA",
    "skfleet.estimators.KMeans",
    "skfleet.estimators.KNeighborsClassifier",
    "skfleet.estimators.KNeighborsRegressor",
    "skfleet.estimators.LogisticRegression",
    "skfleet.estimators.MiniBatchKMeans",
    "skfleet.estimators.NearestNeighbors",
    "skfleet.estimators.PCA",
    "skfleet.estimators.ParallelPostFit",
    "skfleet.estimators.RandomForestClassifier",
    "skfleet.estimators.RandomForestRegressor",
    "skfleet.estimators.Ridge",
    "skfleet.estimators.TruncatedSVD",
    "skfleet.joblib_backend.FleetBackend",
    "skfleet.metrics.check_scoring",
    "skfleet.metrics.d2_tweedie_score",
    "skfleet.metrics.get_scorer",
    "skfleet.metrics.roc_auc_score",
    "skfleet.model_selection.GridSearchCV",
    "skfleet.model_selection.HalvingGridSearchCV",
    "skfleet.model_selection.HalvingRandomSearchCV",
    "skfleet.model_selection.RandomizedSearchCV",
    "skfleet.model_selection.split_rows",
    "skfleet.model_selection.train_test_split",
}

# numpydoc's checks that are kept for public names; the others are matters of taste that ruff or
# review decide: summaries in the infinitive, blank lines, full stops after one-word descriptions.
CHECKS = {
    "GL01",  # summary starts on the first or second line
    "GL03",  # no double blank lines
    "GL06",  # unknown section
    "GL07",  # sections in numpydoc's order
    "GL08",  # no docstring
    "SS01",  # no summary
    "SS03",  # summary ends with a period
    "SS06",  # summary in one line
    "PR01",  # parameters that are not documented
    "PR02",  # documented parameters that do not exist
    "PR03",  # parameters in the order of the signature
    "PR04",  # parameter without a type
    "PR07",  # parameter without a description
    "PR10",  # a space before the colon
    "RT03",  # return value without a description
}


# Keywords that are checked by name inside, so that the signature does not show them.
OPEN_SIGNATURES = {"skfleet.config_context": {"PR01", "PR02"}}


def names_of(room):
    """List the public names of a room; none if it is missing, which PUBLIC then shows."""
    try:
        module = importlib.import_module(room)
    except ModuleNotFoundError:
        return []
    return [f"{room}.{name}" for name in getattr(module, "__all__", ())]


def resolve(dotted):
    """Import the object with a dotted name."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


def is_ours(dotted):
    """Say whether an object is written here, and not scikit-learn's own."""
    return resolve(dotted).__module__.startswith("skfleet")


# Sections have scikit-learn's titles and order, not always numpydoc's.
SCIKIT_LEARN_DOCSTRINGS = {
    name
    for name in names_of("skfleet.model_selection")
    if hasattr(resolve(name), "class_in_scikit_learn")
}
DISCOVERED = sorted(PUBLIC | {n for room in ROOMS for n in names_of(room) if is_ours(n)})


def complaints(dotted):
    """Return numpydoc's errors about one object, as far as they are among the checks kept."""
    checks = CHECKS - OPEN_SIGNATURES.get(dotted, set())
    checks = checks - ({"GL06", "GL07"} if dotted in SCIKIT_LEARN_DOCSTRINGS else set())
    return [f"{code}: {text}" for code, text in validate(dotted)["errors"] if code in checks]


@pytest.mark.parametrize("dotted", DISCOVERED)
def test_docstring(dotted):
    obj = resolve(dotted)
    assert complaints(dotted) == []
    if inspect.isclass(obj) or inspect.isfunction(obj):
        assert ">>> " in inspect.getdoc(obj), f"{dotted} needs an example that runs"


def public_methods():
    """List the methods of public classes that are written here."""
    for dotted in DISCOVERED:
        try:
            obj = resolve(dotted)
        except (AttributeError, ModuleNotFoundError):
            continue  # test_docstring fails for it
        if inspect.isclass(obj):
            for name, member in vars(obj).items():
                if not name.startswith("_") and inspect.isfunction(member):
                    yield f"{dotted}.{name}"


@pytest.mark.parametrize("dotted", list(public_methods()))
def test_docstring_of_methods(dotted):
    assert inspect.getdoc(resolve_method(dotted)), f"{dotted} needs a docstring"
    assert [text for text in complaints(dotted) if text[:4] in ("PR02", "PR03", "PR04")] == []


def resolve_method(dotted):
    """Return the function behind a dotted name of class and method."""
    owner, _, name = dotted.rpartition(".")
    return getattr(resolve(owner), name)


def test_checks_find_what_they_are_for():
    found = {text[:4] for text in complaints(f"{__name__}.badly_documented")}
    assert found == {"PR01", "PR02", "SS03"}


def badly_documented(parameter):
    """Take one parameter and speak of another

    Parameters
    ----------
    other : int
        What is not there.
    """
