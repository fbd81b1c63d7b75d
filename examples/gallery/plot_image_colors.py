"""
A picture in sixteen colours
============================

A photograph has tens of thousands of colours. To print or to send it, a few well-chosen ones may
do. Finding them is a clustering of pixels: each pixel is a row of red, green and blue, and the
centres of the clusters are the colours to keep. One picture has hundreds of thousands of rows, so a
series of pictures soon has more than one machine holds.

The example clusters the pixels as blocks of a Dask array, with
:class:`~skfleet.estimators.KMeans`, which reads all pixels many times, and with
:class:`~skfleet.estimators.MiniBatchKMeans`, which learns from samples of them.
"""

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import KMeans, MiniBatchKMeans

# %%
# Pixels as rows
# --------------
#
# The picture is one of two that come with scikit-learn. Colours are numbers between 0 and 1.

picture = load_sample_image("flower.jpg") / 255.0
pixels = da.from_array(picture.reshape(-1, 3), chunks=(50_000, 3))
n_before = len(np.unique((picture * 255).astype(int).reshape(-1, 3), axis=0))
print(f"{len(pixels):,} pixels in {pixels.numblocks[0]} blocks, {n_before:,} colours")

# %%
# Two ways to find the colours
# ----------------------------
#
# A *pass* reads all rows once, and is what costs time where rows do not fit into memory.
# ``counting`` counts the passes that are made inside its block. The inertia is the sum of the
# squared distances between the pixels and their colours: the smaller, the better.

fleet = Fleet(n_workers=2, processes=False)
results = {}
for kind in (KMeans, MiniBatchKMeans):
    with counting() as counts:
        model = kind(n_clusters=16, random_state=0).fit(pixels)
    results[kind.__name__] = model
    print(f"{kind.__name__}: {counts.passes} passes, inertia {model.inertia_:.0f}")

# %%
# Paint with the centres
# ----------------------
#
# ``predict`` is lazy for lazy rows: each block of pixels becomes a block of labels. Indexing the
# centres with the labels gives the new pixels.

labels = {name: model.predict(pixels).compute() for name, model in results.items()}
painted = {
    name: model.cluster_centers_[labels[name]].reshape(picture.shape)
    for name, model in results.items()
}
fleet.close()

# %%
# Compare the three pictures. Edges and large shapes stay. Look at the background, where the colours
# change slowly: there you see bands with sixteen colours. Between the two estimators you will
# hardly see a difference.

figure, axes = plt.subplots(1, 3, figsize=(10, 2.7), layout="constrained")
shown = {f"{n_before:,} colours": picture, **painted}
for ax, (name, image) in zip(axes, shown.items(), strict=True):
    ax.imshow(np.clip(image, 0, 1))
    ax.set_title(name, fontsize=10)
    ax.set_axis_off()
plt.show()

# %%
# The palette
# -----------
#
# Each bar is a colour that was kept, as wide as its share of the pixels. A colour that is rare but
# far from all others gets a cluster of its own only if there are enough clusters: raise
# ``n_clusters`` if a small part of the picture has lost its colour.

kmeans = results["KMeans"]
shares = np.bincount(labels["KMeans"], minlength=16) / len(pixels)
order = np.argsort(kmeans.cluster_centers_.sum(axis=1))

figure, ax = plt.subplots(figsize=(8, 1.1), layout="constrained")
left = np.r_[0, np.cumsum(shares[order])[:-1]]
ax.barh(0, shares[order], left=left, color=np.clip(kmeans.cluster_centers_[order], 0, 1))
ax.set(xlim=(0, 1), yticks=[], xlabel="share of the pixels")
plt.show()

# %%
# Where to go from here
# ---------------------
#
# * :doc:`/guide/clustering`: which estimator for which rows.
# * :class:`~skfleet.estimators.MiniBatchKMeans` in the reference.
# * :doc:`/how_it_works/clustering`: what each pass does.
