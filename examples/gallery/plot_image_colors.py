"""
A photograph in sixteen colours
===============================

A photograph has many thousand colours, most of which differ by less than anyone sees. *Colour
quantisation* replaces them by a few. It is a clustering problem with many rows and few columns:
each pixel is a row, and its columns are red, green and blue.

This example repaints a photograph with two methods of clustering. It compares the pictures, the
errors of the colours, and how often each method reads the rows.
"""

# %%
# Pixels as rows
# --------------
#
# scikit-learn comes with a photograph of the Summer Palace in Beijing. Its pixels become a Dask
# array with blocks of 40,000 rows. One photograph fits in memory easily, and scikit-learn alone
# would do. A folder of photographs may not fit, and the code for it is the same.
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import KMeans, MiniBatchKMeans

photograph = load_sample_image("china.jpg")
rows = photograph.reshape(-1, 3)
pixels = da.from_array(rows / np.float32(255), chunks=(40_000, 3))
print(f"{len(pixels)} pixels in {pixels.npartitions} blocks")
print(f"{len(np.unique(rows, axis=0))} colours")

# %%
# Two ways to find the colours
# ----------------------------
#
# The cluster centres are the new colours, and each pixel gets the colour of its nearest centre.
#
# - :class:`~skfleet.estimators.KMeans` reads all rows in each iteration, and moves the centres
#   until they stay.
# - :class:`~skfleet.estimators.MiniBatchKMeans` draws a sample of the rows, and learns from batches
#   of it. It draws another sample only if that helps.
#
# To read all rows once is a *pass*. For rows that come from files, the passes are most of the work,
# so we count them. ``inertia_`` is the sum of the squared distances between pixels and their
# colours. Divided by the number of values, its square root is the error of a typical value.
fits = {}
with Fleet(n_workers=2, processes=False):
    for method in (KMeans, MiniBatchKMeans):
        for n_colors in (2, 4, 8, 16, 32):
            with counting() as counts:
                model = method(n_colors, random_state=0).fit(pixels)
            error = 255 * np.sqrt(model.inertia_ / pixels.size)
            fits[method, n_colors] = model, error, counts.passes
            print(
                f"{method.__name__:15} {n_colors:2} colours: "
                f"{counts.passes:2} passes, error {error:4.1f} of 255"
            )

    model = fits[KMeans, 16][0]
    labels = model.predict(pixels).compute()

# %%
# Before and after
# ----------------
#
# ``predict`` of a Dask array is lazy, which is why the labels above were computed. With them the
# centres become an image. The bar below both has the sixteen colours, each as wide as its share of
# the pixels.
#
# Look at the sky first. Its colours change slowly, so few of them make visible steps. Then look at
# the walls of the palace, and at the edges of its roofs. The walls are no longer red, nor the edges
# green. Such pixels are too few to count much in the sum of all distances, and no centre is left
# for them.
palette = np.clip(model.cluster_centers_, 0, 1)
repainted = palette[labels].reshape(photograph.shape)
shares = np.bincount(labels, minlength=len(palette)) / len(labels)

fig, axes = plt.subplot_mosaic(
    [["before", "after"], ["palette", "palette"]],
    figsize=(9, 3.8),
    height_ratios=[12, 1],
    layout="constrained",
)
axes["before"].imshow(photograph)
axes["after"].imshow(repainted)
axes["before"].set_title("photograph", fontsize=10)
axes["after"].set_title(f"{len(palette)} colours", fontsize=10)

by_brightness = np.argsort(palette @ [0.3, 0.6, 0.1])
left = 0
for color in by_brightness:
    axes["palette"].barh(0, shares[color], left=left, color=palette[color])
    left += shares[color]
axes["palette"].margins(0)
for ax in axes.values():
    ax.axis("off")
plt.show()

# %%
# How many colours, and which method?
# -----------------------------------
#
# On the left the error falls with the number of colours. Look for the place where the line gets
# flat: further colours are hardly worth their bytes. The lines of both methods are close together.
# On the right are the passes over the rows, where they are far apart.
#
# For this photograph, which is in memory, a pass costs little, and either method will do.
# If each pass reads your rows from files, try ``MiniBatchKMeans`` first.
fig, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for method, color in ((KMeans, "#3499cd"), (MiniBatchKMeans, "#f79a3b")):
    sizes = [n_colors for key, n_colors in fits if key is method]
    for ax, position in zip(axes, (1, 2), strict=True):
        values = [fits[method, n_colors][position] for n_colors in sizes]
        ax.plot(sizes, values, "o-", color=color, label=method.__name__)
for ax, name in zip(axes, ("error of a value, of 255", "passes over the rows"), strict=True):
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, sizes)
    ax.set_ylim(bottom=0)
    ax.set(xlabel="colours", ylabel=name)
axes[0].legend(frameon=False)
axes[1].yaxis.get_major_locator().set_params(integer=True)
plt.show()

# %%
# Where to go from here
# ---------------------
#
# * :doc:`/guide/clustering`: which method to choose, and what each of them reads.
# * :class:`~skfleet.estimators.KMeans` and :class:`~skfleet.estimators.MiniBatchKMeans` in the
#   reference.
