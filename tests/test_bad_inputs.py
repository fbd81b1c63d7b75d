"""Bad inputs x public entries: a sentence of ours or scikit-learn's, before work, and no change."""

import copy
import inspect
import re
import warnings
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import dask
import dask.bag
import joblib
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier

from bad_inputs import (
    AB,
    AROUND,
    CONTAINERS,
    DATES,
    FRAME,
    LABELS,
    LENGTH,
    NUMERIC,
    ROWS_OF_NEW_X,
    ROWS_OF_SCORES,
    ROWS_OF_WEIGHT,
    ROWS_OF_X,
    ROWS_OF_Y,
    TARGET,
    WITHOUT_TARGET,
    Row,
    X,
    columns,
    dask_array,
    dask_frame,
    fits_into,
    frame,
    loads,
    put,
)
from skfleet import Fleet, estimators, metrics, model_selection
from skfleet.exceptions import FleetError

# ---------------------------------------------------------------- the entries

# Classes derived from scikit-learn's have its errors, which are tested where these classes are.
NAMES = [
    name
    for name in estimators.__all__
    if not any(
        cls.__name__ == name and cls.__module__.startswith("sklearn.")
        for cls in getattr(estimators, name).__mro__
    )
]
METHODS = ("predict", "predict_proba", "decision_function", "transform", "inverse_transform")
# Those that no estimator can take, whichever library it is of.
NO_INPUT = {"a number", "nothing", "a text", "a dict", "a set", "a generator"}


def make(name):
    """Make an estimator that is fitted in an instant."""
    inner = {
        "Incremental": SGDClassifier(random_state=0),
        "ParallelPostFit": LogisticRegression(),
        "BlockwiseVotingClassifier": LogisticRegression(),
        "BlockwiseVotingRegressor": Ridge(),
    }
    cls = getattr(estimators, name)
    parameters = inspect.signature(cls).parameters
    small = {"random_state": 0, "n_clusters": 2, "n_components": 2, "cv": 2, "max_iter": 50}
    if "SGD" in name:
        small |= {"max_iter": 5, "tol": None}
    given = {key: value for key, value in small.items() if key in parameters}
    return cls(inner[name], **given) if name in AROUND else cls(**given)


@cache
def _fitted(name, is_named):
    model, rows = make(name), FRAME if is_named else X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(rows) if name in WITHOUT_TARGET else model.fit(rows, target_of(model))


def _width(values):
    """Return how many columns a matrix has, 0 for all else."""
    return values.shape[1] if getattr(values, "ndim", 0) == 2 else 0


def fitted(name, row, container):
    """Return an estimator fitted on good rows, with names where the bad ones have some."""
    is_named = container in ("pandas", "dask frame") and _width(row.values) > 0
    return copy.deepcopy(_fitted(name, is_named))


def target_of(model):
    return TARGET if is_regressor(model) else LABELS


def share_of(names, row, size):
    """Choose some of the names, others for every row."""
    names = sorted(names)
    start = sum(map(ord, str(row)))
    return names if size is None else [names[(start + 7 * i) % len(names)] for i in range(size)]


def driver_knows(row, name, container):
    """Say whether this process can refuse an input without loading any of it."""
    if not container.startswith("dask"):
        return row.is_known
    if container == "dask frame" and LENGTH in row.says:
        return False
    ours = name not in AROUND or row.place == "w" or row.name in NO_INPUT
    is_type = row.place == "y" and (row.name == "complex" or NUMERIC in row.says)
    return row.is_known and (ours or is_type or LENGTH in row.says)


def _answer(answer):
    """Compute a lazy answer: some of what others judge shows in the blocks only."""
    return answer.compute(scheduler="synchronous") if hasattr(answer, "compute") else answer


def refusal(call, row, name, container, model):
    """Say what is wrong with how an input is refused; nothing, where all is well."""
    before, at = joblib.hash(vars(model)), f"{name} on {container}"
    loads.clear()
    try:
        call()
    except (ValueError, TypeError) as error:
        message, n_loads = str(error), len(loads)
    else:
        return [f"{at}: no error"]
    says = f"{row.says}|{row.inner}" if row.inner and name in AROUND else row.says
    if name == "ParallelPostFit" and container.startswith("dask"):
        says += "|must be in this process to fit"
    wrong = []
    if not re.search(says, message):
        wrong.append(f"{at}: says {message[:200]!r}")
    if n_loads and driver_knows(row, name, container):
        wrong.append(f"{at}: {n_loads} blocks were loaded to find out")
    # Incremental keeps what it has learned before a block that fails.
    if joblib.hash(vars(model)) != before and (n_loads == 0 or "Incremental" not in name):
        wrong.append(f"{at}: the estimator was changed")
    return wrong


SIZES = [pytest.param(1, id="some"), pytest.param(None, id="all", marks=pytest.mark.slow)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("row", [*ROWS_OF_X, *ROWS_OF_Y, *ROWS_OF_WEIGHT], ids=str)
def test_fit_refuses(row, container, size):
    if not fits_into(row.values, container):
        pytest.skip("the container holds no such values")
    names = [name for name in NAMES if row.only(name, make(name))]
    if row.place == "y":
        names = [name for name in names if name not in WITHOUT_TARGET]
    if row.place == "w":
        takes = [inspect.signature(getattr(estimators, name).fit).parameters for name in names]
        names = [n for n, p in zip(names, takes, strict=True) if "sample_weight" in p]
    wrong = []
    for name in share_of(names, row, size):
        model = fitted(name, row, container)
        given = {"X": FRAME, "y": None if name in WITHOUT_TARGET else target_of(model)}
        given = {key: put(frame(v), container) for key, v in given.items() if v is not None}
        given["sample_weight" if row.place == "w" else row.place] = put(row.values, container)
        rows = given.pop("X")
        wrong += refusal(
            lambda r=rows, g=given, m=model: m.fit(r, **g), row, name, container, model
        )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("row", ROWS_OF_NEW_X, ids=str)
def test_fitted_models_refuse(row, container, size):
    if not fits_into(row.values, container):
        pytest.skip("the container holds no such values")
    wrong = []
    for name in share_of([n for n in NAMES if row.only(n, None)], row, size):
        model = fitted(name, row, container)
        for method in METHODS:
            if not hasattr(model, method):
                continue
            rows = put(row.values, container)
            one = row
            if method == "inverse_transform":  # takes components, whose names nobody knows
                if isinstance(row.values, pd.DataFrame) or row.name in (
                    "one dimension",
                    "too narrow",
                ):
                    continue
                one = Row("X", row.name, row.values, f"{row.says}|as many columns as there are")
            call = getattr(model, method)
            wrong += refusal(lambda c=call, r=rows: _answer(c(r)), one, name, container, model)
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------- searches

GRID, ALPHAS = {"C": [1, 2]}, {"alpha": [1e-3, 1e-2]}
OF_GRIDS = {
    "GridSearchCV": {},
    "RandomizedSearchCV": {"n_iter": 1},
    # all rows at once: some of them may not have what is bad
    "HalvingGridSearchCV": {"min_resources": len(X)},
    "HalvingRandomSearchCV": {"n_candidates": 2, "min_resources": len(X)},
}
ADAPTIVE = [
    "ASHASearchCV",
    "HyperbandSearchCV",
    "IncrementalSearchCV",
    "InverseDecaySearchCV",
    "SuccessiveHalvingSearchCV",
]
# (name of the search, whether its estimator is one of ours)
SEARCHES = [(name, ours) for name in OF_GRIDS for ours in (False, True)]
SEARCHES += [(name, False) for name in ADAPTIVE]
# What scikit-learn's estimators take, and what a type does not tell.
NOT_OF_SEARCHES = {"dates", "numbers for labels"}


def make_search(name, is_ours=False):
    """Make a search of an instant."""
    cls = getattr(model_selection, name)
    if name in ADAPTIVE:
        return cls(SGDClassifier(), ALPHAS, max_iter=3, random_state=0)
    family = estimators.LogisticRegression if is_ours else LogisticRegression
    return cls(family(max_iter=20), GRID, cv=2, **OF_GRIDS[name])


@pytest.fixture(scope="module")
def here():
    """A cluster in this process, where what is loaded can be counted."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as one:
        yield one


@pytest.mark.sampled(42)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("row", [*ROWS_OF_X, *ROWS_OF_Y], ids=str)
def test_searches_refuse(row, container, size, here):
    if not fits_into(row.values, container):
        pytest.skip("the container holds no such values")
    if row.name in NOT_OF_SEARCHES or not row.only("LogisticRegression", LogisticRegression()):
        pytest.skip("scikit-learn's searches take it")
    # a splitter, or the scorer, may be the first to see
    ours = "|".join([row.says, row.inner or row.says, NUMERIC])
    # and of what scikit-learn's own do not look at, NumPy
    theirs = f"{ours}|'<' not supported between" if row.name == "labels of two kinds" else ours
    wrong = []
    for name, is_ours in share_of(SEARCHES, row, size):
        search = make_search(name, is_ours)
        says = ours if is_ours or name in ADAPTIVE else theirs
        asked = replace(row, says=says, is_known=False)
        given = {"X": put(frame(FRAME), container), "y": put(frame(LABELS), container)}
        given[row.place] = put(row.values, container)
        with here.as_current(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # scikit-learn's keep the number of splits of a search that failed
            kept = search if name in ADAPTIVE else SimpleNamespace(**search.get_params(deep=False))
            wrong += refusal(lambda s=search, g=given: s.fit(**g), asked, name, container, kept)
        wrong += [f"{name}: has results"] * hasattr(search, "cv_results_")
        if row.values is None or callable(row.values) or row.name in NO_INPUT:
            wrong += [f"{name}: fits were made"] * hasattr(search, "n_splits_")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("name", "is_ours"), SEARCHES)
def test_searches_without_a_target_say_so_before_work(name, is_ours, here):
    loads.clear()
    with here.as_current(), pytest.raises(ValueError, match=f"{name} .*requires y to be passed"):
        make_search(name, is_ours).fit(dask_array(X), None)
    assert not loads


@pytest.mark.filterwarnings("ignore:The total space of parameters")
@pytest.mark.parametrize(
    "make_model",
    [
        lambda: make_search("GridSearchCV"),
        lambda: make_search("HalvingGridSearchCV"),
        lambda: make_search("IncrementalSearchCV"),
        lambda: make("BlockwiseVotingClassifier"),
        lambda: make("Incremental"),
        lambda: make("LogisticRegression"),
    ],
)
def test_what_has_no_shape_is_no_target(make_model, here):
    with here.as_current():
        model = make_model().fit(X, LABELS)
        for y in (dask.delayed(LABELS), dask.bag.from_sequence(LABELS)):
            for rows in (X, dask_array(X)):
                with pytest.raises(TypeError, match=r"must be a Dask array.*Got a? ?(bag|Delayed)"):
                    model.score(rows, y)
                with pytest.raises(
                    TypeError, match=r"y must be a Dask array.*Got a? ?(bag|Delayed)"
                ):
                    make_model().fit(rows, y)


@pytest.mark.parametrize("name", ["early_stopping", "random_state", "scoring", "tol", "verbose"])
def test_parameters_of_incremental_are_checked_before_work(name):
    for odd in (object(), "odd"):
        loads.clear()
        with pytest.raises(ValueError, match=f"{name} must"):
            make("Incremental").set_params(**{name: odd}).fit(dask_array(X), dask_array(LABELS))
        assert not loads


# ---------------------------------------------------------------- closed fleets


@pytest.fixture(scope="module")
def closed():
    """A fleet that was closed."""
    fleet = Fleet(n_workers=1, processes=False, dashboard_address=None)
    fleet.close()
    return fleet


CLOSED_FLEETS = {
    "with": lambda fleet: fleet.__enter__(),
    "scale": lambda fleet: fleet.scale(2),
    "adapt": lambda fleet: fleet.adapt(minimum=1, maximum=2),
    "Parallel": lambda fleet: joblib.Parallel()(joblib.delayed(abs)(i) for i in range(3)),
    "GridSearchCV": lambda fleet: make_search("GridSearchCV").fit(X, LABELS),
    "GridSearchCV of ours": lambda fleet: make_search("GridSearchCV", True).fit(X, LABELS),
    "HalvingGridSearchCV": lambda fleet: make_search("HalvingGridSearchCV").fit(X, LABELS),
}


@pytest.mark.parametrize("entry", CLOSED_FLEETS)
def test_a_closed_fleet_is_refused(entry, closed):
    says = pytest.raises(FleetError, match=r"must be (open|connected|called on an open).*closed")
    with joblib.parallel_config("skfleet", client=closed.client), says:
        CLOSED_FLEETS[entry](closed)


# ---------------------------------------------------------------- metrics

SCORES = {
    "accuracy_score": (LABELS, LABELS),
    "mean_squared_error": (TARGET, TARGET),
    "r2_score": (TARGET, TARGET),
    "log_loss": (LABELS, LABELS.astype(float)),
    "roc_auc_score": (LABELS, LABELS.astype(float)),
}


@pytest.mark.parametrize("container", ["dask array", "dask frame"])
@pytest.mark.parametrize("row", ROWS_OF_SCORES, ids=str)
def test_metrics_refuse(row, container):
    if not fits_into(row.values, container):
        pytest.skip("the container holds no such values")
    for name in share_of(SCORES, row, None if row.is_known else 1):
        true, predicted = (put(v, container) for v in SCORES[name])
        given = {"y_true": true, "y_pred": predicted}
        given["sample_weight" if row.place == "w" else row.place] = put(row.values, container)
        loads.clear()
        with pytest.raises((ValueError, TypeError), match=row.says):
            getattr(metrics, name)(
                given["y_true"],
                given["y_pred"],
                **({"sample_weight": given["sample_weight"]} if row.place == "w" else {}),
            )
        has_lengths = container == "dask array" or row.name != "too long"
        assert not loads or not (row.is_known and has_lengths)


@pytest.mark.parametrize("name", sorted(set(NAMES) - AROUND))
def test_parameters_that_cannot_be_are_refused_by_name(name):
    good = make(name)
    target = {} if name in WITHOUT_TARGET else {"y": dask_array(target_of(good))}
    says = "cross-validation|cannot unpack|could not convert|real number"  # of cv, l1_ratio, init
    for parameter in good.get_params(deep=False):
        for odd in (object(), "odd"):
            model = make(name).set_params(**{parameter: odd})
            loads.clear()
            with pytest.raises((ValueError, TypeError), match=f"{parameter}|{says}"):
                model.fit(dask_array(X), **target)
            assert not loads
    with pytest.raises(ValueError, match="Invalid parameter 'odd'"):
        good.set_params(odd=1)
    with pytest.raises((ValueError, TypeError), match="odd"):
        good.fit(X, odd=1, **{key: target_of(good) for key in target})


@pytest.mark.parametrize("name", ["ElasticNetCV", "LassoCV"])
def test_alphas_of_two_dimensions_are_refused(name):
    with pytest.raises(ValueError, match="alphas must have one dimension"):
        make(name).set_params(alphas=[[0.1, 1.0]]).fit(X, TARGET)


def test_advice_for_dask_rows_can_be_followed():
    X = dask_frame(columns(c1=AB, c2=DATES, c3=pd.Categorical(AB)))
    y = dask_frame(pd.Series(TARGET))
    with pytest.raises(ValueError, match=r"a OneHotEncoder of skfleet\.estimators"):
        estimators.Ridge().fit(X[["c0", "c1"]], y)
    with pytest.raises(ValueError, match=r"X\['c2'\].astype\('int64'\)"):
        estimators.Ridge().fit(X[["c0", "c2"]], y)
    dated = X.assign(c2=X["c2"].astype("int64"))
    columns_of_text = [("text", estimators.OneHotEncoder(), ["c1", "c3"])]
    encoder = estimators.ColumnTransformer(columns_of_text, remainder="passthrough")
    numbers = encoder.fit_transform(dated)
    assert estimators.Ridge().fit(numbers, y).n_features_in_ == 6
    texts = dask_array(np.array([AB, AB]).T)
    with pytest.raises(ValueError, match=r"a OneHotEncoder of skfleet\.estimators"):
        estimators.Ridge().fit(texts, y)
    texts = estimators.OneHotEncoder().fit_transform(texts)
    assert estimators.Ridge().fit(texts, TARGET).n_features_in_ == 4
    with pytest.raises(ValueError, match=r"X\.to_frame\(\)"):
        estimators.Ridge().fit(X["c0"], y)
    assert estimators.Ridge().fit(X["c0"].to_frame(), y).n_features_in_ == 1
    lengths_unknown = X["c0"].to_dask_array()
    with pytest.raises(ValueError, match=r"X\[:, None\]"):
        estimators.Ridge().fit(lengths_unknown, y)
    assert estimators.Ridge().fit(lengths_unknown[:, None], y).n_features_in_ == 1
    targets = dask_frame(pd.DataFrame({"t": TARGET, "u": TARGET}))
    with pytest.raises(ValueError, match=r"y\.iloc\[:, 0\]"):
        estimators.GammaRegressor().fit(X[["c0"]], targets)
    assert estimators.GammaRegressor().fit(X[["c0"]], targets.iloc[:, 0]).n_features_in_ == 1


def test_one_weight_for_all_dask_rows_is_that_of_each():
    for put_in in (dask_array, lambda v: dask_frame(frame(v))):
        model = estimators.Ridge().fit(put_in(X), put_in(TARGET), sample_weight=2.0)
        want = Ridge().fit(X, TARGET, sample_weight=2.0)
        np.testing.assert_allclose(model.coef_, want.coef_)


@pytest.mark.parametrize("name", ["KMeans", "LogisticRegression", "Ridge"])
def test_nothing_is_sent_to_a_cluster_to_find_out(name, cluster_client, monkeypatch):
    submitted = []
    monkeypatch.setattr(
        Client, "_graph_to_futures", lambda *args, **kwargs: submitted.append((args, kwargs))
    )
    for row in [*ROWS_OF_X, *(r for r in ROWS_OF_WEIGHT if LENGTH not in r.says)]:
        for container in ("dask array", "dask frame"):
            if not row.is_known or not fits_into(row.values, container):
                continue
            model = fitted(name, row, container)
            given = {"X": put(frame(FRAME), container), "sample_weight": None}
            given["sample_weight" if row.place == "w" else "X"] = put(row.values, container)
            y = put(frame(target_of(model)), container)
            with cluster_client.as_current(), pytest.raises((ValueError, TypeError)):
                model.fit(given["X"], y, sample_weight=given["sample_weight"])
    assert not submitted
    with cluster_client.as_current(), pytest.raises(TypeError):  # nothing came of what is sent
        fitted(name, row, "dask array").fit(put(X, "dask array"), put(LABELS, "dask array"))
    assert submitted
