"""Text is searched over, learned block by block, and answered from files of lines."""

from pathlib import Path

import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.estimators import Incremental, ParallelPostFit
from skfleet.model_selection import GridSearchCV

TOPICS = {"sea": ["wave", "boat", "salt", "gull"], "hill": ["rock", "goat", "path", "snow"]}
WORDS = ["the", "a", "of", "and", "wind", "day"]


def texts(n, seed):
    rng = np.random.default_rng(seed)
    topics = rng.choice(list(TOPICS), size=n)
    lines = [
        " ".join(rng.permutation([*rng.choice(WORDS, 6), *rng.choice(TOPICS[t], 2)]))
        for t in topics
    ]
    return lines, topics


if __name__ == "__main__":
    lines, topics = texts(2000, 0)
    new, truth = texts(300, 1)
    for i in range(3):
        Path(f"{i}.txt").write_text("\n".join(new[100 * i : 100 * i + 100]) + "\n")

    with Fleet(n_workers=2):
        pipeline = make_pipeline(TfidfVectorizer(), SGDClassifier(random_state=0))
        grid = {"tfidfvectorizer__max_df": [0.3, 1.0], "sgdclassifier__alpha": [1e-4, 1e-3, 1.0]}
        search = GridSearchCV(pipeline, grid, cv=3).fit(lines, topics)
        print("search:", round(search.best_score_, 3), len(search.cv_results_["params"]))

        answers = ParallelPostFit(search.best_estimator_).predict(db.read_text("*.txt"))
        print("lines of files:", np.mean(answers.compute().to_numpy() == truth))

        frame = dd.from_pandas(pd.DataFrame({"text": lines, "topic": topics}), npartitions=5)
        learner = make_pipeline(HashingVectorizer(n_features=2**12), SGDClassifier(random_state=0))
        model = Incremental(learner, epochs=2, random_state=0).fit(frame["text"], frame["topic"])
        print("block by block:", np.mean(model.predict(new) == truth), model.classes_)
