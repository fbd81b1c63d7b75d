"""Blocks are decomposed and clustered where they are, and compared with what made them."""

import dask.array as da
import numpy as np
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline

from skfleet import Fleet
from skfleet.engine import counting
from skfleet.estimators import PCA, KMeans, MiniBatchKMeans

if __name__ == "__main__":
    X, truth = make_blobs(40_000, 20, centers=6, cluster_std=2.0, random_state=0)
    rows = da.from_array(X, chunks=(5_000, 20))
    with Fleet(n_workers=2) as client:
        with counting() as counts:
            model = KMeans(6, random_state=0).fit(rows)
        print(model.labels_)
        print(
            "passes:", counts.passes <= 20, "agreement:", adjusted_rand_score(truth, model.labels_)
        )
        print("sizes:", np.sort(np.bincount(model.predict(rows).compute())))

        small = make_pipeline(PCA(3, random_state=0), KMeans(6, random_state=0)).fit(rows)
        print("of three components:", round(adjusted_rand_score(truth, small.predict(rows)), 2))
        print("variance:", small[0].explained_variance_ratio_.sum() > 0.5)

        batches = MiniBatchKMeans(6, random_state=0, batch_size=2_000).fit(rows)
        print("in batches:", round(adjusted_rand_score(truth, batches.labels_), 2))
        print("distances:", model.transform(rows))
