"""
Clusters of digits without their labels
=======================================

Often there are many rows and no labels. Clusters then show which kinds of rows there are, before
anybody labels a single one. This example looks for kinds of handwritten digits. It first makes the
64 pixels of each image a few columns with PCA, and then clusters these with k-means. The labels are
used at the end only, to see how well the clusters match the digits.
"""

# %%
# The rows
# --------
#
# The images are scikit-learn's digits, as a Dask array of four blocks. They stand for images that
# you would read from files, and that may be more than the memory holds.
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score, confusion_matrix
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.estimators import PCA, KMeans

images, digits = load_digits(return_X_y=True)
X = da.from_array(images, chunks=(450, 64))

# %%
# PCA and k-means
# ---------------
#
# Why PCA first? Neighbouring pixels have similar values, so 64 columns say much the same thing
# several times. The principal components are fewer columns that keep most of the differences
# between images, and drop much of the noise. Distances between rows then cost less to compute.
#
# PCA reads all rows once. K-means takes its first steps on a sample, and then reads all rows once
# for each iteration. The pipeline is scikit-learn's. Between its steps the rows stay a Dask array,
# and are never collected in one place.
with Fleet(n_workers=2, processes=False):
    model = make_pipeline(PCA(20), KMeans(10, n_init=4, random_state=0)).fit(X)
    clusters = model.predict(X).compute()

pca, kmeans = model
kept = pca.explained_variance_ratio_.sum()
print(f"{pca.n_components_} components keep {kept:.0%} of the variance")

# %%
# The centres as images
# ---------------------
#
# Each centre is a row of 20 components. ``inverse_transform`` turns it into 64 pixels again, and
# these are an image: the mean of the cluster. Above each image is the number of rows.
#
# Look for digits that you can read. They are kinds of images that k-means found without a label.
# Then look for images that are blurred. A mean is blurred where a cluster mixes different shapes,
# and it may look like no single row.
centers = pca.inverse_transform(kmeans.cluster_centers_)
sizes = np.bincount(clusters, minlength=len(centers))

fig, axes = plt.subplots(2, 5, figsize=(8, 3.8), layout="constrained")
for number, ax in enumerate(axes.flat):
    ax.imshow(centers[number].reshape(8, 8), cmap="gray_r")
    ax.set_title(f"cluster {number}: {sizes[number]} rows", fontsize=10)
    ax.axis("off")
plt.show()

# %%
# Clusters and digits
# -------------------
#
# Now the labels. Each row of the next picture is a digit, each column a cluster, and the numbers
# count images. The columns are sorted by the digit that they have most of. With perfect clusters
# all images would be on the diagonal.
counts = confusion_matrix(digits, clusters)
order = np.argsort(counts.argmax(axis=0), kind="stable")

fig, ax = plt.subplots(figsize=(6, 4.6), layout="constrained")
ax.imshow(counts[:, order], cmap="Blues", aspect="auto")
for digit, column in np.argwhere(counts[:, order] > 0):
    count = counts[digit, order[column]]
    color = "white" if count > counts.max() / 2 else "black"
    ax.text(column, digit, count, ha="center", va="center", color=color, fontsize=9)
ax.set_xticks(range(10), order)
ax.set_yticks(range(10))
ax.set(xlabel="cluster", ylabel="digit")
plt.show()

score = adjusted_rand_score(digits, clusters)
print(f"adjusted Rand index: {score:.2f}, where 1 is a perfect match")

# %%
# Read the picture in two directions. A row with several numbers is a digit that people write in
# several ways, such as the 1. A column with several numbers is a cluster that mixes digits. Most
# columns have one digit, but one cluster mixes 1 and 8, and another one 9, 8 and 5. Find their
# centres in the first picture, and see how they resemble each of these digits.
#
# When not to use it
# ------------------
#
# You must choose the number of clusters, and k-means gives you that many, whether or not they are
# there. It also prefers round clusters of similar size. For clusters of any shape look at
# :class:`~skfleet.estimators.SpectralClustering`. If you have labels, train a classifier instead.
#
# Where to go from here
# ---------------------
#
# * :doc:`/guide/clustering`: choosing the number of clusters, and other methods.
# * :class:`~skfleet.estimators.PCA` and :class:`~skfleet.estimators.KMeans` in the reference.
