"""Twenty mistakes, and the sentence that each ends in."""

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import joblib
import numpy as np
import pandas as pd
from sklearn.linear_model import SGDClassifier
from sklearn.svm import SVC

from skfleet import Fleet, config_context
from skfleet.estimators import Incremental, KMeans, LogisticRegression, ParallelPostFit, Ridge
from skfleet.metrics import accuracy_score, r2_score
from skfleet.model_selection import GridSearchCV, HyperbandSearchCV

X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
rows, labels = da.from_array(X, chunks=(20, 3)), da.from_array(y, chunks=20)
holes = da.where(rows > 2.0, np.nan, rows)
frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3)
dated = frame.assign(a=pd.Timestamp("2026-01-01"))
sgd = SGDClassifier(random_state=0)

MISTAKES = {
    "NaN among the rows": lambda: Ridge().fit(holes, labels),
    "rows and labels of two lengths": lambda: Ridge().fit(rows, labels[:50]),
    "one dimension": lambda: KMeans(2).fit(rows[:, 0]),
    "dates as a column": lambda: Ridge().fit(dated, labels),
    "one class": lambda: LogisticRegression().fit(rows, da.zeros(60, chunks=20, dtype=int)),
    "a negative penalty": lambda: Ridge(alpha=-1.0).fit(rows, labels),
    "an unknown solver": lambda: LogisticRegression(solver="newton").fit(rows, labels),
    "weights of two dimensions": lambda: Ridge().fit(rows, labels, sample_weight=np.ones((60, 2))),
    "predict before fit": lambda: Ridge().predict(rows),
    "a bag of numbers": lambda: Ridge().fit(db.from_sequence(range(60)), y),
    "no partial_fit": lambda: Incremental(SVC()).fit(rows, labels),
    "no predict_proba": lambda: ParallelPostFit(SVC()).fit(X, y).predict_proba(rows),
    "a misspelt parameter": lambda: GridSearchCV(SVC(), {"c": [1, 2]}).fit(X, y),
    "a metric as a scorer": lambda: HyperbandSearchCV(
        sgd, {"alpha": [1e-4, 1e-3]}, max_iter=3, scoring=accuracy_score
    ).fit(X, y),
    "answers of two lengths": lambda: r2_score(labels, labels[:40]),
    "a resource that no worker has": lambda: on_resource(),
    "an unknown setting": lambda: config_context(disk_caches=True).__enter__(),
    "no scheduler at the address": lambda: Fleet("tcp://127.0.0.1:9"),
    "no number of workers": lambda: Fleet(n_workers=0),
}


def on_resource():
    with joblib.parallel_config("skfleet", resources={"TPU": 1}):
        joblib.Parallel()(joblib.delayed(abs)(i) for i in range(3))


def message_of(mistake):
    try:
        mistake()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    fleet = Fleet(n_workers=2)
    for number, (name, mistake) in enumerate(MISTAKES.items(), 1):
        print(f"{number}. {name}\n   {message_of(mistake)}")
    fleet.close()
    print(f"{len(MISTAKES) + 1}. a fleet that is closed\n   {message_of(fleet.__enter__)}")
