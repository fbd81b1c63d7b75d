"""
Clusters of handwritten digits
==============================

Clustering puts rows into groups without being told what the groups are. Handwritten digits are a
good test for the eye, since the centre of a cluster is itself an image that you can look at. This
example reduces the images to a few numbers with :class:`~skfleet.estimators.PCA`, clusters these
with :class:`~skfleet.estimators.KMeans`, and draws the centres.

The images are the 1,797 digits that come with scikit-learn. They would fit into any computer, but
they are given as a Dask array of several *blocks*. The same lines work for blocks that are read
from files and never fit into memory together.
"""

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.estimators import PCA, KMeans

BLUE, ORANGE, GREY = "#3499cd", "#f79a3b", "#5b5b5b"

images, digits = load_digits(return_X_y=True)
X = da.from_array(images, chunks=(300, 64))
print(f"{X.shape[0]} images of 8 x 8 points in {X.numblocks[0]} blocks")

# %%
# Reduce and cluster
# ------------------
#
# Distances in 64 columns contain much noise. PCA keeps the directions in which the images differ
# most, and needs one pass over the rows, that is, it reads all rows once. Both estimators have
# scikit-learn's parameters and attributes, and fit into scikit-learn's pipeline.

fleet = Fleet(n_workers=2, processes=False)
pca, kmeans = PCA(n_components=20), KMeans(n_clusters=10, n_init=5, random_state=0)
model = make_pipeline(pca, kmeans).fit(X)
kept = pca.explained_variance_ratio_.sum()
print(f"the {pca.n_components_} components keep {kept:.0%} of the variance")

# %%
# The answer for a Dask array is a Dask array. It is computed when you ask for it, block by block.

labels = model.predict(X)
print(labels)
cluster = labels.compute()
fleet.close()

# %%
# Look at the centres
# -------------------
#
# A centre is a point among the 20 components. ``inverse_transform`` turns it back into an image.
# Above each image stands the digit that most members of the cluster show, and how many of them do.
#
# Look at the low shares, and at how blurred these centres are. Clusters follow the shape of the
# strokes, not their meaning, so a cluster may mix digits that put ink in the same places.

centers = pca.inverse_transform(kmeans.cluster_centers_)
table = pd.crosstab(cluster, digits)
share = table.max(axis=1) / table.sum(axis=1)
order = np.argsort(table.idxmax(axis=1).to_numpy(), kind="stable")

figure, axes = plt.subplots(2, 5, figsize=(7, 3.4), layout="constrained")
for number, ax in zip(order, axes.flat, strict=True):
    ax.imshow(centers[number].reshape(8, 8), cmap="gray_r")
    ax.set_title(f"{table.loc[number].idxmax()} ({share[number]:.0%})", fontsize=10)
    ax.set_axis_off()
plt.show()

# %%
# Where the clusters lie
# ----------------------
#
# The first two components show the images in a plane. Each point is an image, with the colour of
# its cluster; a cross is a centre. Clusters that overlap here may be apart in one of the other 18
# components.

plane = pca.transform(images)[:, :2]
figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
ax.scatter(*plane.T, c=cluster, cmap="tab10", s=6)
ax.scatter(*kmeans.cluster_centers_[:, :2].T, marker="X", s=90, color="white", edgecolor="black")
ax.set(xlabel="first component", ylabel="second component")
plt.show()

# %%
# Where to go from here
# ---------------------
#
# * :doc:`/guide/clustering`: which estimator for which rows, and how many clusters.
# * :class:`~skfleet.estimators.KMeans` and :class:`~skfleet.estimators.PCA` in the reference.
# * :doc:`/how_it_works/clustering`: the passes of a fit, one by one.
