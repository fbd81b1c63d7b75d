"""CSV files are learned block by block, with a holdout that says when to stop."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skfleet import Fleet
from skfleet.estimators import Incremental

COLUMNS = ["age", "income", "visits"]


def write(number):
    rng = np.random.default_rng(number)
    age, visits = rng.integers(18, 90, 2000), rng.poisson(3, 2000)
    income = rng.lognormal(10, 0.5, 2000).round(2)
    buys = (0.05 * (age - 50) + 0.5 * (visits - 3) + rng.logistic(size=2000) > 0).astype(int)
    frame = pd.DataFrame({"age": age, "income": income, "visits": visits, "buys": buys})
    frame.to_csv(f"{number}.csv", index=False)
    return frame


if __name__ == "__main__":
    home = pd.concat([write(number) for number in range(10)])
    with Fleet(n_workers=2):
        table = dd.read_csv("*.csv")
        table = table[table.income > 5000]
        learner = Incremental(
            SGDClassifier(loss="log_loss", random_state=0),
            epochs=30,
            shuffle="rows",
            early_stopping=True,
            random_state=0,
        )
        model = make_pipeline(Incremental(StandardScaler()), learner)
        model.fit(table[COLUMNS], table["buys"])
        rows = (home.income > 5000).sum()
        print("rows:", model[0].n_samples_seen_ == rows)
        print("means:", np.allclose(model[0].mean_, home[home.income > 5000][COLUMNS].mean()))
        print("stopped early:", learner.n_iter_ < 30, len(learner.history_) == learner.n_iter_)
        print("columns:", *learner.history_.columns)
        print("accuracy:", round(model.score(table[COLUMNS], table["buys"]), 1))
        print("coefficients:", learner.coef_.shape, "of", learner.classes_)

        told = Incremental(SGDClassifier(random_state=0), epochs=2, random_state=0, verbose=1)
        told.fit(model[0].transform(table[COLUMNS]), table["buys"])
