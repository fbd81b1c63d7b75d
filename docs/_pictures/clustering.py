"""Cluster two sets of rows in three ways."""

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from _drawing import BLUE, GREY, ORANGE
from sklearn.datasets import make_blobs, make_circles
from sklearn.preprocessing import StandardScaler

from skfleet import Fleet
from skfleet.estimators import GaussianMixture, KMeans, SpectralClustering

COLOURS = BLUE, ORANGE, GREY
N_ROWS = 600

blobs, _ = make_blobs(N_ROWS, centers=[(-4, 0), (0, 0), (4, 0)], random_state=0)
circles, _ = make_circles(N_ROWS, noise=0.05, factor=0.4, random_state=0)
sets = {
    "stretched": (blobs @ [[0.6, -0.6], [0.0, 3.0]], 3),
    "rings": (circles, 2),
}

plt.rcParams["font.size"] = 10
figure, grid = plt.subplots(2, 3, figsize=(7, 4.2))
with Fleet(n_workers=2, processes=False):
    for row, (name, (X, n_clusters)) in zip(grid, sets.items(), strict=True):
        X = StandardScaler().fit_transform(X)
        rows = da.from_array(X, chunks=(200, 2))
        models = (
            KMeans(n_clusters, random_state=0),
            GaussianMixture(n_clusters, random_state=0),
            SpectralClustering(n_clusters, gamma=15, n_landmarks=200, random_state=0),
        )
        for axes, model in zip(row, models, strict=True):
            labels = np.asarray(model.fit_predict(rows))
            order = np.argsort([X[labels == label, 0].mean() for label in range(n_clusters)])
            for label, colour in zip(order, COLOURS, strict=False):
                axes.plot(*X[labels == label].T, ".", markersize=3.5, color=colour)
            axes.set(xticks=[], yticks=[])
            if name == "stretched":
                axes.set_title(type(model).__name__, fontsize=10)
        row[0].set_ylabel(name)
figure.tight_layout()
