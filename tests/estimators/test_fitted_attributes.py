"""Public fitted attributes are scikit-learn's after the same fit: kind, type, dtype and shape."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.utils import all_estimators, get_tags

from random_examples import n_examples
from skfleet import estimators

THEIRS = dict(all_estimators())
# of those of scikit-learn with a default for every parameter
NAMES = sorted(set(estimators.__all__) & THEIRS.keys() - {"ColumnTransformer", "FeatureUnion"})
# Attributes that may differ, or be missing there: what ours say besides, and all components of
# sparse rows, of which scikit-learn's solver finds one less.
DIFFERENT = {
    ("PCA", "csr"): {
        "components_",
        "explained_variance_",
        "explained_variance_ratio_",
        "noise_variance_",
        "singular_values_",
    }
}
TARGETS = {
    "classifier": ("two classes", "three classes", "column of classes", "labels"),
    "regressor": ("number", "column of numbers", "numbers"),
}


def described(value):
    """Return type, dtype and shape of a value, and those of the first of several."""
    parts = [type(value).__name__, getattr(value, "dtype", None), getattr(value, "shape", None)]
    if isinstance(value, list | tuple) and value:
        parts.append(described(value[0]))
    return tuple(map(str, parts))


def public_attributes(model):
    return {
        name: described(getattr(model, name))
        for name in dir(model)
        if name.endswith("_") and not name.startswith("_") and hasattr(model, name)
    }


# What is no matrix of numbers.
OTHER_ROWS = {
    "LabelBinarizer": [1, 2, 3],
    "LabelEncoder": ["a", "b", "a"],
    "MultiLabelBinarizer": [("a",), ("a", "b")],
    "CountVectorizer": ["a word", "another word"],
    "HashingVectorizer": ["a word", "another word"],
    "TfidfVectorizer": ["a word", "another word"],
    "DictVectorizer": [{"a": 1, "b": 2}, {"a": 3}],
    "FeatureHasher": [{"a": 1, "b": 2}, {"a": 3}],
}


def make_rows(cls, container, target):
    if cls.__name__ in OTHER_ROWS:
        return OTHER_ROWS[cls.__name__], None
    rng = np.random.RandomState(0)
    X = rng.randn(40, 4)
    if get_tags(cls()).input_tags.positive_only or "NB" in cls.__name__:
        X = np.abs(X)
    X = (2 * X).astype(int) if cls.__name__ == "CategoricalNB" else X
    X = X.astype(np.float32) if container == "float32" else X
    X = sparse.csr_matrix(X) if container == "csr" else X
    number = np.abs(rng.randn(40)) + 0.1
    two = (number > np.median(number)).astype(int)
    y = {
        "none": None,
        "number": number,
        "column of numbers": number[:, None],
        "numbers": np.column_stack([number, number[::-1]]),
        "two classes": two,
        "three classes": np.digitize(number, np.quantile(number, [0.3, 0.6])),
        "column of classes": two[:, None],
        "labels": np.column_stack([two, two[::-1]]),
    }[target]
    return X, y


def fitted(cls, X, y, options):
    """Return the fitted attributes, None where the rows are refused."""
    params = {name: v for name, v in options.items() if name in cls().get_params()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return public_attributes(cls(**params).fit(X, *(() if y is None else (y,))))
        except (TypeError, ValueError):
            return None


def check_attributes(name, container, target, **options):
    X, y = make_rows(THEIRS[name], container, target)
    options = {"random_state": 0, "n_components": 2, "n_estimators": 3, "n_clusters": 3} | options
    theirs = fitted(THEIRS[name], X, y, options)
    ours = fitted(getattr(estimators, name), X, y, options)
    if theirs is None:
        return  # what is refused is the matter of other tests
    shared = theirs.keys() - DIFFERENT.get((name, container), set())
    assert {key: ours.get(key) for key in shared} == {key: theirs[key] for key in shared}


def targets_of(name):
    tags = get_tags(THEIRS[name]())
    kinds = TARGETS.get(tags.estimator_type)
    return kinds or (("two classes",) if tags.target_tags.required else ("none",))


@pytest.mark.parametrize("name", NAMES)
def test_fitted_attributes_are_scikit_learns(name):
    check_attributes(name, "float64", targets_of(name)[0])


@settings(max_examples=n_examples(20, 200), deadline=None)
@given(data=st.data())
def test_fitted_attributes_are_scikit_learns_at_random(data):
    name = data.draw(st.sampled_from(NAMES))
    check_attributes(
        name,
        data.draw(st.sampled_from(["float64", "float32", "csr"])),
        data.draw(st.sampled_from(targets_of(name))),
        fit_intercept=data.draw(st.booleans()),
        n_components=data.draw(st.sampled_from([None, 2])),
    )
