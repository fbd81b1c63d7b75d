"""A pytest plugin that runs scikit-learn's tests of its splitters on ours."""

import sklearn.model_selection

from skfleet import model_selection

for name in model_selection.__all__:
    ours = getattr(model_selection, name)
    if ours.__module__.endswith("._split") and hasattr(sklearn.model_selection, name):
        setattr(sklearn.model_selection, name, ours)
