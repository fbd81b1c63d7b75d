"""
Rare answers and many categories
================================

A bank calls customers to offer a deposit, and fewer than one in ten says yes. Two things make such
data awkward. A model is right nine times out of ten if it always answers *no*, and columns such as
a town have hundreds of different values. This example meets the first with class weights and with
metrics for rare classes, and the second with target encoding. All of it runs on rows that are
spread over partitions.
"""

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
    StandardScaler,
    TargetEncoder,
)
from skfleet.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    precision_recall_curve,
)
from skfleet.model_selection import train_test_split

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"

# %%
# The customers
# -------------
#
# The customers are made up. Whether one accepts depends on the age, on the balance, on the job, and
# above all on the town: each of the 400 towns has an inclination of its own.

JOBS = ["clerk", "engineer", "farmer", "nurse", "retired", "student", "teacher"]
N_TOWNS = 400


def make_customers(n_rows=40_000):
    """Return made customers, of whom fewer than one in ten accepts the offer."""
    rng = np.random.default_rng(0)
    town = rng.integers(N_TOWNS, size=n_rows)
    job = rng.choice(JOBS, n_rows)
    age = rng.integers(18, 80, n_rows)
    balance = rng.lognormal(7, 1, n_rows).round()
    score = rng.normal(0, 1.2, N_TOWNS)[town] + 0.4 * (np.log(balance) - 7)
    score += 1.2 * np.isin(job, ["retired", "student"]) + 0.02 * (age - 40)
    accepts = rng.random(n_rows) < 1 / (1 + np.exp(3.8 - score))
    return pd.DataFrame(
        {
            "age": age,
            "balance": np.log(balance),
            "job": job,
            "town": np.array([f"town {i}" for i in range(N_TOWNS)])[town],
            "answer": np.where(accepts, "yes", "no"),
        }
    )


fleet = Fleet(n_workers=2, processes=False)
customers = dd.from_pandas(make_customers(), npartitions=8)
X, y = customers.drop(columns="answer"), customers["answer"]
X_train, X_test, y_train, y_test = train_test_split(X, y, stratify=y, random_state=0)
says_yes = y_test == "yes"
print(f"{says_yes.mean().compute():.1%} of the test customers say yes")

# %%
# Two ways to encode a town
# -------------------------
#
# :class:`~skfleet.estimators.OneHotEncoder` makes a column of each town.
# :class:`~skfleet.estimators.TargetEncoder` makes a single column: the share of customers of the
# town that say yes, drawn towards the share of all where the town has few customers. It would leak
# the answers if a customer's own answer counted in that share. So ``fit_transform`` takes the share
# from other folds of the training rows, as scikit-learn's class does.
#
# ``class_weight="balanced"`` lets each class count as much as the other in the fit, however rare it
# is.


def model_with(encoder, class_weight=None):
    """Return a pipeline that encodes towns with this encoder."""
    preparation = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["age", "balance"]),
            ("job", OneHotEncoder(), ["job"]),
            ("town", encoder, ["town"]),
        ]
    )
    return make_pipeline(preparation, LogisticRegression(class_weight=class_weight))


models = {
    "one-hot towns": model_with(OneHotEncoder(handle_unknown="ignore")),
    "target-encoded towns": model_with(TargetEncoder()),
    "the same, balanced": model_with(TargetEncoder(), class_weight="balanced"),
}

# %%
# Accuracy hides what matters
# ---------------------------
#
# By accuracy, the first two models look good, and the balanced one looks poor. Yet the first two
# are hardly better than a model that always says *no*. *Balanced accuracy* shows it: it is the mean
# of the share that is right among those who say yes and of the share among those who say no, so
# always *no* gives 0.5. *Average precision* looks at the order alone in which a model ranks the
# customers: a perfect order has 1.0, and an order by chance has the share of *yes*.

curves = {}
for name, model in models.items():
    model.fit(X_train, y_train)
    predicted = model.predict(X_test)
    probability = model.predict_proba(X_test)["yes"]
    curves[name] = precision_recall_curve(says_yes, probability)
    print(
        f"{name:21s} accuracy {accuracy_score(y_test, predicted):.2f},"
        f" balanced accuracy {balanced_accuracy_score(y_test, predicted):.2f},"
        f" average precision {average_precision_score(says_yes, probability):.2f},"
        f" columns {model[-1].n_features_in_}"
    )

# %%
# The arguments above are lazy: probabilities are made and compared partition by partition, and only
# counts, sums and distinct scores come to this process.
#
# Choose a threshold
# ------------------
#
# The weights move the threshold more than the order. So the useful question is how many customers
# you want to call. Each point of a curve is a threshold on the probability: *recall* is the share
# of all willing customers that get a call, *precision* the share of the calls that succeed.
#
# Look at how far the curves lie above the grey line, which is what calling people at random gives.
# Look also at how close they are to one another: a single column for the towns does nearly what 400
# columns do.

chance = float(says_yes.mean().compute())
fleet.close()

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
styles = [(BLUE, "solid"), (ORANGE, "solid"), ("black", "dotted")]
for (name, (precision, recall, _)), (color, line) in zip(curves.items(), styles, strict=True):
    axes.plot(recall, precision, color=color, linestyle=line, label=name)
axes.axhline(chance, color=GREY, linestyle="dashed", label="calls at random")
axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1))
axes.legend(frameon=False)
plt.show()

# %%
# Where to go from here
# ---------------------
#
# * :doc:`/guide/metrics`: metrics on Dask rows, and what each of them costs.
# * :class:`~skfleet.estimators.TargetEncoder` and :func:`~skfleet.metrics.average_precision_score`
#   in the reference.
# * :doc:`/how_it_works/preparation`: all transformers, and the passes that they take.
