"""
From Parquet files to predictions
=================================

Tables of real work come as many files, with dates, text and gaps. This example takes a year of
flights from a folder of Parquet files to a model, and writes the model's predictions to another
folder. The rows are never collected in one place: every step below works on one part of the table
at a time. The code is what you would write for pandas and scikit-learn, with other imports.
"""

import tempfile
from pathlib import Path

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.estimators import (
    ColumnTransformer,
    LogisticRegression,
    OneHotEncoder,
    SimpleImputer,
    StandardScaler,
)
from skfleet.metrics import calibration_curve, roc_auc_score
from skfleet.model_selection import train_test_split

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"

# %%
# The files
# ---------
#
# The flights are made up, in the shape of a well-known table: a date, a carrier, two airports, an
# hour and a distance, some of which is missing. A flight is late more often in the evening, in
# winter, and at some airports. There is one file for each month.

AIRPORTS = ["ATL", "BOS", "DEN", "JFK", "LAX", "MIA", "ORD", "SEA"]
CARRIERS = ["AA", "B6", "DL", "UA", "WN"]


def make_flights(month, n_rows=10_000):
    """Return made flights of one month, of which about a fifth are late."""
    rng = np.random.default_rng(month)
    start = pd.Timestamp(2025, month, 1)
    flights = pd.DataFrame(
        {
            "date": start + pd.to_timedelta(rng.integers(start.days_in_month, size=n_rows), "D"),
            "carrier": rng.choice(CARRIERS, n_rows),
            "origin": rng.choice(AIRPORTS, n_rows),
            "destination": rng.choice(AIRPORTS, n_rows),
            "hour": rng.integers(5, 24, n_rows),
            "distance": rng.lognormal(6.8, 0.6, n_rows).round(),
        }
    )
    score = -2.6 + 0.09 * (flights["hour"] - 5) + 0.7 * np.cos(2 * np.pi * (month - 1) / 12)
    score += flights["origin"].map({"JFK": 0.9, "ORD": 0.7, "SEA": -0.4}).fillna(0)
    score += flights["carrier"].map({"B6": 0.6, "DL": -0.5}).fillna(0)
    late = rng.random(n_rows) < 1 / (1 + np.exp(-score))
    flights.loc[rng.random(n_rows) < 0.03, "distance"] = np.nan
    flights.loc[rng.random(n_rows) < 0.02, "carrier"] = None
    return flights.assign(status=np.where(late, "late", "on time"))


folder = tempfile.TemporaryDirectory()
source, target = Path(folder.name, "flights"), Path(folder.name, "predictions")
source.mkdir()
for month in range(1, 13):
    make_flights(month).to_parquet(source / f"2025-{month:02}.parquet")

# %%
# :func:`dask.dataframe.read_parquet` reads no rows yet. It makes a *Dask DataFrame*: a plan of
# twelve *partitions*, one for each file. New columns are part of the plan. A model cannot use a
# date as it is, so the plan gets the month and the day of the week.

flights = dd.read_parquet(source)
flights = flights.assign(
    month=flights["date"].dt.month.astype(str), weekday=flights["date"].dt.day_name()
)
print(f"{flights.npartitions} partitions with the columns {', '.join(flights.columns)}")

# %%
# Split, prepare, fit
# -------------------
#
# ``train_test_split`` returns lazy parts. Their rows depend on ``random_state`` alone: if you write
# the same flights to fewer or more files, the same flights are test rows.
#
# The pipeline is scikit-learn's. Its steps come from :mod:`skfleet.estimators`, whose classes take
# frames of pandas and of Dask alike. The gaps need no other care: the imputer fills distances, and
# the encoder treats a missing carrier as one more category.
#
# A :class:`~skfleet.Fleet` is a set of workers. This one has two, and they are threads of this
# process. In a script of your own, ``Fleet()`` starts one worker process for each core.

fleet = Fleet(n_workers=2, processes=False)
X, y = flights.drop(columns=["date", "status"]), flights["status"]
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)

preparation = ColumnTransformer(
    [
        (
            "numbers",
            make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
            ["hour", "distance"],
        ),
        (
            "categories",
            OneHotEncoder(handle_unknown="ignore"),
            ["carrier", "origin", "destination", "month", "weekday"],
        ),
    ]
)
model = make_pipeline(preparation, LogisticRegression()).fit(X_train, y_train)

# %%
# Predict and write
# -----------------
#
# Predictions of a Dask DataFrame are lazy, and have its index and its partitions. So they can be
# columns of the test rows, and nothing is computed until ``to_parquet`` writes one file after the
# other.

probability = model.predict_proba(X_test)
written = X_test.assign(status=y_test, p_late=probability["late"])
written.to_parquet(target)
print(dd.read_parquet(target)[["carrier", "origin", "hour", "status", "p_late"]].head(4))

# %%
# How good is it?
# ---------------
#
# The metrics take the columns of the written files as they are. With an area of 0.5 the model would
# know nothing, with 1.0 it would rank every late flight before every punctual one. The made flights
# are late by chance, so no model can reach 1.0.

predictions = dd.read_parquet(target)
is_late = predictions["status"] == "late"
area = roc_auc_score(is_late, predictions["p_late"])
print(f"area under the ROC curve: {area:.3f}")

observed, predicted = calibration_curve(
    is_late, predictions["p_late"], n_bins=8, strategy="quantile"
)
months = predictions[["month", "p_late"]].astype(float).assign(late=is_late.astype(float))
by_month = months.groupby("month").mean().compute().sort_index()

fleet.close()
folder.cleanup()

# %%
# On the left, look at whether the points lie on the line: of the flights that get a probability of
# 0.4, about 40 % should be late. Each point stands for an eighth of the test rows. On the right,
# each month is a file. The bars are the flights that were late in it, the points are what the model
# expected. Both come from test rows alone.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot([0, 0.6], [0, 0.6], color=GREY, linestyle="dashed", linewidth=1)
left.plot(predicted, observed, color=BLUE, marker="o")
left.set(xlim=(0, 0.6), ylim=(0, 0.6), xlabel="predicted probability", ylabel="share that is late")
right.bar(by_month.index, by_month["late"], color=BLUE, label="late")
right.plot(by_month.index, by_month["p_late"], "o", color=ORANGE, label="predicted")
right.set(xlabel="month, which is a file", ylabel="share of the flights", xticks=by_month.index)
right.legend(frameon=False, loc="upper center")
plt.show()

# %%
# Where to go from here
# ---------------------
#
# * :doc:`/guide/files`: from files to predictions, step by step.
# * :doc:`/guide/memory`: what happens when the files are larger than the memory of the workers.
# * :class:`~skfleet.estimators.ColumnTransformer` and
#   :func:`~skfleet.model_selection.train_test_split` in the reference.
