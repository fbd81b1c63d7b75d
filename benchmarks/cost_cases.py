"""The cases of `bench_cost.py`: what is made of which rows by both libraries.

An estimator, a metric or a search is a case with the name that it has in both libraries. What has
none is in `NO_CASE`, with the reason; a test reads from the public names that none is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from cost_rows import (
    N_COLUMNS,
    N_PARTS,
    amounts,
    categories,
    counts,
    dicts,
    gaps,
    groups,
    label_sets,
    labels,
    numbers,
    texts,
    truths,
    words,
)
from scipy import sparse
from scipy.sparse.linalg import norm
from sklearn import calibration, metrics
from sklearn.ensemble import BaggingClassifier, BaggingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.metrics import adjusted_rand_score, log_loss
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import all_estimators

from skfleet import estimators as est
from skfleet import metrics as our_metrics
from skfleet import model_selection
from skfleet.estimators.boosting import LIBRARIES

N_CORES = 2

# -- the two libraries -----------------------------------------------------------------------------


class Ours:
    """Public names of this library."""

    def __getattr__(self, name):
        rooms = (est, model_selection, our_metrics)
        return next(getattr(room, name) for room in rooms if name in dir(room))


class Theirs:
    """The same names in scikit-learn, LightGBM and XGBoost."""

    def __getattr__(self, name):
        found = counterpart(name)
        if found is None:
            raise AttributeError(f"scikit-learn has no {name}")
        return found


OURS, THEIRS = Ours(), Theirs()


def counterpart(name):
    """Return what has a name in another library, or None, also where that is not installed."""
    if name in LIBRARIES:
        is_installed = find_spec(LIBRARIES[name]) is not None
        return getattr(import_module(LIBRARIES[name]), name) if is_installed else None
    rooms = (metrics, calibration)
    functions = (getattr(room, name) for room in rooms if name in room.__dict__)
    return _classes().get(name) or next(functions, None)


@cache
def _classes():
    return dict(all_estimators())


# -- quality: a loss of a model on the first rows, next to scikit-learn's model --------------------


def score(model, reference, X, y):
    """Return the model's own score with the other sign."""
    return -model.score(X, y)


def best_score(model, reference, X, y):
    """Return the score of the best candidate with the other sign."""
    return -model.best_score_


def log_loss_of_labels(model, reference, X, y):
    """Return the log loss."""
    return log_loss(y, model.predict_proba(X))


def variance(model, reference, X, y):
    """Return the variance of the components with the other sign."""
    return -float(np.sum(model.explained_variance_))


def distance(model, reference, X, y):
    """Return the mean distance of the neighbours."""
    return float(np.mean(model.kneighbors(X)[0]))


def rand_score(model, reference, X, y):
    """Return the agreement with the true groups, with the other sign."""
    return -adjusted_rand_score(y, np.asarray(model.labels_)[: len(y)])


def answers(model, reference, X, y):
    """Return how far a transformer's answers are from those of scikit-learn's, relatively."""
    return difference(model.transform(X), reference.transform(X))


def difference(ours, theirs):
    """Return how far numbers or texts are from others, relatively; infinity for another shape."""
    if isinstance(theirs, (str, dict)):
        return 0.0 if ours == theirs else np.inf
    if isinstance(theirs, tuple):
        return max(difference(a, b) for a, b in zip(ours, theirs, strict=True) if b is not None)
    if sparse.issparse(ours) and sparse.issparse(theirs):
        # a million columns of a hash are never dense
        if ours.shape != theirs.shape:
            return np.inf
        return float(norm(ours - theirs) / max(norm(theirs), 1e-300))
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return np.inf
    if theirs.dtype.kind in "OU":
        return float(np.mean(ours != theirs))
    finite = np.isfinite(theirs)
    if not np.array_equal(finite, np.isfinite(ours)):
        return np.inf
    ours, theirs = ours[finite].astype(float), theirs[finite].astype(float)
    return float(np.linalg.norm(ours - theirs) / max(np.linalg.norm(theirs), 1e-300))


# -- cases -----------------------------------------------------------------------------------------


@dataclass
class Case:
    """An estimator, a search or a metric, its rows, and what is asked of it.

    `theirs` builds scikit-learn's, where it is not the same class with the same `params`. `params`
    may be a function of the library. `fits_in_memory` says that ours too is fitted on rows in this
    process, `asks_few_rows` that it answers a thousand rows there. `growth` is the power of the
    rows with which scikit-learn's time grows, `square_arrays` how often it holds rows x rows.
    """

    name: str
    rows: Callable[..., Any] = numbers
    target: str | None = None
    method: str | None = "predict"
    loss: Callable[..., float] = score
    params: Any = field(default_factory=dict)
    theirs: Callable[[], Any] | None = None
    tolerance: float = 0.01
    fits_in_memory: bool = False
    asks_few_rows: bool = False
    growth: int = 1
    square_arrays: int = 0

    def build(self, library):
        """Return an estimator that is not fitted."""
        if library is THEIRS and self.theirs is not None:
            return self.theirs()
        params = self.params(library) if callable(self.params) else self.params
        return getattr(library, self.name.split(",")[0])(**params)

    def losses(self, ours, theirs, X, y):
        """Return the losses of both models on some rows."""
        return self.loss(ours, theirs, X, y), self.loss(theirs, theirs, X, y)

    @property
    def actions(self):
        """The steps that are timed: functions of the library, what came before, and the rows."""
        if self.method is None:
            return {"fit": self._fit}
        return {"fit": self._fit, self.method: self._ask}

    def _fit(self, library, before, X, y):
        return self.build(library).fit(*((X,) if y is None else (X, y)))

    def _ask(self, library, model, X, y):
        return getattr(model, self.method)(*((X, y) if self.method == "score" else (X,)))


@dataclass
class Metric(Case):
    """A metric of true and predicted values."""

    def losses(self, ours, theirs, X, y):
        """Return how far the number is from scikit-learn's, and 0."""
        return difference(ours, theirs), 0.0

    @property
    def actions(self):
        """One step: a number."""
        return {"score": self._score}

    def _score(self, library, before, X, y):
        return getattr(library, self.name)(X, y, **self.params)


def _cases(names, *args, **kwargs):
    return [Case(name, *args, **kwargs) for name in names.split()]


def _transformers(names, rows=numbers, target=None, tolerance=1e-6, **params):
    kwargs = {"tolerance": tolerance, "params": params}
    return _cases(names, rows, target, "transform", answers, **kwargs)


def _searches(library):
    """Return the parameters of a search over four candidates."""
    grid = {"C": [0.001, 0.01, 0.1, 1.0]}
    # scikit-learn's runs two fits at a time, ours as many as the fleet has threads
    jobs = {"n_jobs": N_CORES} if library is THEIRS else {}
    return {"estimator": library.LogisticRegression(), "cv": 3, **jobs}, grid


def _grid(library, **more):
    params, grid = _searches(library)
    return params | {"param_grid": grid} | more


def _draws(library, **more):
    params, grid = _searches(library)
    return params | {"param_distributions": grid, "random_state": 0} | more


def _trees(library):
    params, _ = _searches(library)
    tree = DecisionTreeClassifier(random_state=0)
    return params | {"estimator": tree, "param_grid": {"max_depth": [2, 4, 6, 8]}}


def _parts(library):
    """Return the parameters of a ColumnTransformer."""
    first, second = list(range(10)), list(range(10, N_COLUMNS))
    scalers = library.StandardScaler(), library.MinMaxScaler()
    return {"transformers": [("a", scalers[0], first), ("b", scalers[1], second)]}


def _union(library):
    return {"transformer_list": [("a", library.StandardScaler()), ("b", library.MinMaxScaler())]}


def _target(library):
    return {"regressor": library.Ridge(), "transformer": library.StandardScaler()}


JOBS = {"n_jobs": N_CORES}
FOREST = {"n_estimators": 20, "max_samples": 0.2, "bootstrap": True, "random_state": 0, **JOBS}
BOOSTING = {"n_estimators": 20, **JOBS}
# As many members as there are parts of the rows.
BAGGING = {"n_estimators": N_PARTS, "max_samples": 1 / N_PARTS, "bootstrap": False, **JOBS}
TREE = {"max_depth": 6, "random_state": 0}

LINEAR = [
    *_cases("LinearRegression Ridge RidgeCV", target="number"),
    *_cases("Lasso ElasticNet", target="number", params={"alpha": 0.01}),
    *_cases("LassoCV ElasticNetCV", target="number", params=JOBS),
    *_cases("LogisticRegression", target="label", loss=log_loss_of_labels),
    *_cases("RidgeClassifier", target="label"),
    *_cases("PoissonRegressor", target="count"),
    *_cases("GammaRegressor", target="amount"),
    *_cases("TweedieRegressor", target="count", params={"power": 1.5}),
    *_cases("SGDClassifier", target="label", params={"random_state": 0}, tolerance=0.02),
    *_cases("SGDRegressor", target="number", params={"random_state": 0}, tolerance=0.02),
]
UNSUPERVISED = [
    *_cases("KMeans MiniBatchKMeans", params={"n_clusters": 8, "random_state": 0}, tolerance=0.02),
    Case(
        "SpectralClustering",
        groups,
        "group",
        method=None,
        loss=rand_score,
        params={"gamma": 0.02, "random_state": 0, **JOBS},
        growth=2,
        square_arrays=3,
    ),
    *_cases("GaussianMixture", params={"n_components": 4, "random_state": 0}),
    *_cases(
        "PCA IncrementalPCA TruncatedSVD",
        method="transform",
        loss=variance,
        params={"n_components": 5},
    ),
]
SUPERVISED = [
    *_cases("GaussianNB BernoulliNB", target="label"),
    *_cases("MultinomialNB ComplementNB", counts, "label"),
    *_cases("CategoricalNB", categories, "label", params={"min_categories": 50}),
    *_cases(
        "RandomForestClassifier ExtraTreesClassifier", target="label", params=FOREST, tolerance=0.03
    ),
    *_cases(
        "RandomForestRegressor ExtraTreesRegressor", target="number", params=FOREST, tolerance=0.05
    ),
    *_cases("LGBMClassifier", target="label", params=BOOSTING | {"verbose": -1}),
    *_cases("LGBMRegressor", target="number", params=BOOSTING | {"verbose": -1}),
    *_cases("XGBClassifier", target="label", params=BOOSTING),
    *_cases("XGBRegressor", target="number", params=BOOSTING),
    *_cases("KNeighborsClassifier", target="label", params=JOBS, asks_few_rows=True),
    *_cases("KNeighborsRegressor", target="number", params=JOBS, asks_few_rows=True),
    Case("NearestNeighbors", numbers, None, "kneighbors", distance, JOBS, asks_few_rows=True),
    Case("TransformedTargetRegressor", target="number", params=_target),
]
PREPARATION = [
    *_transformers(
        "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler Normalizer Binarizer "
        "PolynomialFeatures SplineTransformer PowerTransformer VarianceThreshold",
        tolerance=1e-4,
    ),
    *_transformers("QuantileTransformer", random_state=0, tolerance=0.05),
    *_transformers(
        "KBinsDiscretizer",
        quantile_method="averaged_inverted_cdf",
        random_state=0,
        tolerance=0.05,
    ),
    *_transformers("FunctionTransformer", func=np.tanh),
    *_transformers("SelectKBest", target="label", k=5),
    *_transformers("SelectPercentile SelectFpr SelectFdr SelectFwe", target="label"),
    *_transformers("GenericUnivariateSelect", target="label", mode="k_best", param=5),
    *_transformers("SimpleImputer MissingIndicator", gaps),
    *_transformers("OneHotEncoder OrdinalEncoder", categories),
    *_transformers("OneHotEncoder,text OrdinalEncoder,text", words),
    *_transformers("TargetEncoder", categories, "label", random_state=0),
    *_transformers("TargetEncoder,text", words, "label", random_state=0),
    *_transformers("CountVectorizer TfidfVectorizer HashingVectorizer", texts),
    *_transformers("TfidfTransformer", counts),
    *_transformers("DictVectorizer FeatureHasher", dicts),
    *_transformers("LabelEncoder LabelBinarizer", labels),
    *_transformers("MultiLabelBinarizer", label_sets),
    Case("ColumnTransformer", numbers, None, "transform", answers, _parts, tolerance=1e-6),
    Case("FeatureUnion", numbers, None, "transform", answers, _union, tolerance=1e-6),
]
WRAPPERS = [
    Case(
        "ParallelPostFit",
        target="label",
        params={"estimator": LogisticRegression()},
        theirs=LogisticRegression,
        fits_in_memory=True,
    ),
    Case(
        "Incremental",
        target="label",
        params={"estimator": SGDClassifier(random_state=0), "random_state": 0},
        theirs=lambda: SGDClassifier(max_iter=1, tol=None, random_state=0),
        tolerance=0.08,  # as far apart as scores after one epoch with other seeds
    ),
    Case(
        "BlockwiseVotingClassifier",
        target="label",
        params={"estimator": DecisionTreeClassifier(**TREE), "n_blocks": N_PARTS},
        theirs=lambda: BaggingClassifier(DecisionTreeClassifier(**TREE), random_state=0, **BAGGING),
        tolerance=0.03,
    ),
    Case(
        "BlockwiseVotingRegressor",
        target="number",
        params={"estimator": DecisionTreeRegressor(**TREE), "n_blocks": N_PARTS},
        theirs=lambda: BaggingRegressor(DecisionTreeRegressor(**TREE), random_state=0, **BAGGING),
        tolerance=0.03,
    ),
]
SEARCHES = [
    Case("GridSearchCV", numbers, "label", "score", best_score, _grid),
    Case("GridSearchCV,trees", numbers, "label", "score", best_score, _trees),
    Case(
        "RandomizedSearchCV",
        numbers,
        "label",
        "score",
        best_score,
        lambda library: _draws(library, n_iter=4),
    ),
    Case(
        "HalvingGridSearchCV",
        numbers,
        "label",
        "score",
        best_score,
        lambda library: _grid(library, random_state=0),
        tolerance=0.05,
    ),
    Case(
        "HalvingRandomSearchCV",
        numbers,
        "label",
        "score",
        best_score,
        lambda library: _draws(library, n_candidates=4),
        tolerance=0.05,
    ),
]


def _metrics(names, rows, target, **params):
    return [Metric(name, rows, target, params=params, tolerance=1e-6) for name in names.split()]


METRICS = [
    *_metrics(
        "accuracy_score balanced_accuracy_score classification_report cohen_kappa_score "
        "confusion_matrix f1_score hamming_loss jaccard_score matthews_corrcoef "
        "multilabel_confusion_matrix precision_recall_fscore_support precision_score recall_score "
        "zero_one_loss",
        truths,
        "guess",
    ),
    *_metrics("fbeta_score", truths, "guess", beta=2.0),
    *_metrics(
        "average_precision_score brier_score_loss calibration_curve det_curve log_loss "
        "precision_recall_curve roc_auc_score roc_curve",
        truths,
        "probability",
    ),
    *_metrics("top_k_accuracy_score", truths, "probability", k=1),
    *_metrics(
        "d2_absolute_error_score d2_pinball_score d2_tweedie_score explained_variance_score "
        "max_error mean_absolute_error mean_absolute_percentage_error mean_gamma_deviance "
        "mean_pinball_loss mean_poisson_deviance mean_squared_error mean_squared_log_error "
        "mean_tweedie_deviance median_absolute_error r2_score root_mean_squared_error "
        "root_mean_squared_log_error",
        amounts,
        "estimate",
    ),
]
CASES = [
    case
    for case in LINEAR + UNSUPERVISED + SUPERVISED + PREPARATION + WRAPPERS + SEARCHES + METRICS
    if case.name not in LIBRARIES or counterpart(case.name) is not None
]

# Public names that are in scikit-learn, LightGBM or XGBoost too.
NO_CASE = {
    "LGBMRanker": "takes queries, next to rows and targets",
    "XGBRanker": "takes queries, next to rows and targets",
    "check_scoring": "returns a scorer",
    "get_scorer": "returns a scorer",
    "get_scorer_names": "returns names",
}


def public_names():
    """Return the public estimators, metrics and searches that have a counterpart."""
    searches = [name for name in model_selection.__all__ if name.endswith("SearchCV")]
    names = [*est.__all__, *LIBRARIES, *our_metrics.__all__, *searches]
    return {name for name in names if counterpart(name) is not None}
