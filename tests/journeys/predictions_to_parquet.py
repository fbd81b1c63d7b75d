"""A model of rows in memory predicts a table of many files, and writes its answers to others."""

from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

from skfleet import Fleet
from skfleet.estimators import ParallelPostFit

if __name__ == "__main__":
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = load_iris().target_names[y]
    Path("flowers").mkdir()
    rng = np.random.default_rng(0)
    for i in range(8):
        part = X.iloc[rng.integers(150, size=5000)].reset_index(drop=True)
        part.assign(bed=i).to_parquet(f"flowers/{i}.parquet")

    forest = RandomForestClassifier(n_estimators=20, random_state=0)
    with Fleet(n_workers=2):
        model = ParallelPostFit(forest).fit(X, names)
        flowers = dd.read_parquet("flowers")
        predicted = model.predict_proba(flowers[list(X.columns)])
        predicted.assign(bed=flowers["bed"]).to_parquet("answers")
        kinds = model.predict(flowers[list(X.columns)])
        kinds.to_frame("kind").to_parquet("kinds")

    answers, kinds = pd.read_parquet("answers"), pd.read_parquet("kinds")
    print("files:", len(list(Path("answers").glob("*.parquet"))), "rows:", len(answers))
    print("columns:", *answers.columns)
    print(
        "largest share is the kind:",
        (answers[list(model.classes_)].idxmax(axis=1) == kinds.kind).all(),
    )
    alone = forest.fit(X, names).predict_proba(pd.read_parquet("flowers")[list(X.columns)])
    print("as without a fleet:", np.allclose(alone, answers.iloc[:, :3]))
