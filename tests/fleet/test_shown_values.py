"""No value of a user, of rows or parameters, is in names of tasks or in logs."""

import logging

import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
from distributed import SchedulerPlugin
from joblib import Parallel, delayed, parallel_config
from sklearn.linear_model import LogisticRegression as OtherLogisticRegression
from sklearn.linear_model import SGDClassifier

from skfleet import Fleet, config_context
from skfleet.blocks import row_blocks
from skfleet.estimators import (
    ColumnTransformer,
    CountVectorizer,
    LabelEncoder,
    LogisticRegression,
    OneHotEncoder,
    TargetEncoder,
    boosting,
)
from skfleet.metrics import accuracy_score
from skfleet.model_selection import (
    BayesSearchCV,
    GridSearchCV,
    HyperbandSearchCV,
    train_test_split,
)

WORD, NUMBER = "xyzzy", 0.123456789
# Of distributed, DEBUG has whole messages, of any size.
LEVELS = {"distributed": logging.INFO, "skfleet": logging.DEBUG}
FOLDER = f"{WORD}-folder"


class TaskNames(SchedulerPlugin):
    """All that a scheduler is told of tasks before they run."""

    name = "names"

    def __init__(self):
        self.seen = []

    def update_graph(self, scheduler, *, annotations=None, **options):
        self.seen += [*map(repr, options["tasks"]), repr(annotations)]

    def transition(self, key, start, finish, *args, **options):
        self.seen.append(repr(key))


@pytest.fixture(scope="module")
def fleet():
    with Fleet(n_workers=2, processes=False) as client, config_context(single_task_below=0):
        yield client


@pytest.fixture
def names(fleet):
    """Names of the tasks of a test."""
    plugin = TaskNames()
    fleet.cluster.scheduler.add_plugin(plugin)
    yield plugin.seen
    fleet.cluster.scheduler.remove_plugin(plugin.name)


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    """Rows in files, all of whose names and words have the word."""
    rng = np.random.default_rng(0)
    words = rng.choice([WORD, f"{WORD}2", f"{WORD}3"], 4000)
    number = rng.normal(size=4000)
    y = np.where(number > 0, f"{WORD}-yes", f"{WORD}-no")
    table = pd.DataFrame({"number": number, "text": words, "y": y})
    path = tmp_path_factory.mktemp(FOLDER)
    for i, part in enumerate(np.array_split(np.arange(4000), 4)):
        table.iloc[part].to_parquet(path / f"part.{i}.parquet")
    return dd.read_parquet(path)


def search(kind, model, space, frame, **options):
    X, y = frame[["number"]].compute().to_numpy(), frame["y"].compute().to_numpy()
    kind(model, space, **options).fit(X, y)


def fit_and_use(transformer, X, *y):
    transformer.fit(X, *y).transform(X).compute()


def fit_and_predict(model, X, y):
    model.fit(X, y)
    accuracy_score(y, model.predict(X))
    model.predict_proba(X).compute()


WEIGHTS = [{f"{WORD}-yes": 1.0, f"{WORD}-no": NUMBER}]
WORK = {
    "grid": lambda frame, path: search(
        GridSearchCV, OtherLogisticRegression(), {"C": [NUMBER, 1], "class_weight": WEIGHTS}, frame
    ),
    "grid with a checkpoint": lambda frame, path: search(
        GridSearchCV, OtherLogisticRegression(), {"C": [NUMBER, 1]}, frame, checkpoint=path
    ),
    "grid on blocks": lambda frame, path: GridSearchCV(
        LogisticRegression(), {"C": [NUMBER, 1]}, cv=2
    ).fit(frame[["number"]], frame["y"]),
    "candidates of a model": lambda frame, path: search(
        BayesSearchCV, OtherLogisticRegression(), {"C": [NUMBER, 1, 2]}, frame, n_iter=3
    ),
    "adaptive": lambda frame, path: search(
        HyperbandSearchCV,
        SGDClassifier(),
        {"alpha": [NUMBER, 1] * 4, "class_weight": WEIGHTS},
        frame,
        max_iter=3,
        random_state=0,
        checkpoint=path,
    ),
    "encoder": lambda frame, path: fit_and_use(OneHotEncoder(), frame[["text"]]),
    "encoder of labels": lambda frame, path: fit_and_use(LabelEncoder(), frame["y"]),
    "encoder of targets": lambda frame, path: fit_and_use(
        TargetEncoder(), frame[["text"]], frame["y"]
    ),
    "text": lambda frame, path: CountVectorizer().fit_transform(frame["text"]).compute(),
    "columns": lambda frame, path: fit_and_use(
        ColumnTransformer([("words", OneHotEncoder(), ["text"])]), frame
    ),
    "predictions": lambda frame, path: fit_and_predict(
        LogisticRegression(C=NUMBER), frame[["number"]], frame["y"]
    ),
    "XGBoost": lambda frame, path: boosting.XGBClassifier(
        n_estimators=3, learning_rate=NUMBER, checkpoint=path
    ).fit(frame[["number"]], frame["y"]),
    "LightGBM": lambda frame, path: boosting.LGBMClassifier(
        n_estimators=3, learning_rate=NUMBER, checkpoint=path, verbose=-1
    ).fit(frame[["number"]], frame["y"]),
    "splits": lambda frame, path: train_test_split(frame, frame["y"])[0].compute(),
    "joblib": lambda frame, path: Parallel()(delayed(len)(f"{WORD}{i}") for i in range(10)),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", WORK)
def test_no_value_is_shown(name, fleet, names, frame, tmp_path, caplog, monkeypatch):
    for library in {"XGBoost": ["xgboost"], "LightGBM": ["lightgbm"]}.get(name, ()):
        pytest.importorskip(library, reason="it is not installed")
    for logger, level in LEVELS.items():
        monkeypatch.setattr(logging.getLogger(logger), "propagate", True)
        caplog.set_level(level, logger)
    with config_context(single_task_below=0), parallel_config("skfleet"):
        WORK[name](frame, tmp_path / FOLDER)
    lines = [f"{record.name}: {record.getMessage()}" for record in caplog.records]
    assert names
    assert lines or name == "joblib"  # of which a line tells failures only
    shown = [text for text in (*names, *lines) if WORD in text or str(NUMBER)[:8] in text]
    assert shown == []


def test_storage_options_are_shown_nowhere(fleet, names, frame, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "skfleet")
    table = frame[["number"]].compute()
    with fsspec.open("memory://shown/rows.parquet", "wb") as file:
        table.assign(y=(table["number"] > 0).astype(int)).to_parquet(file)
    stored = dd.read_parquet("memory://shown", storage_options={"secret": WORD})
    X, y = stored[["number"]], stored["y"]
    search = GridSearchCV(LogisticRegression(), {"C": [1, 2]}, cv=2, checkpoint=tmp_path)
    with config_context(single_task_below=0):
        search.fit(X, y)
        with pytest.raises(ValueError, match="checkpoint must be of this very search") as error:
            search.fit(2 * X, y)
        with pytest.raises(ValueError, match="must be numeric") as other:
            LogisticRegression().fit(X.assign(number="a"), y)
    written = [path.read_text() for path in tmp_path.iterdir()]
    assert written
    shown = [*names, caplog.text, repr(row_blocks(X, y)), repr(search), *written]
    shown += [str(error.value), str(other.value)]
    assert not [text for text in shown if WORD in text]
