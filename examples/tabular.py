"""From Parquet files to a model and its predictions in Parquet files, on a fleet.

``python examples/tabular.py [SOURCE TARGET]`` reads the taxi trips of a folder of Parquet files,
or makes such files. ``tabular_sklearn.py`` does the same with plain scikit-learn.
"""

import sys
import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.estimators import (
    ColumnTransformer,
    LogisticRegression,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)
from skfleet.model_selection import train_test_split


def main(source: str, target: str) -> float:
    """Fit a model on the rows of Parquet files, and write its predictions of the test rows."""
    rows = dd.read_parquet(source)
    X, y = rows.drop(columns="payment"), rows["payment"]
    X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = OneHotEncoder(handle_unknown="ignore", min_frequency=20)
    preparation = ColumnTransformer(
        [
            ("numbers", numbers, make_column_selector(dtype_include="number")),
            ("texts", texts, make_column_selector(dtype_exclude="number")),
        ]
    )
    model = make_pipeline(preparation, LogisticRegression(C=0.1, max_iter=1000))
    model.fit(X_train, y_train)
    X_test.assign(paid=model.predict(X_test)).to_parquet(target)
    return model.score(X_test, y_test)


def make_trips(folder: str, n_files: int = 8, n_rows: int = 5_000) -> None:
    """Write Parquet files of taxi trips, with gaps, of which card payments have tips."""
    Path(folder).mkdir(parents=True)
    for i in range(n_files):
        rng = np.random.default_rng(i)
        zones = rng.choice([f"zone {k}" for k in range(60)], n_rows)
        distance = rng.lognormal(0.5, 0.8, n_rows)
        fare = 3 + 2.5 * distance + rng.normal(0, 1, n_rows)
        is_card = rng.random(n_rows) < np.where(fare > 10, 0.8, 0.5)
        trips = pd.DataFrame(
            {
                "distance": np.where(rng.random(n_rows) < 0.1, np.nan, distance),
                "fare": fare,
                "tip": np.where(is_card, np.maximum(0, rng.normal(2, 1, n_rows)), 0),
                "passengers": rng.integers(1, 6, n_rows),
                "zone": np.where(rng.random(n_rows) < 0.05, None, zones),
                "color": rng.choice(["green", "yellow"], n_rows),
                "payment": np.where(is_card, "card", "cash"),
            }
        )
        trips.to_parquet(f"{folder}/{i:02}.parquet")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, Fleet():
        source, target = sys.argv[1:] or (f"{folder}/trips", f"{folder}/predictions")
        if not sys.argv[1:]:
            make_trips(source)
        print(f"accuracy on test rows: {main(source, target):.4f}")
        print(dd.read_parquet(target).head(3))
