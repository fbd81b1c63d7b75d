"""
Neighbours among rows on many workers
=====================================

A model of nearest neighbours keeps all its training rows. To predict, it looks for the rows most
like the one you ask about, and lets them vote. That makes it easy to explain: you can look at the
rows that decided.

It also makes the training rows a problem once they are too many for one machine. In scikit-fleet
they may be blocks of a Dask array, each on the worker that holds it. This example classifies
handwritten digits, and shows the neighbours that were right and those that were wrong.
"""

# %%
# The rows
# --------
#
# The data are scikit-learn's digits: images of 8 x 8 pixels, of which each is a row of 64 numbers.
# We keep 400 of them as queries. The others become a Dask array of four blocks.
#
# So few rows need no Dask. They stand for rows that you would read from files, with
# :func:`dask.array.from_zarr` for example. The code below stays the same.
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from skfleet import Fleet
from skfleet.estimators import KNeighborsClassifier

X, y = load_digits(return_X_y=True)
X_train, X_query, y_train, y_query = train_test_split(
    X, y, test_size=400, stratify=y, random_state=0
)
X_rows = da.from_array(X_train, chunks=(350, 64))
y_rows = da.from_array(y_train, chunks=350)
print(X_rows)

# %%
# Fit and predict
# ---------------
#
# ``fit`` counts the rows, finds the labels and checks that all pixels are finite. There is nothing
# more to learn: the search compares a query with every row, and its answer is exact.
#
# The queries are a NumPy array, so ``predict`` answers at once. Each worker finds the nearest of
# its own rows, and the answers of all workers are merged. For queries in a Dask array the
# prediction is lazy, as the array is.
#
# The rows stay on the workers, so ask your questions while the fleet is open. Later this process
# would have to search all rows alone. You cannot pickle the model either, since its rows are
# elsewhere.
with Fleet(n_workers=2, processes=False):
    model = KNeighborsClassifier(n_neighbors=5).fit(X_rows, y_rows)
    predicted = model.predict(X_query)
    distances, numbers = model.kneighbors(X_query)

is_wrong = predicted != y_query
print(f"accuracy on {len(y_query)} queries: {np.mean(~is_wrong):.3f}, {is_wrong.sum()} are wrong")

# %%
# ``kneighbors`` returns two arrays with a row for each query: the distances, nearest first, and the
# numbers of the neighbours. A number counts the training rows from the first block to the last. Of
# rows at the same distance the first ones count as nearer, so neither the blocks nor the workers
# change the answer.
#
# The neighbours of a few queries
# -------------------------------
#
# We pick the query whose neighbours are nearest, a typical one, and two that the model got wrong.
by_distance = np.argsort(distances.mean(axis=1))
picks = {
    "nearest": by_distance[0],
    "typical": by_distance[len(by_distance) // 2],
    "wrong": np.flatnonzero(is_wrong)[0],
    "wrong too": np.flatnonzero(is_wrong)[1],
}

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"


def draw_digit(ax, pixels, title, color):
    """Draw one digit in a frame of this colour."""
    ax.imshow(pixels.reshape(8, 8), cmap="gray_r")
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=10)
    for spine in ax.spines.values():
        spine.set(color=color, linewidth=2.5)


fig, axes = plt.subplots(len(picks), 6, figsize=(8, 6), layout="constrained")
for row, (name, query) in zip(axes, picks.items(), strict=True):
    title = f"{y_query[query]}, predicted {predicted[query]}"
    draw_digit(row[0], X_query[query], title, GREY)
    row[0].set_ylabel(name)
    for ax, number, distance in zip(row[1:], numbers[query], distances[query], strict=True):
        label = y_train[number]
        color = BLUE if label == y_query[query] else ORANGE
        draw_digit(ax, X_train[number], f"{label}, at {distance:.0f}", color)
plt.show()

# %%
# Each line of the picture begins with a query, in a grey frame. Its five neighbours follow, nearest
# first, with their labels and distances. A blue frame means that the neighbour has the label of the
# query, an orange frame that it has another one.
#
# Compare the two lower lines with the two upper ones. Where the model is wrong, look at what the
# query shares with its neighbours in orange frames. Pixel by pixel they are alike, even if you
# would read another digit.
#
# Which digits are hard?
# ----------------------
#
# The distances also tell how sure you can be. A query far from all training rows is unlike
# everything that the model has seen.
mean_distance = distances.mean(axis=1)
bins = np.histogram_bin_edges(mean_distance, 24)
fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.hist(mean_distance[~is_wrong], bins, color=BLUE, label="predicted right")
for number, distance in enumerate(mean_distance[is_wrong]):
    label = "predicted wrong" if number == 0 else None
    ax.axvline(distance, ymax=0.25, color=ORANGE, linewidth=2, label=label)
ax.set(xlabel="mean distance of the five neighbours", ylabel="queries")
ax.legend(frameon=False)
plt.show()

# %%
# The bars count the queries that were predicted right. Each orange line is one that was not. Look
# where the lines are: none is on the left, among the small distances. A threshold on the distance
# could therefore sort out doubtful queries, for a person to read. There are only a few lines, so
# try it on more rows before you rely on it.
#
# When not to use it
# ------------------
#
# Every batch of queries is compared with all training rows, so the cost grows with them. A model
# that learns a few coefficients, such as :class:`~skfleet.estimators.LogisticRegression`, reads its
# rows for the fit and never again. If your rows fit in one process, pass them as NumPy arrays.
# scikit-learn's own search then answers, trees included.
#
# Where to go from here
# ---------------------
#
# * :doc:`/guide/neighbors`: where training rows and queries may be, and what that costs.
# * :class:`~skfleet.estimators.KNeighborsClassifier` and
#   :class:`~skfleet.estimators.NearestNeighbors` in the reference.
