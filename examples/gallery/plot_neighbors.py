"""
The nearest neighbours of a digit
=================================

*Which rows are most like this one?* is a question that needs no model, only all the rows. When the
rows are spread over workers, each worker finds the nearest among its own, and the few best are
merged. That is what :class:`~skfleet.estimators.NearestNeighbors` does on a Dask array. The answers
are exact: they are scikit-learn's, whatever the partitions are.
"""

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import KNeighborsClassifier, NearestNeighbors

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"

# %%
# The last 300 digits are *queries*, the others are *training rows*. The training rows are a Dask
# array. Queries may be on Dask too; here they are an ordinary array.

images, digits = load_digits(return_X_y=True)
queries, truth = images[-300:], digits[-300:]
X = da.from_array(images[:-300], chunks=(250, 64))
y = da.from_array(digits[:-300], chunks=250)
print(f"{len(X)} training rows in {X.numblocks[0]} blocks, {len(queries)} queries")

# %%
# Find neighbours
# ---------------
#
# ``fit`` looks at the rows once, to check them and to count them. ``kneighbors`` reads them once
# for all the queries together. It returns distances and row numbers, which count from the first row
# of the first block.

fleet = Fleet(n_workers=2, processes=False)
with counting() as counts:
    neighbors = NearestNeighbors(n_neighbors=6).fit(X)
    distances, numbers = neighbors.kneighbors(queries)
print(f"{counts.passes} passes over the rows for {len(queries)} queries")

# %%
# The query is on the left of each line, its nearest rows follow, with their distances. Look at the
# digits in the last line. Among them are neighbours that show another digit: the nearest image is
# not always one of the same meaning.

odd = np.flatnonzero((digits[numbers] != truth[:, None]).sum(axis=1) == 2)
chosen = [0, 11, 42, odd[0]]

figure, axes = plt.subplots(len(chosen), 7, figsize=(8, 5.4), layout="constrained")
for line, query in zip(axes, chosen, strict=True):
    line[0].imshow(queries[query].reshape(8, 8), cmap="Blues")
    line[0].set_title(f"query: {truth[query]}", fontsize=10)
    for ax, number, distance in zip(line[1:], numbers[query], distances[query], strict=True):
        ax.imshow(images[number].reshape(8, 8), cmap="gray_r")
        ax.set_title(f"{digits[number]}, at {distance:.0f}", fontsize=10)
for ax in axes.flat:
    ax.set_axis_off()
plt.show()

# %%
# Let the neighbours vote
# -----------------------
#
# :class:`~skfleet.estimators.KNeighborsClassifier` takes the label that most neighbours have. How
# many should vote? Few neighbours follow single odd rows, many blur the borders between the digits.

choices = [1, 3, 5, 9, 15, 25, 50, 100]
scores = []
for n_neighbors in choices:
    model = KNeighborsClassifier(n_neighbors=n_neighbors).fit(X, y)
    scores.append(model.score(queries, truth))
    weighted = KNeighborsClassifier(n_neighbors=n_neighbors, weights="distance").fit(X, y)
    scores.append(weighted.score(queries, truth))
uniform, by_distance = np.reshape(scores, (-1, 2)).T
fleet.close()

# %%
# Look at the right end of the curves: with too many voters the accuracy falls. Votes that count by
# distance lose less, because far neighbours have little to say.

figure, ax = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
ax.plot(choices, uniform, color=BLUE, marker="o", label="all votes are equal")
ax.plot(choices, by_distance, color=ORANGE, marker="s", label="near votes count more")
ax.set(xscale="log", xlabel="number of neighbours", ylabel="accuracy on the queries")
ax.set_xticks(choices, choices, minor=False)
ax.minorticks_off()
ax.legend(frameon=False)
plt.show()

# %%
# A model that was fitted on Dask rows leaves them on the workers, so it cannot be pickled, and it
# needs the workers for each answer. For rows that fit into one process, pass an array in memory
# instead: the same class then has scikit-learn's trees.
#
# * :doc:`/guide/neighbors`: neighbours and forests on Dask rows.
# * :class:`~skfleet.estimators.KNeighborsClassifier` and
#   :class:`~skfleet.estimators.NearestNeighbors` in the reference.
# * :doc:`/how_it_works/neighbors`: what is sent where, for each container of rows and queries.
