"""What a task brings home beside its result never decides over it: warnings, errors, output."""

import pickle
import threading
import warnings

import dask.array as da
import joblib
import numpy as np
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import FitFailedWarning

from random_examples import n_examples
from skfleet._captured_output import CapturedWarning, OutputEvent, replay
from skfleet._exception_pickle import PicklableException, as_picklable
from skfleet.estimators import BlockwiseVotingRegressor, Incremental, ParallelPostFit
from skfleet.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HyperbandSearchCV,
    cross_val_predict,
    cross_val_score,
)

X, y = np.arange(120.0).reshape(60, 2), np.arange(60.0)
rows, targets = da.from_array(X, chunks=(20, 2)), da.from_array(y, chunks=20)


class CodedMessage(Exception):  # noqa: N818
    """Its constructor takes two arguments; the text is made of both."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


class LockedMessage(Exception):  # noqa: N818
    """Holds what cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.lock, self.code = threading.Lock(), 7


class QuantityMessage(Exception):  # noqa: N818
    """Has no text of its own."""

    def __init__(self, *, amount):
        self.amount = self.code = amount

    def __str__(self):
        return f"beware of {self.amount}"


class CodedWarning(CodedMessage, UserWarning): ...


class LockedWarning(LockedMessage, UserWarning): ...


class QuantityWarning(QuantityMessage, UserWarning): ...


class CodedError(CodedMessage, ValueError): ...


class LockedError(LockedMessage, ValueError): ...


class QuantityError(QuantityMessage, ValueError): ...


WARNINGS = [
    lambda: CodedWarning(7, "beware"),
    lambda: LockedWarning("beware"),
    lambda: QuantityWarning(amount=7),
]
ERRORS = {
    "coded": lambda: CodedError(7, "beware"),
    "locked": lambda: LockedError("beware"),
    "quantity": lambda: QuantityError(amount=7),
}


class Messenger(RegressorMixin, BaseEstimator):
    """Warns of everything, and raises the error of a kind if there is one."""

    def __init__(self, kind=None, level=0, when="fit"):
        self.kind, self.level, self.when = kind, level, when

    def fit(self, X, y):
        self._send("fit")
        self.mean_ = np.mean(y)
        return self

    def partial_fit(self, X, y):
        return self.fit(X, y)

    def predict(self, X):
        self._send("predict")
        return np.full(len(X), self.mean_)

    def _send(self, when):
        for make in WARNINGS:
            warnings.warn(make(), stacklevel=3)
        if self.kind is not None and when == self.when:
            raise ERRORS[self.kind]()


def run_calls(model):
    with joblib.parallel_config("skfleet"):
        joblib.Parallel()(joblib.delayed(model.fit)(X, y) for _ in range(2))


GRID = {"level": [0, 1]}
WAYS = {
    "search": lambda m: GridSearchCV(m, GRID, cv=2, error_score="raise").fit(X, y),
    "halving": lambda m: HalvingGridSearchCV(m, GRID, cv=2, error_score="raise").fit(X, y),
    "scores": lambda m: cross_val_score(m, X, y, cv=2, error_score="raise"),
    "predictions": lambda m: cross_val_predict(m, X, y, cv=2),
    "joblib": run_calls,
    "incremental": lambda m: Incremental(m).fit(rows, targets),
    "voting": lambda m: BlockwiseVotingRegressor(m).fit(rows, targets),
    "adaptive": lambda m: HyperbandSearchCV(
        m, GRID, max_iter=3, random_state=0, error_score="raise"
    ).fit(X, y),
}


@pytest.fixture(scope="module")
def fleet(process_cluster):
    with Client(process_cluster) as client:
        yield client


@pytest.mark.parametrize("way", WAYS)
def test_warnings_come_home(fleet, way):
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        WAYS[way](Messenger())
    assert {CodedWarning, LockedWarning, QuantityWarning} <= {w.category for w in shown}
    messages = [w.message for w in shown if w.category in (CodedWarning, QuantityWarning)]
    assert all("beware" in str(message) and message.code == 7 for message in messages)


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_errors_come_home(fleet, way, kind):
    with pytest.raises(ValueError, match="beware") as caught:
        WAYS[way](Messenger(kind))
    assert type(caught.value) is type(ERRORS[kind]())
    assert caught.value.code == 7


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.filterwarnings("ignore")
def test_errors_of_lazy_predictions(fleet, kind):
    model = ParallelPostFit(Messenger(kind, when="predict").fit(X, y))
    with pytest.raises(ValueError, match="beware") as caught:
        model.predict(rows).compute()
    assert type(caught.value) is type(ERRORS[kind]())


class LateLock(RegressorMixin, BaseEstimator):
    """Learns a lock from the second block."""

    def __init__(self, level=0):
        self.level = level

    def partial_fit(self, X, y):
        if hasattr(self, "mean_"):
            self.lock_ = threading.Lock()
        self.mean_ = np.mean(y)
        return self

    def fit(self, X, y):
        return self.partial_fit(X, y).partial_fit(X, y)

    def predict(self, X):
        return np.full(len(X), self.mean_)

    def __deepcopy__(self, memo):
        copied = type(self)(self.level)
        vars(copied).update(vars(self))
        return copied


def test_models_that_cannot_be_pickled_late(fleet):
    with pytest.raises(TypeError, match="Got LateLock instead: cannot pickle"):
        Incremental(LateLock()).fit(rows, targets)
    with pytest.raises(TypeError, match="Got LateLock instead: cannot pickle"):
        BlockwiseVotingRegressor(LateLock()).fit(rows, targets)
    search = HyperbandSearchCV(LateLock(), {"level": [*range(6)]}, max_iter=9, random_state=0)
    with pytest.raises(FitFailedWarning, match="Got LateLock instead: cannot pickle"):
        search.fit(rows, targets)  # candidates of one block are models that pickle takes


# -- the pickles themselves ----------------------------------------------------------------------


@st.composite
def exceptions(draw, bases=(ValueError, KeyError, OSError, RuntimeError, UserWarning)):
    """Draw an exception of a class with a constructor, a text and attributes of its own."""
    n, takes_keyword = draw(st.integers(0, 3)), draw(st.booleans())
    passes_args, has_text = draw(st.booleans()), draw(st.booleans())

    def construct(self, *values, amount=None):
        if len(values) != n or takes_keyword != (amount is not None):
            raise TypeError("wrong arguments")
        super(cls, self).__init__(*values if passes_args else ["made"])
        self.amount = amount
        vars(self).update(attributes)

    attributes = draw(
        st.dictionaries(st.sampled_from("ab"), st.sampled_from([1, "x", threading.Lock()]))
    )
    methods = {"__init__": construct}
    if has_text:
        methods["__str__"] = lambda self: f"amount {self.amount}"
    cls = type("Drawn", (draw(st.sampled_from(bases)),), methods)
    values = draw(st.lists(st.sampled_from([1, "x", threading.Lock()]), min_size=n, max_size=n))
    return cls(*values, **({"amount": 3} if takes_keyword else {}))


@given(exceptions())
@settings(max_examples=n_examples(30, 500), deadline=None)
def test_every_exception_can_be_pickled(error):
    text, base = str(error), type(error).__mro__[1]
    loaded = pickle.loads(pickle.dumps([PicklableException(error)]))[0]
    assert isinstance(loaded, base)
    if "_thread.lock" not in text:
        assert text in str(loaded)
    last = ValueError("after another")
    last.__cause__ = error
    assert isinstance(as_picklable(last).__cause__, base)


def test_key_error_that_cannot_be_pickled_stays_one_with_its_text():
    lock = threading.Lock()
    cls = type("Missing", (KeyError,), {"__str__": lambda self: f"no 'a'\nin \"b\"{lock and ''}"})
    loaded = pickle.loads(pickle.dumps(PicklableException(cls("a"))))
    assert type(loaded) is KeyError
    assert str(loaded) == str(pickle.loads(pickle.dumps(loaded))) == "Missing: no 'a'\nin \"b\""


@given(exceptions(bases=(UserWarning, DeprecationWarning)))
@settings(max_examples=n_examples(30, 500), deadline=None)
def test_every_warning_can_be_pickled(message):
    warning = CapturedWarning(message, "file.py", 3, False)
    loaded = pickle.loads(pickle.dumps(warning))
    assert isinstance(loaded.message, type(message).__mro__[1])
    assert loaded[1:] == warning[1:]


def test_output_that_the_stream_of_the_caller_cannot_show(monkeypatch, tmp_path):
    with open(tmp_path / "screen", "w", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        replay([OutputEvent("stdout", "smörgås\n")])
    replay([OutputEvent("stdout", "to a stream that is closed")])
    assert (tmp_path / "screen").read_text() == "sm\\xf6rg\\xe5s\n"
